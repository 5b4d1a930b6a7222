//! Every ioctl and every call of `rpmsg_eptfd`, and each errno that it can return.
//!
//! `ENOMEM`, and every other failed allocation and copy, is in `fault.rs`.

#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use busbar_lab::stage::Side;
use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, Message, NAME_SIZE, Room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, read, write};
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use support::{BAD_POINTER, default_endpoint, eptfd, open_descriptors, raw_ioctl, wait_until};

const CREATE_EPT: Opcode = opcode::write::<EndpointInfo>(0xb5, 0x1);
const CREATE_DEV: Opcode = opcode::write::<EndpointInfo>(0xb5, 0x3);
const RELEASE_DEV: Opcode = opcode::write::<EndpointInfo>(0xb5, 0x4);
const GET_OUTGOING: Opcode = opcode::read::<i32>(0xb5, 0x5);
const SET_INCOMING: Opcode = opcode::read::<i32>(0xb5, 0x6);
const CREATE_EPT_FD: Opcode = opcode::read_write::<EndpointFdInfo>(0xb5, 0x7);
const SEND_MANY: Opcode = opcode::write::<[u64; 2]>(0xb5, 0xa);
const RECV_MANY: Opcode = opcode::write::<[u64; 2]>(0xb5, 0xb);
const UNKNOWN: Opcode = opcode::none(0xb5, 0x42);

