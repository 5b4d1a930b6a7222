//! Every allocation and every copy of a batch and of a wait fails once: what a call says it has
//! done is what it has done.

#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::os::fd::{AsRawFd, OwnedFd};

use busbar_uapi::epoll::{CTL_ADD, CTL_DEL, CTL_MOD, EpollCtlCmd, EpollEvent, IN, Syscalls};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};
use support::fault::{FailNth, arm};

/// More than the kernel takes over in one piece, which is 16.
const FILES: usize = 40;
/// In a result that the kernel has not written.
const UNTOUCHED: i32 = 7;

fn set() -> (OwnedFd, Syscalls) {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let calls = Syscalls::probe(&set).unwrap().expect("the lab's kernel has the calls");
    (set, calls)
}

fn files() -> Vec<OwnedFd> {
    let file = |_| eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    (0..FILES).map(file).collect()
}

fn commands(op: i32, files: &[OwnedFd]) -> Vec<EpollCtlCmd> {
    let command = |file: &OwnedFd| EpollCtlCmd {
        op,
        fd: file.as_raw_fd(),
        events: IN,
        result: UNTOUCHED,
        ..Default::default()
    };
    files.iter().map(command).collect()
}

/// Which of the files the set watches: only these can be changed.
fn watched(calls: Syscalls, set: &OwnedFd, files: &[OwnedFd]) -> Vec<bool> {
    let mut changes = commands(CTL_MOD, files);
    let is_watched =
        |change: &mut EpollCtlCmd| calls.ctl_batch(set, std::slice::from_mut(change)) == Ok(1);
    changes.iter_mut().map(is_watched).collect()
}

#[test]
#[ignore = "needs the lab"]
fn a_batch_has_done_what_it_says() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    let mut failures = Vec::new();
    for fault in 1..1000 {
        let (set, calls) = set();
        let mut adds = commands(CTL_ADD, &files);
        let (done, hit) = nth.run(fault, || calls.ctl_batch(&set, &mut adds));
        let done = match done {
            Ok(done) => done,
            Err(errno) => {
                assert!(hit && errno == Errno::FAULT, "fault {fault}: {errno}");
                failures.push(errno);
                0
            }
        };
        let watched = watched(calls, &set, &files);
        let as_told = |(index, is_watched): (usize, &bool)| *is_watched == (index < done);
        assert!(watched.iter().enumerate().all(as_told), "fault {fault}: {done}, {watched:?}");
        match (done, hit) {
            (FILES, false) => break,
            // Results that could not be written: the count tells of them.
            (FILES, true) => continue,
            _ => {}
        }
        assert!(hit, "fault {fault}: only {done}");
        if adds[done].result == -Errno::NOMEM.raw_os_error() {
            failures.push(Errno::NOMEM);
        }
        let untouched = adds[(done + 1).min(FILES)..].iter().all(|add| add.result == UNTOUCHED);
        assert!(untouched, "fault {fault}: {adds:?}");
    }
    for errno in [Errno::NOMEM, Errno::FAULT] {
        assert!(failures.contains(&errno), "{errno} never");
    }
}

#[test]
#[ignore = "needs the lab"]
fn what_allocates_nothing_fails_only_of_copies() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    for op in [CTL_MOD, CTL_DEL] {
        for fault in 1..1000 {
            let (set, calls) = set();
            assert_eq!(calls.ctl_batch(&set, &mut commands(CTL_ADD, &files)), Ok(FILES));
            let mut changes = commands(op, &files);
            let (done, hit) = nth.run(fault, || calls.ctl_batch(&set, &mut changes));
            if done == Ok(FILES) && !hit {
                break;
            }
            assert!(hit && matches!(done, Ok(_) | Err(Errno::FAULT)), "fault {fault}: {done:?}");
            // Commands may not have been got at, but none was refused. Not every fault is felt: a
            // debug kernel also allocates for itself.
            let refused = changes.iter().find(|change| ![0, UNTOUCHED].contains(&change.result));
            assert!(refused.is_none(), "fault {fault}: {refused:?}");
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn no_event_is_lost_by_a_wait_that_fails() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    let (set, calls) = set();
    assert_eq!(calls.ctl_batch(&set, &mut commands(CTL_ADD, &files)), Ok(FILES));
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut failed = false;
    for fault in 1..1000 {
        let mut events = [EpollEvent { events: 0, u64: 0 }; FILES];
        let wait = |events: &mut [EpollEvent]| {
            calls.pwait1(&set, 0, events, ClockId::Monotonic, Some(&zero), None)
        };
        let (waited, hit) = nth.run(fault, || wait(&mut events));
        match waited {
            Ok(FILES) if !hit => break,
            Ok(count) => assert!(hit, "fault {fault}: {count}"),
            Err(errno) => assert!(hit && errno == Errno::FAULT, "fault {fault}: {errno}"),
        }
        failed |= waited != Ok(FILES);
        assert_eq!(wait(&mut events), Ok(FILES), "fault {fault}");
    }
    assert!(failed, "no fault was felt");
}
