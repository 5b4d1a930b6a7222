//! The command `busbar receive`, on any host, and with a device of the lab.

#[path = "../../busbar/tests/pair/mod.rs"]
mod pair;
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Output};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use pair::{DEVICE, Pair, far, settings};
use support::text;

fn command(arguments: &[&str]) -> Command {
    support::command(&[&["receive"], arguments].concat())
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// A running receiver, and where it listens.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
    address: SocketAddr,
    listening: Value,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(&[arguments, &["--json"]].concat()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        let read = lines.read_line(&mut line).unwrap();
        assert!(read > 0, "{}", text(&child.wait_with_output().unwrap().stderr));
        let listening: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(listening["event"], "listening");
        let address = listening["address"].as_str().unwrap().parse().unwrap();
        Self { child, lines, address, listening }
    }

    fn signal(&self, signal: Signal) {
        support::signal(&self.child, signal);
    }

    /// Waits until it reports this many bytes.
    fn until_bytes(&mut self, bytes: u64) {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            let progress: Value = serde_json::from_str(&line).unwrap();
            if progress["bytes"].as_u64().unwrap() >= bytes {
                return;
            }
            line.clear();
        }
        panic!("it has ended with less than {bytes} bytes");
    }

    /// The exit code, all further lines, and its errors.
    fn end(self) -> (Option<i32>, Vec<Value>, String) {
        let lines = self.lines.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        let lines = lines.collect();
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), lines, text(&output.stderr))
    }

    /// The summary after a success.
    fn summary(self) -> Value {
        let (code, mut lines, complaint) = self.end();
        assert_eq!(code, Some(0), "{complaint}");
        let summary = lines.pop().unwrap();
        assert_eq!(summary["event"], "summary");
        summary
    }
}

fn host(more: &[&str]) -> Running {
    Running::start(&[&["--address", "127.0.0.1", "--port", "0"], more].concat())
}

fn counter(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(u64::to_le_bytes).collect()
}

fn send(address: SocketAddr, bytes: &[u8]) {
    TcpStream::connect(address).unwrap().write_all(bytes).unwrap();
}

#[test]
fn bad_usage_ends_with_2_and_says_what_is_allowed() {
    for (arguments, says) in [
        (&[][..], "--port"),
        (&["--port", "70000"], "65535"),
        (&["--port", "1", "--dst", "verify:1"], "verify:N"),
        (&["--port", "1", "--dst", "nowhere"], "file:NAME"),
        (&["--port", "1", "--queues", "a"], "8-15"),
        (&["--port", "1", "--tokens", "xarray"], "autorelease"),
        (&["--port", "1", "--memory", "0"], "64K"),
        (&["--port", "1", "--connections", "0"], "1.."),
        (&["--port", "1", "--address", "host"], "invalid"),
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn failures_end_with_1_and_say_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, says) in [
        (&["--port", &port, "--address", "127.0.0.1"][..], "cannot listen on"),
        (&["--port", "0", "--device", "busbar-none", "--memory-from", "memfd"], "DMABUF"),
        (&["--port", "0", "--dst", "file:x", "--connections", "2"], "--connections"),
        (&["--port", "0", "--memory-from", "heap:no-such-heap"], "no-such-heap"),
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn every_byte_is_verified_and_counted() {
    let receiving = host(&["--dst", "verify:", "--memory", "256K"]);
    assert_eq!(receiving.listening["device"], "host");
    send(receiving.address, &counter(10 << 20));
    let summary = receiving.summary();
    for field in ["bytes", "copied", "verified"] {
        assert_eq!(summary[field], 10 << 20, "{field}");
    }
    assert_eq!((&summary["memory"], &summary["connections"]), (&(256 << 10).into(), &1.into()));
    assert_eq!((&summary["tokens"], &summary["held"]), (&0.into(), &0.into()));
    assert!(summary["seconds"].as_f64().unwrap() > 0.0);
    assert!(summary["cpu_share"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_ncdevmem_verifies_is_verified() {
    let bytes: Vec<u8> = (0..100_000u32).map(|at| ((at + 1) % 7) as u8).collect();
    let receiving = host(&["--dst", "verify:7"]);
    send(receiving.address, &bytes);
    assert_eq!(receiving.summary()["verified"], 100_000);
    let receiving = host(&["--dst", "verify:7"]);
    send(receiving.address, &[&bytes[..50_000], &bytes[..50_000]].concat());
    let (code, lines, complaint) = receiving.end();
    assert_eq!(code, Some(1));
    assert!(complaint.contains("byte 50000 is 1 instead of 7") || complaint.contains("byte 50000"));
    assert_eq!(lines.last().unwrap()["verified"], 50_000);
}

#[test]
fn a_file_has_what_was_sent() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("received");
    let bytes = counter(3_000_000);
    let receiving = host(&["--dst", &format!("file:{}", path.display()), "--memory", "64K"]);
    send(receiving.address, &bytes);
    assert_eq!(receiving.summary()["bytes"], 3_000_000);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn several_connections_are_received_at_a_time() {
    let receiving = host(&["--connections", "4", "--dst", "verify:"]);
    let address = receiving.address;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || send(address, &counter(1 << 20)));
        }
    });
    let summary = receiving.summary();
    assert_eq!((&summary["connections"], &summary["verified"]), (&4.into(), &(4 << 20).into()));
}

#[test]
fn progress_is_told_each_second() {
    let receiving = host(&[]);
    let mut sender = TcpStream::connect(receiving.address).unwrap();
    for _ in 0..5 {
        sender.write_all(&[0; 1000]).unwrap();
        thread::sleep(Duration::from_millis(500));
    }
    drop(sender);
    let (code, lines, _) = receiving.end();
    assert_eq!(code, Some(0));
    let progress: Vec<_> = lines.iter().filter(|line| line["event"] == "progress").collect();
    assert!(!progress.is_empty());
    for line in progress {
        assert!(line["bytes_per_second"].is_f64() && line["tokens"].is_u64(), "{line}");
    }
}

#[test]
fn signals_and_time_end_it_with_a_summary() {
    for signal in [Signal::INT, Signal::TERM] {
        let receiving = host(&[]);
        let mut sender = TcpStream::connect(receiving.address).unwrap();
        sender.write_all(&[0; 1000]).unwrap();
        receiving.signal(signal);
        assert_eq!(receiving.summary()["event"], "summary");
    }
    assert_eq!(host(&["--seconds", "0.2"]).summary()["bytes"], 0);
}

#[test]
fn a_peer_that_dies_is_a_failure_unless_others_may_come() {
    let reset = |receiving: &mut Running| {
        let mut sender = TcpStream::connect(receiving.address).unwrap();
        sender.write_all(b"hello").unwrap();
        receiving.until_bytes(5);
        rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::ZERO)).unwrap();
    };
    let mut receiving = host(&[]);
    reset(&mut receiving);
    let (code, lines, complaint) = receiving.end();
    assert_eq!((code, &lines.last().unwrap()["bytes"]), (Some(1), &5.into()));
    assert!(complaint.contains("reset"), "{complaint}");
    let mut receiving = host(&["--connections", "2"]);
    reset(&mut receiving);
    send(receiving.address, b"world");
    assert_eq!(receiving.summary()["bytes"], 10);
}