fn name(text: &str) -> [u8; NAME_SIZE] {
    let mut name = [0; NAME_SIZE];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

fn info(text: &str, src: u32, dst: u32) -> EndpointInfo {
    EndpointInfo { name: name(text), src, dst }
}

fn fd_info(src: u32, dst: u32, flags: OFlags) -> EndpointFdInfo {
    EndpointFdInfo { name: name("test"), src, dst, flags: flags.bits(), fd: -1 }
}

fn control(side: &Side) -> File {
    File::options().read(true).write(true).open(side.controller()).expect("the control device")
}

fn endpoint(control: &File, dst: u32, flags: OFlags) -> OwnedFd {
    rpmsg::create_ept_fd(control, fd_info(ADDR_ANY, dst, flags)).expect("an endpoint")
}

/// The first service of a coprocessor.
const FIRST: u32 = 0x400;
/// Any free local address.
const FREE: u32 = 0x321;

fn nonblocking() -> OFlags {
    OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK
}

fn blocking() -> OFlags {
    OFlags::RDWR | OFlags::CLOEXEC
}

fn poll_now(fd: impl AsFd, interest: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(&fd, interest)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll");
    fds[0].revents()
}

#[test]
#[ignore = "needs the lab"]
fn control_calls() {
    let mut side = eptfd(&["echo"]);
    let control = control(&side);
    let before = open_descriptors();

    for call in [CREATE_EPT, CREATE_DEV, RELEASE_DEV, CREATE_EPT_FD] {
        assert_eq!(raw_ioctl(&control, call, BAD_POINTER), Err(Errno::FAULT), "{call:#x}");
    }
    for call in [UNKNOWN, GET_OUTGOING, SET_INCOMING] {
        assert_eq!(raw_ioctl(&control, call, BAD_POINTER), Err(Errno::NOTTY), "{call:#x}");
    }

    let allowed = OFlags::ACCMODE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for bit in 0..32 {
        let flags = OFlags::from_bits_retain(1 << bit);
        let result = rpmsg::create_ept_fd(&control, fd_info(ADDR_ANY, FIRST, flags));
        if allowed.contains(flags) {
            assert!(result.is_ok(), "{flags:?}: {result:?}");
        } else {
            assert_eq!(result.unwrap_err(), Errno::INVAL, "{flags:?}");
        }
    }

    let taken = rpmsg::create_ept_fd(&control, fd_info(FREE, FIRST, blocking())).unwrap();
    for src in [FREE, 0x8000_0000, 0xffff_fffe] {
        let result = rpmsg::create_ept_fd(&control, fd_info(src, FIRST, blocking()));
        assert_eq!(result.unwrap_err(), Errno::INVAL, "source {src:#x}");
    }
    drop(taken);
    drop(rpmsg::create_ept_fd(&control, fd_info(FREE, FIRST, blocking())).expect("free again"));
    assert_eq!(rpmsg::create_ept(&control, info("x", 0x8000_0000, 1)), Err(Errno::INVAL));

    let local = info("local", 0x500, 0x501);
    rpmsg::create_dev(&control, local).expect("a channel");
    assert_eq!(rpmsg::create_dev(&control, local), Err(Errno::NXIO));
    rpmsg::release_dev(&control, local).expect("release it");
    assert_eq!(rpmsg::release_dev(&control, local), Err(Errno::INVAL));
    for reserved in ["rpmsg_ctrl", "rpmsg_ns"] {
        let own = info(reserved, ADDR_ANY, ADDR_ANY);
        assert_eq!(rpmsg::create_dev(&control, own), Err(Errno::INVAL), "{reserved}");
        assert_eq!(rpmsg::release_dev(&control, own), Err(Errno::INVAL), "{reserved}");
    }
    assert_eq!(open_descriptors(), before);

    side.kill().unwrap();
    for call in [rpmsg::create_ept, rpmsg::create_dev, rpmsg::release_dev] {
        assert_eq!(call(&control, local), Err(Errno::NODEV));
    }
    let result = rpmsg::create_ept_fd(&control, fd_info(ADDR_ANY, FIRST, blocking()));
    assert_eq!(result.unwrap_err(), Errno::NODEV);
    assert_eq!(open_descriptors(), before);
}

#[test]
#[ignore = "needs the lab"]
fn create_fd_leaves_nothing_behind_when_it_fails_late() {
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let before = open_descriptors();

    // The descriptor cannot be returned: the structure is in read-only memory.
    #[allow(unsafe_code)]
    // SAFETY: a new mapping, never unmapped, made read-only after it was written.
    let page = unsafe {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(std::ptr::null_mut(), 4096, flags, MapFlags::PRIVATE).unwrap();
        page.cast::<EndpointFdInfo>().write(fd_info(FREE, FIRST, blocking()));
        rustix::mm::mprotect(page, 4096, rustix::mm::MprotectFlags::READ).unwrap();
        page
    };
    for _ in 0..100 {
        let result = raw_ioctl(&control, CREATE_EPT_FD, page.expose_provenance());
        assert_eq!(result, Err(Errno::FAULT));
    }
    assert_eq!(open_descriptors(), before);

    let limit = getrlimit(Resource::Nofile);
    let full = Rlimit { current: Some(before as u64 - 1), ..limit };
    setrlimit(Resource::Nofile, full).unwrap();
    let result = rpmsg::create_ept_fd(&control, fd_info(FREE, FIRST, blocking()));
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(result.unwrap_err(), Errno::MFILE);

    drop(rpmsg::create_ept_fd(&control, fd_info(FREE, FIRST, blocking())).expect("address free"));
    assert_eq!(open_descriptors(), before);
}

/// The limit of the system, which does not apply with `CAP_SYS_ADMIN`.
#[test]
#[ignore = "needs the lab"]
fn create_fd_needs_a_file() {
    const LIMIT: &str = "/proc/sys/fs/file-max";
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let usual = std::fs::read_to_string(LIMIT).unwrap();
    let before = open_descriptors();
    std::fs::write(LIMIT, "0").unwrap();
    let result = std::thread::scope(|scope| {
        let unprivileged = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, sets).unwrap();
            rpmsg::create_ept_fd(&control, fd_info(FREE, FIRST, blocking()))
        };
        scope.spawn(unprivileged).join().unwrap()
    });
    std::fs::write(LIMIT, usual.trim()).unwrap();
    assert_eq!(result.unwrap_err(), Errno::NFILE);
    drop(rpmsg::create_ept_fd(&control, fd_info(FREE, FIRST, blocking())).expect("address free"));
    assert_eq!(open_descriptors(), before);
}

