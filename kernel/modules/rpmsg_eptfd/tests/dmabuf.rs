//! Buffers that endpoints share: every call, each errno, both directions, fences, and every end.
//!
//! `ENOMEM`, and every other failed allocation and copy, is in `fault.rs`.

// The coprocessor is this process, which a 32-bit program cannot be.
#![cfg(target_pointer_width = "64")]

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod remote;

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::spawn;

use busbar_lab::stage::Side;
use busbar_uapi::dmabuf::{
    self, ATTACH, Access, DETACH, FROM_REMOTE, Fence, RpmsgDmabuf, RpmsgDmabufAttach, SEND,
    TO_REMOTE,
};
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointInfo, NAME_SIZE};
use remote::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use rustix::process::{Signal, kill_process};
use support::{BAD_POINTER, default_endpoint, eptfd, open_descriptors, raw_ioctl, wait_until};

/// Any free local address.
const FREE: u32 = 0x321;
const MEGABYTE: u64 = 1 << 20;

fn poll_now(fd: impl AsFd, interest: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(&fd, interest)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll");
    fds[0].revents()
}

/// Accesses to a DMABUF that its fences permit.
fn usable(buffer: &OwnedFd) -> (bool, bool) {
    let ready = poll_now(buffer, PollFlags::IN | PollFlags::OUT);
    (ready.contains(PollFlags::IN), ready.contains(PollFlags::OUT))
}

const BY_ALL: (bool, bool) = (true, true);
const BY_READERS: (bool, bool) = (true, false);
const BY_NOBODY: (bool, bool) = (false, false);

fn attached(bench: &Bench, endpoint: &OwnedFd, len: u64) -> OwnedFd {
    let _ = bench;
    let buffer = heap(len);
    dmabuf::attach(endpoint, &buffer).expect("attach");
    buffer
}

/// The status of a fence.
fn outcome(fences: &OwnedFd) -> Option<Result<(), Errno>> {
    dmabuf::sync_file_status(fences).expect("a sync file").1
}

fn fences(buffer: &OwnedFd) -> OwnedFd {
    dmabuf::export_sync_file(buffer, Access::ReadWrite).expect("a sync file")
}

#[test]
#[ignore = "needs the lab"]
fn bytes_arrive_both_ways() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let size = 2 * MEGABYTE;
    let memory = [
        ("heap", heap(size)),
        ("pages", pages(size, MemfdFlags::empty())),
        ("huge pages", huge_pages(size)),
    ];
    for (seed, (what, buffer)) in memory.iter().enumerate() {
        dmabuf::attach(&endpoint, buffer).unwrap_or_else(|why| panic!("attach {what}: {why}"));
        for (offset, length) in
            [(0, 1), (0, PAGE), (PAGE - 1, 2), (12345, 100_001), (0, size), (size - 1, 1)]
        {
            let bytes = pattern(seed as u64, length);
            fill(buffer, offset, &bytes);
            let (from, part) = bench.give(&endpoint, buffer, TO_REMOTE, offset, length);
            let view = bench.remote.map(&part);
            assert!(view.read().unwrap() == bytes, "{what}: {length} bytes at {offset}");
            bench.remote.give_back(from, &part);
            assert_eq!(answer(&endpoint), part.done(length, 0).read());
            view.assert_gone();

            let bytes = pattern(99 + seed as u64, length);
            let (from, part) = bench.give(&endpoint, buffer, FROM_REMOTE, offset, length);
            let view = bench.remote.map(&part);
            view.write(&bytes).unwrap();
            bench.remote.give_back(from, &part);
            assert_eq!(answer(&endpoint), part.done(length, 0).read());
            view.assert_gone();
            assert!(contents(buffer, offset, length) == bytes, "{what}: {length} bytes back");
        }
        dmabuf::detach(&endpoint, buffer).unwrap();
    }
}

#[test]
#[ignore = "needs the lab"]
fn attach_and_detach_errors() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = heap(PAGE);
    let before = open_descriptors();

    assert_eq!(raw_ioctl(&bench.control, ATTACH, BAD_POINTER), Err(Errno::NOTTY));
    for call in [ATTACH, DETACH] {
        assert_eq!(raw_ioctl(&endpoint, call, BAD_POINTER), Err(Errno::FAULT));
        let with = |named: RpmsgDmabufAttach| {
            raw_ioctl(&endpoint, call, (&raw const named).expose_provenance())
        };
        for fd in [-1, i32::MAX] {
            let closed = RpmsgDmabufAttach { fd, ..RpmsgDmabufAttach::default() };
            assert_eq!(with(closed), Err(Errno::BADF));
        }
        let named = RpmsgDmabufAttach { fd: buffer.as_raw_fd(), ..RpmsgDmabufAttach::default() };
        for bit in 0..32 {
            assert_eq!(with(RpmsgDmabufAttach { flags: 1 << bit, ..named }), Err(Errno::INVAL));
        }
        for field in 0..named.reserved.len() {
            let mut named = named;
            named.reserved[field] = 1 << 63;
            assert_eq!(with(named), Err(Errno::INVAL), "reserved field {field}");
        }
    }
    assert_eq!(dmabuf::attach(&endpoint, &endpoint), Err(Errno::INVAL));
    assert_eq!(dmabuf::detach(&endpoint, &endpoint), Err(Errno::INVAL));

    assert_eq!(dmabuf::detach(&endpoint, &buffer), Err(Errno::PERM), "nothing was attached yet");
    assert_eq!(fdinfo(&endpoint, "rpmsg-buffers"), None);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    assert_eq!(fdinfo(&endpoint, "rpmsg-buffers"), Some(1));
    assert_eq!(dmabuf::attach(&endpoint, &buffer), Err(Errno::BUSY));
    let same = buffer.try_clone().unwrap();
    assert_eq!(dmabuf::attach(&endpoint, &same), Err(Errno::BUSY), "the buffer counts");
    let other = bench.endpoint();
    dmabuf::attach(&other, &buffer).expect("another endpoint can attach it too");
    assert_eq!(dmabuf::detach(&endpoint, heap(PAGE)), Err(Errno::PERM));

    dmabuf::detach(&endpoint, &same).unwrap();
    assert_eq!(dmabuf::detach(&endpoint, &buffer), Err(Errno::PERM));
    assert_eq!(fdinfo(&endpoint, "rpmsg-buffers"), Some(0));
    for _ in 0..50 {
        dmabuf::attach(&endpoint, &buffer).unwrap();
        dmabuf::detach(&endpoint, &buffer).unwrap();
    }
    drop((same, other));
    assert_eq!(open_descriptors(), before);
}

