//! One suite over all back ends of `busbar::wait`.
//!
//! Those of stock kernels are tested on any kernel. `epoll_ctl_batch` and `epoll_pwait1` need
//! the lab: `cargo test -p busbar --test wait -- --ignored` there. No test asserts that something
//! is fast. A wait must not end early; if one that has to end does not, the test hangs.

use std::collections::HashMap;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::{Duration, SystemTime};

use busbar::wait::{
    Applied, Backend, Changes, Clock, Event, Events, Failure, Instant, Interest, Operation, Poller,
    SignalSet, Timeout,
};
use busbar_uapi::epoll::{self, EpollCtlCmd, Syscalls};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, dup, dup2, fcntl_dupfd_cloexec};
use rustix::process::Signal;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
const CLOCKS: [Clock; 3] = [Clock::Monotonic, Clock::Realtime, Clock::Boottime];

/// Makes four tests of each function.
macro_rules! on_all {
    ($(fn $name:ident($backend:ident) $body:block)*) => {
        mod batch {
            $(#[test]
            #[ignore = "needs the lab"]
            fn $name() {
                let _unset = super::unset_clock();
                super::cases::$name(super::Backend::Batch);
            })*
        }
        on_all!(@host pwait2 Pwait2 $($name)*);
        on_all!(@host timerfd Timerfd $($name)*);
        on_all!(@host millis Millis $($name)*);
        mod cases {
            use super::*;
            $(pub fn $name($backend: Backend) $body)*
        }
    };
    (@host $module:ident $variant:ident $($name:ident)*) => {
        mod $module {
            $(#[test]
            fn $name() { super::cases::$name(super::Backend::$variant) })*
        }
    };
}

/// Excludes tests that set the clock.
static CLOCK: RwLock<()> = RwLock::new(());

fn unset_clock() -> RwLockReadGuard<'static, ()> {
    CLOCK.read().unwrap_or_else(PoisonError::into_inner)
}

fn poller(backend: Backend) -> Poller {
    Poller::with_backend(backend).unwrap()
}

fn event(count: u32) -> OwnedFd {
    eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// The same for queued changes.
fn shared(count: u32) -> Arc<OwnedFd> {
    Arc::new(event(count))
}

fn signal(event: &impl AsFd) {
    rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
}

fn drain(event: &impl AsFd) {
    rustix::io::read(event, &mut [0; 8]).unwrap();
}

fn room() -> Events {
    Events::new(64).unwrap()
}

/// The events that are there now, by key.
#[track_caller]
fn now(poller: &Poller) -> Vec<Event> {
    let mut events = room();
    let count = poller.try_wait(&mut events).unwrap();
    assert_eq!(count, events.len());
    let mut events: Vec<_> = events.iter().collect();
    events.sort_by_key(|event| event.key());
    events
}

#[track_caller]
fn keys(poller: &Poller) -> Vec<u64> {
    now(poller).into_iter().map(Event::key).collect()
}

#[track_caller]
fn assert_fails<T: std::fmt::Debug>(result: busbar::Result<T>, errno: Errno) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), Some(errno), "{error}");
    error.to_string()
}

#[track_caller]
fn assert_stopped(applied: Applied, done: usize, errno: Errno) {
    assert_eq!(applied.done(), done, "{applied:?}");
    assert_eq!(applied.failure().map(Failure::errno), Some(errno));
    let text = assert_fails(applied.ok(), errno);
    assert!(text.contains(&format!("change {done} of the batch")), "{text}");
}

/// A descriptor whose number is not used again in this process.
fn private(fd: impl AsFd) -> OwnedFd {
    static NEXT: AtomicI32 = AtomicI32::new(300);
    fcntl_dupfd_cloexec(fd, NEXT.fetch_add(1, Ordering::Relaxed)).unwrap()
}

/// The content of a poller as the kernel reports it: number, interest and key.
fn contents(poller: &impl AsFd) -> Vec<(RawFd, u32, u64)> {
    let path = format!("/proc/self/fdinfo/{}", poller.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let entry = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let [_, fd, _, events, _, data, ..] = words[..] else { panic!("{line}") };
        (fd.parse().unwrap(), u32::try_from(hex(events)).unwrap(), hex(data))
    };
    let mut entries: Vec<_> =
        text.lines().filter(|line| line.starts_with("tfd:")).map(entry).collect();
    entries.sort_unstable();
    entries
}

/// Each form of a timeout that ends after `duration`.
fn timeouts(duration: Duration) -> Vec<Timeout> {
    let ends = CLOCKS.map(|clock| Timeout::At(clock.now() + duration));
    [Timeout::After(duration), Timeout::AfterWithSuspend(duration)]
        .into_iter()
        .chain(ends)
        .collect()
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// The kernel's information about a thread.
fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[allow(unsafe_code)]
fn send_signal(thread: i32) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes three numbers, and the signal has a handler.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
    assert_eq!(sent, 0);
}

/// A handler that does nothing, so that the signal ends calls and not the process.
fn handle_signal() {
    signal_hook::flag::register(libc::SIGUSR1, Arc::new(AtomicBool::new(false))).unwrap();
}

/// Makes the kernel answer the calling thread's `call`s with `errno`.
#[allow(unsafe_code)]
fn deny(call: libc::c_long, errno: Errno) {
    let statement = |code: u32, k| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: u8::from(code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
        k,
    };
    let number_offset = 0;
    let answer = libc::SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned();
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number_offset),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::try_from(call).unwrap()),
        statement(libc::BPF_RET | libc::BPF_K, answer),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).unwrap();
    // SAFETY: `filter` is a program of four statements that lives as long as the call.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Runs a function in a thread of its own, because it makes changes that a thread cannot undo.
fn apart(run: impl FnOnce() + Send + 'static) {
    thread::spawn(run).join().unwrap();
}