#[test]
#[ignore = "needs the lab"]
fn endpoint_calls() {
    let mut side = eptfd(&["echo"]);
    let control = control(&side);
    let ept = endpoint(&control, FIRST, nonblocking());

    assert_eq!(raw_ioctl(&ept, UNKNOWN, 0), Err(Errno::NOTTY));
    assert_eq!(raw_ioctl(&ept, GET_OUTGOING, BAD_POINTER), Err(Errno::FAULT));
    assert_eq!(rpmsg::outgoing_flow_control(&ept), Ok(false));
    assert_eq!(raw_ioctl(&ept, SET_INCOMING, 2), Err(Errno::INVAL));
    // The virtio bus has no flow control.
    assert_eq!(rpmsg::set_incoming_flow_control(&ept, true), Err(Errno::OPNOTSUPP));

    assert_eq!(write(&ept, &[0; 497]), Err(Errno::MSGSIZE));
    assert_eq!(write(endpoint(&control, ADDR_ANY, blocking()), b"x"), Err(Errno::INVAL));
    assert_eq!(read(&ept, &mut [0; 8]), Err(Errno::AGAIN));
    let write_only = endpoint(&control, FIRST, OFlags::WRONLY);
    assert_eq!(read(&write_only, &mut [0; 8]), Err(Errno::BADF));
    let read_only = endpoint(&control, FIRST, OFlags::RDONLY);
    assert_eq!(write(&read_only, b"x"), Err(Errno::BADF));

    // A message that could not be copied is not lost.
    write(&ept, b"stays").unwrap();
    wait_until("an answer", || poll_now(&ept, PollFlags::IN).contains(PollFlags::IN));
    assert_eq!(read_to_nowhere(&ept), Err(Errno::FAULT));
    let mut buffer = [0; 8];
    assert_eq!(read(&ept, &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"stays");
    assert_eq!(write_from_nowhere(&ept), Err(Errno::FAULT));

    rpmsg::destroy_ept(&ept).expect("destroy");
    rpmsg::destroy_ept(&ept).expect("a second time changes nothing");
    assert_ended(&ept);

    let survivor = endpoint(&control, FIRST, nonblocking());
    side.kill().unwrap();
    assert_ended(&survivor);
    rpmsg::destroy_ept(&survivor).expect("destroy after the end");
}

#[test]
#[ignore = "needs the lab"]
fn many_messages() {
    let mut side = eptfd(&["echo"]);
    let control = control(&side);
    let ept = endpoint(&control, FIRST, nonblocking());
    let send = |messages: &[&[u8]]| {
        let messages: Vec<_> = messages.iter().map(|bytes| Message::new(bytes)).collect();
        rpmsg::send_many(&ept, &messages, true)
    };
    let mut lengths = [0; 3];
    let mut recv = || {
        let mut buffers = [[0; 5]; 3];
        let mut rooms = buffers.each_mut().map(|buffer| Room::new(buffer));
        let received = rpmsg::recv_many(&ept, &mut rooms, true);
        lengths = rooms.each_ref().map(Room::len);
        received.map(|count| lengths[..count].to_vec())
    };

    for call in [SEND_MANY, RECV_MANY] {
        assert_eq!(raw_ioctl(&ept, call, BAD_POINTER), Err(Errno::FAULT), "{call:#x}");
        for flags in (1..32).map(|bit| 1u64 << bit) {
            let unknown = [0, flags << 32];
            assert_eq!(raw_ioctl(&ept, call, address(&unknown)), Err(Errno::INVAL), "{flags:#x}");
        }
        // An array that cannot be read.
        let many = [BAD_POINTER as u64, 1];
        assert_eq!(raw_ioctl(&ept, call, address(&many)), Err(Errno::FAULT));
    }
    let write_only = endpoint(&control, FIRST, OFlags::WRONLY);
    assert_eq!(rpmsg::recv_many(&write_only, &mut [], true), Err(Errno::BADF));
    let read_only = endpoint(&control, FIRST, OFlags::RDONLY);
    assert_eq!(rpmsg::send_many(&read_only, &[], true), Err(Errno::BADF));
    let nowhere = endpoint(&control, ADDR_ANY, blocking());
    assert_eq!(rpmsg::send_many(&nowhere, &[Message::new(b"x")], true), Err(Errno::INVAL));

    assert_eq!(send(&[]), Ok(0));
    assert_eq!(recv(), Err(Errno::AGAIN));
    assert_eq!(send(&[&[0; 497]]), Err(Errno::MSGSIZE));
    assert_eq!(send(&[b"", b"1", &[0; 497]]), Ok(2));
    let mut page = Inaccessible::new();
    let bad = page.bytes();
    assert_eq!(rpmsg::send_many(&ept, &[Message::new(bad)], true), Err(Errno::FAULT));
    let partly = [Message::new(b"1234"), Message::new(bad)];
    assert_eq!(rpmsg::send_many(&ept, &partly, true), Ok(1));
    assert_eq!(send(&[b"123456", b"12"]), Ok(2));
    wait_for_answers(&ept, 5);

    assert_eq!(rpmsg::recv_many(&ept, &mut [Room::new(bad)], true), Ok(1), "an empty message");
    assert_eq!(rpmsg::recv_many(&ept, &mut [Room::new(bad)], true), Err(Errno::FAULT));
    assert_eq!(recv(), Ok(vec![1, 4]), "and the longer one ends the call");
    assert_eq!(recv(), Err(Errno::MSGSIZE), "which loses it");
    assert_eq!(recv(), Ok(vec![2]));
    assert_eq!(recv(), Err(Errno::AGAIN));

    // More than one group, and more than a call takes.
    let limit = Path::new("/sys/module/rpmsg_eptfd/parameters/rx_limit");
    let all = vec![Message::new(b"many"); 2000];
    let blocking = endpoint(&control, FIRST, blocking());
    assert_eq!(rpmsg::send_many(&blocking, &all, true), Ok(1024));
    wait_for_answers(&blocking, 1024);
    let default = std::fs::read_to_string(limit).unwrap();
    std::fs::write(limit, "0").unwrap();
    write(&blocking, b"lost").unwrap();
    wait_until("a loss", || fdinfo(&blocking, "rpmsg-dropped") == 1);
    std::fs::write(limit, default.trim()).unwrap();
    let mut bytes = vec![[0; 4]; 2000];
    let mut rooms: Vec<_> = bytes.iter_mut().map(|bytes| Room::new(bytes)).collect();
    assert_eq!(rpmsg::recv_many(&blocking, &mut rooms[..20], true), Err(Errno::NOBUFS));
    assert_eq!(rpmsg::recv_many(&blocking, &mut rooms, true), Ok(1024));
    assert!(rooms[..1024].iter().all(|room| room.len() == 4));
    assert_eq!(rpmsg::recv_many(&blocking, &mut rooms, false), Err(Errno::AGAIN));

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let room = rpmsg::send_many(&blocking, &all, false).unwrap();
    assert!((1..=256).contains(&room), "the ring has 256 buffers, not {room}");
    assert_eq!(rpmsg::send_many(&blocking, &all, false), Err(Errno::AGAIN));
    let writer = std::thread::scope(|scope| {
        let writer = scope.spawn(|| rpmsg::send_many(&blocking, &all[..300], true));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!writer.is_finished());
        kill_process(side.process().unwrap(), Signal::CONT).unwrap();
        writer.join().unwrap()
    });
    assert_eq!(writer, Ok(300));

    side.kill().unwrap();
    assert_eq!(send(&[b"x"]), Err(Errno::PIPE));
    assert_eq!(recv(), Err(Errno::PIPE));
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<u8>().expose_provenance()
}

