use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};

use super::*;

fn is_readable(fd: impl AsFd) -> bool {
    wait(fd, PollFlags::IN, Some(Duration::ZERO)).unwrap() == PollFlags::IN
}

fn keys(set: &Set) -> Vec<u64> {
    set.ready().unwrap().as_slice().to_vec()
}

#[test]
fn all_deadlines_of_a_thread_that_is_to_quit_have_passed() {
    let quit = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&quit);
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        quit_when(asked);
        let (bell, deadline) = (Bell::new().unwrap(), Deadline::after(Duration::MAX));
        tell.send(deadline.has_passed()).unwrap();
        while !deadline.has_passed() {
            wait(&bell, PollFlags::IN, deadline.remaining()).unwrap();
        }
    });
    assert!(!told.recv().unwrap());
    quit.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert!(!Deadline::after(Duration::MAX).has_passed());
}

#[test]
fn a_bell_is_readable_until_it_is_cleared() {
    let bell = Bell::new().unwrap();
    assert!(!is_readable(&bell));
    bell.clear();
    bell.ring().unwrap();
    bell.ring().unwrap();
    assert!(is_readable(&bell));
    bell.clear();
    assert!(!is_readable(&bell));
}

#[test]
fn a_bell_with_a_full_counter_still_makes_an_edge() {
    let (set, bell) = (Set::new().unwrap(), Bell::new().unwrap());
    set.add(&bell, 1, EventFlags::IN | EventFlags::ET).unwrap();
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert_eq!(keys(&set), [1]);
    bell.ring().unwrap();
    assert_eq!(keys(&set), [1]);
}

#[test]
fn a_timer_is_readable_from_its_time_on() {
    let timer = Timer::new().unwrap();
    for at in [None, Instant::now().checked_add(Duration::from_secs(1 << 40))] {
        timer.set(at).unwrap();
        assert!(!is_readable(&timer));
    }
    let past = Instant::now();
    timer.set(Some(past)).unwrap();
    assert_eq!(wait(&timer, PollFlags::IN, None).unwrap(), PollFlags::IN);
    timer.set(None).unwrap();
    assert!(!is_readable(&timer));
}

#[test]
fn a_set_names_what_is_ready() {
    let (set, one, two) = (Set::new().unwrap(), Bell::new().unwrap(), Bell::new().unwrap());
    set.add(&one, 1, EventFlags::IN).unwrap();
    set.add(&two, 2, EventFlags::IN | EventFlags::ET).unwrap();
    assert!(!is_readable(&set) && keys(&set).is_empty());
    one.ring().unwrap();
    two.ring().unwrap();
    assert!(is_readable(&set));
    assert_eq!(keys(&set), [1, 2]);
    assert_eq!(keys(&set), [1]);
    set.remove(&one).unwrap();
    assert!(!is_readable(&set));
    assert_eq!(set.remove(&one).unwrap_err().errno(), Some(Errno::NOENT));
}

#[test]
fn times_beyond_what_the_kernel_counts_are_the_last() {
    let last = Timespec { tv_sec: i64::MAX, tv_nsec: 999_999_999 };
    assert_eq!(timespec(Duration::MAX), last);
}

#[test]
fn no_time_is_too_long_to_wait_for() {
    let now = Instant::now();
    let year = Duration::from_secs(365 * 24 * 3600);
    let mut at = now;
    for wait in
        [Duration::MAX, Duration::from_secs(1 << 62), Duration::from_secs(1 << 62), Duration::MAX]
    {
        let next = later(at, wait);
        assert!(next >= at && next - now > year, "{wait:?}");
        at = next;
    }
}

/// The signals that a thread has blocked.
fn blocked_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn threads_of_the_library_get_no_signals_of_the_program() {
    let bit = |signal: i32| 1_u64 << (signal - 1);
    let before = blocked_signals();
    let (told, tells) = std::sync::mpsc::channel();
    spawn("quiet", move || told.send(blocked_signals()).unwrap()).unwrap();
    let blocked = tells.recv().unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1, libc::SIGCHLD] {
        assert_ne!(blocked & bit(signal), 0, "{signal}");
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        assert_eq!(blocked & bit(signal), 0, "{signal}");
    }
    assert_eq!(blocked_signals(), before);
}

#[test]
fn a_set_is_readable_from_the_end_of_the_oldest_transfer_on() {
    let fence = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let end = |fence: &Arc<OwnedFd>| rustix::io::write(fence, &1_u64.to_ne_bytes()).unwrap();
    let (set, mut oldest, fences) = (Set::new().unwrap(), Oldest::default(), [fence(), fence()]);
    oldest.watch(&set, &fences[0]).unwrap();
    oldest.keep(&set, Some(&fences[0]));
    assert!(!is_readable(&set));
    end(&fences[0]);
    assert!(is_readable(&set));
    // The first one was taken: its fence stays until it is known that the second one has not ended.
    oldest.watch(&set, &fences[1]).unwrap();
    assert!(is_readable(&set));
    oldest.keep(&set, Some(&fences[1]));
    assert!(!is_readable(&set));
    oldest.watch(&set, &fences[1]).unwrap();
    end(&fences[1]);
    assert!(is_readable(&set));
    oldest.clear(&set);
    assert!(!is_readable(&set));
}
