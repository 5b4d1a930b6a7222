//! Ways to use an endpoint beside plain `read` and `write`: vectors, `io_uring`, 32-bit programs,
//! and the end by SIGKILL.

// `io_uring` has no 32-bit processors.
#![cfg(target_pointer_width = "64")]

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use busbar_lab::stage::Side;
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, NAME_SIZE};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, readv, write, writev};
use rustix::process::{Signal, kill_process};
use support::{eptfd, wait_until};

const ECHO: u32 = 0x400;

fn control(side: &Side) -> File {
    File::options().read(true).write(true).open(side.controller()).expect("the control device")
}

fn endpoint(control: &File, flags: OFlags) -> OwnedFd {
    let flags = (OFlags::RDWR | OFlags::CLOEXEC | flags).bits();
    let info = EndpointFdInfo { name: [b'a'; NAME_SIZE], src: ADDR_ANY, dst: ECHO, flags, fd: -1 };
    rpmsg::create_ept_fd(control, info).expect("an endpoint")
}

fn named(name: &str, src: u32, dst: u32) -> EndpointInfo {
    let mut info = EndpointInfo { name: [0; NAME_SIZE], src, dst };
    info.name[..name.len()].copy_from_slice(name.as_bytes());
    info
}

#[test]
#[ignore = "needs the lab"]
fn vectors_are_one_message() {
    let side = eptfd(&["echo"]);
    let ept = endpoint(&control(&side), OFlags::empty());
    let parts = [&b"one "[..], b"", b"message"].map(IoSlice::new);
    assert_eq!(writev(&ept, &parts), Ok(11));
    let (mut first, mut second) = ([0; 3], [0; 20]);
    let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    assert_eq!(readv(&ept, &mut buffers), Ok(11));
    assert_eq!((&first, &second[..8]), (b"one", &b" message"[..]));
    let long = [0; 300];
    assert_eq!(writev(&ept, &[IoSlice::new(&long), IoSlice::new(&long)]), Err(Errno::MSGSIZE));
}

#[test]
#[ignore = "needs the lab"]
fn sysfs_tells_the_address_that_an_open_node_has() {
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let before = fs::read_dir("/sys/class/rpmsg").unwrap().count();
    rpmsg::create_ept(&control, named("address", ADDR_ANY, ECHO)).unwrap();
    rpmsg::create_ept(&control, named("address", 77, ECHO)).unwrap();
    assert_eq!(fs::read_dir("/sys/class/rpmsg").unwrap().count(), before + 2);
    let folder = |wanted: &str| {
        let all = fs::read_dir("/sys/class/rpmsg").unwrap().flatten().map(|entry| entry.path());
        let is = |folder: &std::path::PathBuf, file: &str, text: &str| {
            fs::read_to_string(folder.join(file)).is_ok_and(|is| is.trim() == text)
        };
        all.into_iter()
            .find(|folder| is(folder, "name", "address") && is(folder, "src", wanted))
            .expect("a node")
    };
    for (asked, folder) in [("-1", folder("-1")), ("77", folder("77"))] {
        let src = || fs::read_to_string(folder.join("src")).unwrap();
        let node = std::path::Path::new("/dev").join(folder.file_name().unwrap());
        wait_until("the node", || node.exists());
        let file = File::options().read(true).write(true).open(&node).unwrap();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap();
        let chosen = info.lines().find_map(|line| line.strip_prefix("rpmsg-src:\t0x")).unwrap();
        let chosen = u32::from_str_radix(chosen, 16).unwrap();
        assert_eq!(src().trim(), chosen.to_string());
        drop(file);
        assert_eq!(src().trim(), asked, "closed, it has none but the one that was asked for");
    }
}

/// Puts `entry` into the ring; the memory that it refers to outlives its completion.
fn submit(ring: &mut IoUring, entry: squeue::Entry, tag: u64) {
    let entry = entry.user_data(tag);
    // SAFETY: every caller keeps the buffers until the ring is gone.
    #[allow(unsafe_code)]
    unsafe { ring.submission().push(&entry) }.expect("room in the ring");
    ring.submit().expect("submit");
}

/// The next completed request, and its result.
fn completed(ring: &mut IoUring) -> (u64, i32) {
    ring.submit_and_wait(1).expect("wait");
    let done = ring.completion().next().expect("a completion");
    (done.user_data(), done.result())
}

/// Threads that the kernel has created to wait on behalf of rings of this process.
fn workers() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten();
    names
        .filter(|task| {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.starts_with("iou-wrk")
        })
        .count()
}

