//! `usb:` while its sides are killed, unplugged and disabled, and beside a host that means harm. In the debug kernel, which
//! reports what goes wrong in it.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{command, modprobe, rounds, signal, wait_until};

const HOST: &str = "usb:1209:0001";
/// `dummy_hcd` does not enumerate a device that comes sooner after another one has left.
const BREAK: Duration = Duration::from_millis(300);

fn load() {
    modprobe(&["dummy_hcd", "is_super_speed=1"]).unwrap();
    unplugged();
}

/// The device, as the host has it.
fn device() -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/bus/usb/devices").unwrap();
    let mut devices = entries.flatten().map(|entry| entry.path());
    devices.find(|it| fs::read_to_string(it.join("idVendor")).is_ok_and(|id| id.trim() == "1209"))
}

fn unplugged() {
    wait_until("the device goes", || device().is_none());
    sleep(BREAK);
}

/// The gadgets that Busbar has made.
fn gadgets() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/kernel/config/usb_gadget") else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// `busbar stream` with its reports.
struct Stream {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    samples: u64,
    last: Value,
}

impl Stream {
    fn start(from: &str, to: &str) -> Self {
        let mut child = command(&["stream", from, to, "--json"])
            .stderr(std::process::Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, samples: 0, last: Value::Null }
    }

    /// The samples of the next report; `None` once it has ended.
    fn next(&mut self) -> Option<u64> {
        self.last = serde_json::from_str(&self.lines.next()?.unwrap()).unwrap();
        self.last["samples"].as_u64()
    }

