//! Creation and removal of pairs, and ordinary traffic over them.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pair::{DEVICE, NAMESPACE, PEER, Pair, V4, V6, far, run, try_run};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
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

/// Connects from the far end as soon as a program listens.
fn connect(address: &str) -> TcpStream {
    let mut stream = None;
    wait_until("a listener", || {
        stream = far(|| TcpStream::connect((address, PORT)).ok());
        stream.is_some()
    });
    stream.unwrap()
}

fn exists(device: &str) -> bool {
    Path::new("/sys/class/net").join(device).exists()
}

/// Bytes whose values show their position.
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

/// Builds the plug-in with which `ip` describes the other end, and sets its path.
fn ip_with_peer(arguments: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let built = folder.path().join("link_vnic.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../kernel/modules/vnic/iproute2/link_vnic.c");
    let compiler = Command::new("cc")
        .args(["-Wall", "-Werror", "-fPIC", "-shared", "-o"])
        .args([&built, &source])
        .output()
        .unwrap();
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    try_run(&format!("env IP_LIB_DIR={} ip {arguments}", folder.path().display()))
}

#[test]
#[ignore = "needs the lab"]
fn ip_describes_the_other_end() {
    modprobe(&["vnic"]).unwrap();
    ip("netns add there");
    let there = |arguments: &str| try_run(&format!("ip -n there {arguments}"));
    let peer = "peer name two netns there address 02:00:00:00:00:09 mtu 9000";
    ip_with_peer(&format!("link add one numrxqueues 2 numtxqueues 2 type vnic {peer}")).unwrap();
    let said = there("-d link show two").unwrap();
    assert!(said.contains("02:00:00:00:00:09") && said.contains("mtu 9000"), "{said}");
    assert!(said.contains("numtxqueues 16"), "of its own: {said}");
    // A name that is in use, an invalid address, a namespace that does not exist: no pair is created.
    for (peer, says) in [
        ("name two netns there", "File exists"),
        ("name three address 01:00:00:00:00:09", "not a unicast address"),
        ("name three numrxqueues 129", "more than 128 receive or transmit queues"),
        ("name three netns nowhere", "nowhere"),
    ] {
        let said = ip_with_peer(&format!("link add more type vnic peer {peer}")).unwrap_err();
        assert!(said.contains(says), "{peer}: {said}");
        assert!(!exists("more"), "{peer}");
    }
    ip("link del one");
    assert!(there("link show two").is_err());

    // It is up at once, and has a carrier as soon as its other end is up.
    ip_with_peer("link add one up type vnic peer name two netns there up").unwrap();
    assert!(there("link show two").unwrap().contains("LOWER_UP"));
    ip("link del one");

    // Without the plug-in, only the namespace.
    ip("netns add third");
    ip("netns set third 57");
    ip("link add one link-netns third type vnic");
    assert!(exists("one") && !exists(PEER));
    ip(&format!("-n third link show {PEER}"));
    ip("netns del there");
    ip("netns del third");
    wait_until("the near end's end", || !exists("one"));
}

/// `ip` as a user who has all capabilities, but only in a user namespace of their own.
fn as_user(arguments: &str) -> Result<String, String> {
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urn";
    try_run(&format!("{user} ip {arguments}"))
}

#[test]
#[ignore = "needs the lab"]
fn only_who_may_load_modules_makes_a_pair() {
    let is_loaded = || Path::new("/sys/module/vnic").exists();
    if is_loaded() {
        run("rmmod vnic");
    }
    as_user("link add one type vnic").unwrap_err();
    assert!(!is_loaded(), "nobody has asked for it who may");
    modprobe(&["vnic"]).unwrap();
    let said = as_user("link add one type vnic").unwrap_err();
    assert!(said.contains("CAP_NET_ADMIN"), "{said}");
}