on_all! {
    fn events_say_what_has_happened_and_on_which_key(backend) {
        let poller = poller(backend);
        assert_eq!(poller.backend(), backend);
        let (mut one, two) = UnixStream::pair().unwrap();
        let all = Interest::READABLE | Interest::WRITABLE | Interest::READ_HANGUP;
        poller.add(&two, u64::MAX, all).unwrap();
        let [event] = now(&poller)[..] else { panic!("writable") };
        assert_eq!(event.key(), u64::MAX);
        assert!(event.is_writable() && !event.is_readable() && !event.is_read_hangup());
        one.write_all(b"x").unwrap();
        let [event] = now(&poller)[..] else { panic!("readable") };
        assert!(event.is_readable() && event.is_writable() && !event.is_hangup());
        one.shutdown(std::net::Shutdown::Write).unwrap();
        let [event] = now(&poller)[..] else { panic!("end") };
        assert!(event.is_read_hangup() && !event.is_hangup() && !event.is_error());
        drop(one);
        poller.change(&two, 3, Interest::NONE).unwrap();
        let [event] = now(&poller)[..] else { panic!("hang-up") };
        assert!(event.key() == 3 && event.is_hangup() && !event.is_readable());
        poller.remove(&two).unwrap();
        assert_eq!(now(&poller), []);
    }

    fn urgent_data_and_failure_are_events(backend) {
        let poller = poller(backend);
        let (client, server) = tcp();
        poller.add(&server, 1, Interest::PRIORITY).unwrap();
        assert_eq!(now(&poller), []);
        rustix::net::send(&client, b"!", rustix::net::SendFlags::OOB).unwrap();
        let mut events = room();
        poller.wait_timeout(&mut events, LONG).unwrap();
        assert!(events.iter().all(Event::is_priority) && events.len() == 1, "{events:?}");
        let (reader, writer) = pipe().unwrap();
        poller.add(&writer, 2, Interest::NONE).unwrap();
        drop(reader);
        assert!(now(&poller).iter().any(|event| event.key() == 2 && event.is_error()));
    }

    fn a_level_is_told_as_long_as_it_is_so(backend) {
        let (poller, event) = (poller(backend), event(1));
        poller.add(&event, 1, Interest::READABLE).unwrap();
        assert_eq!((keys(&poller), keys(&poller)), (vec![1], vec![1]));
        drain(&event);
        assert_eq!(keys(&poller), [0u64; 0]);
    }

    fn an_edge_is_told_once_for_each_arrival(backend) {
        let (poller, event) = (poller(backend), event(1));
        poller.add(&event, 1, Interest::READABLE.edge()).unwrap();
        assert_eq!((keys(&poller), keys(&poller)), (vec![1], vec![]));
        signal(&event);
        assert_eq!((keys(&poller), keys(&poller)), (vec![1], vec![]));
        poller.change(&event, 2, Interest::READABLE.edge()).unwrap();
        assert_eq!((keys(&poller), keys(&poller)), (vec![2], vec![]));
    }

    fn a_one_shot_is_told_once_until_it_is_changed(backend) {
        let (poller, event) = (poller(backend), event(1));
        poller.add(&event, 1, Interest::READABLE.one_shot()).unwrap();
        assert_eq!((keys(&poller), keys(&poller)), (vec![1], vec![]));
        signal(&event);
        assert_eq!(keys(&poller), [0u64; 0]);
        poller.change(&event, 2, Interest::READABLE.one_shot()).unwrap();
        assert_eq!((keys(&poller), keys(&poller)), (vec![2], vec![]));
    }

    fn of_two_exclusive_pollers_at_least_one_is_woken(backend) {
        let (event, took) = (event(0), AtomicUsize::new(0));
        let pollers = [poller(backend), poller(backend)];
        let wakers = pollers.each_ref().map(|poller| poller.waker(2).unwrap());
        thread::scope(|scope| {
            for poller in &pollers {
                poller.add(&event, 1, Interest::READABLE.exclusive()).unwrap();
                let (event, took) = (&event, &took);
                scope.spawn(move || {
                    let mut events = room();
                    while !events.iter().any(|event| event.key() == 2) {
                        poller.wait_timeout(&mut events, LONG).unwrap();
                        let one = events.iter().any(|event| event.key() == 1);
                        if one && rustix::io::read(event, &mut [0; 8]).is_ok() {
                            took.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for round in 1..=20 {
                signal(&event);
                while took.load(Ordering::Relaxed) < round {
                    thread::yield_now();
                }
            }
            for waker in &wakers {
                waker.wake().unwrap();
            }
        });
        assert_eq!(took.into_inner(), 20);
    }

    fn what_exclusive_does_not_go_with_is_refused(backend) {
        let (poller, other, event) = (poller(backend), poller(backend), event(0));
        for interest in [Interest::PRIORITY, Interest::READ_HANGUP, Interest::READABLE.one_shot()] {
            let text = assert_fails(poller.add(&event, 1, interest.exclusive()), Errno::INVAL);
            assert!(text.contains("exclusive goes with"), "{text}");
        }
        assert_fails(poller.add(&other, 1, Interest::READABLE.exclusive()), Errno::INVAL);
        poller.add(&event, 1, (Interest::READABLE | Interest::WRITABLE).exclusive().edge()).unwrap();
        let text = assert_fails(poller.change(&event, 1, Interest::READABLE), Errno::INVAL);
        assert!(text.contains("remove and add"), "{text}");
        poller.remove(&event).unwrap();
        poller.add(&event, 1, Interest::READABLE).unwrap();
        assert_fails(poller.change(&event, 1, Interest::READABLE.exclusive()), Errno::INVAL);
    }

    fn each_change_that_cannot_be_made_says_why(backend) {
        let (poller, event) = (poller(backend), event(0));
        let number = event.as_raw_fd();
        let readable = Interest::READABLE;
        let text = assert_fails(poller.change(&event, 9, readable), Errno::NOENT);
        assert!(text.contains(&format!("change descriptor {number} with key 9")), "{text}");
        let text = assert_fails(poller.remove(&event), Errno::NOENT);
        assert!(text.contains(&format!("remove descriptor {number} from")), "{text}");
        poller.add(&event, 9, readable).unwrap();
        let text = assert_fails(poller.add(&event, 8, readable), Errno::EXIST);
        assert!(text.contains("change it"), "{text}");
        let file = tempfile::tempfile().unwrap();
        let text = assert_fails(poller.add(&file, 1, readable), Errno::PERM);
        assert!(text.contains("always ready"), "{text}");
        let error = poller.add(&file, 1, readable).unwrap_err();
        assert_eq!(error.reason(), busbar::Reason::Unsupported, "{error}");
        assert_fails(poller.add(&poller, 1, readable), Errno::INVAL);
        assert_fails(poller.change(&poller, 1, readable), Errno::INVAL);
        assert_fails(poller.remove(&poller), Errno::INVAL);
        let outer = self::poller(backend);
        outer.add(&poller, 1, readable).unwrap();
        let text = assert_fails(poller.add(&outer, 1, readable), Errno::LOOP);
        assert!(text.contains("nest too deep"), "{text}");
        assert_eq!(contents(&poller).len(), 1);
    }

    fn a_batch_stops_at_the_first_failure(backend) {
        let (events, file) = ([event(1), event(1), event(1)], tempfile::tempfile().unwrap());
        for bad in 0..=3 {
            let poller = poller(backend);
            let mut changes = Changes::new();
            for (at, event) in events.iter().enumerate() {
                if at == bad {
                    changes.add(&file, 100, Interest::READABLE);
                }
                changes.add(event, at as u64, Interest::READABLE);
            }
            if bad == 3 {
                changes.add(&file, 100, Interest::READABLE);
            }
            assert_eq!(changes.len(), 4);
            let applied = poller.apply(&mut changes);
            assert_stopped(applied, bad, Errno::PERM);
            let failure = applied.failure().unwrap();
            assert_eq!((failure.fd(), failure.key()), (file.as_raw_fd(), Some(100)));
            assert_eq!(failure.operation(), Operation::Add);
            assert_eq!(keys(&poller), (0..bad as u64).collect::<Vec<_>>());
            // And on behind it.
            let rest = poller.apply(changes.skip(bad + 1));
            assert_eq!((rest.done(), rest.failure()), (3 - bad, None));
            rest.ok().unwrap();
            assert_eq!(keys(&poller), [0, 1, 2]);
        }
    }

    fn a_batch_of_each_kind_and_of_any_length_is_done_in_order(backend) {
        let poller = poller(backend);
        assert_eq!(poller.apply(&mut Changes::new()).done(), 0);
        let event = event(1);
        for length in [1, 2, 15, 16, 17, 33, 300] {
            let mut changes = Changes::new();
            for round in 0..length {
                changes.add(&event, round, Interest::READABLE);
                changes.change(&event, round + 1000, Interest::READABLE);
                changes.remove(&event);
            }
            changes.add(&event, 7, Interest::READABLE);
            let applied = poller.apply(&mut changes);
            applied.ok().unwrap();
            assert_eq!(applied.done(), changes.len());
            assert_eq!(keys(&poller), [7]);
            // Every kind of change, with and without failure.
            assert_stopped(poller.apply(&mut changes), 0, Errno::EXIST);
            let applied = poller.apply(changes.clear().remove(&event).remove(&event));
            assert_stopped(applied, 1, Errno::NOENT);
            let applied = poller.apply(changes.clear().change(&event, 1, Interest::READABLE));
            assert_stopped(applied, 0, Errno::NOENT);
        }
    }

    fn a_batch_can_go_on_after_failures(backend) {
        let (poller, events) = (poller(backend), [shared(1), shared(1)]);
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut changes = Changes::new();
        assert_eq!(poller.apply_all(&mut changes), []);
        let told = |failures: Vec<Failure>| -> Vec<_> {
            failures.iter().map(|it| (it.operation(), it.fd(), it.key(), it.errno())).collect()
        };
        let numbers = [events[0].as_raw_fd(), events[1].as_raw_fd(), file.as_raw_fd()];
        changes.remove(&events[0]).add(&file, 1, Interest::READABLE);
        changes.add(&events[0], 2, Interest::READABLE).add(&events[0], 3, Interest::READABLE);
        changes.change(&events[1], 4, Interest::READABLE).add(&events[1], 5, Interest::READABLE);
        let expected = [
            (Operation::Remove, numbers[0], None, Errno::NOENT),
            (Operation::Add, numbers[2], Some(1), Errno::PERM),
            (Operation::Add, numbers[0], Some(3), Errno::EXIST),
            (Operation::Change, numbers[1], Some(4), Errno::NOENT),
        ];
        assert_eq!(told(poller.apply_all(&mut changes)), expected);
        assert_eq!(keys(&poller), [2, 5]);
        // One change alone, and then the same changes again: their earlier results have no effect.
        let one = changes.clear().add(&file, 6, Interest::READABLE);
        assert_eq!(told(poller.apply_all(one)), [(Operation::Add, numbers[2], Some(6), Errno::PERM)]);
        changes.clear().change(&events[0], 7, Interest::READABLE).remove(&events[1]);
        assert_eq!(poller.apply_all(&mut changes), []);
        let gone = [(Operation::Remove, numbers[1], None, Errno::NOENT)];
        assert_eq!(told(poller.apply_all(&mut changes)), gone);
        poller.add(&events[1], 8, Interest::READABLE).unwrap();
        assert_eq!(poller.apply_all(&mut changes), []);
        // Queued changes are made first, and their failures are reported with those of the queue.
        poller.queue_add(&file, 9, Interest::READABLE);
        poller.queue_add(&events[1], 10, Interest::READABLE);
        assert_eq!(poller.apply_all(&mut changes), []);
        assert_eq!(told(poller.flush()), [(Operation::Add, numbers[2], Some(9), Errno::PERM)]);
        assert_eq!(keys(&poller), [7]);
    }

    fn signals_do_not_cut_a_batch_short(backend) {
        handle_signal();
        let (poller, event, target) = (poller(backend), event(1), this_thread());
        let mut changes = Changes::new();
        for round in 0..3_000 {
            changes.add(&event, round, Interest::READABLE).remove(&event);
        }
        let ended = AtomicBool::new(false);
        let signal = || while !ended.load(Ordering::Relaxed) {
            send_signal(target);
            thread::sleep(Duration::from_micros(100));
        };
        thread::scope(|scope| {
            scope.spawn(signal);
            let (applied, failures) = (poller.apply(&mut changes), poller.apply_all(&mut changes));
            ended.store(true, Ordering::Relaxed);
            assert_eq!((applied.done(), applied.failure()), (changes.len(), None));
            assert_eq!(failures, []);
        });
        assert_eq!(contents(&poller), []);
    }

    fn every_error_of_a_single_change_is_one_of_a_batch(backend) {
        let (poller, outer, event) = (poller(backend), poller(backend), event(0));
        outer.add(&poller, 1, Interest::READABLE).unwrap();
        let file = tempfile::tempfile().unwrap();
        let (readable, priority) = (Interest::READABLE, Interest::PRIORITY.exclusive());
        let mut changes = Changes::new();
        changes.add(&poller, 1, readable).change(&poller, 1, readable).remove(&poller);
        changes.add(&outer, 1, readable).add(&event, 1, priority).add(&file, 1, readable);
        changes.change(&event, 1, readable).remove(&event);
        let expected = [Errno::INVAL; 3].into_iter().chain([Errno::LOOP, Errno::INVAL]);
        for errno in expected.chain([Errno::PERM, Errno::NOENT, Errno::NOENT]) {
            assert_stopped(poller.apply(&mut changes), 0, errno);
            changes.skip(1);
        }
        assert!(changes.is_empty());
        changes.add(&event, 1, readable).add(&event, 1, readable);
        assert_stopped(poller.apply(&mut changes), 1, Errno::EXIST);
    }

    fn no_timeout_ends_early(backend) {
        let (poller, mut events) = (poller(backend), room());
        // The last one is longer than the slices in which `millis` looks at the clock.
        let lengths = [1, 999, 50_000, 1_000_001, 12_345_678, 130_000_000].map(Duration::from_nanos);
        for duration in lengths {
            for timeout in timeouts(duration) {
                let starts = CLOCKS.map(|clock| clock.now() + duration);
                assert_eq!(poller.wait_timeout(&mut events, timeout).unwrap(), 0);
                match timeout {
                    Timeout::At(end) => assert_eq!(end.remaining(), Duration::ZERO, "{timeout:?}"),
                    _ => assert_eq!(starts[0].remaining(), Duration::ZERO, "{timeout:?}"),
                }
            }
        }
        assert_eq!(poller.backend(), backend);
    }

    fn a_time_that_is_over_does_not_wait_but_tells_what_there_is(backend) {
        let (poller, event) = (poller(backend), event(0));
        poller.add(&event, 1, Interest::READABLE).unwrap();
        let zeros = CLOCKS.map(|clock| Timeout::At(Instant::new(clock, Duration::ZERO)));
        let over = timeouts(Duration::ZERO).into_iter().chain(zeros);
        let over: Vec<_> = over.chain([Timeout::At(SystemTime::UNIX_EPOCH.into())]).collect();
        for timeout in &over {
            assert_eq!(poller.wait_timeout(&mut room(), *timeout).unwrap(), 0, "{timeout:?}");
        }
        signal(&event);
        for timeout in &over {
            assert_eq!(poller.wait_timeout(&mut room(), *timeout).unwrap(), 1, "{timeout:?}");
        }
    }

    fn any_timeout_however_long_ends_with_an_event(backend) {
        let ends = CLOCKS.map(|clock| Timeout::At(Instant::new(clock, Duration::MAX)));
        let longest = [Timeout::Never, Duration::MAX.into(), Timeout::AfterWithSuspend(Duration::MAX)];
        let weeks = Duration::from_secs(1 << 32);
        for timeout in longest.into_iter().chain(ends).chain(timeouts(LONG)).chain(timeouts(weeks)) {
            let poller = poller(backend);
            let waker = poller.waker(5).unwrap();
            let woken = thread::spawn(move || {
                thread::sleep(Duration::from_millis(3));
                waker.wake().unwrap();
                // Kept until the wait has seen it.
                waker
            });
            let mut events = room();
            assert_eq!(poller.wait_timeout(&mut events, timeout).unwrap(), 1, "{timeout:?}");
            assert_eq!(events.iter().map(Event::key).collect::<Vec<_>>(), [5]);
            drop(woken.join().unwrap());
        }
    }

    fn timeouts_are_made_of_what_one_has(backend) {
        let (poller, mut events) = (poller(backend), room());
        let end = std::time::Instant::now() + Duration::from_millis(2);
        assert_eq!(poller.wait_timeout(&mut events, Instant::from(end)).unwrap(), 0);
        assert!(std::time::Instant::now() >= end);
        let end = SystemTime::now() + Duration::from_millis(2);
        assert_eq!(poller.wait_timeout(&mut events, Some(Instant::from(end))).unwrap(), 0);
        assert!(SystemTime::now() >= end);
    }

    fn more_events_than_room_come_in_turn(backend) {
        let (poller, ready) = (poller(backend), [event(1), event(1), event(1)]);
        for (key, event) in (0..).zip(&ready) {
            poller.add(event, key, Interest::READABLE).unwrap();
        }
        let mut events = Events::new(2).unwrap();
        assert_eq!(events.capacity(), 2);
        let mut seen = Vec::new();
        for _ in 0..3 {
            assert_eq!(poller.wait(&mut events).unwrap(), 2);
            seen.extend(events.iter().map(Event::key));
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 0, 1, 1, 2, 2]);
        drop(ready);
        assert_eq!(poller.try_wait(&mut events).unwrap(), 0);
        assert!(events.is_empty());
    }

    fn a_signal_ends_a_wait_that_does_not_block_it(backend) {
        handle_signal();
        for timeout in timeouts(LONG).into_iter().chain([Timeout::Never]) {
            let (poller, target, ended) =
                (Arc::new(poller(backend)), this_thread(), Arc::new(AtomicBool::new(false)));
            let sender = {
                let ended = Arc::clone(&ended);
                // One may come before the wait.
                thread::spawn(move || while !ended.load(Ordering::Relaxed) {
                    send_signal(target);
                    thread::sleep(Duration::from_millis(1));
                })
            };
            let error = poller.wait_timeout(&mut room(), timeout).unwrap_err();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{timeout:?}: {error}");
            sender.join().unwrap();
        }
    }

    fn a_mask_lets_in_a_signal_that_waited_for_it(backend) {
        handle_signal();
        apart(move || {
            let poller = poller(backend);
            let open = SignalSet::of_thread().unwrap().without(Signal::USR1);
            open.with(Signal::USR1).block().unwrap();
            for timeout in timeouts(LONG).into_iter().chain([Timeout::Never]) {
                send_signal(this_thread());
                let result = poller.wait_with_mask(&mut room(), timeout, &open);
                assert_fails(result, Errno::INTR);
                // Once: it is gone, and the thread blocks it again.
                assert!(SignalSet::of_thread().unwrap().contains(Signal::USR1));
                let short = Duration::from_millis(1);
                assert_eq!(poller.wait_with_mask(&mut room(), short, &open).unwrap(), 0);
            }
        });
    }

    fn a_mask_keeps_a_signal_out(backend) {
        handle_signal();
        apart(move || {
            let poller = poller(backend);
            let open = SignalSet::of_thread().unwrap().without(Signal::USR1);
            open.block().unwrap();
            let target = this_thread();
            let sender = thread::spawn(move || {
                thread::sleep(Duration::from_millis(2));
                send_signal(target);
            });
            let closed = open.with(Signal::USR1);
            let end = Clock::Monotonic.now() + Duration::from_millis(20);
            // The signal comes before, during or after the wait; this thread must never see it.
            match poller.wait_with_mask(&mut room(), end, &closed) {
                Ok(0) => assert_eq!(end.remaining(), Duration::ZERO),
                other => panic!("{other:?}"),
            }
            sender.join().unwrap();
            // Blocked all the time, a signal does not end a wait without a mask.
            closed.block().unwrap();
            send_signal(target);
            for timeout in timeouts(Duration::from_millis(1)) {
                assert_eq!(poller.wait_timeout(&mut room(), timeout).unwrap(), 0);
            }
            // And what is ready comes before the signal.
            let event = event(1);
            poller.add(&event, 1, Interest::READABLE).unwrap();
            assert_eq!(poller.wait_with_mask(&mut room(), LONG, &open).unwrap(), 1);
            poller.remove(&event).unwrap();
            assert_fails(poller.wait_with_mask(&mut room(), LONG, &open), Errno::INTR);
        });
    }

    fn a_waker_ends_the_wait_that_is_or_the_next(backend) {
        let poller = Arc::new(poller(backend));
        let waker = poller.waker(77).unwrap();
        waker.wake().unwrap();
        assert_eq!(keys(&poller), [77]);
        assert_eq!(keys(&poller), [0u64; 0]);
        for _ in 0..1000 {
            waker.clone().wake().unwrap();
        }
        assert_eq!((keys(&poller), keys(&poller)), (vec![77], vec![]));
        let turns = 200;
        let asked = Arc::new(Barrier::new(2));
        let other = {
            let (waker, asked) = (waker.clone(), Arc::clone(&asked));
            thread::spawn(move || for _ in 0..turns {
                asked.wait();
                waker.wake().unwrap();
            })
        };
        for _ in 0..turns {
            asked.wait();
            let mut events = room();
            assert_eq!(poller.wait_timeout(&mut events, LONG).unwrap(), 1);
        }
        other.join().unwrap();
        assert_eq!(contents(&poller).len(), 1);
        drop(waker);
        assert_eq!(contents(&poller), []);
    }

    fn queued_changes_are_made_by_the_next_wait(backend) {
        let (poller, events) = (poller(backend), [shared(1), shared(1), shared(1)]);
        for (key, event) in (0..).zip(&events) {
            poller.queue_add(event, key, Interest::READABLE);
        }
        assert_eq!(contents(&poller), []);
        assert_eq!(keys(&poller), [0, 1, 2]);
        poller.queue_remove(&events[0]);
        poller.queue_change(&events[1], 11, Interest::WRITABLE);
        poller.queue_change(&events[1], 12, Interest::READABLE);
        assert_eq!(keys(&poller), [2, 12]);
        poller.queue_remove(&events[2]);
        poller.queue_add(&events[2], 22, Interest::READABLE);
        poller.queue_add(&events[0], 10, Interest::READABLE);
        poller.queue_remove(&events[0]);
        assert_eq!(poller.flush(), []);
        assert_eq!(contents(&poller).len(), 2);
        assert_eq!(keys(&poller), [12, 22]);
    }

    fn queued_changes_that_fail_end_the_wait_and_are_told(backend) {
        let (poller, events) = (poller(backend), [shared(1), shared(1)]);
        let file = Arc::new(tempfile::tempfile().unwrap());
        poller.queue_add(&file, 1, Interest::READABLE);
        poller.queue_add(&events[0], 2, Interest::READABLE);
        poller.queue_change(&events[1], 3, Interest::READABLE);
        let mut room = room();
        let text = assert_fails(poller.wait(&mut room), Errno::PERM);
        assert!(text.contains("with key 1"), "{text}");
        let told: Vec<_> = room.failures().iter().map(|failure| {
            (failure.operation(), failure.fd(), failure.key(), failure.errno())
        }).collect();
        let expected = [
            (Operation::Add, file.as_raw_fd(), Some(1), Errno::PERM),
            (Operation::Change, events[1].as_raw_fd(), Some(3), Errno::NOENT),
        ];
        assert_eq!(told, expected);
        assert!(room.is_empty());
        // Once.
        assert_eq!(poller.wait(&mut room).unwrap(), 1);
        assert_eq!(room.failures(), []);
        poller.queue_add(&file, 1, Interest::READABLE);
        let failures = poller.flush();
        assert_eq!(failures.iter().map(|failure| failure.key()).collect::<Vec<_>>(), [Some(1)]);
        assert_eq!(keys(&poller), [2]);
    }

    fn a_change_at_once_comes_after_those_queued(backend) {
        let (poller, events) = (poller(backend), [shared(1), shared(1)]);
        poller.queue_add(&events[0], 1, Interest::READABLE);
        poller.change(&events[0], 2, Interest::READABLE).unwrap();
        assert_eq!(keys(&poller), [2]);
        poller.queue_change(&events[0], 3, Interest::READABLE);
        poller.queue_add(&events[1], 4, Interest::READABLE);
        let mut changes = Changes::new();
        poller.apply(changes.change(&events[0], 5, Interest::READABLE)).ok().unwrap();
        assert_eq!(keys(&poller), [4, 5]);
        // A removal voids an addition that is still queued; another removal has nothing to do.
        poller.remove(&events[1]).unwrap();
        poller.queue_add(&events[1], 6, Interest::READABLE);
        poller.remove(&events[1]).unwrap();
        assert_eq!(keys(&poller), [5]);
        assert_fails(poller.remove(&events[1]), Errno::NOENT);
        poller.queue_change(&events[0], 7, Interest::READABLE);
        assert_fails(poller.add(&events[0], 8, Interest::READABLE), Errno::EXIST);
        // The failure of a queued change is not returned for one that is made at once.
        let file = Arc::new(tempfile::tempfile().unwrap());
        poller.queue_add(&file, 9, Interest::READABLE);
        poller.add(&events[1], 10, Interest::READABLE).unwrap();
        assert_fails(poller.wait(&mut room()), Errno::PERM);
        assert_eq!(keys(&poller).len(), 2);
    }

    fn what_is_queued_keeps_its_descriptor_open(backend) {
        let poller = poller(backend);
        // Added and dropped: the number is not used again, and closing removes it from the poller.
        let fd = Arc::new(private(event(1)));
        let number = fd.as_raw_fd();
        let is_open = || std::fs::exists(format!("/proc/self/fd/{number}")).unwrap();
        poller.queue_add(&fd, 1, Interest::READABLE);
        drop(fd);
        assert!(is_open());
        assert_eq!(poller.flush(), []);
        assert!(!is_open());
        assert_eq!(contents(&poller), []);
        // Another file with its number is not affected.
        let mut later = private(event(1));
        dup2(event(1), &mut later).unwrap();
        assert_eq!(keys(&poller), [0u64; 0]);
        // Changed, or removed and added again, and dropped.
        for is_removed in [false, true] {
            let fd = Arc::new(private(event(1)));
            poller.add(&fd, 2, Interest::READABLE).unwrap();
            if is_removed {
                poller.queue_remove(&fd);
                poller.queue_add(&fd, 3, Interest::READABLE);
            } else {
                poller.queue_change(&fd, 3, Interest::READABLE);
            }
            drop(fd);
            assert_eq!(poller.flush(), []);
            assert_eq!(contents(&poller), []);
        }
    }

    fn a_descriptor_that_is_removed_and_dropped_is_closed_after_its_removal(backend) {
        let poller = poller(backend);
        let (reader, mut writer) = pipe().unwrap();
        let reader = Arc::new(reader);
        let copy = dup(&reader).unwrap();
        writer.write_all(b"x").unwrap();
        poller.add(&reader, 1, Interest::READABLE).unwrap();
        let number = reader.as_raw_fd();
        poller.queue_remove(&reader);
        drop(reader);
        // Still open, so the number is not used again.
        assert!(std::fs::exists(format!("/proc/self/fd/{number}")).unwrap());
        assert_eq!(keys(&poller), [0u64; 0]);
        // A duplicate does not keep it in the poller.
        assert_eq!(contents(&poller), []);
        drop(copy);
        assert_eq!(writer.write_all(b"y").unwrap_err().kind(), ErrorKind::BrokenPipe);
        // Also if it was never there, or its addition is still queued.
        poller.queue_remove(&shared(1));
        let event = shared(1);
        poller.queue_add(&event, 2, Interest::READABLE);
        poller.queue_remove(&event);
        drop(event);
        assert_eq!(poller.flush(), []);
        assert_eq!(contents(&poller), []);
    }

    fn pollers_nest(backend) {
        let (inner, outer) = (poller(backend), poller(backend));
        let (event, queued) = (event(0), shared(1));
        outer.add(&inner, 1, Interest::READABLE).unwrap();
        inner.add(&event, 2, Interest::READABLE).unwrap();
        assert_eq!(keys(&outer), [0u64; 0]);
        signal(&event);
        assert_eq!((keys(&outer), keys(&inner)), (vec![1], vec![2]));
        drain(&event);
        assert_eq!((keys(&outer), keys(&inner)), (vec![], vec![]));
        // The outer poller does not make the changes that the inner one has queued.
        inner.queue_add(&queued, 3, Interest::READABLE);
        assert_eq!(keys(&outer), [0u64; 0]);
        assert_eq!(inner.flush(), []);
        assert_eq!((keys(&outer), keys(&inner)), (vec![1], vec![3]));
        // Too deep in one batch, after a change that is valid.
        let chain: Vec<_> = (0..5).map(|_| poller(backend)).collect();
        for pair in chain.windows(2) {
            pair[0].add(&pair[1], 1, Interest::READABLE).unwrap();
        }
        let mut changes = Changes::new();
        changes.add(&event, 1, Interest::READABLE).add(&chain[0], 1, Interest::READABLE);
        assert_stopped(poller(backend).apply(&mut changes), 1, Errno::LOOP);
    }

    fn one_event_goes_to_one_of_many_threads(backend) {
        const THREADS: usize = 8;
        const EVENTS: u64 = 40;
        const ROUNDS: u64 = 20;
        let poller = poller(backend);
        let (events, end): (Vec<_>, _) = ((0..EVENTS).map(|_| shared(0)).collect(), event(1));
        let counts = Mutex::new(HashMap::new());
        let total = || counts.lock().unwrap().values().sum::<u64>();
        let mut changes = Changes::new();
        for (key, event) in (0..).zip(&events) {
            changes.add(event, key, Interest::READABLE.one_shot());
        }
        poller.apply(&mut changes).ok().unwrap();
        let ends = timeouts(LONG);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (poller, events, counts) = (&poller, &events, &counts);
                let timeout = ends[thread % ends.len()];
                scope.spawn(move || {
                    let mut room = Events::new(4).unwrap();
                    loop {
                        // A thread whose event another thread has taken continues to wait.
                        assert_ne!(poller.wait_timeout(&mut room, timeout).unwrap(), 0);
                        for event in room.iter() {
                            if event.key() == EVENTS {
                                return;
                            }
                            let at = usize::try_from(event.key()).unwrap();
                            drain(&events[at]);
                            *counts.lock().unwrap().entry(event.key()).or_insert(0) += 1;
                            let again = Interest::READABLE.one_shot();
                            if at.is_multiple_of(2) {
                                poller.change(&events[at], event.key(), again).unwrap();
                            } else {
                                poller.queue_change(&events[at], event.key(), again);
                                assert_eq!(poller.flush(), []);
                            }
                        }
                    }
                });
            }
            for round in 1..=ROUNDS {
                events.iter().for_each(signal);
                while total() < round * EVENTS {
                    thread::yield_now();
                }
            }
            // Level-triggered, so that all of them end.
            poller.add(&end, EVENTS, Interest::READABLE).unwrap();
        });
        assert_eq!(total(), ROUNDS * EVENTS);
        assert!(counts.into_inner().unwrap().values().all(|count| *count == ROUNDS));
    }

    fn threads_that_change_one_poller_do_not_disturb_each_other(backend) {
        let poller = poller(backend);
        let (waker, asleep) = (poller.waker(1000).unwrap(), AtomicBool::new(true));
        thread::scope(|scope| {
            let (poller, asleep) = (&poller, &asleep);
            scope.spawn(move || {
                let mut room = room();
                while asleep.load(Ordering::Relaxed) {
                    poller.wait(&mut room).unwrap();
                    assert!(room.iter().all(|event| event.key() <= 1000));
                }
            });
            let workers: Vec<_> = (0..4).map(|worker| scope.spawn(move || {
                let events: Vec<_> = (0..16).map(|_| shared(1)).collect();
                for _ in 0..50 {
                    let mut changes = Changes::new();
                    for event in &events {
                        changes.add(event, worker, Interest::READABLE);
                    }
                    poller.apply(&mut changes).ok().unwrap();
                    for event in &events {
                        poller.queue_remove(event);
                    }
                    assert_eq!(poller.flush(), []);
                }
            })).collect();
            for worker in workers {
                worker.join().unwrap();
            }
            asleep.store(false, Ordering::Relaxed);
            waker.wake().unwrap();
        });
        assert_eq!(contents(&poller).len(), 1);
    }

    fn queued_and_single_changes_end_in_the_same_state_whatever_is_dropped(backend) {
        let mut runner = proptest::test_runner::TestRunner::default();
        let steps = proptest::collection::vec((0..7u8, 0..4usize), 0..60);
        runner.run(&steps, |steps| {
            compare_queue(backend, &steps);
            Ok(())
        }).unwrap();
    }

    fn a_batch_and_single_changes_end_in_the_same_state(backend) {
        let world = World::new();
        let mut runner = proptest::test_runner::TestRunner::default();
        runner.run(&proptest::collection::vec(step(), 0..60), |steps| {
            world.compare(backend, &steps);
            Ok(())
        }).unwrap();
    }
}

/// Runs a sequence of valid changes on two pollers, one of which queues them.
fn compare_queue(backend: Backend, steps: &[(u8, usize)]) {
    let (queued, single) = (poller(backend), poller(Backend::Millis));
    let mut all: Vec<_> = (0..4).map(|_| shared(1)).collect();
    for (key, (step, at)) in (0..).zip(steps) {
        if *step == 0 {
            assert_eq!(now(&queued), now(&single));
            assert_eq!(contents(&queued), contents(&single));
            continue;
        }
        // Dropped, which closes it now or when the changes that are queued for it were made.
        if *step == 1 {
            all[*at] = shared(1);
        }
        let fd = &all[*at];
        let interest = if key % 3 == 0 { Interest::READABLE.edge() } else { Interest::READABLE };
        let there = contents(&single).iter().any(|(number, ..)| *number == fd.as_raw_fd());
        match (*step, there) {
            (_, false) => {
                single.add(fd, key, interest).unwrap();
                queued.queue_add(fd, key, interest);
            }
            (2, true) => {
                single.remove(fd).unwrap();
                queued.remove(fd).unwrap();
                all[*at] = shared(1);
            }
            (3, true) => {
                single.remove(fd).unwrap();
                queued.queue_remove(fd);
                all[*at] = shared(1);
            }
            (4, true) => {
                single.remove(fd).unwrap();
                queued.queue_remove(fd);
            }
            (5, true) => {
                single.change(fd, key, interest).unwrap();
                queued.change(fd, key, interest).unwrap();
            }
            _ => {
                single.change(fd, key, interest).unwrap();
                queued.queue_change(fd, key, interest);
            }
        }
    }
    assert_eq!(queued.flush(), []);
    assert_eq!(contents(&queued), contents(&single));
}

#[derive(Clone, Copy, Debug)]
struct Step {
    operation: u8,
    target: usize,
    key: u64,
    interest: Interest,
}

fn step() -> impl Strategy<Value = Step> {
    let bases = [Interest::NONE, Interest::READABLE, Interest::WRITABLE, Interest::PRIORITY];
    (0..3u8, 0..8usize, 0..1000u64, 0..4usize, 0..12u8).prop_map(
        move |(operation, target, key, base, kind)| {
            let interest = match kind {
                0 => bases[base].exclusive(),
                1 | 2 => bases[base].one_shot(),
                3 | 4 => bases[base].edge(),
                5 => Interest::READABLE | Interest::WRITABLE | bases[base],
                _ => bases[base],
            };
            Step { operation, target, key, interest }
        },
    )
}

/// The descriptors of random changes.
struct World {
    files: Vec<OwnedFd>,
}

impl World {
    fn new() -> Self {
        let (reader, writer): (PipeReader, PipeWriter) = pipe().unwrap();
        let regular = tempfile::tempfile().unwrap();
        let files = vec![event(0), event(1), reader.into(), writer.into(), regular.into()];
        Self { files }
    }

    /// Makes the same changes in two ways and compares results, contents and events.
    fn compare(&self, backend: Backend, steps: &[Step]) {
        let (batch, single) = (poller(backend), poller(Backend::Millis));
        let (of_batch, of_single) = (Around::new(&batch), Around::new(&single));
        let targets = [self.targets(&batch, &of_batch), self.targets(&single, &of_single)];
        let mut changes = Changes::new();
        for step in steps {
            let target = &targets[0][step.target];
            match step.operation {
                0 => changes.add(target, step.key, step.interest),
                1 => changes.change(target, step.key, step.interest),
                _ => changes.remove(target),
            };
        }
        let mut results = Vec::new();
        while results.len() < steps.len() {
            let applied = batch.apply(&mut changes);
            results.extend(vec![None; applied.done()]);
            results.extend(applied.failure().map(|failure| Some(failure.errno())));
            changes.skip(applied.done() + 1);
        }
        for (step, result) in steps.iter().zip(results) {
            let target = &targets[1][step.target];
            let done = match step.operation {
                0 => single.add(target, step.key, step.interest),
                1 => single.change(target, step.key, step.interest),
                _ => single.remove(target),
            };
            assert_eq!(done.err().and_then(|error| error.errno()), result, "{step:?}");
        }
        assert_eq!(named(&batch, &targets[0]), named(&single, &targets[1]));
        assert_eq!(now(&batch), now(&single));
    }

    fn targets<'a>(&'a self, poller: &'a Poller, around: &'a Around) -> Vec<BorrowedFd<'a>> {
        let pollers = [poller, &around.inside, &around.outside];
        let files = self.files.iter().map(AsFd::as_fd);
        files.chain(pollers.into_iter().map(AsFd::as_fd)).collect()
    }
}