/// A `struct rpmsg_dmabuf` in memory that the kernel can read and not write.
#[allow(unsafe_code)]
fn read_only(part: RpmsgDmabuf) -> usize {
    // SAFETY: a new mapping, never unmapped, made read-only after it was written.
    unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(std::ptr::null_mut(), 4096, access, MapFlags::PRIVATE).unwrap();
        page.cast::<RpmsgDmabuf>().write(part);
        mprotect(page, 4096, MprotectFlags::READ).unwrap();
        page.expose_provenance()
    }
}

#[test]
#[ignore = "needs the lab"]
fn send_errors() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = heap(2 * PAGE);
    let send = |flags, offset, length| dmabuf::send(&endpoint, &buffer, flags, offset, length);

    assert_eq!(send(TO_REMOTE, 0, 1), Err(Errno::PERM), "nothing was attached yet");
    let other = attached(&bench, &endpoint, PAGE);
    assert_eq!(send(TO_REMOTE, 0, 1), Err(Errno::PERM), "something else was");
    dmabuf::attach(&endpoint, &buffer).unwrap();

    assert_eq!(raw_ioctl(&endpoint, SEND, BAD_POINTER), Err(Errno::FAULT));
    for flags in (0..32).map(|bit| 1 << bit).filter(|flags| ![1, 2].contains(flags)) {
        assert_eq!(send(flags, 0, 1), Err(Errno::INVAL), "{flags:#x}");
        assert_eq!(send(flags | TO_REMOTE, 0, 1), Err(Errno::INVAL), "{flags:#x}");
    }
    assert_eq!(send(0, 0, 1), Err(Errno::INVAL));
    assert_eq!(send(TO_REMOTE | FROM_REMOTE, 0, 1), Err(Errno::INVAL));
    let size = 2 * PAGE;
    for (offset, length) in [
        (0, 0),
        (0, size + 1),
        (1, size),
        (size - 1, 2),
        (size, 1),
        (size + 1, 1),
        (0, u64::MAX),
        (1, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (u64::MAX - 1, 3),
    ] {
        assert_eq!(send(TO_REMOTE, offset, length), Err(Errno::INVAL), "{offset:#x} {length:#x}");
    }
    let part = RpmsgDmabuf { fd: -1, flags: TO_REMOTE, length: 1, ..RpmsgDmabuf::default() };
    for field in 0..part.reserved.len() {
        let mut part = RpmsgDmabuf { fd: buffer.as_raw_fd(), ..part };
        part.reserved[field] = 1;
        assert_eq!(raw_ioctl(&endpoint, SEND, read_only(part)), Err(Errno::INVAL), "{field}");
    }
    assert_eq!(raw_ioctl(&endpoint, SEND, read_only(part)), Err(Errno::BADF));
    assert_eq!(dmabuf::send(&endpoint, &endpoint, TO_REMOTE, 0, 1), Err(Errno::INVAL));
    let part = RpmsgDmabuf { fd: buffer.as_raw_fd(), ..part };
    assert_eq!(raw_ioctl(&endpoint, SEND, read_only(part)), Err(Errno::FAULT));
    assert!(bench.remote.has_message().is_none(), "nothing of this was sent");
    assert_eq!(usable(&buffer), BY_ALL);

    let reader = bench.endpoint_with(ADDR_ANY, SERVICE, OFlags::RDONLY);
    dmabuf::attach(&reader, &buffer).unwrap();
    assert_eq!(dmabuf::send(&reader, &buffer, FROM_REMOTE, 0, 1), Err(Errno::BADF));
    let aimless = bench.endpoint_with(ADDR_ANY, ADDR_ANY, OFlags::RDWR);
    dmabuf::attach(&aimless, &buffer).unwrap();
    assert_eq!(dmabuf::send(&aimless, &buffer, TO_REMOTE, 0, 1), Err(Errno::INVAL));
    assert_eq!(usable(&buffer), BY_ALL, "the fence of what was not sent is signalled");

    rpmsg::destroy_ept(&endpoint).unwrap();
    assert_eq!(send(TO_REMOTE, 0, 1), Err(Errno::PIPE));
    assert_eq!(dmabuf::attach(&endpoint, heap(PAGE)), Err(Errno::PIPE));
    assert_eq!(dmabuf::detach(&endpoint, &other), Err(Errno::PIPE));
    // Also if nothing was ever attached.
    let bare = bench.endpoint();
    rpmsg::destroy_ept(&bare).unwrap();
    for _ in 0..2 {
        assert_eq!(dmabuf::send(&bare, &buffer, TO_REMOTE, 0, 1), Err(Errno::PIPE));
        assert_eq!(dmabuf::detach(&bare, &buffer), Err(Errno::PIPE));
        assert_eq!(dmabuf::attach(&bare, &buffer), Err(Errno::PIPE), "then once more");
    }
}

#[test]
#[ignore = "needs the lab"]
fn parts_of_a_buffer_are_sent_at_once_unless_they_overlap() {
    let bench = Bench::new();
    let endpoint = bench.nonblocking();
    let buffer = attached(&bench, &endpoint, 2 * PAGE);
    let give = |flags, offset, length| bench.give(&endpoint, &buffer, flags, offset, length);

    // Two of them share a page, in which one is writable.
    fill(&buffer, 0, &[1; 3000]);
    let (from, read) = give(TO_REMOTE, 0, 1000);
    let (_, write) = give(FROM_REMOTE, 1000, 1000);
    let (_, far) = give(TO_REMOTE, PAGE, PAGE);
    for (offset, length) in [(0, 1), (999, 1), (999, 2), (500, 1000), (1999, 1), (0, 2 * PAGE)] {
        for flags in [TO_REMOTE, FROM_REMOTE] {
            let refused = dmabuf::send(&endpoint, &buffer, flags, offset, length);
            assert_eq!(refused, Err(Errno::BUSY), "{offset} {length}");
        }
    }
    assert_eq!(fdinfo(&endpoint, "rpmsg-given"), Some(3));
    let (reading, writing) = (bench.remote.map(&read), bench.remote.map(&write));
    assert_eq!(reading.read().unwrap(), [1; 1000]);
    writing.write(&[2; 1000]).unwrap();

    bench.remote.give_back(from, &write);
    assert_eq!(answer(&endpoint), write.done(1000, 0).read());
    assert_eq!(writing.write(&[3; 1000]), Err(Errno::FAULT));
    assert_eq!(reading.read().unwrap(), [1; 1000], "the other part stays where it was");
    assert_eq!(contents(&buffer, 0, 3000), [[1; 1000], [2; 1000], [1; 1000]].concat());

    // A returned part can be sent again at once, and parts are returned in any order.
    let (_, again) = give(FROM_REMOTE, 1500, 10);
    bench.remote.map(&again).write(&[4; 10]).unwrap();
    bench.remote.give_back(from, &again);
    bench.remote.give_back(from, &read);
    bench.remote.give_back(from, &far);
    let mut cookies = [answer(&endpoint), answer(&endpoint), answer(&endpoint)].map(|m| m.cookie);
    let mut given = [read.cookie, far.cookie, again.cookie];
    cookies.sort_unstable();
    given.sort_unstable();
    assert_eq!(cookies, given);
    reading.assert_gone();
    assert_eq!(fdinfo(&endpoint, "rpmsg-given"), Some(0));
    assert_eq!(usable(&buffer), BY_ALL);
}