fn device(more: &[&str]) -> Running {
    let arguments = ["--device", DEVICE, "--address", pair::V4[0], "--port", "0"];
    Running::start(&[&arguments[..], more].concat())
}

#[test]
#[ignore = "needs the lab"]
fn a_device_receives_without_a_copy_and_is_as_before() {
    let _pair = Pair::new();
    let before = settings();
    let receiving = device(&["--dst", "verify:", "--queues", "2", "--tokens", "autorelease"]);
    assert_eq!(receiving.listening["queues"], serde_json::json!([14, 15]));
    assert_eq!(receiving.listening["token_mode"], "autorelease");
    assert_ne!(settings(), before);
    let address = receiving.address;
    far(|| send(address, &counter(8 << 20)));
    let summary = receiving.summary();
    assert_eq!((&summary["verified"], &summary["copied"]), (&(8 << 20).into(), &0.into()));
    assert_eq!((&summary["refused"], &summary["held"]), (&0.into(), &0.into()));
    assert!(summary["returns"].as_u64().unwrap() > 0);
    assert_eq!(settings(), before);
}

#[test]
#[ignore = "needs the lab"]
fn signals_undo_the_settings_of_the_device() {
    let _pair = Pair::new();
    let before = settings();
    for signal in [Signal::TERM, Signal::INT] {
        let mut receiving = device(&["--memory", "1M"]);
        assert_ne!(settings(), before);
        let mut sender = far(|| TcpStream::connect(receiving.address).unwrap());
        let loading = thread::spawn(move || while sender.write_all(&[0; 4096]).is_ok() {});
        receiving.until_bytes(1);
        receiving.signal(signal);
        assert!(receiving.summary()["bytes"].as_u64().unwrap() > 0);
        loading.join().unwrap();
        assert_eq!(settings(), before);
    }
}

#[test]
#[ignore = "needs the lab"]
fn the_doctor_finds_the_pair() {
    let _pair = Pair::new();
    let output = Command::new(support::busbar()).args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let paths = report["paths"].as_array().unwrap();
    let receive = paths.iter().find(|path| path["path"] == "receive").unwrap();
    let finding = |asked: &str| {
        let all = receive["findings"].as_array().unwrap();
        all.iter().find(|finding| finding["asked"] == asked).unwrap_or_else(|| panic!("{asked}"))
    };
    assert_eq!(finding("binding memory to a queue")["available"], true);
    assert_eq!(finding(DEVICE)["answer"], "up to 15 of its queues");
    assert_eq!(finding("lo")["available"], false);
    let uses = receive["uses"][0].as_str().unwrap();
    assert!(uses.contains(&format!("--device {DEVICE}")), "{uses}");
}
