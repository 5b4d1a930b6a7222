//! `linux/time.h`: the processor time of another process.

use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// The processor time that all threads of a process have taken, those that have ended among them, and the kernel on
/// their behalf.
///
/// # Errors
///
/// `ESRCH` if there is no such process.
pub fn processor_time(process: Pid) -> Result<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the pointer is that of a clock's number.
    let errno =
        unsafe { libc::clock_getcpuclockid(process.as_raw_nonzero().get(), &raw mut clock) };
    if errno != 0 {
        return Err(Errno::from_raw_os_error(errno));
    }
    // SAFETY: the pointer is that of a time.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        // The process has ended since.
        return Err(Errno::SRCH);
    }
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Ok(Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos))
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn processor_time_grows_with_work_and_needs_a_process() {
        let before = processor_time(getpid()).unwrap();
        let until = before + Duration::from_millis(2);
        while processor_time(getpid()).unwrap() < until {}
        // Above `PID_MAX_LIMIT`, and not so large that the number of its clock overflows.
        let nobody = Pid::from_raw(1 << 23).unwrap();
        assert_eq!(processor_time(nobody), Err(Errno::SRCH));
    }
}