#[test]
#[ignore = "needs the lab"]
fn queues_have_a_limit() {
    modprobe(&["vnic"]).unwrap();
    for kind in ["numrxqueues", "numtxqueues"] {
        let said = try_run(&format!("ip link add one {kind} 129 type vnic")).unwrap_err();
        assert!(said.contains("more than 128 receive or transmit queues"), "{said}");
        ip(&format!("link add one {kind} 128 type vnic"));
        ip("link set one up");
        ip("link del one");
    }
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

/// Datagrams of these lengths arrive complete from the other end.
fn datagrams_cross(here: &str, there: &str, lens: &[usize]) {
    let receiver = UdpSocket::bind((here, PORT)).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for &len in lens {
        far(|| {
            let sender = UdpSocket::bind((there, PORT)).unwrap();
            sender.send_to(&pattern(len), (here, PORT)).unwrap();
        });
        let mut got = vec![0; 65536];
        let (count, _) = receiver.recv_from(&mut got).unwrap();
        assert!(got[..count] == pattern(len), "{len} bytes");
    }
}

#[test]
#[ignore = "needs the lab"]
fn udp_crosses_whole() {
    let _pair = Pair::new();
    for (here, there) in NEAR.into_iter().zip(FAR) {
        // The largest ones in fragments
        datagrams_cross(here, there, &[0, 1, 1472, 1473, 60_000]);
    }
}

/// The folded sum of 16-bit words: 0xffff if a checksum in them is right.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |bytes: &[u8]| u32::from(bytes[0]) << 8 | u32::from(*bytes.get(1).unwrap_or(&0));
    let mut sum = words.map(word).fold(0, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Whether the checksum of a frame's UDP header is right; `None` for other frames.
fn checksum_is_right(frame: &[u8]) -> Option<bool> {
    let packet = frame.get(14..)?;
    let (addresses, len, udp) = match packet.first()? >> 4 {
        4 if packet[9] == 17 => {
            let len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            (&packet[12..20], len - 20, &packet[20..len])
        }
        6 if packet[6] == 17 => {
            let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            (&packet[8..40], len, &packet[40..40 + len])
        }
        _ => return None,
    };
    if udp[2..4] != PORT.to_be_bytes() {
        return None;
    }
    let len = u32::try_from(len).unwrap().to_be_bytes();
    Some(udp[6..8] != [0, 0] && sum(&[addresses, &len, &[0, 17], udp]) == 0xffff)
}

#[test]
#[ignore = "needs the lab"]
fn checksums_are_those_of_the_data() {
    assert_eq!(sum(&[&[0xff, 0xfe], &[0, 1]]), 0xffff);
    let _pair = Pair::new();
    for device in [DEVICE, PEER] {
        let space =
            if device == PEER { format!("netns exec {NAMESPACE} ip") } else { String::new() };
        ip(&format!("{space} link set {device} mtu 60000"));
    }
    // Every received frame: ETH_P_ALL.
    let kind = (AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK);
    let all = Protocol::from_raw(NonZero::new(u32::from(3_u16.to_be())).unwrap());
    for rx in ["on", "off"] {
        run(&format!("ethtool -K {DEVICE} rx {rx}"));
        for (here, there) in NEAR.into_iter().zip(FAR) {
            let frames = socket_with(kind.0, kind.1, kind.2, Some(all)).unwrap();
            let lens = [0, 1, 2, 1001, 3000, 4097, 20_001, 59_000];
            datagrams_cross(here, there, &lens);
            let (mut frame, mut seen) = (vec![0_u8; 65600], 0);
            while let Ok((len, _)) = recv(&frames, &mut frame[..], RecvFlags::empty()) {
                if let Some(is_right) = checksum_is_right(&frame[..len]) {
                    assert!(is_right, "rx {rx}, {here}, frame {seen}, {len} bytes");
                    seen += 1;
                }
            }
            assert_eq!(seen, lens.len(), "rx {rx}, {here}");
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
    let has_gone = Arc::new(AtomicBool::new(false));
    let its = Arc::clone(&has_gone);
    let sender = thread::spawn(move || {
        let mut stream = connect(NEAR[0]);
        stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // A slow machine may not take it in time before the module goes, either.
        while stream.write(&vec![0; 65536]).is_ok() || !its.load(Ordering::Acquire) {}
    });
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut vec![0; 1_000_000]).unwrap();
    run("rmmod vnic");
    has_gone.store(true, Ordering::Release);
    assert!(!exists(DEVICE));
    drop((stream, listener));
    sender.join().unwrap();
    // A second time.
    let _pair = Pair::new();
    echo(NEAR[0], 100_000);
}