/// The content of a poller, by index instead of number.
fn named(poller: &Poller, targets: &[BorrowedFd<'_>]) -> Vec<(usize, u32, u64)> {
    let index = |fd| targets.iter().position(|target| target.as_raw_fd() == fd).unwrap();
    let mut contents: Vec<_> =
        contents(poller).into_iter().map(|(fd, events, data)| (index(fd), events, data)).collect();
    contents.sort_unstable();
    contents
}

/// A poller that may go into another one, and one that holds it.
struct Around {
    inside: Poller,
    outside: Poller,
}

impl Around {
    fn new(poller: &Poller) -> Self {
        let around =
            Self { inside: self::poller(Backend::Millis), outside: self::poller(Backend::Millis) };
        around.outside.add(poller, 0, Interest::READABLE).unwrap();
        around
    }
}

#[test]
fn the_library_chooses_what_the_kernel_has() {
    let poller = Poller::new().unwrap();
    match Poller::with_backend(Backend::Batch) {
        Ok(_) => assert_eq!(poller.backend(), Backend::Batch),
        Err(error) => {
            assert_eq!(poller.backend(), Backend::Pwait2);
            assert_eq!(error.errno(), Some(Errno::NOSYS), "{error}");
            assert!(error.to_string().contains("back end `batch`"), "{error}");
        }
    }
}

#[test]
fn room_that_no_kernel_takes_is_named() {
    for capacity in [0, epoll::EVENTS_MAX + 1, usize::MAX] {
        let error = Events::new(capacity).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("`capacity` of `Events`"), "{error}");
    }
}