#[test]
#[ignore = "needs the lab"]
fn fences_tell_who_may_use_the_buffer() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = attached(&bench, &endpoint, PAGE);
    assert_eq!(usable(&buffer), BY_ALL);

    let (from, part) = bench.give(&endpoint, &buffer, TO_REMOTE, 0, PAGE);
    assert_eq!(usable(&buffer), BY_READERS);
    bench.remote.give_back(from, &part);
    answer(&endpoint);
    assert_eq!(usable(&buffer), BY_ALL);

    let (from, part) = bench.give(&endpoint, &buffer, FROM_REMOTE, 0, PAGE);
    assert_eq!(usable(&buffer), BY_NOBODY);
    let file = fences(&buffer);
    assert_eq!(outcome(&file), None);
    let mut fence = [Fence::default()];
    assert_eq!(dmabuf::sync_file_fences(&file, &mut fence), Ok(1));
    assert!(fence[0].driver_name.starts_with(b"rpmsg_eptfd\0"), "{fence:?}");
    assert!(fence[0].obj_name.starts_with(b"test\0"), "{fence:?}");
    let waiter = spawn({
        let buffer = buffer.try_clone().unwrap();
        move || {
            poll(&mut [PollFd::new(&buffer, PollFlags::IN)], None).unwrap();
            dmabuf::begin(&buffer, Access::Read).unwrap();
        }
    });
    moment();
    assert!(!waiter.is_finished());
    bench.remote.give_back(from, &part);
    waiter.join().unwrap();
    assert_eq!(usable(&buffer), BY_ALL);
    assert_eq!(outcome(&file), Some(Ok(())));
    answer(&endpoint);

    // The fences of two parts are independent.
    let (_, first) = bench.give(&endpoint, &buffer, FROM_REMOTE, 0, 1);
    let (_, second) = bench.give(&endpoint, &buffer, FROM_REMOTE, 1, 1);
    bench.remote.give_back(from, &second);
    answer(&endpoint);
    assert_eq!(usable(&buffer), BY_NOBODY);
    bench.remote.give_back(from, &first);
    answer(&endpoint);
    assert_eq!(usable(&buffer), BY_ALL);
}

#[test]
#[ignore = "needs the lab"]
fn the_remote_answers_what_it_likes() {
    let bench = Bench::new();
    let endpoint = bench.nonblocking();
    let buffer = attached(&bench, &endpoint, PAGE);
    let give = || bench.give(&endpoint, &buffer, FROM_REMOTE, 100, 1000);

    // Fewer bytes, an error, and invalid values.
    let (protocol, longest) = (71, 4095);
    for (length, status, expected) in [
        (0, 0, (0, 0)),
        (999, 0, (999, 0)),
        (1, 5, (1, 5)),
        (1000, longest, (1000, longest)),
        (1001, 0, (1000, protocol)),
        (u64::MAX, 0, (1000, protocol)),
        (10, longest + 1, (10, protocol)),
        (10, u32::MAX, (10, protocol)),
    ] {
        let (from, part) = give();
        let file = fences(&buffer);
        // The kernel fills in the rest of the answer.
        let lies = Message { address: 1, offset: 2, direction: 3, reserved: 4, ..part };
        bench.remote.send(from, &lies.done(length, status).encode());
        assert_eq!(answer(&endpoint), part.done(expected.0, expected.1).read());
        let status = i32::try_from(expected.1).unwrap();
        let expected = if status == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(status)) };
        assert_eq!(outcome(&file), Some(expected));
    }

    // A message that answers nothing is an ordinary message.
    let (from, part) = give();
    let done = part.done(1, 0);
    let strangers = [
        Message { magic: 0, ..done }.encode(),
        part.encode(),
        done.encode()[..47].to_vec(),
        [done.encode(), vec![0]].concat(),
        Vec::new(),
    ];
    let mut bytes = [0; 64];
    for stranger in &strangers {
        bench.remote.send(from, stranger);
        let mut result = Err(Errno::AGAIN);
        wait_until("a message", || {
            result = rustix::io::read(&endpoint, &mut bytes);
            result != Err(Errno::AGAIN)
        });
        assert_eq!(&bytes[..result.unwrap()], stranger);
        assert_eq!(usable(&buffer), BY_NOBODY, "{stranger:x?}");
    }
    bench.remote.send(from, &done.encode());
    assert_eq!(answer(&endpoint), done.read());
    assert_eq!(usable(&buffer), BY_ALL);
}

#[test]
#[ignore = "needs the lab"]
fn an_answer_to_what_is_not_out_reaches_no_reader() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = attached(&bench, &endpoint, PAGE);
    let (from, part) = bench.give(&endpoint, &buffer, FROM_REMOTE, 0, PAGE);
    let done = part.done(PAGE, 0);
    for cookie in [part.cookie.wrapping_add(1), part.cookie.wrapping_sub(1), 0, u64::MAX] {
        bench.remote.send(from, &Message { cookie, ..done }.encode());
    }
    bench.remote.give_back(from, &part);
    assert_eq!(answer(&endpoint), done.read(), "the first that is read is the true one");
    // A second answer is not one either.
    bench.remote.give_back(from, &part);
    bench.remote.send(from, b"that was all");
    let mut bytes = [0; 64];
    assert_eq!(rustix::io::read(&endpoint, &mut bytes), Ok(12));
    assert_eq!(bytes[..12], *b"that was all");
    assert_eq!(fdinfo(&endpoint, "rpmsg-strays"), Some(5));

    // An endpoint that never had a buffer treats it as an ordinary message.
    let bare = bench.endpoint();
    rustix::io::write(&bare, b"where are you").unwrap();
    let (at, _) = bench.remote.message();
    bench.remote.send(at, &done.encode());
    assert_eq!(answer(&bare), done);
}

