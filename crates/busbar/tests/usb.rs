//! Streams over USB: a device and its host on one machine, by `dummy_hcd`.

#![cfg(feature = "usb")]

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use busbar::block::Memory;
use busbar::stream::net::{FrameReceiver, FrameSender, Options};
use busbar::stream::usb::{Address, RawSender};
use busbar::stream::verify::Counter;
use busbar::stream::{Interface, Lost, Source, StreamSetup};
use busbar_uapi::functionfs::Requests;
use nusb::MaybeFuture;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const LONG: Duration = Duration::from_secs(60);
/// There is one controller.
static CONTROLLER: Mutex<()> = Mutex::new(());

fn controller() -> std::sync::MutexGuard<'static, ()> {
    let guard = CONTROLLER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let status = Command::new("modprobe").args(["dummy_hcd", "is_super_speed=1"]).status().unwrap();
    assert!(status.success());
    unplugged();
    guard
}

/// Waits until the host knows that the device has gone: `dummy_hcd` fails to enumerate another one before that.
fn unplugged() {
    let start = Instant::now();
    while nusb::list_devices().wait().unwrap().any(|one| one.vendor_id() == 0x1209) {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
}

fn address(name: &str) -> Address {
    name.parse().unwrap()
}

fn setup(len: usize) -> StreamSetup {
    StreamSetup::new().blocks(8).block_len(len)
}

/// The source, the sender, and how far they are.
struct Sending {
    source: Source,
    sender: FrameSender,
    left: usize,
    room: usize,
    troubles: Vec<String>,
}

impl Sending {
    fn new(from: &str, to: &str, len: usize, interface: Option<Interface>, blocks: usize) -> Self {
        let source = setup(len).memory(Memory::Heap("system".into()));
        let source = Source::open(from, &source).unwrap();
        let sender = FrameSender::open_usb(
            &address(to),
            source.format(),
            source.block_len(),
            interface,
            &Options::new(),
        );
        Self { source, sender: sender.unwrap(), left: blocks, room: 8, troubles: Vec::new() }
    }

    fn turn(&mut self) {
        self.sender.advance().unwrap();
        while self.left > 0 && self.sender.unacknowledged() < self.room {
            let Some(samples) = self.source.try_next().unwrap() else { break };
            self.sender.push(samples).unwrap();
            self.left -= 1;
        }
        if self.left == 0 {
            self.sender.finish(Lost::Samples(0));
        }
        self.sender.advance().unwrap();
    }
}

fn receiver(from: &str) -> FrameReceiver {
    FrameReceiver::open_usb(&address(from), &setup(4096), &Options::new()).unwrap()
}

/// Receives until the end, and verifies each sample. `each` is called with the number of blocks so far.
fn run(sending: &mut Sending, receiver: &mut FrameReceiver, mut each: impl FnMut(u64)) -> u64 {
    let start = Instant::now();
    let (mut counter, mut blocks) = (None, 0);
    while !(receiver.is_finished() && sending.sender.is_finished()) {
        assert!(
            start.elapsed() < LONG,
            "{blocks} blocks, {:?}",
            (receiver.take_trouble(), sending.sender.take_trouble())
        );
        sending.turn();
        for trouble in receiver.take_trouble().into_iter().chain(sending.sender.take_trouble()) {
            eprintln!("{:?} {blocks}: {trouble}", start.elapsed());
            sending.troubles.push(trouble.to_string());
        }
        while let Some(samples) = receiver.try_next().unwrap() {
            let counter =
                counter.get_or_insert_with(|| Counter::new(receiver.format().unwrap()).unwrap());
            counter.verify(&samples, samples.meta().lost).unwrap();
            assert_eq!(samples.meta().sequence, blocks);
            blocks += 1;
            each(blocks);
        }
        let mut fds = [
            PollFd::new(receiver, PollFlags::IN),
            PollFd::new(&sending.sender, PollFlags::IN),
            PollFd::new(&sending.source, PollFlags::IN),
        ];
        // The source is ready all the time if the sender has no room.
        let count =
            if sending.left > 0 && sending.sender.unacknowledged() < sending.room { 3 } else { 2 };
        poll(&mut fds[..count], Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
    }
    counter.map_or(0, |counter| counter.samples())
}

#[test]
#[ignore = "needs the lab"]
fn blocks_go_to_a_host_in_place_and_by_a_copy() {
    let _controller = controller();
    for (interface, len) in [
        (Interface::Dmabuf, 65536),
        (Interface::Fileio, 65536),
        (Interface::Dmabuf, 1 << 20),
        (Interface::Fileio, 1 << 20),
        // Not a whole number of packets, and fewer bytes than a packet.
        (Interface::Dmabuf, 5000),
        (Interface::Fileio, 5000),
        (Interface::Dmabuf, 8),
        (Interface::Fileio, 8),
        (Interface::Fileio, 1024 - 56),
        (Interface::Dmabuf, (256 << 10) + 1024),
        (Interface::Fileio, (256 << 10) + 1024),
    ] {
        let blocks = if len < 1 << 20 { 20 } else { 10 };
        let mut sending = Sending::new("synth:counter", "?serial=a", len, Some(interface), blocks);
        let mut receiver = receiver("1209:0001:a");
        let start = Instant::now();
        let samples = run(&mut sending, &mut receiver, |_| {});
        eprintln!("{interface} {len}: {:?}", start.elapsed());
        assert_eq!(samples, (blocks * len / 8) as u64, "{interface} {len}");
        let copied = if interface == Interface::Dmabuf { 0 } else { (blocks * len) as u64 };
        assert_eq!(sending.sender.copied(), copied, "{interface} {len}");
        assert_eq!((receiver.reconnects(), receiver.corrupted()), (0, 0));
        assert!(sending.troubles.is_empty(), "{:?}", sending.troubles);
        drop((sending, receiver));
        unplugged();
    }
}

#[test]
#[ignore = "needs the lab"]
fn blocks_go_to_a_device() {
    let _controller = controller();
    for (interface, len) in [
        (Interface::Dmabuf, 65536),
        (Interface::Fileio, 65536),
        (Interface::Dmabuf, 1 << 20),
        (Interface::Fileio, 1 << 20),
        (Interface::Dmabuf, 5000),
        (Interface::Fileio, 5000),
        (Interface::Fileio, 8),
    ] {
        let blocks = if len < 1 << 20 { 20 } else { 10 };
        let setup = setup(4096).interface(interface);
        let mut receiver = FrameReceiver::open_usb(&address(""), &setup, &Options::new()).unwrap();
        let mut sending = Sending::new("synth:counter", "1209:0001", len, None, blocks);
        let start = Instant::now();
        let samples = run(&mut sending, &mut receiver, |_| {});
        eprintln!("{interface} {len}: {:?}", start.elapsed());
        assert_eq!(samples, (blocks * len / 8) as u64, "{interface} {len}");
        let copied = if interface == Interface::Dmabuf { 0 } else { (blocks * len) as u64 };
        assert_eq!(receiver.copied(), copied, "{interface} {len}");
        assert!(sending.troubles.is_empty(), "{:?}", sending.troubles);
        drop((sending, receiver));
        unplugged();
    }
}

/// Has the host forget the device, and find it again. `dummy_hcd` does not enumerate a device that was disconnected by
/// `soft_connect`.
fn replug() {
    let device =
        nusb::list_devices().wait().unwrap().find(|one| one.vendor_id() == 0x1209).unwrap();
    for authorized in ["0", "1"] {
        fs::write(device.sysfs_path().join("authorized"), authorized).unwrap();
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_cable_that_comes_back_has_lost_no_block() {
    let _controller = controller();
    for interface in [Interface::Dmabuf, Interface::Fileio] {
        let mut sending = Sending::new("synth:counter", "", 65536, Some(interface), 150);
        let mut receiver = receiver("1209:0001");
        let samples = run(&mut sending, &mut receiver, |blocks| {
            if blocks % 50 == 25 {
                replug();
            }
        });
        assert_eq!(samples, 150 * 65536 / 8);
        assert!(sending.sender.reconnects() >= 1 && receiver.reconnects() >= 1);
        drop((sending, receiver));
        unplugged();
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_converter_sends_its_blocks_in_place() {
    let _controller = controller();
    assert!(Command::new("modprobe").arg("vconv").status().unwrap().success());
    for interface in [Interface::Dmabuf, Interface::Fileio] {
        let mut sending = Sending::new("iio:vconv0", "", 65536, Some(interface), 100);
        let mut receiver = receiver("1209:0001");
        run(&mut sending, &mut receiver, |_| {});
        assert_eq!(sending.sender.copied() == 0, interface == Interface::Dmabuf);
        drop((sending, receiver));
        unplugged();
    }
}

/// Reads blocks by pyusb, in two runs, and verifies that the samples count. The second run begins with a whole block, that
/// the first one has not read.
const PROGRAM: &str = "
import sys, time, array, usb.core
blocks, length, first = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
end = time.time() + 60
while True:
    device = usb.core.find(idVendor=0x1209, idProduct=0x0001)
    try:
        device.set_interface_altsetting(0, 0)
        break
    except (AttributeError, usb.core.USBError):
        assert time.time() < end
        time.sleep(0.1)
expected = first
for _ in range(blocks):
    data = device.read(0x81, length, timeout=60000)
    samples = array.array('Q', bytes(data))
    assert len(samples) == length // 8
    assert samples[0] == expected and samples[-1] == expected + len(samples) - 1, (samples[0], expected)
    expected += len(samples)
";

#[test]
#[ignore = "needs the lab"]
fn samples_without_frames_are_for_any_program() {
    let _controller = controller();
    for interface in [Interface::Dmabuf, Interface::Fileio] {
        let len = 65536;
        let mut sender = RawSender::open(&address("?raw"), Some(interface)).unwrap();
        let source = setup(len).memory(Memory::Heap("system".into()));
        let source = Source::open("synth:counter", &source).unwrap();
        let mut read = 0;
        for blocks in [10, 20] {
            // A block that the host has read is not sent again.
            let first = u64::try_from(read * len / 8).unwrap();
            let mut host = Command::new("/usr/bin/python3")
                .args(["-c", PROGRAM, &blocks.to_string(), &len.to_string(), &first.to_string()])
                .spawn()
                .unwrap();
            read += blocks;
            let status = loop {
                if let Some(status) = host.try_wait().unwrap() {
                    break status;
                }
                sender.advance().unwrap();
                while sender.unsent() < 8 {
                    sender.push(source.try_next().unwrap().unwrap()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(status.success(), "{interface}");
            sender.advance().unwrap();
        }
        assert_eq!(sender.copied() == 0, interface == Interface::Dmabuf);
        drop(sender);
        unplugged();
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_block_that_needs_too_many_copies_is_an_error() {
    let _controller = controller();
    let source = setup(17 << 20).blocks(1).memory(Memory::Heap("system".into()));
    let source = Source::open("synth:counter", &source).unwrap();
    let mut sender = RawSender::open(&address("?raw"), Some(Interface::Fileio)).unwrap();
    let (mut done, start) = (sender.push(source.next().unwrap()), Instant::now());
    // It is seen once the host has enabled the endpoint.
    while done.is_ok() {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(10));
        done = sender.advance();
    }
    let error = done.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("up to 16777216 bytes"), "{error}");
    drop(sender);
    unplugged();
}

const COMPOSITE: &str = "/sys/kernel/config/usb_gadget/composite";

fn remove_composite() {
    let path = |name: &str| format!("{COMPOSITE}/{name}");
    // It has none if the function was closed.
    let _ = fs::write(path("UDC"), "\n");
    for function in ["acm.serial", "ffs.samples"] {
        fs::remove_file(path(&format!("configs/c.1/{function}"))).unwrap();
        fs::remove_dir(path(&format!("functions/{function}"))).unwrap();
    }
    fs::remove_dir(path("configs/c.1")).unwrap();
    fs::remove_dir(COMPOSITE).unwrap();
}

/// A serial port before it, so that neither the interface nor its endpoints are the first of the device.
#[test]
#[ignore = "needs the lab"]
fn samples_are_one_function_of_a_composite_device() {
    let _controller = controller();
    assert!(Command::new("modprobe").arg("libcomposite").status().unwrap().success());
    let path = |name: &str| format!("{COMPOSITE}/{name}");
    fs::create_dir(COMPOSITE).unwrap();
    fs::create_dir(path("configs/c.1")).unwrap();
    for (name, value) in [("idVendor", "0x1209"), ("idProduct", "0x0001")] {
        fs::write(path(name), value).unwrap();
    }
    for function in ["acm.serial", "ffs.samples"] {
        let (made, link) =
            (path(&format!("functions/{function}")), path(&format!("configs/c.1/{function}")));
        fs::create_dir(&made).unwrap();
        std::os::unix::fs::symlink(made, link).unwrap();
    }
    let mounted = tempfile::tempdir().unwrap();
    let directory = mounted.path().to_str().unwrap();
    let mount = Command::new("mount").args(["-t", "functionfs", "samples", directory]).status();
    assert!(mount.unwrap().success());
    let device = format!("?ffs={directory}");
    for (from, to) in [(&*device, "1209:0001"), ("1209:0001", &*device)] {
        let (blocks, len) = (20, 65536);
        let mut sending = Sending::new("synth:counter", from, len, None, blocks);
        let mut receiver = receiver(to);
        fs::write(path("UDC"), "dummy_udc.0").unwrap();
        assert_eq!(run(&mut sending, &mut receiver, |_| {}), (blocks * len / 8) as u64);
        drop((sending, receiver));
        unplugged();
    }
    assert!(Command::new("umount").arg(directory).status().unwrap().success());
    remove_composite();
}

/// The address spaces of processes that the kernel has memory for.
fn address_spaces() -> u64 {
    let info = fs::read_to_string("/proc/slabinfo").unwrap();
    let line = info.lines().find(|line| line.starts_with("mm_struct ")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Run by the next test.
#[test]
#[ignore = "needs the lab"]
fn a_process_queues_a_read_and_ends() {
    let Some(path) = std::env::var_os("BUSBAR_ENDPOINT") else { return };
    let start = Instant::now();
    loop {
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        let endpoint = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let mut requests = Requests::new(1).unwrap();
        requests.read(&endpoint, vec![0; 1024], 0).unwrap();
        let mut has_ended = false;
        // There is no host yet.
        requests.reap(|one| has_ended = one.result == Err(Errno::AGAIN)).unwrap();
        if !has_ended {
            return;
        }
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Linux 6.12.117 keeps them without patch 0035.
#[test]
#[ignore = "needs the lab"]
fn the_address_space_of_a_process_ends_with_it() {
    const PROCESSES: u64 = 200;
    let _controller = controller();
    let sender = RawSender::open(&address("?raw"), None).unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" functionfs ")).unwrap();
    let endpoint = format!("{}/ep2", mount.split(' ').nth(1).unwrap());
    let run = || {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "a_process_queues_a_read_and_ends"])
            .env("BUSBAR_ENDPOINT", &endpoint)
            .output()
            .unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    };
    run();
    let before = address_spaces();
    (0..PROCESSES).for_each(|_| run());
    let after = address_spaces();
    assert!(after < before + PROCESSES / 2, "{before} and {after}");
    drop(sender);
    unplugged();
}