fn waits_as_it_should(poller: &Poller) {
    for timeout in timeouts(Duration::from_micros(2001)) {
        let start = Clock::Monotonic.now() + Duration::from_millis(1);
        assert_eq!(poller.wait_timeout(&mut room(), timeout).unwrap(), 0, "{timeout:?}");
        assert!(!matches!(timeout, Timeout::After(_)) || start.remaining().is_zero());
        assert!(!matches!(timeout, Timeout::At(end) if !end.remaining().is_zero()));
    }
    let waker = poller.waker(1).unwrap();
    for timeout in timeouts(LONG) {
        waker.wake().unwrap();
        assert_eq!(poller.wait_timeout(&mut room(), timeout).unwrap(), 1, "{timeout:?}");
    }
}

#[test]
fn a_call_that_is_denied_is_made_up_for() {
    for errno in [Errno::NOSYS, Errno::PERM] {
        apart(move || {
            deny(libc::SYS_epoll_pwait2, errno);
            let poller = poller(Backend::Pwait2);
            waits_as_it_should(&poller);
            assert_eq!(poller.backend(), Backend::Timerfd, "{errno}");
            deny(libc::SYS_timerfd_create, errno);
            waits_as_it_should(&poller);
            assert_eq!(poller.backend(), Backend::Timerfd, "it has its timers");
            let poller = self::poller(Backend::Pwait2);
            waits_as_it_should(&poller);
            assert_eq!(poller.backend(), Backend::Millis, "{errno}");
        });
    }
}