#[test]
#[ignore = "needs the lab"]
fn cookies_tell_nothing_of_each_other() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = attached(&bench, &endpoint, PAGE);
    let mut cookies: Vec<u64> = Vec::new();
    for at in 0..16 {
        cookies.push(bench.give(&endpoint, &buffer, TO_REMOTE, at, 1).1.cookie);
    }
    cookies.sort_unstable();
    let apart = |pair: &[u64]| pair[1] - pair[0] > 1 << 32;
    assert!(cookies.windows(2).all(apart), "{cookies:x?}");
}

#[test]
#[ignore = "needs the lab"]
fn what_others_do_with_the_buffer_comes_first() {
    let bench = Bench::new();
    let (other, waiting, hasty) = (bench.endpoint(), bench.endpoint(), bench.nonblocking());
    let buffer = attached(&bench, &other, PAGE);
    dmabuf::attach(&waiting, &buffer).unwrap();
    dmabuf::attach(&hasty, &buffer).unwrap();
    let refused = |flags| dmabuf::send(&hasty, &buffer, flags, 0, 1).unwrap_err();

    // Two may read at the same time.
    let (from, read) = bench.give(&other, &buffer, TO_REMOTE, 0, PAGE);
    let (by, also_read) = bench.give(&hasty, &buffer, TO_REMOTE, 0, PAGE);
    assert_eq!(refused(FROM_REMOTE), Errno::BUSY);
    bench.remote.give_back(by, &also_read);
    answer(&hasty);
    assert_eq!(refused(FROM_REMOTE), Errno::BUSY);

    let sender = spawn({
        let (waiting, buffer) = (waiting.try_clone().unwrap(), buffer.try_clone().unwrap());
        move || dmabuf::send(&waiting, &buffer, FROM_REMOTE, 0, PAGE)
    });
    moment();
    assert!(!sender.is_finished());
    assert!(bench.remote.has_message().is_none());
    bench.remote.give_back(from, &read);
    answer(&other);
    let (from, write) = bench.remote.given();
    assert_eq!(sender.join().unwrap(), Ok(write.cookie));

    // While one writes, nothing else has access.
    assert_eq!(refused(TO_REMOTE), Errno::BUSY);
    assert_eq!(refused(FROM_REMOTE), Errno::BUSY);
    // Waiting callers get the end.
    let sender = spawn({
        let (other, buffer) = (other.try_clone().unwrap(), buffer.try_clone().unwrap());
        move || dmabuf::send(&other, &buffer, TO_REMOTE, 0, PAGE)
    });
    moment();
    assert!(!sender.is_finished());
    rpmsg::destroy_ept(&other).unwrap();
    assert_eq!(sender.join().unwrap(), Err(Errno::PIPE));
    bench.remote.give_back(from, &write);
    assert_eq!(answer(&waiting), write.done(PAGE, 0).read());
}

#[test]
#[ignore = "needs the lab"]
fn a_remote_that_keeps_all_pushes_back() {
    let bench = Bench::new();
    let endpoint = bench.nonblocking();
    let buffer = attached(&bench, &endpoint, 2 * PAGE);
    let send = |at| dmabuf::send(&endpoint, &buffer, TO_REMOTE, at, 1);
    for at in 0..1024 {
        // The ring is shorter, and the remote takes its messages.
        wait_until("room in the ring", || match send(at) {
            Ok(_) => true,
            Err(why) => {
                assert_eq!(why, Errno::AGAIN);
                false
            }
        });
    }
    assert_eq!(fdinfo(&endpoint, "rpmsg-given"), Some(1024));
    // For a millisecond, which may be over before poll is called.
    wait_until("a pause", || {
        assert_eq!(send(1024), Err(Errno::AGAIN));
        !poll_now(&endpoint, PollFlags::OUT).contains(PollFlags::OUT)
    });
    let parts: Vec<_> = (0..1024).map(|_| bench.remote.given()).collect();

    // A blocking send waits until a part is returned.
    let flags = rustix::fs::fcntl_getfl(&endpoint).unwrap();
    rustix::fs::fcntl_setfl(&endpoint, flags - OFlags::NONBLOCK).unwrap();
    let sender = spawn({
        let (endpoint, buffer) = (endpoint.try_clone().unwrap(), buffer.try_clone().unwrap());
        move || dmabuf::send(&endpoint, &buffer, TO_REMOTE, 1024, 1)
    });
    moment();
    assert!(!sender.is_finished());
    bench.remote.give_back(parts[500].0, &parts[500].1);
    let (_, last) = bench.remote.given();
    assert_eq!(sender.join().unwrap(), Ok(last.cookie));
    // The end returns all of them at once.
    drop(parts);
    rpmsg::destroy_ept(&endpoint).unwrap();
    assert_eq!(usable(&buffer), BY_ALL);
}

#[test]
#[ignore = "needs the lab"]
fn detach_in_flight_takes_effect_when_the_remote_is_done() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = attached(&bench, &endpoint, PAGE);
    fill(&buffer, 0, b"alive");
    let (from, part) = bench.show(&endpoint, &buffer);
    dmabuf::detach(&endpoint, &buffer).expect("detach in flight");
    assert_eq!(dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1), Err(Errno::PERM));
    assert_eq!(dmabuf::detach(&endpoint, &buffer), Err(Errno::PERM));
    let view = bench.remote.map(&part);
    assert_eq!(view.read().unwrap()[..5], *b"alive");

    // It can be attached again, as a buffer at another address.
    dmabuf::attach(&endpoint, &buffer).expect("attach again");
    let overlapping = dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1);
    assert_eq!(overlapping, Err(Errno::BUSY), "the remote still has that byte");
    // It stays as long as the remote has it, even after it was closed.
    dmabuf::detach(&endpoint, &buffer).unwrap();
    drop(buffer);
    assert_eq!(view.read().unwrap()[..5], *b"alive");
    bench.remote.give_back(from, &part);
    assert_eq!(answer(&endpoint), part.done(PAGE, 0).read());
    view.assert_gone();
}