fn fdinfo(ept: &OwnedFd, field: &str) -> u64 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", ept.as_raw_fd())).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.trim_start_matches(':').trim().parse().expect("a number")
}

fn wait_for_answers(ept: &OwnedFd, count: u64) {
    wait_until("answers", || fdinfo(ept, "rpmsg-queued") == count);
}

fn assert_ended(ept: &OwnedFd) {
    assert_eq!(write(ept, b"x"), Err(Errno::PIPE));
    assert_eq!(read(ept, &mut [0; 8]), Err(Errno::PIPE));
    assert_eq!(rpmsg::set_incoming_flow_control(ept, true), Err(Errno::PIPE));
    let ended = PollFlags::ERR | PollFlags::HUP;
    assert_eq!(poll_now(ept, PollFlags::IN | PollFlags::OUT) & ended, ended);
}

/// A system call with a bad address, which no safe wrapper makes.
fn read_to_nowhere(fd: &OwnedFd) -> Result<usize, Errno> {
    let mut page = Inaccessible::new();
    read(fd, page.bytes())
}

fn write_from_nowhere(fd: &OwnedFd) -> Result<usize, Errno> {
    let mut page = Inaccessible::new();
    write(fd, page.bytes())
}

/// Eight bytes of this process that it can neither read nor write.
struct Inaccessible(*mut u8);

