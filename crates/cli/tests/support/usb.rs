//! Streams over USB, from a device to a host on the same machine, by `dummy_hcd`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command};
use std::thread::sleep;
use std::time::Duration;

use nusb::MaybeFuture;
use nusb::transfer::{Bulk, In};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::NamedTempFile;
use usb_gadget::function::custom::{Custom, Endpoint, EndpointDirection, Interface};
use usb_gadget::{Class, Config, Gadget, Id, RegGadget, Strings};

use super::iiod::Server;
use super::{PATIENCE, command, modprobe, signal, text, wait_until};

pub const HOST: &str = "usb:1209:0001";
/// `dummy_hcd` does not enumerate a device that comes sooner after another one has left.
const BREAK: Duration = Duration::from_millis(300);

pub fn load() {
    modprobe(&["dummy_hcd", "is_super_speed=1"]).unwrap();
    unplugged();
}

/// As [`load`], with a host that has other speeds: high speed, or else full speed.
pub fn load_slower(is_high_speed: bool) {
    let speed = if is_high_speed { "is_high_speed=1" } else { "is_high_speed=0" };
    modprobe(&["-r", "dummy_hcd"]).unwrap();
    settle();
    modprobe(&["dummy_hcd", speed]).unwrap();
    unplugged();
}

/// The device, as the host has it.
pub fn device() -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/bus/usb/devices").unwrap();
    let mut devices = entries.flatten().map(|entry| entry.path());
    devices.find(|it| fs::read_to_string(it.join("idVendor")).is_ok_and(|id| id.trim() == "1209"))
}

pub fn unplugged() {
    wait_until("the device goes", || device().is_none());
    sleep(BREAK);
    settle();
}

/// Waits until udevd has told programs all that happened. libusb before 1.0.28 crashes at its end if it is told late that
/// an earlier root hub with the number of this one has gone (libusb #1244). udevd has once closed the connection over which
/// this waits.
fn settle() {
    let settled =
        || Command::new("udevadm").args(["settle", "--timeout=300"]).status().unwrap().success();
    assert!(settled() || settled());
}

/// The gadgets that Busbar has made.
pub fn gadgets() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/kernel/config/usb_gadget") else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// A device that tests are, with an endpoint in each direction.
pub struct Device {
    pub to: File,
    pub from: File,
    // These two last, as they are dropped in this order.
    control: File,
    gadget: RegGadget,
}

impl Device {
    /// `class`: with subclass and protocol.
    pub fn new(class: (u8, u8, u8)) -> Self {
        let class = Class::new(class.0, class.1, class.2);
        let interface = Interface::new(class, "a test")
            .with_endpoint(Endpoint::bulk(EndpointDirection::device_to_host().1))
            .with_endpoint(Endpoint::bulk(EndpointDirection::host_to_device().1));
        let mut builder = Custom::builder().with_interface(interface);
        builder.ffs_no_init = true;
        let (descriptors, strings) = builder.ffs_descriptors_and_strings().unwrap();
        let (mut custom, handle) = builder.build();
        let names = Strings::new("Busbar", "a test", "1");
        let gadget = Gadget::new(Class::INTERFACE_SPECIFIC, Id::new(0x1209, 0x0001), names)
            .with_config(Config::new("a test").with_function(handle))
            .register()
            .unwrap();
        let directory = custom.ffs_dir().unwrap();
        let open = |name| File::options().read(true).write(true).open(directory.join(name));
        let mut control = open("ep0").unwrap();
        control.write_all(&descriptors).unwrap();
        control.write_all(&strings).unwrap();
        gadget.bind(Some(&usb_gadget::default_udc().unwrap())).unwrap();
        let (to, from) = (open("ep1").unwrap(), open("ep2").unwrap());
        Self { to, from, control, gadget }
    }
}

/// The host's end of the device's first endpoint, once the host has configured it.
pub fn host() -> nusb::Endpoint<Bulk, In> {
    let find = || {
        let mut devices = nusb::list_devices().wait().unwrap();
        let opened = devices.find(|it| it.vendor_id() == 0x1209)?.open().wait().ok()?;
        opened.active_configuration().is_ok().then_some(opened)
    };
    wait_until("the device comes", || find().is_some());
    let interface = find().unwrap().claim_interface(0).wait().unwrap();
    interface.endpoint(0x81).unwrap()
}

