//! What can be asked today for the paths that this version of Busbar does not have yet.

use std::fs::File;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::{Answer, Diagnosis};

/// Seconds beyond what the older call can wait, so that the newer one is made.
const LONG: Timespec = Timespec { tv_sec: i32::MAX as i64 / 1000 * 2, tv_nsec: 0 };

pub fn wait() -> Diagnosis {
    let mut diagnosis = Diagnosis::new("wait", "many descriptors with deadlines in microseconds");
    diagnosis.note("epoll_pwait2", answer(epoll_pwait2(), "waits in nanoseconds"));
    diagnosis.note("timerfd", answer(timerfd(), "tells a clock of your choice"));
    diagnosis.note("io_uring", answer(busbar_uapi::probe::io_uring(), "may be used"));
    let unnumbered = "not asked: their patch, and so their numbers, come with a later version";
    diagnosis.note("epoll_ctl_batch, epoll_pwait1", Err(unnumbered.into()));
    not_yet(&mut diagnosis);
    diagnosis
}

fn not_yet(diagnosis: &mut Diagnosis) {
    diagnosis.uses("nothing yet: this path comes with a later version of Busbar");
}

fn answer<T>(result: Result<T, Errno>, yes: &str) -> Answer {
    result.map(|_| yes.into()).map_err(no)
}

pub(super) fn no(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// Makes the call, on a descriptor that is ready so that it does not wait.
fn epoll_pwait2() -> Result<(), Errno> {
    let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &ready, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let mut events = Vec::with_capacity(1);
    epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&LONG)).map(drop)
}

fn timerfd() -> Result<(), Errno> {
    timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map(drop)
}

pub(super) fn openable(path: &str) -> Answer {
    match File::options().read(true).write(true).open(path) {
        Ok(_) => Ok("opens".into()),
        Err(error) => Err(error.to_string()),
    }
}