#[allow(unsafe_code)]
impl Inaccessible {
    fn new() -> Self {
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping that is never unmapped.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::empty(), flags) };
        Self(page.expect("a page").cast())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: only the kernel gets this address, and it checks each access.
        unsafe { std::slice::from_raw_parts_mut(self.0, 8) }
    }
}

#[test]
#[ignore = "needs the lab"]
fn full_ring_pushes_back() {
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let ept = endpoint(&control, FIRST, nonblocking());
    let process = side.process().unwrap();

    kill_process(process, Signal::STOP).unwrap();
    let mut sent = 0;
    let refused = loop {
        match write(&ept, b"fill") {
            Ok(_) => sent += 1,
            Err(why) => break why,
        }
        assert!(sent <= 256, "the ring has 256 buffers");
    };
    assert_eq!(refused, Errno::AGAIN);
    // It is reported again a millisecond later, which may be over before poll is called.
    wait_until("EPOLLOUT to be withheld", || {
        assert_eq!(write(&ept, b"fill"), Err(Errno::AGAIN));
        !poll_now(&ept, PollFlags::OUT).contains(PollFlags::OUT)
    });

    // A blocked writer is interrupted by a signal, and wakes when there is room.
    let blocked = endpoint(&control, FIRST, blocking());
    let writer = std::thread::spawn(move || write(&blocked, b"wait"));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!writer.is_finished());
    kill_process(process, Signal::CONT).unwrap();
    assert_eq!(writer.join().unwrap(), Ok(4));

    let mut buffer = [0; 8];
    for _ in 0..sent {
        wait_until("an answer", || poll_now(&ept, PollFlags::IN).contains(PollFlags::IN));
        assert_eq!(read(&ept, &mut buffer), Ok(4));
    }
    wait_until("room", || poll_now(&ept, PollFlags::OUT).contains(PollFlags::OUT));
}

#[test]
#[ignore = "needs the lab"]
fn blocked_calls_end_with_the_remote() {
    let mut side = eptfd(&["echo"]);
    let control = control(&side);

    let silent = endpoint(&control, FIRST, blocking());
    let reader = std::thread::spawn(move || read(&silent, &mut [0; 8]));
    let polled = endpoint(&control, FIRST, blocking());
    let waiter = std::thread::spawn(move || {
        let mut fds = [PollFd::new(&polled, PollFlags::IN)];
        poll(&mut fds, None).map(|_| fds[0].revents())
    });

    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let full = endpoint(&control, FIRST, nonblocking());
    while write(&full, b"fill").is_ok() {}
    let blocked = endpoint(&control, FIRST, blocking());
    let writer = std::thread::spawn(move || write(&blocked, b"wait"));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!reader.is_finished() && !writer.is_finished() && !waiter.is_finished());

    side.kill().unwrap();
    assert_eq!(reader.join().unwrap(), Err(Errno::PIPE));
    assert_eq!(writer.join().unwrap(), Err(Errno::PIPE));
    assert!(waiter.join().unwrap().unwrap().contains(PollFlags::HUP));
}