    /// Waits until it has had more samples.
    fn grows(&mut self) {
        let before = self.samples;
        while self.samples <= before {
            self.samples = self.next().expect("a stream that goes on");
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its summary, once it has ended in order.
    fn finish(mut self) -> Value {
        while self.next().is_some() {}
        assert!(self.child.wait().unwrap().success(), "{}", self.last);
        assert_eq!(self.last["event"], "summary");
        self.last.take()
    }

    /// The same, after it was interrupted.
    fn end(self) -> Value {
        signal(&self.child, Signal::INT);
        self.finish()
    }
}

/// Both sides end in order, and nothing is left.
fn both_end(sender: Stream, receiver: Stream) {
    let (sent, taken) = (sender.end(), receiver.finish());
    assert_eq!(sent["samples"], taken["samples"]);
    assert_eq!((&taken["lost"], &taken["unknown"]), (&0.into(), &0.into()));
    assert!(gadgets().is_empty());
    unplugged();
}

#[test]
#[ignore = "needs the lab"]
fn a_cable_that_is_pulled_again_and_again_loses_nothing() {
    load();
    for (from, to) in [("usb:", HOST), (HOST, "usb:")] {
        let mut receiver = Stream::start(to, "verify:counter");
        let mut sender = Stream::start("synth:counter", from);
        for _ in 0..rounds(50, 4) {
            receiver.grows();
            let authorized = device().unwrap().join("authorized");
            fs::write(&authorized, "0").unwrap();
            fs::write(&authorized, "1").unwrap();
        }
        receiver.grows();
        sender.grows();
        both_end(sender, receiver);
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_function_that_is_disabled_with_transfers_under_way_comes_back() {
    load();
    for (from, to) in [("usb:", HOST), (HOST, "usb:")] {
        let mut receiver = Stream::start(to, "verify:counter");
        let mut sender = Stream::start("synth:counter", from);
        for _ in 0..rounds(20, 2) {
            receiver.grows();
            let udc = gadgets()[0].join("UDC");
            let controller = fs::read_to_string(&udc).unwrap();
            fs::write(&udc, "\n").unwrap();
            unplugged();
            fs::write(&udc, controller).unwrap();
        }
        receiver.grows();
        sender.grows();
        both_end(sender, receiver);
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_device_that_is_killed_is_followed_by_another() {
    load();
    let mut receiver = Stream::start(HOST, "verify:counter");
    for _ in 0..rounds(20, 3) {
        let sender = Stream::start("synth:counter", "usb:");
        receiver.grows();
        sender.kill();
        unplugged();
    }
    // It removes the gadget of the one before.
    let sender = Stream::start("synth:counter", "usb:");
    receiver.grows();
    assert_eq!(gadgets().len(), 1);
    sender.end();
    receiver.finish();
    unplugged();
}

#[test]
#[ignore = "needs the lab"]
fn a_host_that_is_killed_is_followed_by_another() {
    load();
    let mut sender = Stream::start("synth:counter", "usb:");
    for _ in 0..rounds(20, 3) {
        let mut receiver = Stream::start(HOST, "verify:counter");
        receiver.grows();
        receiver.kill();
    }
    let mut receiver = Stream::start(HOST, "verify:counter");
    receiver.grows();
    sender.grows();
    sender.end();
    receiver.finish();
    assert!(gadgets().is_empty());
    unplugged();
}

/// A host that does everything wrong, for a while.
const HARM: &str = "
import random, sys, time, usb.core
random.seed(int(sys.argv[1]))
end = time.time() + 60
while True:
    try:
        device = usb.core.find(idVendor=0x1209, idProduct=0x0001)
        device.set_interface_altsetting(0, 0)
        break
    except (AttributeError, usb.core.USBError):
        assert time.time() < end
        time.sleep(0.1)
for _ in range(int(sys.argv[2])):
    try:
        match random.randrange(7):
            case 0: device.read(0x81, random.choice([64, 1024, 5000, 65536]), timeout=50)
            case 1: device.write(0x02, random.randbytes(random.choice([1, 56, 1023, 1024, 4096])), timeout=50)
            case 2: device.write(0x02, b'BBst' + bytes([1, random.randrange(8), 56, 0]) + random.randbytes(48), timeout=50)
            case 3: device.clear_halt(random.choice([0x81, 0x02]))
            case 4: device.ctrl_transfer(0x02, 3, 0, random.choice([0x81, 0x02]))
            case 5: device.set_interface_altsetting(0, 0)
            case 6: device.ctrl_transfer(random.choice([0x40, 0xc0, 0x41, 0xc1]), random.randrange(256), 0, 0, 8, timeout=50)
    except usb.core.USBError:
        pass
";

#[test]
#[ignore = "needs the lab"]
fn a_host_that_means_harm_keeps_nothing_from_an_honest_one() {
    load();
    let harm = |seed: u64| {
        let count = rounds(200, 40).to_string();
        let mut host = Command::new("/usr/bin/python3");
        assert!(host.args(["-c", HARM, &seed.to_string(), &count]).status().unwrap().success());
    };
    for seed in 0..rounds(10, 2) {
        let mut sender = Stream::start("synth:counter", "usb:");
        harm(seed);
        let mut receiver = Stream::start(HOST, "verify:counter");
        receiver.grows();
        sender.grows();
        sender.end();
        assert_eq!(receiver.finish()["lost"], 0);
        unplugged();
        let mut receiver = Stream::start("usb:", "verify:counter");
        harm(seed);
        let mut sender = Stream::start("synth:counter", HOST);
        receiver.grows();
        sender.grows();
        both_end(sender, receiver);
    }
}

#[test]
#[ignore = "needs the lab"]
fn modules_go_while_a_stream_runs_or_are_busy() {
    load();
    let mut receiver = Stream::start(HOST, "verify:counter");
    let sender = Stream::start("synth:counter", "usb:");
    receiver.grows();
    assert!(modprobe(&["-r", "usb_f_fs"]).is_err(), "it is in use");
    modprobe(&["-r", "dummy_hcd"]).unwrap();
    sender.kill();
    receiver.kill();
    // The gadget of the sender that was killed goes with the next.
    load();
    let mut receiver = Stream::start(HOST, "verify:counter");
    let mut sender = Stream::start("synth:counter", "usb:");
    receiver.grows();
    sender.grows();
    both_end(sender, receiver);
    modprobe(&["-r", "dummy_hcd", "usb_f_fs"]).unwrap();
    assert!(!Path::new("/sys/module/dummy_hcd").exists());
    assert!(!Path::new("/sys/module/usb_f_fs").exists());
}