#[test]
fn without_timers_the_better_call_is_kept() {
    for errno in [Errno::NOSYS, Errno::PERM, Errno::MFILE] {
        apart(move || {
            deny(libc::SYS_timerfd_create, errno);
            let poller = poller(Backend::Pwait2);
            waits_as_it_should(&poller);
            assert_eq!(poller.backend(), Backend::Pwait2, "{errno}");
        });
    }
}

#[test]
fn too_many_open_files_do_not_end_a_wait() {
    apart(|| {
        deny(libc::SYS_timerfd_create, Errno::MFILE);
        let poller = poller(Backend::Timerfd);
        waits_as_it_should(&poller);
        assert_eq!(poller.backend(), Backend::Timerfd);
    });
}

#[test]
fn another_error_of_a_wait_is_told() {
    apart(|| {
        deny(libc::SYS_epoll_pwait2, Errno::NOMEM);
        let poller = poller(Backend::Pwait2);
        assert_fails(poller.wait_timeout(&mut room(), Duration::from_micros(1)), Errno::NOMEM);
        assert_eq!(poller.backend(), Backend::Pwait2);
    });
}

/// Sets the clock of the machine, so it needs a machine of its own.
#[test]
#[ignore = "needs the lab"]
fn a_wait_by_the_time_of_day_ends_when_the_clock_is_set() {
    use rustix::time::{ClockId, clock_gettime, clock_settime};
    let _set = CLOCK.write().unwrap_or_else(PoisonError::into_inner);
    for backend in Backend::ALL {
        let poller = poller(backend);
        let end = Clock::Realtime.now() + LONG;
        let setter = thread::spawn(|| {
            thread::sleep(Duration::from_millis(50));
            let mut time = clock_gettime(ClockId::Realtime);
            time.tv_sec += 601;
            clock_settime(ClockId::Realtime, time).unwrap();
        });
        assert_eq!(poller.wait_timeout(&mut room(), end).unwrap(), 0, "{backend}");
        assert_eq!(end.remaining(), Duration::ZERO);
        setter.join().unwrap();
        // This does not affect a timeout that is a length of time.
        let length = Duration::from_millis(200);
        let (end, poller) = (Clock::Monotonic.now() + length, &poller);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut time = clock_gettime(ClockId::Realtime);
                time.tv_sec += 3600;
                clock_settime(ClockId::Realtime, time).unwrap();
            });
            assert_eq!(poller.wait_timeout(&mut room(), length).unwrap(), 0, "{backend}");
        });
        assert_eq!(end.remaining(), Duration::ZERO);
    }
}

