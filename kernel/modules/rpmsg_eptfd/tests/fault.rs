//! Every allocation and every copy of each call fails once; nothing may be left behind.

// The coprocessor is this process, which a 32-bit program cannot be.
#![cfg(target_pointer_width = "64")]

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

mod remote;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;

use busbar_uapi::dmabuf::{self, FROM_REMOTE};
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, Message, NAME_SIZE, Room};
use remote::{Bench, PAGE, answer, fdinfo, heap, references};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat};
use rustix::io::Errno;
use support::fault::{FailNth, arm};
use support::{eptfd, open_descriptors, wait_until};

const FREE: u32 = 0x321;
const FIRST: u32 = 0x400;

/// Repeats a call with the first, the second … fault; returns their number.
fn each_fault<T>(
    nth: &FailNth,
    mut call: impl FnMut() -> Result<T, Errno>,
    mut check: impl FnMut(u32),
) -> u32 {
    for fault in 1..1000 {
        let (result, hit) = nth.run(fault, &mut call);
        if let Err(why) = &result {
            let expected = [Errno::NOMEM, Errno::FAULT, Errno::INVAL, Errno::NXIO, Errno::NFILE];
            assert!(hit, "{why} without a fault");
            assert!(expected.contains(why), "fault {fault}: {why}");
        }
        drop(result);
        check(fault);
        if !hit {
            return fault - 1;
        }
    }
    panic!("the call never got through");
}

