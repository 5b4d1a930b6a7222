//! Every allocation and every copy of a batch and of a wait fails once: a call has done exactly what
//! it reports.

#[path = "../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use busbar::wait::{Backend, Changes, Interest, Poller};
use busbar_uapi::epoll::{
    BATCH_CONTINUE, CTL_ADD, CTL_DEL, CTL_MOD, EpollCtlCmd, EpollEvent, IN, Syscalls,
};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};
use support::fault::{FailNth, arm};

/// Commands that the kernel copies at once.
const CHUNK: usize = 16;
/// More than that.
const FILES: usize = 40;
/// Value of a result that the kernel has not written.
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

/// The files that the set watches: only these can be changed.
fn watched(calls: Syscalls, set: &OwnedFd, files: &[OwnedFd]) -> Vec<bool> {
    let mut changes = commands(CTL_MOD, files);
    let is_watched =
        |change: &mut EpollCtlCmd| calls.ctl_batch(set, 0, std::slice::from_mut(change)) == Ok(1);
    changes.iter_mut().map(is_watched).collect()
}

#[test]
#[ignore = "needs the lab"]
fn a_batch_has_done_what_it_says() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    let mut failures = 0;
    for fault in 1..1000 {
        let (set, calls) = set();
        let mut adds = commands(CTL_ADD, &files);
        let (done, hit) = nth.run(fault, || calls.ctl_batch(&set, 0, &mut adds));
        // A copy that fails is made again, command by command.
        let done = done.unwrap();
        let watched = watched(calls, &set, &files);
        let as_told = |(index, is_watched): (usize, &bool)| *is_watched == (index < done);
        assert!(watched.iter().enumerate().all(as_told), "fault {fault}: {done}, {watched:?}");
        match (done, hit) {
            (FILES, false) => break,
            (FILES, true) => continue,
            _ => {}
        }
        assert!(hit, "fault {fault}: only {done}");
        assert_eq!(adds[done].outcome(), Err(Errno::NOMEM), "fault {fault}");
        failures += 1;
        let untouched = adds[done + 1..].iter().all(|add| add.result == UNTOUCHED);
        assert!(untouched, "fault {fault}: {adds:?}");
    }
    assert_ne!(failures, 0);
}

#[test]
#[ignore = "needs the lab"]
fn a_batch_that_goes_on_has_done_what_each_result_says() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    let mut failures = 0;
    for fault in 1..1000 {
        let (set, calls) = set();
        let mut adds = commands(CTL_ADD, &files);
        let (done, hit) = nth.run(fault, || calls.ctl_batch(&set, BATCH_CONTINUE, &mut adds));
        assert_eq!(done, Ok(FILES), "fault {fault}");
        let told: Vec<_> = adds.iter().map(|add| add.result == 0).collect();
        assert_eq!(watched(calls, &set, &files), told, "fault {fault}");
        let refused = adds.iter().filter_map(|add| add.outcome().err());
        let refused: Vec<_> = refused.collect();
        assert!(
            refused.is_empty() || hit && refused == [Errno::NOMEM],
            "fault {fault}: {refused:?}"
        );
        failures += refused.len();
        if !hit {
            break;
        }
    }
    assert_ne!(failures, 0);
}

/// If memory is unmapped in the middle, the commands behind it were not tried. The kernel reports so,
/// and so does the library.
#[test]
#[ignore = "needs the lab"]
fn what_could_not_be_read_is_told_as_that() {
    let (files, told) = (files(), -Errno::FAULT.raw_os_error());
    let (mut seen, mut seen_by_library) = (0, 0);
    for copies in 2..=6 {
        let (set, calls) = set();
        let mut adds = commands(CTL_ADD, &files);
        let done = without_copies(copies, || calls.ctl_batch(&set, 0, &mut adds));
        match done {
            Ok(done) if done < FILES => {
                assert_eq!((done % CHUNK, adds[done].result), (0, told), "{copies}");
                assert!(adds[done + 1..].iter().all(|add| add.result == UNTOUCHED));
                assert_eq!(watched(calls, &set, &files).iter().filter(|it| **it).count(), done);
                seen += 1;
            }
            other => assert!(matches!(other, Ok(FILES) | Err(Errno::FAULT)), "{other:?}"),
        }
        let poller = Poller::with_backend(Backend::Batch).unwrap();
        let mut changes = Changes::new();
        for file in &files {
            changes.add(file, 0, Interest::READABLE);
        }
        let applied = without_copies(copies, || poller.apply(&mut changes));
        if let Some(failure) = applied.failure() {
            assert_eq!(failure.errno(), Errno::FAULT, "{applied:?}");
            seen_by_library += u32::from(applied.done() > 0);
        }
    }
    assert!(seen > 0 && seen_by_library > 0, "{seen}, {seen_by_library}");
}

/// Runs `call` in a thread in which at most the first `copies` copies succeed. Another thread
/// has to end this, as the thread itself cannot.
fn without_copies<T: Send>(copies: u32, call: impl FnOnce() -> T + Send) -> T {
    let fault = Path::new("/sys/kernel/debug/fail_usercopy");
    let set = |name: &str, value: &str| fs::write(fault.join(name), value).expect("a debug kernel");
    let (space, is_over) = (copies.to_string(), AtomicBool::new(false));
    for (name, value) in
        [("task-filter", "Y"), ("verbose", "0"), ("interval", "1"), ("times", "-1")]
    {
        set(name, value);
    }
    set("space", &space);
    set("probability", "100");
    let result = thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut switch = File::options().write(true).open("/proc/thread-self/make-it-fail");
            switch.as_mut().unwrap().write_all(b"1").unwrap();
            let result = call();
            is_over.store(true, Ordering::Release);
            // No system call is possible until the other thread has ended this.
            while is_over.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            result
        });
        while !is_over.load(Ordering::Acquire) && !caller.is_finished() {
            thread::yield_now();
        }
        set("probability", "0");
        is_over.store(false, Ordering::Release);
        caller.join().unwrap()
    });
    set("task-filter", "N");
    result
}

#[test]
#[ignore = "needs the lab"]
fn what_allocates_nothing_is_not_harmed_by_one_copy_that_fails() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    for op in [CTL_MOD, CTL_DEL] {
        for fault in 1..1000 {
            let (set, calls) = set();
            assert_eq!(calls.ctl_batch(&set, 0, &mut commands(CTL_ADD, &files)), Ok(FILES));
            let mut changes = commands(op, &files);
            let (done, hit) = nth.run(fault, || calls.ctl_batch(&set, 0, &mut changes));
            assert_eq!(done, Ok(FILES), "fault {fault}");
            assert!(changes.iter().all(|change| change.result == 0), "fault {fault}: {changes:?}");
            if !hit {
                break;
            }
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn no_event_is_lost_by_a_wait_that_fails() {
    arm();
    let (nth, files) = (FailNth::open(), files());
    let (set, calls) = set();
    assert_eq!(calls.ctl_batch(&set, 0, &mut commands(CTL_ADD, &files)), Ok(FILES));
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
