//! What there is to wait with: the calls, and the back end that a poller chooses.

use std::time::Duration;

use busbar::wait::{Backend, Events, Interest, Poller, Timeout};
use busbar_uapi::epoll::Syscalls;
use rustix::event::epoll::{CreateFlags, create};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::{Answer, Diagnosis, no};

/// Not whole milliseconds, so that a poller without the patches makes the newest call it has.
const SHORT: Duration = Duration::from_micros(1);

pub fn diagnose() -> Diagnosis {
    let mut diagnosis = Diagnosis::new("wait", "many descriptors with deadlines in microseconds");
    diagnosis.note("epoll_ctl_batch, epoll_pwait1", patches());
    let backend = settle(Backend::Pwait2);
    diagnosis.note("epoll_pwait2", pwait2(&backend));
    diagnosis.note("timer descriptors", timers());
    let settled = Poller::new().map_err(|error| error.to_string()).and_then(|it| settled(&it));
    conclude(&mut diagnosis, &settled);
    diagnosis
}

/// What the library uses on this kernel, and what would improve it.
fn conclude(diagnosis: &mut Diagnosis, settled: &Result<Backend, String>) {
    match settled {
        Ok(backend) => diagnosis.uses(format!("back end {backend}: {}", meaning(*backend))),
        Err(why) => diagnosis.uses(format!("nothing: {why}")),
    }
    if !matches!(settled, Ok(Backend::Batch)) {
        diagnosis.advise(
            "for one call in place of many: a kernel with Busbar's patches for wait \
             (docs/kernels.md), or the lab's: busbar lab shell",
        );
    }
    if matches!(settled, Ok(Backend::Timerfd | Backend::Millis)) {
        diagnosis
            .advise("for waits in nanoseconds: Linux 5.11 (epoll_pwait2), and no filter before it");
    }
}

fn meaning(backend: Backend) -> &'static str {
    match backend {
        Backend::Batch => "one call for many changes, waits in nanoseconds by a clock of choice",
        Backend::Pwait2 => "one call for each change, waits in nanoseconds",
        Backend::Timerfd => "one call for each change, up to four for a wait in nanoseconds",
        Backend::Millis => "one call for each change, waits in milliseconds",
        _ => "newer than this command",
    }
}

fn patches() -> Answer {
    let epfd = create(CreateFlags::CLOEXEC).map_err(no)?;
    match Syscalls::probe(&epfd) {
        Ok(Some(_)) => Ok("the kernel has Busbar's patches".into()),
        Ok(None) => Err("the kernel is without Busbar's patches".into()),
        Err(errno) => Err(format!("a filter of system calls prevents the question: {}", no(errno))),
    }
}

fn pwait2(settled: &Result<Backend, String>) -> Answer {
    match settled {
        Ok(Backend::Pwait2) => Ok("waits in nanoseconds".into()),
        Ok(_) => Err("not in this kernel, or denied by a filter of system calls".into()),
        Err(why) => Err(why.clone()),
    }
}

fn timers() -> Answer {
    let timer = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC);
    timer.map(|_| "tell every clock".into()).map_err(no)
}

/// The back end that a poller asked for this one uses in the end.
fn settle(backend: Backend) -> Result<Backend, String> {
    let poller = Poller::with_backend(backend).map_err(|error| error.to_string())?;
    settled(&poller)
}

/// Makes it change its set and wait: a missing call shows only when it is used.
fn settled(poller: &Poller) -> Result<Backend, String> {
    let text = |error: busbar::Error| error.to_string();
    let ready = eventfd(1, EventfdFlags::CLOEXEC).map_err(no)?;
    poller.add(&ready, 0, Interest::READABLE).map_err(text)?;
    let mut events = Events::new(1).map_err(text)?;
    match poller.wait_timeout(&mut events, Timeout::After(SHORT)).map_err(text)? {
        0 => Err(no(Errno::TIMEDOUT)),
        _ => Ok(poller.backend()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concluded(settled: &Result<Backend, String>) -> Diagnosis {
        let mut diagnosis = Diagnosis::new("wait", "");
        conclude(&mut diagnosis, settled);
        diagnosis
    }

    #[test]
    fn patches_are_named_where_they_are_missing() {
        assert!(concluded(&Ok(Backend::Batch)).advice.is_empty());
        for backend in [Backend::Pwait2, Backend::Timerfd, Backend::Millis] {
            let advice = concluded(&Ok(backend)).advice.join("\n");
            assert!(advice.contains("Busbar's patches for wait"), "{advice}");
            assert_eq!(advice.contains("Linux 5.11"), backend != Backend::Pwait2, "{advice}");
        }
        assert!(concluded(&Err("denied".into())).uses.join("").contains("nothing: denied"));
    }

    #[test]
    fn the_back_end_is_the_one_that_a_poller_ends_up_with() {
        let diagnosis = diagnose();
        let poller = Poller::new().unwrap();
        settled(&poller).unwrap();
        let begins = format!("back end {}: ", poller.backend());
        assert!(diagnosis.uses[0].starts_with(&begins), "{:?}", diagnosis.uses);
        // The answers say why.
        let available = |index: usize| diagnosis.findings[index].available;
        assert_eq!(available(0), poller.backend() == Backend::Batch);
        assert_eq!(settle(Backend::Millis), Ok(Backend::Millis));
    }
}