#[test]
#[ignore = "needs the lab"]
fn create_fd_undoes_everything() {
    arm();
    let side = eptfd(&["echo"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let info = EndpointFdInfo { name: [b'x'; NAME_SIZE], src: FREE, dst: FIRST, flags, fd: -1 };
    let call = || rpmsg::create_ept_fd(&control, info);
    drop(call().expect("works without a fault"));
    let nth = FailNth::open();
    let (descriptors, references_before) = (open_descriptors(), references());

    let faults = each_fault(&nth, call, |fault| {
        assert_eq!(open_descriptors(), descriptors, "fault {fault}");
        assert_eq!(references(), references_before, "fault {fault}");
        drop(call().unwrap_or_else(|why| panic!("fault {fault} kept the address: {why}")));
    });
    // Copy in, endpoint, rpmsg endpoint, file and its inode or dentry, copy out.
    assert!(faults >= 5, "only {faults} faults were possible");
}

#[test]
#[ignore = "needs the lab"]
fn create_node_undoes_everything() {
    arm();
    let side = eptfd(&["echo"]);
    let control = File::options().read(true).write(true).open(side.controller()).unwrap();
    let class = Path::new("/sys/class/rpmsg").join(side.controller().file_name().unwrap());
    let nodes = || -> Vec<_> {
        let entries = fs::read_dir(&class).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("rpmsg")).collect()
    };
    let info = EndpointInfo { name: [b'x'; NAME_SIZE], src: ADDR_ANY, dst: FIRST };
    let references_before = references();

    let nth = FailNth::open();
    let faults = each_fault(
        &nth,
        || rpmsg::create_ept(&control, info),
        |fault| {
            for entry in nodes() {
                rpmsg::destroy_ept(open_by_number(&entry.path())).unwrap();
            }
            assert!(nodes().is_empty(), "fault {fault} left a node");
            assert_eq!(references(), references_before, "fault {fault}");
        },
    );
    assert!(faults >= 5, "only {faults} faults were possible");
}

/// The driver core creates the device even if devtmpfs had no memory for its node.
fn open_by_number(device: &Path) -> File {
    let number = fs::read_to_string(device.join("dev")).unwrap();
    let (major, minor) = number.trim().split_once(':').unwrap();
    let number = makedev(major.parse().unwrap(), minor.parse().unwrap());
    let folder = tempfile::tempdir_in("/dev").unwrap();
    let node = folder.path().join("node");
    mknodat(CWD, &node, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, number).unwrap();
    File::options().read(true).write(true).open(&node).unwrap()
}

/// An endpoint to the first service.
fn endpoint(controller: &Path) -> OwnedFd {
    let control = File::options().read(true).write(true).open(controller).unwrap();
    let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
    let info = EndpointFdInfo { name: [b'x'; NAME_SIZE], src: ADDR_ANY, dst: FIRST, flags, fd: -1 };
    rpmsg::create_ept_fd(&control, info).unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn write_loses_no_memory() {
    arm();
    let side = eptfd(&["echo"]);
    let endpoint = endpoint(side.controller());
    let nth = FailNth::open();
    let faults = each_fault(&nth, || rustix::io::write(&endpoint, b"message"), |_| {});
    assert!(faults >= 2, "the buffer and the copy, not {faults}");
}

#[test]
#[ignore = "needs the lab"]
fn many_messages_lose_no_memory_and_no_message() {
    arm();
    let side = eptfd(&["echo"]);
    let endpoint = endpoint(side.controller());
    let nth = FailNth::open();
    let messages: Vec<_> = (0..20u8).map(|n| [n; 30]).collect();
    let group: Vec<_> = messages.iter().map(|message| Message::new(message)).collect();
    let mut sent = 0;
    let send_all = || {
        let count = rpmsg::send_many(&endpoint, &group, true)?;
        sent += count;
        if count == group.len() { Ok(()) } else { Err(Errno::FAULT) }
    };
    let faults = each_fault(&nth, send_all, |_| {});
    assert!(faults > 20, "the copies of messages, and more, not {faults}");

    let mut received = 0;
    let mut buffers = [[0; 30]; 20];
    let recv_all = || {
        let mut rooms = buffers.each_mut().map(|buffer| Room::new(buffer));
        let count = rpmsg::recv_many(&endpoint, &mut rooms, true)?;
        received += count;
        if count == rooms.len() { Ok(()) } else { Err(Errno::FAULT) }
    };
    let faults = each_fault(&nth, recv_all, |_| {});
    assert!(faults > 20, "the copies of messages, and more, not {faults}");
    let mut buffer = [0; 30];
    while received < sent {
        rustix::io::read(&endpoint, &mut buffer).unwrap();
        received += 1;
    }
    rustix::io::write(&endpoint, b"last").unwrap();
    assert_eq!(rustix::io::read(&endpoint, &mut buffer), Ok(4), "none came twice");
}

#[test]
#[ignore = "needs the lab"]
fn attach_undoes_everything() {
    arm();
    let bench = Bench::new();
    let buffer = heap(1 << 21);
    let nth = FailNth::open();
    let before = (open_descriptors(), references());
    // A new endpoint each time, as the first buffer needs more than the next ones.
    let mut endpoint = bench.endpoint();
    for fault in 1..1000 {
        let call = || dmabuf::attach(&endpoint, &buffer);
        let (result, hit) = nth.run(fault, call);
        match result {
            Ok(()) => dmabuf::detach(&endpoint, &buffer).unwrap(),
            Err(why) => {
                assert!(hit && [Errno::NOMEM, Errno::FAULT].contains(&why), "fault {fault}: {why}");
                assert!(fdinfo(&endpoint, "rpmsg-buffers").unwrap_or(0) == 0, "fault {fault}");
                dmabuf::attach(&endpoint, &buffer).expect("once more");
            }
        }
        endpoint = bench.endpoint();
        assert_eq!((open_descriptors() - 1, references() - 1), before);
        if !hit {
            // Copy in, share, buffer, attachment, exporter's attachment and table, mapping.
            assert!(fault > 7, "only {} faults were possible", fault - 1);
            return;
        }
    }
    panic!("the call never got through");
}

#[test]
#[ignore = "needs the lab"]
fn send_undoes_everything() {
    arm();
    let bench = Bench::new();
    let before = references();
    let endpoint = bench.endpoint();
    let buffer = heap(PAGE);
    dmabuf::attach(&endpoint, &buffer).unwrap();
    let nth = FailNth::open();
    let mut sent = 0;
    let call = || dmabuf::send(&endpoint, &buffer, FROM_REMOTE, 0, PAGE);
    let faults = each_fault(&nth, call, |fault| {
        // A part that was sent arrives, and one that was not has left nothing behind.
        if fdinfo(&endpoint, "rpmsg-given") == Some(1) {
            let (from, part) = bench.remote.given();
            bench.remote.map(&part).write(&[1; 4096]).expect("access to what is given");
            bench.remote.give_back(from, &part);
            answer(&endpoint);
            sent += 1;
        }
        assert!(bench.remote.has_message().is_none(), "fault {fault}");
        let mut fds = [PollFd::new(&buffer, PollFlags::OUT)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(1), "fault {fault}");
    });
    assert!(sent >= 1);
    // Copy in, cookie, transfer, room for a fence.
    assert!(faults >= 4, "only {faults} faults were possible");
    drop(endpoint);
    wait_until("the module", || references() == before);
}