#[test]
#[ignore = "needs the lab"]
fn slow_reader_is_told_of_the_loss() {
    let limit = Path::new("/sys/module/rpmsg_eptfd/parameters/rx_limit");
    let side = eptfd(&["echo"]);
    let control = control(&side);
    let default = std::fs::read_to_string(limit).unwrap();
    std::fs::write(limit, "2048").unwrap();
    let ept = endpoint(&control, FIRST, nonblocking());
    for _ in 0..50 {
        wait_until("room", || write(&ept, &[7; 400]).is_ok());
    }
    let witness = endpoint(&control, FIRST, blocking());
    write(&witness, b"after").unwrap();
    read(&witness, &mut [0; 8]).expect("all answers have come");
    std::fs::write(limit, default.trim()).unwrap();

    let mut buffer = [0; 496];
    assert_eq!(read(&ept, &mut buffer), Err(Errno::NOBUFS));
    let mut kept = 0;
    while let Ok(len) = read(&ept, &mut buffer) {
        assert_eq!(len, 400);
        kept += 1;
    }
    assert!((1..50).contains(&kept), "{kept} of 50 kept");
    write(&ept, b"on").unwrap();
    wait_until("an answer", || read(&ept, &mut buffer) == Ok(2));
}

#[test]
#[ignore = "needs the lab"]
fn node_calls() {
    let mut side = eptfd(&["echo", "raw"]);
    let control = control(&side);
    rpmsg::create_ept(&control, info("node", ADDR_ANY, FIRST)).unwrap();
    let name = side.controller().file_name().unwrap();
    let class = Path::new("/sys/class/rpmsg").join(name);
    let node = std::fs::read_dir(class)
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("rpmsg"))
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .expect("a node");
    let open = || File::options().read(true).write(true).open(&node);
    wait_until("the device node", || node.exists());

    let file = open().expect("the first open");
    assert_eq!(open().unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    write(&file, b"hello").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(read(&file, &mut buffer), Ok(5));
    assert_eq!(raw_ioctl(&file, UNKNOWN, 0), Err(Errno::NOTTY));
    drop(file);
    let file = open().expect("a node can be opened again");
    rpmsg::destroy_ept(&file).unwrap();
    wait_until("the node to go", || !node.exists());
    assert_eq!(write(&file, b"x"), Err(Errno::PIPE));
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let refused = File::options().read(true).open(again).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::NETRESET));

    side.kill().unwrap();
    assert_eq!(rpmsg::create_ept(&control, info("node", ADDR_ANY, FIRST)), Err(Errno::NODEV));
}

#[test]
#[ignore = "needs the lab"]
fn signal_ends_a_blocked_read() {
    let side = eptfd(&["echo"]);
    let ept = endpoint(&control(&side), FIRST, blocking());
    let mut child = std::process::Command::new("timeout")
        .args(["--signal=USR1", "2", "cat"])
        .stdin(ept)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // `cat` blocks in read until the signal kills it; a read that ignored it would hang here.
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(124), "{status:?}");
}

#[test]
#[ignore = "needs the lab"]
fn default_endpoint_of_a_channel() {
    let side = eptfd(&["raw"]);
    let node = default_endpoint();
    let file = File::options().read(true).write(true).open(&node).unwrap();
    assert_eq!(rpmsg::destroy_ept(&file), Err(Errno::INVAL));
    write(&file, b"raw").unwrap();
    let mut answer = [0; 8];
    assert_eq!(read(&file, &mut answer), Ok(3));
    drop(file);
    let file = File::options().read(true).write(true).open(&node).expect("open it again");
    drop(side);
    assert_eq!(read(&file, &mut answer), Err(Errno::PIPE));
}