/// Includes arguments that the library never uses.
#[test]
#[ignore = "needs the lab"]
fn the_kernels_batch_and_its_single_calls_end_in_the_same_state() {
    let world = World::new();
    let numbers: Vec<_> =
        world.files.iter().map(AsRawFd::as_raw_fd).chain([-1, 1_000_000, RawFd::MAX]).collect();
    let calls = Syscalls::probe(poller(Backend::Batch)).unwrap().unwrap();
    let bits = prop_oneof![
        Just(0),
        Just(epoll::IN),
        Just(epoll::OUT | epoll::ET),
        Just(epoll::IN | epoll::ONESHOT),
        Just(epoll::IN | epoll::EXCLUSIVE),
        any::<u32>(),
    ];
    let command = (0..5i32, 0..numbers.len(), bits, any::<u64>(), 0..40u8);
    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&proptest::collection::vec(command, 1..80), |commands| {
            let (batch, single) = (poller(Backend::Batch), poller(Backend::Millis));
            let mut commands: Vec<_> = commands
                .into_iter()
                .map(|(op, fd, events, data, odd)| EpollCtlCmd {
                    flags: i32::from(odd == 1),
                    reserved: u32::from(odd == 2),
                    ..EpollCtlCmd { op, fd: numbers[fd], events, data, ..EpollCtlCmd::default() }
                })
                .collect();
            let mut at = 0;
            while at < commands.len() {
                let done = calls.ctl_batch(&batch, 0, &mut commands[at..]).unwrap();
                for command in commands.iter().skip(at).take(done + 1) {
                    let EpollCtlCmd { flags, op, fd, events, data, reserved, .. } = *command;
                    let result = if flags != 0 || reserved != 0 {
                        Err(Errno::INVAL)
                    } else {
                        epoll::ctl(&single, op, fd, events, data)
                    };
                    let errno = result.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
                    prop_assert_eq!(command.result, errno, "{:?}", command);
                }
                at += done + 1;
            }
            prop_assert_eq!(contents(&batch), contents(&single));
            prop_assert_eq!(now(&batch), now(&single));
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_is_read_is_what_was_written() {
    let (poller, (reader, mut writer)) = (Poller::new().unwrap(), pipe().unwrap());
    let reader = Arc::new(reader);
    poller.queue_add(&reader, 1, Interest::READABLE);
    writer.write_all(b"hello").unwrap();
    assert_eq!(poller.wait(&mut room()).unwrap(), 1);
    let mut buffer = [0; 8];
    assert_eq!((&*reader).read(&mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"hello");
}