#[test]
#[ignore = "needs the lab"]
fn io_uring_reads_writes_and_polls() {
    const READ: u64 = 1;
    const WRITE: u64 = 2;
    const POLL: u64 = 3;
    let mut side = eptfd(&["echo"]);
    let control = control(&side);
    let ept = endpoint(&control, OFlags::empty());
    let fd = types::Fd(ept.as_raw_fd());
    let message = b"through a ring";
    let mut answer = [0; 32];
    let read = opcode::Read::new(fd, answer.as_mut_ptr(), 32).build();
    let write = opcode::Write::new(fd, message.as_ptr(), 14).build();
    let mut ring = IoUring::new(8).expect("io_uring");

    // The read waits for the message that is written after it, and no thread waits with it.
    submit(&mut ring, read.clone(), READ);
    assert!(ring.completion().next().is_none());
    assert_eq!(workers(), 0);
    submit(&mut ring, write.clone(), WRITE);
    let mut done = [completed(&mut ring), completed(&mut ring)];
    done.sort_unstable();
    assert_eq!(done, [(READ, 14), (WRITE, 14)]);
    assert_eq!(&answer[..14], message);

    // POLLIN
    submit(&mut ring, opcode::PollAdd::new(fd, 1).build(), POLL);
    submit(&mut ring, write, WRITE);
    let mut done = [completed(&mut ring), completed(&mut ring)];
    done.sort_unstable();
    assert_eq!(done[0], (WRITE, 14));
    assert!(done[1].0 == POLL && done[1].1 & 1 != 0, "{done:?}");
    submit(&mut ring, read.clone(), READ);
    assert_eq!(completed(&mut ring), (READ, 14));

    // A read in flight ends with the remote.
    submit(&mut ring, read.clone(), READ);
    side.kill().unwrap();
    assert_eq!(completed(&mut ring), (READ, -Errno::PIPE.raw_os_error()));
    assert_eq!(workers(), 0);
}

#[test]
#[ignore = "needs the lab"]
fn io_uring_does_not_wait_when_told_not_to() {
    const NOWAIT: i32 = 8;
    let side = eptfd(&["echo"]);
    let ept = endpoint(&control(&side), OFlags::empty());
    let mut answer = [0; 32];
    let read = opcode::Read::new(types::Fd(ept.as_raw_fd()), answer.as_mut_ptr(), 32);
    let read = read.rw_flags(NOWAIT).build();
    let mut ring = IoUring::new(8).expect("io_uring");
    submit(&mut ring, read, 1);
    assert_eq!(completed(&mut ring), (1, -Errno::AGAIN.raw_os_error()));
}

/// A descriptor that is closed, and a ring that is gone, while a read is in flight.
#[test]
#[ignore = "needs the lab"]
fn io_uring_keeps_the_endpoint_as_long_as_it_reads() {
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let references = || fs::read_to_string("/sys/module/rpmsg_eptfd/refcnt").unwrap();
    let before = references();
    let ept = endpoint(&control, OFlags::empty());
    let mut answer = [0; 32];
    let read = opcode::Read::new(types::Fd(ept.as_raw_fd()), answer.as_mut_ptr(), 32).build();
    let mut ring = IoUring::new(8).expect("io_uring");
    submit(&mut ring, read, 1);
    drop(ept);
    assert!(ring.completion().next().is_none());
    assert_ne!(references(), before);
    drop(ring);
    wait_until("the endpoint to go", || references() == before);
}

/// Compiled here, with the headers of `kernel/uapi`, as a 32-bit program.
#[test]
#[ignore = "needs the lab"]
fn a_32_bit_program_makes_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("abi32");
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernel");
    let compiled = Command::new("cc")
        .args("-m32 -static -nostdlib -ffreestanding -fno-stack-protector -Wall -Werror".split(' '))
        .args(["-isystem", "/usr/include/x86_64-linux-gnu", "-I"])
        .args([format!("{here}/uapi"), format!("{here}/modules/rpmsg_eptfd/tests/abi32.c")])
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.expect("a compiler").success());

    let side = eptfd(&["echo"]);
    let status = Command::new(&program).stdin(control(&side)).status().unwrap();
    assert_eq!(status.code(), Some(0), "the line of abi32.c that failed");
}

/// Set in a process that makes one call, during which it is killed.
const VICTIM: &str = "BUSBAR_TEST_VICTIM";

/// `EINTR` of the calls that wait for each other: a process that is killed ends at once.
#[test]
#[ignore = "needs the lab"]
fn a_kill_ends_the_wait_for_another_call() {
    let other = named("other", 0x600, 0x601);
    if let Ok(controller) = std::env::var(VICTIM) {
        let control = File::options().read(true).write(true).open(controller).unwrap();
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let _ = rpmsg::create_dev(&control, other);
        return;
    }
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["a_kill_ends_the_wait_for_another_call", "--exact", "--ignored"])
        .env(VICTIM, side.controller())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();

    // A full ring makes the announcement of a channel wait, in the bus, for up to 15 s.
    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let full = endpoint(&control, OFlags::NONBLOCK);
    while write(&full, b"fill").is_ok() {}
    let raw = named("rpmsg-raw", 0x500, 0x501);
    let holder = std::thread::spawn(move || rpmsg::create_dev(&control, raw));

    victim.stdin.take().unwrap().write_all(b"now\n").unwrap();
    let tasks = format!("/proc/{}/task", victim.id());
    wait_until("it to wait", || {
        fs::read_dir(&tasks).unwrap().flatten().any(|task| {
            let syscall = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            let state = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            syscall.starts_with(&format!("{} ", libc::SYS_ioctl)) && state.contains(") D ")
        })
    });
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(!holder.is_finished(), "the victim was ended by the lock");

    kill_process(side.process().unwrap(), Signal::CONT).unwrap();
    holder.join().unwrap().expect("a channel, announced in the end");
    let mut answer = [0; 8];
    assert_eq!(read(&full, &mut answer), Ok(4));
}