#[test]
#[ignore = "needs the lab"]
fn close_in_flight_leaves_the_part_to_the_remote() {
    let bench = Bench::new();
    let before = references();
    let open = || bench.endpoint_with(FREE, SERVICE, OFlags::RDWR);
    let endpoint = open();
    let buffer = attached(&bench, &endpoint, PAGE);
    fill(&buffer, 0, b"alive");
    let (from, part) = bench.show(&endpoint, &buffer);
    assert_eq!(from, FREE);
    let file = fences(&buffer);
    drop(endpoint);

    let view = bench.remote.map(&part);
    assert_eq!(view.read().unwrap()[..5], *b"alive");
    assert_eq!(usable(&buffer), BY_READERS);
    assert!(references() > before, "the module stays");
    let info = rpmsg::EndpointFdInfo {
        name: [b'x'; NAME_SIZE],
        src: FREE,
        dst: SERVICE,
        flags: 0,
        fd: -1,
    };
    let taken = rpmsg::create_ept_fd(&bench.control, info).map(drop);
    assert_eq!(taken, Err(Errno::INVAL), "the answer needs the address");

    bench.remote.give_back(from, &part);
    wait_until("the answer", || usable(&buffer) == BY_ALL);
    assert_eq!(outcome(&file), Some(Ok(())));
    view.assert_gone();
    wait_until("the address", || rpmsg::create_ept_fd(&bench.control, info).is_ok());
    // Only the sync file still refers to the fence: the buffer does not any more.
    wait_until("the endpoint to go", || references() == before + 1);
    drop(file);
    assert_eq!(references(), before);
}

#[test]
#[ignore = "needs the lab"]
fn node_closed_in_flight_is_busy_until_the_remote_is_done() {
    let bench = Bench::new();
    let name = [b'n'; NAME_SIZE];
    rpmsg::create_ept(&bench.control, EndpointInfo { name, src: ADDR_ANY, dst: SERVICE }).unwrap();
    let class = Path::new("/sys/class/rpmsg").join(bench.side.controller().file_name().unwrap());
    let node = fs::read_dir(class)
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("rpmsg"))
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .expect("a node");
    wait_until("the device node", || node.exists());
    let open = || File::options().read(true).write(true).open(&node).map(OwnedFd::from);
    let before = references();

    for _ in 0..3 {
        let endpoint = open().expect("open");
        let buffer = attached(&bench, &endpoint, PAGE);
        let (from, part) = bench.show(&endpoint, &buffer);
        drop(endpoint);
        assert_eq!(open().unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
        bench.remote.give_back(from, &part);
        wait_until("the node", || open().is_ok());
        wait_until("the module", || references() == before);
    }
    let endpoint = open().unwrap();
    let buffer = attached(&bench, &endpoint, PAGE);
    let (from, part) = bench.show(&endpoint, &buffer);
    let view = bench.remote.map(&part);
    rpmsg::destroy_ept(&endpoint).unwrap();
    view.assert_gone();
    assert_eq!(usable(&buffer), BY_ALL);
    bench.remote.give_back(from, &part);
    assert_eq!(dmabuf::attach(&endpoint, &buffer), Err(Errno::PIPE));
}

#[test]
#[ignore = "needs the lab"]
fn destroyed_in_flight() {
    let bench = Bench::new();
    let endpoint = bench.endpoint_with(FREE, SERVICE, OFlags::RDWR);
    let buffer = attached(&bench, &endpoint, PAGE);
    let (from, part) = bench.give(&endpoint, &buffer, FROM_REMOTE, 0, PAGE);
    let view = bench.remote.map(&part);
    view.write(b"x").unwrap();
    let file = fences(&buffer);

    rpmsg::destroy_ept(&endpoint).unwrap();
    assert_eq!(outcome(&file), Some(Err(Errno::PIPE)));
    assert_eq!(usable(&buffer), BY_ALL);
    view.assert_gone();
    assert_eq!(fdinfo(&endpoint, "rpmsg-buffers"), Some(0));

    // The answer is late, and does not count for a part of the present owner of the address.
    let next = bench.endpoint_with(FREE, SERVICE, OFlags::RDWR);
    dmabuf::attach(&next, &buffer).unwrap();
    let (_, other) = bench.give(&next, &buffer, FROM_REMOTE, 0, PAGE);
    assert_ne!(part.cookie, other.cookie);
    bench.remote.give_back(from, &part);
    bench.remote.give_back(from, &other);
    assert_eq!(answer(&next), other.done(PAGE, 0).read());
}

#[test]
#[ignore = "needs the lab"]
fn driver_unbound_in_flight() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let closed = bench.endpoint();
    let buffer = attached(&bench, &endpoint, PAGE);
    dmabuf::attach(&closed, &buffer).unwrap();
    let (_, part) = bench.show(&endpoint, &buffer);
    let (_, left) = bench.show(&closed, &buffer);
    let views = [bench.remote.map(&part), bench.remote.map(&left)];
    assert!(views.iter().all(|view| view.read().is_ok()));
    let file = fences(&buffer);
    drop(closed);

    let name = bench.side.controller().file_name().unwrap();
    let device = Path::new("/sys/class/rpmsg").join(name).join("device");
    let device = fs::canonicalize(device).unwrap();
    let device = device.file_name().unwrap().to_str().unwrap();
    fs::write("/sys/bus/rpmsg/drivers/rpmsg_eptfd/unbind", device).expect("unbind");
    views.iter().for_each(View::assert_gone);
    let mut fences = [Fence::default(); 2];
    assert_eq!(dmabuf::sync_file_fences(&file, &mut fences), Ok(2));
    assert_eq!(fences.map(|fence| fence.status), [-Errno::PIPE.raw_os_error(); 2]);
    assert_eq!(dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1), Err(Errno::PIPE));
    assert_eq!(usable(&buffer), BY_ALL);
}

/// A coprocessor that is another process: this program, in one of the tests below.
struct Other {
    side: Side,
    control: File,
    child: Child,
}

impl Other {
    fn new(what: &str) -> Self {
        let mut side = eptfd(&["echo"]);
        side.kill().unwrap();
        let child = child(what).env("BUSBAR_TEST_DEVICE", side.core()).spawn().unwrap();
        let control = bind(&mut side);
        Self { side, control, child }
    }

    fn endpoint(&self) -> OwnedFd {
        let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let name = [b'x'; NAME_SIZE];
        let info = rpmsg::EndpointFdInfo { name, src: ADDR_ANY, dst: SERVICE, flags, fd: -1 };
        rpmsg::create_ept_fd(&self.control, info).expect("an endpoint")
    }

    fn signal_of_death(&mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        std::os::unix::process::ExitStatusExt::signal(&status)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::write(self.side.remoteproc().join("recovery"), "enabled");
    }
}

fn child(what: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", what, "--nocapture"]).stdout(Stdio::null());
    command
}

fn device() -> Option<PathBuf> {
    std::env::var_os("BUSBAR_TEST_DEVICE").map(Into::into)
}

#[test]
#[ignore = "helper: fills what it is given, and keeps it"]
fn child_keeps_what_it_is_given() {
    let Some(device) = device() else { return };
    let remote = Remote::on(&device);
    loop {
        let (from, part) = remote.given();
        let view = remote.map(&part);
        view.write(b"mine").unwrap();
        remote.send(from, b"taken");
        std::mem::forget(view);
    }
}

