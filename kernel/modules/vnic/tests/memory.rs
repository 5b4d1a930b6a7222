//! Memory that is bound to queues, and changes of the device meanwhile.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use busbar::receive::Receiver;
use pair::{
    Check, DEVICE, NAMESPACE, PATIENCE, PEER, Pair, Place, V4, far, pattern, run, send, take_all,
    wait_until,
};
use support::modprobe;

const LEN: usize = 4 << 20;

/// Receives some data, none of it by copying.
fn receives(pair: &Pair, receiver: &Receiver) {
    let before = receiver.statistics().unwrap();
    let (mut connection, sender) = pair.connect(receiver);
    let sending = send(sender, 1, 256 << 10);
    take_all(&mut connection, &mut Check::new(1));
    sending.join().unwrap();
    let after = receiver.statistics().unwrap();
    assert_eq!((after.bytes - before.bytes, after.copied - before.copied), (256 << 10, 0));
}

#[test]
#[ignore = "needs the lab"]
fn it_stays_bound_when_the_device_goes_down_and_up() {
    let pair = Pair::new();
    let receiver = pair.receiver(LEN);
    for _ in 0..3 {
        run(&format!("ip link set {DEVICE} down"));
        run(&format!("ip link set {DEVICE} up"));
        // An IPv6 address is removed with the link; IPv4's stays.
        receives(&pair, &receiver);
    }
    // It is unbound while the device is down.
    run(&format!("ip link set {DEVICE} down"));
    receiver.close().unwrap();
    run(&format!("ip link set {DEVICE} up"));
    receives(&pair, &pair.receiver(LEN));
}

#[test]
#[ignore = "needs the lab"]
fn its_queues_cannot_be_taken_away() {
    let pair = Pair::new();
    let receiver = pair.receiver(LEN);
    let queue = receiver.queues()[0];
    let set = |count: &str| {
        Command::new("ethtool").args(["-L", DEVICE, "combined", count]).output().unwrap()
    };
    let count = queue.to_string();
    let refused = set(&count);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("memory provider"), "{said}");
    receives(&pair, &receiver);
    drop(receiver);
    assert!(set("8").status.success());
    receives(&pair, &pair.receiver(LEN));
}

/// Until this is dropped, no allocation that must not wait gets contiguous 64 KiB.
struct NoLongAllocations;

impl NoLongAllocations {
    fn new() -> Self {
        Self::set("min-order", "4");
        Self::set("verbose", "0");
        Self::set("times", "-1");
        Self::set("probability", "100");
        Self
    }

    fn set(file: &str, value: &str) {
        let folder = Path::new("/sys/kernel/debug/fail_page_alloc");
        std::fs::write(folder.join(file), value).expect("a debug kernel");
    }
}

impl Drop for NoLongAllocations {
    fn drop(&mut self) {
        Self::set("probability", "0");
    }
}

#[test]
#[ignore = "needs the lab"]
fn long_frames_take_no_long_allocation() {
    let _pair = Pair::new();
    run(&format!("ip link set {DEVICE} mtu 65535"));
    run(&format!("ip -n {NAMESPACE} link set {PEER} mtu 65535"));
    let receiver = UdpSocket::bind((V4[0], 4961)).unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = far(|| UdpSocket::bind((V4[1], 4961)).unwrap());
    let sent = pattern(1, 0, 60_000);
    let mut got = vec![0; 65536];
    let _fault = NoLongAllocations::new();
    for _ in 0..10 {
        sender.send_to(&sent, (V4[0], 4961)).unwrap();
        let len = receiver.recv(&mut got).unwrap();
        assert!(got[..len] == sent);
    }
}

#[test]
#[ignore = "needs the lab"]
fn views_outlive_the_module() {
    let pair = Pair::new();
    let receiver = pair.receiver(LEN);
    let (mut connection, mut sender) = pair.connect(&receiver);
    let sent = pattern(1, 0, 100_000);
    sender.write_all(&sent).unwrap();
    let held = pair::hold(&mut connection, sent.len());
    run("rmmod vnic");
    let mut check = Check::new(1);
    for piece in &held {
        check.piece(piece);
    }
    assert!(receiver.close().is_err(), "its device is gone");
    drop((held, connection, sender, pair));
    // By now the kernel has freed what it frees later.
    modprobe(&["vnic"]).unwrap();
    let pair = Pair::new();
    wait_until("a queue", || Receiver::offered(DEVICE).is_ok());
    receives(&pair, &pair.receiver(LEN));
}