/// `busbar serve` as a device that the host has configured.
pub fn serve(arguments: &[&str]) -> Server {
    let server = Server::start(&[&["--usb", "usb:"], arguments].concat());
    configured();
    server
}

/// Waits until the host has configured the device.
pub fn configured() {
    wait_until("the device comes", || {
        let value = device().map(|it| fs::read_to_string(it.join("bConfigurationValue")));
        value.is_some_and(|value| value.is_ok_and(|value| value.trim() == "1"))
    });
    settle();
}

/// One of libiio's programs on the host.
pub fn program(name: &str, arguments: &[&str]) -> Command {
    let mut program = Command::new(name);
    program.args(["-u", "usb:"]).args(arguments);
    program
}

/// The samples that `iio_readdev` reads on the host.
pub fn read(arguments: &[&str]) -> Vec<u8> {
    let output = program("iio_readdev", arguments).output().unwrap();
    let (status, came) = (output.status, output.stdout.len());
    assert!(status.success(), "{status}, {came} bytes: {}", text(&output.stderr));
    output.stdout
}

/// `busbar stream` with its reports.
pub struct Stream {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub samples: u64,
    pub last: Value,
    /// What it writes to standard error.
    said: NamedTempFile,
}

impl Stream {
    /// A device that comes and goes may keep it from its next peer for longer than 30 s.
    pub fn start(from: &str, to: &str) -> Self {
        Self::with_patience(from, to, PATIENCE.as_secs())
    }

    /// One that ends with an error if its peer has gone for so many seconds.
    pub fn with_patience(from: &str, to: &str, seconds: u64) -> Self {
        let said = NamedTempFile::new().unwrap();
        let mut child =
            command(&["stream", from, to, "--json", "--patience", &seconds.to_string()])
                .stderr(said.reopen().unwrap())
                .spawn()
                .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, samples: 0, last: Value::Null, said }
    }

    /// The samples of the next report; `None` once it has ended.
    pub fn next(&mut self) -> Option<u64> {
        self.last = serde_json::from_str(&self.lines.next()?.unwrap()).unwrap();
        self.last["samples"].as_u64()
    }

    /// Waits until it has had more samples.
    pub fn grows(&mut self) {
        assert!(self.grows_or_ends(), "a stream that goes on");
    }

    /// The same; `false` if it has ended.
    pub fn grows_or_ends(&mut self) -> bool {
        let before = self.samples;
        while self.samples <= before {
            let Some(samples) = self.next() else { return false };
            self.samples = samples;
        }
        true
    }

    /// It has ended for lack of memory, with an error.
    pub fn has_failed(mut self) {
        let status = self.child.wait().unwrap();
        let said = fs::read_to_string(self.said.path()).unwrap();
        // nusb 0.2 panics if munmap() finds no memory.
        let is_nusbs = status.code() == Some(101) && said.contains("/nusb-");
        assert!(status.code() == Some(1) || is_nusbs, "{status:?}: {said}");
        assert!(!said.contains("cannot verify"), "{said}");
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its summary, once it has ended in order.
    pub fn finish(mut self) -> Value {
        while self.next().is_some() {}
        assert!(self.child.wait().unwrap().success(), "{}", self.last);
        assert_eq!(self.last["event"], "summary");
        std::mem::take(&mut self.last)
    }

    /// The same, after it was interrupted.
    pub fn end(self) -> Value {
        signal(&self.child, Signal::INT);
        self.finish()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        eprint!("{}", fs::read_to_string(self.said.path()).unwrap_or_default());
    }
}

/// Both sides end in order, and nothing is left.
pub fn both_end(sender: Stream, receiver: Stream) {
    let (sent, taken) = (sender.end(), receiver.finish());
    assert_eq!(sent["samples"], taken["samples"]);
    assert_eq!((&taken["lost"], &taken["unknown"]), (&0.into(), &0.into()));
    assert!(gadgets().is_empty());
    unplugged();
}
