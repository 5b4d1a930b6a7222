//! Pairs come and go, and ordinary traffic crosses them.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use pair::{DEVICE, NAMESPACE, PEER, Pair, V4, V6, far, run, try_run};
use support::{modprobe, rounds, wait_until};

const PORT: u16 = 4960;
/// Addresses of the two ends, IPv4 and IPv6.
const NEAR: [&str; 2] = [V4[0], V6[0]];
const FAR: [&str; 2] = [V4[1], V6[1]];

/// `ip` with these arguments.
fn ip(arguments: &str) -> String {
    run(&format!("ip {arguments}"))
}

/// The name of the other end, while both are in one namespace.
fn peer_of(device: &str) -> String {
    let line = ip(&format!("-o link show {device}"));
    let (_, rest) = line.split_once('@').expect("a peer");
    rest.split_once(':').expect("its name").0.to_string()
}

fn has_carrier() -> bool {
    fs::read_to_string(format!("/sys/class/net/{DEVICE}/carrier"))
        .is_ok_and(|carrier| carrier.trim() == "1")
}

/// Connects from the far end as soon as somebody listens.
fn connect(address: &str) -> TcpStream {
    let mut stream = None;
    wait_until("a listener", || {
        stream = far(|| TcpStream::connect((address, PORT)).ok());
        stream.is_some()
    });
    stream.unwrap()
}

fn exists(device: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(device).exists()
}

/// Bytes that tell where each of them belongs.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    };
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

/// Sends `len` bytes from the far end, and back.
fn echo(address: &'static str, len: usize) {
    let listener = TcpListener::bind((address, PORT)).unwrap();
    let there = thread::spawn(move || {
        let mut stream = connect(address);
        let sent = pattern(len);
        let mut writer = stream.try_clone().unwrap();
        let back = thread::spawn(move || {
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            back
        });
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
        back.join().unwrap() == sent
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == pattern(len), "{len} bytes to {address}: other bytes arrived");
    stream.write_all(&got).unwrap();
    drop(stream);
    assert!(there.join().unwrap(), "{len} bytes back from {address}");
}

#[test]
#[ignore = "needs the lab"]
fn both_ends_go_with_either() {
    modprobe(&["vnic"]).unwrap();
    for round in 0..rounds(50, 5) {
        ip("link add one type vnic");
        let other = peer_of("one");
        assert!(exists(&other));
        ip(&format!("link del {}", if round % 2 == 0 { "one" } else { &other }));
        assert!(!exists("one") && !exists(&other));
    }
}

#[test]
#[ignore = "needs the lab"]
fn any_number_of_pairs_and_queues() {
    modprobe(&["vnic"]).unwrap();
    for pair in 0..10 {
        ip(&format!("link add many{pair} type vnic"));
        ip(&format!("link set many{pair} up"));
    }
    for pair in 0..10 {
        ip(&format!("link del many{pair}"));
    }
    for (asked, queues) in
        [("", 16), ("numrxqueues 1 numtxqueues 1", 1), ("numrxqueues 64 numtxqueues 64", 64)]
    {
        ip(&format!("link add some {asked} type vnic"));
        let said = run("ethtool -l some");
        assert!(said.contains(&format!("Combined:\t{queues}\n")), "{said}");
        ip("link del some");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_name_that_is_taken_makes_nothing() {
    modprobe(&["vnic"]).unwrap();
    ip("link add taken type vnic");
    let devices = || fs::read_dir("/sys/class/net").unwrap().count();
    let before = devices();
    let said = try_run("ip link add taken type vnic").unwrap_err();
    assert!(said.contains("File exists"), "{said}");
    assert_eq!(devices(), before);
    ip("link del taken");
}

#[test]
#[ignore = "needs the lab"]
fn a_namespace_takes_both_ends_with_it() {
    let _pair = Pair::new();
    ip(&format!("netns del {NAMESPACE}"));
    wait_until("the near end's end", || !exists(DEVICE));
}

#[test]
#[ignore = "needs the lab"]
fn a_carrier_takes_two() {
    let _pair = Pair::new();
    assert!(has_carrier());
    ip(&format!("-n {NAMESPACE} link set {PEER} down"));
    assert!(!has_carrier());
    ip(&format!("-n {NAMESPACE} link set {PEER} up"));
    assert!(has_carrier());
}

#[test]
#[ignore = "needs the lab"]
fn tcp_crosses_whole() {
    let _pair = Pair::new();
    for mtu in ["1500", "9000", "65535", "576"] {
        ip(&format!("-n {NAMESPACE} link set {PEER} mtu {mtu}"));
        ip(&format!("link set {DEVICE} mtu {mtu}"));
        // IPv6 needs 1280.
        for address in &NEAR[..if mtu == "576" { 1 } else { 2 }] {
            for len in [1, 1447, 100_000, 5_000_000] {
                echo(address, len);
            }
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn tcp_crosses_whole_without_offloads() {
    let _pair = Pair::new();
    for off in ["tso off", "gso off", "tx off", "sg off", "gro off"] {
        run(&format!("ip netns exec {NAMESPACE} ethtool -K {PEER} {off}"));
        run(&format!("ethtool -K {DEVICE} {off}"));
        for address in NEAR {
            echo(address, 300_000);
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn udp_crosses_whole() {
    let _pair = Pair::new();
    for (here, there) in NEAR.into_iter().zip(FAR) {
        let receiver = UdpSocket::bind((here, PORT)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The largest ones in fragments
        for len in [0, 1, 1472, 1473, 60_000] {
            far(|| {
                let sender = UdpSocket::bind((there, PORT)).unwrap();
                sender.send_to(&pattern(len), (here, PORT)).unwrap();
            });
            let mut got = vec![0; 65536];
            let (count, _) = receiver.recv_from(&mut got).unwrap();
            assert!(got[..count] == pattern(len), "{len} bytes");
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn ends_that_go_down_under_load_lose_nothing_for_good() {
    let _pair = Pair::new();
    let listener = TcpListener::bind((NEAR[0], PORT)).unwrap();
    let len = 20_000_000;
    let sender = thread::spawn(move || connect(NEAR[0]).write_all(&pattern(len)).unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got
    });
    for _ in 0..rounds(10, 2) {
        ip(&format!("link set {DEVICE} down"));
        ip(&format!("link set {DEVICE} up"));
        ip(&format!("-n {NAMESPACE} link set {PEER} down"));
        ip(&format!("-n {NAMESPACE} link set {PEER} up"));
    }
    sender.join().unwrap();
    assert!(reader.join().unwrap() == pattern(len));
}

#[test]
#[ignore = "needs the lab"]
fn the_module_takes_its_pairs_with_it() {
    let _pair = Pair::new();
    let listener = TcpListener::bind((NEAR[0], PORT)).unwrap();
    let sender = thread::spawn(|| {
        let mut stream = connect(NEAR[0]);
        stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        while stream.write_all(&vec![0; 65536]).is_ok() {}
    });
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut vec![0; 1_000_000]).unwrap();
    run("rmmod vnic");
    assert!(!exists(DEVICE));
    drop((stream, listener));
    sender.join().unwrap();
    // And again.
    let _pair = Pair::new();
    echo(NEAR[0], 100_000);
}
