//! The rate of this machine's time stamp counter.
//!
//! QEMU's emulation passes the host's counter to the guest unchanged. The guest would measure its rate by
//! comparison with emulated timers, and on a busy host the result can be wrong by a factor, and so would
//! its clock. Therefore the rate is on the kernel's command line.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The error of a reading, well below a microsecond, is a millionth of this time.
const SPAN: Duration = Duration::from_millis(100);
/// Of this many readings, one is not interrupted.
const TRIES: usize = 100;

/// The rate in kHz, if the host itself keeps time with the counter.
pub(crate) fn khz() -> Option<u64> {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(file).ok()?;
    if !["tsc", "kvm-clock"].contains(&source.trim()) {
        return None;
    }
    let (first, from) = reading()?;
    sleep(SPAN);
    let (last, to) = reading()?;
    let nanoseconds = u64::try_from((to - from).as_nanos()).ok()?;
    Some((last - first).saturating_mul(1_000_000) / nanoseconds)
}

/// The counter at a time, from the closest of some readings.
fn reading() -> Option<(u64, Instant)> {
    let one = |_| {
        let before = Instant::now();
        let count = counter()?;
        Some((before.elapsed(), count, before))
    };
    let (width, count, before) = (0..TRIES).filter_map(one).min()?;
    Some((count, before + width / 2))
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, clippy::unnecessary_wraps)]
fn counter() -> Option<u64> {
    // SAFETY: every x86-64 has the instruction; it only reads a register.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        // On other architectures there is no such option.
        if let (Some(one), Some(two)) = (khz(), khz()) {
            assert!(one > 100_000, "{one} kHz");
            assert!(one.abs_diff(two) < one / 10_000, "{one} and {two} kHz");
        }
    }
}