#[test]
#[ignore = "helper: gives back, and accesses it all the same"]
fn child_touches_what_it_has_given_back() {
    let Some(device) = device() else { return };
    let remote = Remote::on(&device);
    let (from, part) = remote.given();
    let view = remote.map(&part);
    view.write(b"mine").unwrap();
    remote.give_back(from, &part);
    assert_eq!(remote.message().1, b"go on");
    #[allow(unsafe_code)]
    // SAFETY: this access raises SIGBUS, which is the purpose of this process.
    unsafe {
        view.base().write_volatile(1);
    }
}

#[test]
#[ignore = "needs the lab"]
fn remote_killed_in_flight() {
    let mut other = Other::new("child_keeps_what_it_is_given");
    let (endpoint, closed) = (other.endpoint(), other.endpoint());
    let buffer = heap(2 * PAGE);
    for endpoint in [&endpoint, &closed] {
        dmabuf::attach(endpoint, &buffer).unwrap();
    }
    let mut text = [0; 8];
    dmabuf::send(&endpoint, &buffer, FROM_REMOTE, 0, PAGE).unwrap();
    assert_eq!(rustix::io::read(&endpoint, &mut text), Ok(5));
    let file = fences(&buffer);
    // One more, whose endpoint was closed.
    let own = heap(PAGE);
    dmabuf::attach(&closed, &own).unwrap();
    dmabuf::send(&closed, &own, FROM_REMOTE, 0, PAGE).unwrap();
    assert_eq!(rustix::io::read(&closed, &mut text), Ok(5));
    drop(closed);
    let waiter = spawn({
        let buffer = buffer.try_clone().unwrap();
        move || poll(&mut [PollFd::new(&buffer, PollFlags::IN)], None).map(drop)
    });
    moment();
    assert!(!waiter.is_finished());
    assert_eq!(outcome(&file), None);

    other.child.kill().unwrap();
    waiter.join().unwrap().unwrap();
    assert_eq!(outcome(&file), Some(Err(Errno::PIPE)));
    wait_until("the other one", || usable(&own) == BY_ALL);
    assert_eq!(contents(&buffer, 0, 4), b"mine");
    assert_eq!(rustix::io::read(&endpoint, &mut text), Err(Errno::PIPE));
    assert_eq!(dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1), Err(Errno::PIPE));
    assert_eq!(other.signal_of_death(), Some(Signal::KILL.as_raw()));
}

/// The end of the endpoint and the end of its file both release its buffers.
#[test]
#[ignore = "needs the lab"]
fn closed_while_the_end_takes_its_buffers_away() {
    let mut bench = Bench::new();
    let before = references();
    for _ in 0..5 {
        let endpoint = bench.endpoint();
        let others: Vec<OwnedFd> = (0..200).map(|_| attached(&bench, &endpoint, PAGE)).collect();
        let buffer = attached(&bench, &endpoint, PAGE);
        bench.give(&endpoint, &buffer, TO_REMOTE, 0, PAGE);
        let closer = spawn(move || {
            poll(&mut [PollFd::new(&buffer, PollFlags::OUT)], None).unwrap();
            drop(endpoint);
        });
        moment();
        bench = bench.crash();
        closer.join().unwrap();
        drop(others);
    }
    wait_until("the end of all endpoints", || references() == before);
}

#[test]
#[ignore = "needs the lab"]
fn access_after_completion_is_sigbus() {
    let mut other = Other::new("child_touches_what_it_has_given_back");
    let endpoint = other.endpoint();
    let buffer = heap(PAGE);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    dmabuf::send(&endpoint, &buffer, FROM_REMOTE, 0, PAGE).unwrap();
    answer(&endpoint);
    assert_eq!(contents(&buffer, 0, 5), b"mine\0");
    rustix::io::write(&endpoint, b"go on").unwrap();
    assert_eq!(other.signal_of_death(), Some(Signal::BUS.as_raw()));
    assert_eq!(contents(&buffer, 0, 5), b"mine\0");
}

#[test]
#[ignore = "helper: sends a part over inherited descriptors"]
#[allow(unsafe_code)]
fn child_sends() {
    let number = |name| std::env::var(name).ok()?.parse::<i32>().ok();
    let (Some(endpoint), Some(buffer)) = (number("BUSBAR_ENDPOINT"), number("BUSBAR_BUFFER"))
    else {
        return;
    };
    // SAFETY: inherited for this purpose, and used nowhere else in this process.
    let (endpoint, buffer) =
        unsafe { (OwnedFd::from_raw_fd(endpoint), OwnedFd::from_raw_fd(buffer)) };
    fill(&buffer, 0, b"from the child");
    dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, PAGE).unwrap();
}

fn inherit(command: &mut Command, endpoint: &OwnedFd, buffer: &OwnedFd) {
    for (name, fd) in [("BUSBAR_ENDPOINT", endpoint), ("BUSBAR_BUFFER", buffer)] {
        fcntl_setfd(fd, FdFlags::empty()).unwrap();
        command.env(name, fd.as_raw_fd().to_string());
    }
}

#[test]
#[ignore = "needs the lab"]
fn descriptors_work_in_another_process() {
    let bench = Bench::new();
    let endpoint = bench.endpoint();
    let buffer = attached(&bench, &endpoint, PAGE);
    let mut command = child("child_sends");
    inherit(&mut command, &endpoint, &buffer);
    assert!(command.status().unwrap().success());

    // It has ended, and its messages are still valid.
    let (from, part) = bench.remote.given();
    assert_eq!(bench.remote.map(&part).read().unwrap()[..14], *b"from the child");
    bench.remote.give_back(from, &part);
    assert_eq!(answer(&endpoint), part.done(PAGE, 0).read());
}

#[test]
#[ignore = "needs the lab"]
fn a_sender_that_waits_can_be_killed() {
    let bench = Bench::new();
    let (other, endpoint) = (bench.endpoint(), bench.endpoint());
    let buffer = attached(&bench, &other, PAGE);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    let (from, part) = bench.give(&other, &buffer, FROM_REMOTE, 0, PAGE);
    let mut command = child("child_sends");
    inherit(&mut command, &endpoint, &buffer);
    let mut child = command.spawn().unwrap();
    wait_until("the child to get there", || contents(&buffer, 0, 4) == b"from");
    moment();
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(bench.remote.has_message().is_none());
    bench.remote.give_back(from, &part);
    answer(&other);
    assert_eq!(usable(&buffer), BY_ALL);
}

#[test]
#[ignore = "needs the lab"]
fn full_ring_pushes_back() {
    let side = eptfd(&["echo"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let flags = (OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let name = [b'x'; NAME_SIZE];
    let info = rpmsg::EndpointFdInfo { name, src: ADDR_ANY, dst: SERVICE, flags, fd: -1 };
    let endpoint = rpmsg::create_ept_fd(&control, info).unwrap();
    let info = rpmsg::EndpointFdInfo { flags: flags & !OFlags::NONBLOCK.bits(), ..info };
    let blocking = rpmsg::create_ept_fd(&control, info).unwrap();
    let doomed = rpmsg::create_ept_fd(&control, info).unwrap();
    let buffer = heap(PAGE);
    for each in [&endpoint, &blocking, &doomed] {
        dmabuf::attach(each, &buffer).unwrap();
    }
    let mut at = 0;
    let refused = loop {
        match dmabuf::send(&endpoint, &buffer, TO_REMOTE, at, 1) {
            Ok(_) => at += 1,
            Err(why) => break why,
        }
        assert!(at <= 256, "the ring has 256 buffers");
    };
    assert_eq!(refused, Errno::AGAIN);
    assert_eq!(fdinfo(&endpoint, "rpmsg-given"), Some(at));
    wait_until("a pause", || {
        assert_eq!(dmabuf::send(&endpoint, &buffer, TO_REMOTE, at, 1), Err(Errno::AGAIN));
        !poll_now(&endpoint, PollFlags::OUT).contains(PollFlags::OUT)
    });

    let send_through = |endpoint: &OwnedFd| {
        let (endpoint, buffer) = (endpoint.try_clone().unwrap(), buffer.try_clone().unwrap());
        spawn(move || dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1))
    };
    let (sender, loser) = (send_through(&blocking), send_through(&doomed));
    moment();
    assert!(!sender.is_finished() && !loser.is_finished());
    // The part is prepared once, not with each try.
    for _ in 0..100 {
        assert_eq!(fdinfo(&blocking, "rpmsg-given"), Some(1));
    }
    assert_eq!(dmabuf::send(&blocking, &buffer, TO_REMOTE, 0, 1), Err(Errno::BUSY));
    rpmsg::destroy_ept(&doomed).unwrap();
    assert_eq!(loser.join().unwrap(), Err(Errno::PIPE));
    assert_eq!(fdinfo(&doomed, "rpmsg-given"), Some(0));
    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    assert!(sender.join().unwrap().is_ok());
}

#[test]
#[ignore = "needs the lab"]
fn channel_released_in_flight() {
    // It echoes the message, which returns nothing.
    let side = eptfd(&["raw"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let before = references();
    let node = default_endpoint();
    let open = || File::options().read(true).write(true).open(&node);
    let give = |buffer| -> OwnedFd {
        let endpoint = open().expect("open").into();
        dmabuf::attach(&endpoint, buffer).unwrap();
        dmabuf::send(&endpoint, buffer, FROM_REMOTE, 0, PAGE).unwrap();
        assert_eq!(rustix::io::read(&endpoint, &mut [0; 64]), Ok(48));
        endpoint
    };
    let buffer = heap(PAGE);
    let closed = references();
    drop(give(&buffer));
    assert_eq!(open().unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    assert!(references() > closed);
    let file = fences(&buffer);

    // A remote that withdraws the channel has the same effect, but then the bus takes two of
    // its locks, which lockdep reports as recursive.
    let mut name = [0; NAME_SIZE];
    name[..9].copy_from_slice(b"rpmsg-raw");
    rpmsg::release_dev(&control, EndpointInfo { name, src: ADDR_ANY, dst: SERVICE }).unwrap();
    assert_eq!(outcome(&file), Some(Err(Errno::PIPE)));
    assert_eq!(usable(&buffer), BY_ALL);
    wait_until("the node to go", || !node.exists());
    drop(file);
    wait_until("the endpoint to go", || references() == before);
}

/// The control device, and whether the test is over.
struct Stress {
    controller: Mutex<PathBuf>,
    over: AtomicBool,
    buffers: Vec<OwnedFd>,
    given: AtomicU64,
}

/// Ends the threads, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stress {
    /// Creates an endpoint and gives parts to the remote. A call may fail only because another thread
    /// has the part or because the remote has gone.
    fn use_one(&self, rng: &mut fastrand::Rng) -> Result<(), Errno> {
        let path = self.controller.lock().unwrap().clone();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        let flags = if rng.bool() { flags | OFlags::NONBLOCK } else { flags };
        let name = [b's'; NAME_SIZE];
        let (src, dst, flags) = (ADDR_ANY, SERVICE, flags.bits());
        let info = rpmsg::EndpointFdInfo { name, src, dst, flags, fd: -1 };
        let endpoint = rpmsg::create_ept_fd(&control, info)?;
        let mut sent = 0;
        let chosen: Vec<_> = self.buffers.iter().filter(|_| rng.bool()).collect();
        for buffer in chosen {
            dmabuf::attach(&endpoint, buffer)?;
            let offset = rng.u64(..8 * PAGE);
            let length = rng.u64(1..=8 * PAGE - offset);
            let flags = if rng.bool() { TO_REMOTE } else { FROM_REMOTE };
            match dmabuf::send(&endpoint, buffer, flags, offset, length) {
                Err(Errno::BUSY | Errno::AGAIN) => {}
                result => sent += result.map(|_| 1)?,
            }
            if rng.bool() {
                dmabuf::detach(&endpoint, buffer)?;
            }
        }
        self.given.fetch_add(sent, Ordering::Relaxed);
        match rng.u8(..4) {
            0 => rpmsg::destroy_ept(&endpoint),
            1 => Ok(()),
            _ => Self::take_back(&endpoint, sent),
        }
    }

    fn take_back(endpoint: &OwnedFd, parts: u64) -> Result<(), Errno> {
        for _ in 0..parts {
            let mut fds = [PollFd::new(endpoint, PollFlags::IN)];
            let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_ne!(poll(&mut fds, Some(&patience))?, 0, "neither an answer nor the end");
            let mut bytes = [0; 64];
            let len = rustix::io::read(endpoint, &mut bytes)?;
            let answer = Message::decode(&bytes[..len]);
            assert!(answer.is_done() && answer.status == 0, "{answer:x?}");
        }
        Ok(())
    }

    /// Acts as the remote for this many parts; keeps some for a while, and some of the last for good.
    fn serve(remote: &Remote, parts: u32, rng: &mut fastrand::Rng) {
        let mut kept = Vec::new();
        for _ in 0..parts {
            let mut came = None;
            // Perhaps nothing comes because all wait for the kept parts.
            wait_until("a part", || {
                came = remote.has_message();
                if came.is_none() && !kept.is_empty() && rng.bool() {
                    Self::give_back_any(remote, &mut kept, rng);
                }
                came.is_some()
            });
            let (from, part) = came.map(|(from, data)| (from, Message::decode(&data))).unwrap();
            let view = remote.map(&part);
            // Its access may have been revoked already.
            let touched = if rng.bool() { view.write(b"x") } else { view.read().map(drop) };
            assert!(matches!(touched, Ok(()) | Err(Errno::FAULT)), "{part:x?}: {touched:?}");
            kept.push((from, part, view));
            if rng.bool() {
                Self::give_back_any(remote, &mut kept, rng);
            }
        }
    }

    fn give_back_any(
        remote: &Remote,
        kept: &mut Vec<(u32, Message, View)>,
        rng: &mut fastrand::Rng,
    ) {
        let (from, part, _) = kept.swap_remove(rng.usize(..kept.len()));
        remote.give_back(from, &part);
    }
}

#[test]
#[ignore = "needs the lab"]
fn buffers_change_hands_in_any_order_while_the_remote_crashes() {
    let rounds = support::rounds(10, 3);
    let Bench { remote, mut side, control } = Bench::new();
    drop(control);
    let before = references();
    let stress = Stress {
        controller: Mutex::new(side.controller().to_path_buf()),
        over: AtomicBool::new(false),
        buffers: vec![heap(8 * PAGE), heap(8 * PAGE), pages(8 * PAGE, MemfdFlags::empty())],
        given: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let _over = Over(&stress.over);
        for seed in 0..4 {
            let stress = &stress;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !stress.over.load(Ordering::Relaxed) {
                    if stress.use_one(&mut rng).is_err() {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    }
                }
            });
        }
        let mut rng = fastrand::Rng::with_seed(99);
        let mut remote = remote;
        for _ in 0..rounds {
            Stress::serve(&remote, 50, &mut rng);
            remote = remote.again(&mut side);
            bind(&mut side);
            *stress.controller.lock().unwrap() = side.controller().to_path_buf();
        }
        Stress::serve(&remote, 50, &mut rng);
        stress.over.store(true, Ordering::Relaxed);
        remote.crash();
    });
    let all = |buffer: &OwnedFd| usable(buffer) == BY_ALL;
    wait_until("the end of all fences", || stress.buffers.iter().all(all));
    wait_until("the end of all endpoints", || references() == before);
    println!("{rounds} crashes, {:?} parts", stress.given);
}

/// Parts have a shorter timeout until this is dropped.
struct Hurry;

impl Hurry {
    fn new(milliseconds: u32) -> Self {
        set_timeout(milliseconds);
        Self
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        set_timeout(600_000);
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_fence_ends_in_time_and_the_part_stays_with_the_remote() {
    let bench = Bench::new();
    let endpoint = bench.nonblocking();
    let buffer = attached(&bench, &endpoint, 2 * PAGE);
    // A part with a long timeout, before and after one with a short timeout.
    let (from, slow) = bench.give(&endpoint, &buffer, TO_REMOTE, PAGE, 1);
    let hurry = Hurry::new(50);
    let (_, part) = bench.give(&endpoint, &buffer, FROM_REMOTE, 0, PAGE);
    let file = fences(&buffer);
    drop(hurry);
    let (_, last) = bench.give(&endpoint, &buffer, TO_REMOTE, PAGE + 1, 1);
    let view = bench.remote.map(&part);

    wait_until("the fence", || usable(&buffer) == BY_READERS);
    let mut both = [Fence::default(); 2];
    assert_eq!(dmabuf::sync_file_fences(&file, &mut both), Ok(2));
    let mut statuses = both.map(|fence| fence.status);
    statuses.sort_unstable();
    assert_eq!(statuses, [-Errno::TIMEDOUT.raw_os_error(), 0]);
    view.assert_gone();
    // It was not returned.
    assert_eq!(fdinfo(&endpoint, "rpmsg-given"), Some(3));
    assert_eq!(dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1), Err(Errno::BUSY));
    assert_eq!(rustix::io::read(&endpoint, &mut [0; 64]), Err(Errno::AGAIN));
    let other = bench.nonblocking();
    dmabuf::attach(&other, &buffer).unwrap();
    let (by, read) = bench.give(&other, &buffer, TO_REMOTE, 0, PAGE);
    bench.remote.give_back(by, &read);
    answer(&other);

    // The answer is late, and the reader gets this status.
    bench.remote.give_back(from, &part);
    let late = Errno::TIMEDOUT.raw_os_error().cast_unsigned();
    assert_eq!(answer(&endpoint), part.done(PAGE, late).read());
    let (_, again) = bench.give(&endpoint, &buffer, FROM_REMOTE, 0, PAGE);
    for part in [again, slow, last] {
        bench.remote.give_back(from, &part);
        assert_eq!(answer(&endpoint), part.done(part.length, 0).read());
    }
    assert_eq!(usable(&buffer), BY_ALL);
}

#[test]
#[ignore = "needs the lab"]
fn a_fence_ends_in_time_when_nobody_recovers_the_remote() {
    let mut other = Other::new("child_keeps_what_it_is_given");
    fs::write(other.side.remoteproc().join("recovery"), "disabled").unwrap();
    set_timeout(600_000);
    let endpoint = other.endpoint();
    let buffer = heap(PAGE);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    let hurry = Hurry::new(2000);
    dmabuf::send(&endpoint, &buffer, FROM_REMOTE, 0, PAGE).unwrap();
    drop(hurry);
    let file = fences(&buffer);
    assert_eq!(rustix::io::read(&endpoint, &mut [0; 8]), Ok(5));
    other.child.kill().unwrap();
    assert_eq!(other.signal_of_death(), Some(Signal::KILL.as_raw()));
    wait_until("the fence", || usable(&buffer) == BY_ALL);
    assert_eq!(outcome(&file), Some(Err(Errno::TIMEDOUT)));
    // Its status makes no difference to the end.
    rpmsg::destroy_ept(&endpoint).unwrap();
    assert_eq!(dmabuf::send(&endpoint, &buffer, TO_REMOTE, 0, 1), Err(Errno::PIPE));
}

#[test]
#[ignore = "needs the lab"]
fn the_time_for_a_part_is_bounded() {
    let _bench = Bench::new();
    let file = "/sys/module/rpmsg_eptfd/parameters/give_timeout_ms";
    for wrong in ["0", "3600001", "-1", "x", "4294967296"] {
        assert!(fs::write(file, wrong).is_err(), "{wrong}");
    }
    for right in ["1", "3600000", "600000"] {
        fs::write(file, right).unwrap();
        assert_eq!(fs::read_to_string(file).unwrap().trim(), right);
    }
}
