//! Settings by `ethtool`, valid and invalid.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pair::{DEVICE, NAMESPACE, PEER, Pair, Place, QUEUES, V4, V6, far, run, try_run, wait_until};

const PORT: u16 = 4970;
/// Addresses of the two ends, IPv4 and IPv6.
const NEAR: [&str; 2] = [V4[0], V6[0]];
const FAR: [&str; 2] = [V4[1], V6[1]];

fn ethtool(arguments: &str) -> Result<String, String> {
    try_run(&format!("ethtool {arguments}"))
}

/// The error text of `ethtool`. Its exit code does not report a refused rule.
fn complaint(arguments: &str) -> String {
    let output = Command::new("ethtool").args(arguments.split(' ')).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a datagram from the far end arrives; a slow machine has a minute for it.
fn arrives(index: usize) -> bool {
    arrives_within(index, Duration::from_secs(60))
}

/// Whether a datagram from the far end does not arrive.
fn is_dropped(index: usize) -> bool {
    !arrives_within(index, Duration::from_secs(1))
}

fn arrives_within(index: usize, limit: Duration) -> bool {
    let receiver = UdpSocket::bind((NEAR[index], PORT)).unwrap();
    receiver.set_read_timeout(Some(limit)).unwrap();
    far(|| {
        let sender = UdpSocket::bind((FAR[index], PORT)).unwrap();
        sender.send_to(b"x", (NEAR[index], PORT)).unwrap();
    });
    receiver.recv(&mut [0; 8]).is_ok()
}

#[test]
#[ignore = "needs the lab"]
fn channels_stay_within_their_limits() {
    let _pair = Pair::new();
    for (arguments, says) in [
        ("combined 17", "exceeds maximum"),
        ("rx 16", "exceeds maximum"),
        ("tx 16", "exceeds maximum"),
        ("combined 0", "no RX or TX channel"),
        ("combined 0 rx 5", "no RX or TX channel"),
        ("combined 2 rx 15", "Invalid argument"),
        ("combined 2 tx 15", "Invalid argument"),
        ("combined 2 rx 1 tx 1", "Invalid argument"),
    ] {
        let said = ethtool(&format!("-L {DEVICE} {arguments}")).unwrap_err();
        assert!(said.contains(says), "{arguments}: {said}");
    }
    for (rx, tx) in [(1, 1), (3, 16), (16, 2), (16, 16)] {
        let both = rx.min(tx);
        let (more_rx, more_tx) = (rx - both, tx - both);
        run(&format!("ethtool -L {DEVICE} combined {both} rx {more_rx} tx {more_tx}"));
        assert!(arrives(0), "{rx} and {tx} queues");
        let table = run(&format!("ethtool -x {DEVICE}"));
        assert!(table.contains(&format!("with {rx} RX ring(s)")), "{table}");
    }
    // Queues that the table or a rule names are kept.
    run(&format!("ethtool -X {DEVICE} equal 8"));
    let said = ethtool(&format!("-L {DEVICE} combined 7")).unwrap_err();
    assert!(said.contains("indirection table (7)"), "{said}");
    run(&format!("ethtool -X {DEVICE} equal 1"));
    run(&format!("ethtool -N {DEVICE} flow-type tcp4 dst-port 1 queue 5"));
    let said = ethtool(&format!("-L {DEVICE} combined 5")).unwrap_err();
    assert!(said.contains("ntuple"), "{said}");
    run(&format!("ethtool -L {DEVICE} combined 6"));
}

#[test]
#[ignore = "needs the lab"]
fn rules_drop_what_they_match() {
    let _pair = Pair::new();
    for (index, kind, other) in [(0, "udp4", "tcp4"), (1, "udp6", "tcp6")] {
        let (here, there) = (NEAR[index], FAR[index]);
        for (rule, matches) in [
            (format!("{kind} dst-port {PORT}"), true),
            (format!("{kind} src-ip {there} dst-ip {here} src-port {PORT}"), true),
            (format!("{kind} dst-port {}", PORT + 1), false),
            (format!("{kind} src-ip {here}"), false),
            (format!("{other} dst-port {PORT}"), false),
            // Only the lowest bit of the port is compared: the mask names the others.
            (format!("{kind} dst-port {} m 0xfffe", (PORT + 2) & 0xff), true),
            (format!("{kind} dst-port {} m 0xfffe", (PORT + 1) & 0xff), false),
        ] {
            run(&format!("ethtool -N {DEVICE} flow-type {rule} action -1 loc 7"));
            assert!(if matches { is_dropped(index) } else { arrives(index) }, "{rule}");
            run(&format!("ethtool -N {DEVICE} delete 7"));
        }
        assert!(arrives(index));
    }
    // The lowest location wins.
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} queue 3 loc 4"));
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} action -1 loc 5"));
    assert!(arrives(0));
    run(&format!("ethtool -N {DEVICE} delete 4"));
    assert!(is_dropped(0));
    // Switching them off and on deletes all rules.
    run(&format!("ethtool -K {DEVICE} ntuple off"));
    assert!(arrives(0));
    run(&format!("ethtool -K {DEVICE} ntuple on"));
    assert!(run(&format!("ethtool -n {DEVICE}")).contains("Total 0 rules"));
}

#[test]
#[ignore = "needs the lab"]
fn rules_that_cannot_be_are_refused() {
    let _pair = Pair::new();
    // At its own location, a rule replaces the one that is there.
    for _ in 0..2 {
        assert_eq!(complaint(&format!("-N {DEVICE} flow-type tcp4 dst-port 9 queue 1 loc 8")), "");
    }
    for (arguments, says) in [
        ("flow-type tcp4 dst-port 1 queue 16", "Invalid argument"),
        ("flow-type tcp4 dst-port 1 queue 0 loc 64", "Invalid argument"),
        ("flow-type tcp4 dst-port 1 tos 1 queue 0", "not supported"),
        ("flow-type tcp6 dst-port 1 tclass 1 queue 0", "not supported"),
        ("flow-type sctp4 dst-port 1 queue 0", "not supported"),
        ("flow-type ether dst 02:00:00:00:00:01 queue 0", "not supported"),
        ("flow-type tcp4 dst-port 1 vlan 5 queue 0", "not supported"),
        ("flow-type tcp4 dst-port 9 queue 1 loc 9", "File exists"),
        ("flow-type tcp4 dst-port 1 context 1 loc 0", "Invalid argument"),
        ("delete 3", "No such file"),
        ("delete 64", "Invalid argument"),
    ] {
        let said = complaint(&format!("-N {DEVICE} {arguments}"));
        assert!(said.contains(says), "{arguments}: {said}");
    }
    assert!(run(&format!("ethtool -n {DEVICE}")).contains("Total 1 rules"));
    run(&format!("ethtool -K {DEVICE} ntuple off"));
    let said = complaint(&format!("-N {DEVICE} flow-type tcp4 dst-port 1 queue 0 loc 0"));
    assert!(said.contains("not supported"), "{said}");
}

/// One counter of `ethtool -S`.
fn counter(name: &str) -> u64 {
    let said = run(&format!("ethtool -S {DEVICE}"));
    let line = said.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name}: {said}")).parse().unwrap()
}

/// Sends a datagram from the far end, with or without a receiver.
fn send(index: usize, from: u16) {
    far(|| {
        let sender = UdpSocket::bind((FAR[index], from)).unwrap();
        sender.send_to(b"x", (NEAR[index], PORT)).unwrap();
    });
}

/// Frames that each queue has received.
fn packets() -> Vec<u64> {
    let said = run(&format!("ethtool -S {DEVICE}"));
    let count = |line: &str| {
        let (queue, rest) = line.trim().strip_prefix("rx")?.split_once("_packets: ")?;
        queue.parse::<u32>().ok()?;
        rest.parse().ok()
    };
    said.lines().filter_map(count).collect()
}

/// The queue that receives datagrams of this flow. Nothing else sends as many of them.
fn queue_of(index: usize, from: u16) -> Option<u32> {
    let receiver = UdpSocket::bind((NEAR[index], PORT)).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let before = packets();
    for _ in 0..8 {
        send(index, from);
        receiver.recv(&mut [0; 8]).unwrap();
    }
    let counted = packets().into_iter().zip(before).position(|(now, before)| now >= before + 8);
    counted.map(|queue| u32::try_from(queue).unwrap())
}

/// The Toeplitz hash by its definition: each set bit of the input adds the 32 bits of the key at its
/// position.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
    let window = |at: usize| (at..at + 32).fold(0, |window, at| window << 1 | bit(key, at));
    (0..input.len() * 8).filter(|at| bit(input, *at) == 1).fold(0, |hash, at| hash ^ window(at))
}

/// The hashed fields of a flow from the far end: addresses, and ports if there are any.
fn flow(index: usize, ports: Option<[u16; 2]>) -> Vec<u8> {
    let octets = |address: &str| match address.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let ports = ports.iter().flatten().flat_map(|port| port.to_be_bytes());
    [octets(FAR[index]), octets(NEAR[index])].concat().into_iter().chain(ports).collect()
}

#[test]
#[ignore = "needs the lab"]
fn a_hash_is_that_of_its_key() {
    // The examples of "Verifying the RSS Hash Calculation".
    let key = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:\
               80:30:f2:0c:6a:42:b7:3b:be:ac:01:fa";
    let bytes: Vec<_> = key.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let known = [66, 9, 149, 187, 161, 142, 100, 80, 2794_u16.to_be_bytes()[0], 234, 6, 230];
    assert_eq!(toeplitz(&bytes, &known[..8]), 0x323e_8fc2);
    assert_eq!(toeplitz(&bytes, &known), 0x51cc_c178);

    let _pair = Pair::new();
    let queue = |input: &[u8]| toeplitz(&bytes, input) % 128 % QUEUES;
    run(&format!("ethtool -X {DEVICE} hkey {key} equal {QUEUES}"));
    assert!(run(&format!("ethtool -x {DEVICE}")).contains(key));
    for (index, kind) in ["udp4", "udp6"].into_iter().enumerate() {
        for from in 1000..1008 {
            let expected = queue(&flow(index, Some([from, PORT])));
            assert_eq!(queue_of(index, from), Some(expected), "{kind} from port {from}");
        }
        // Addresses alone
        run(&format!("ethtool -N {DEVICE} rx-flow-hash {kind} sd"));
        let said = run(&format!("ethtool -n {DEVICE} rx-flow-hash {kind}"));
        assert!(said.contains("IP SA") && !said.contains("L4"), "{said}");
        for from in 1000..1004 {
            assert_eq!(queue_of(index, from), Some(queue(&flow(index, None))), "{kind}");
        }
        run(&format!("ethtool -N {DEVICE} rx-flow-hash {kind} sdfn"));
        let said = run(&format!("ethtool -n {DEVICE} rx-flow-hash {kind}"));
        assert!(said.contains("L4 bytes 0 & 1") && said.contains("L4 bytes 2 & 3"), "{said}");
        for what in ["s", "sdf", "sdm", "v"] {
            let said = complaint(&format!("-N {DEVICE} rx-flow-hash {kind} {what}"));
            assert!(said.contains("Invalid argument"), "{what}: {said}");
        }
    }
    let said = complaint(&format!("-N {DEVICE} rx-flow-hash sctp4 sdfn"));
    assert!(said.contains("Invalid argument"), "{said}");
    assert!(ethtool(&format!("-X {DEVICE} hfunc xor")).is_err());
}

#[test]
#[ignore = "needs the lab"]
fn a_context_has_its_own_queues() {
    let _pair = Pair::new();
    run(&format!("ethtool -X {DEVICE} equal 2"));
    let said = run(&format!("ethtool -X {DEVICE} context new start 4 equal 2"));
    assert!(said.contains("is 1"), "{said}");
    // By default with the key of the main context, and flows on all queues
    run(&format!("ethtool -X {DEVICE} context new"));
    let table = |context: &str| run(&format!("ethtool -x {DEVICE} {context}"));
    let key = |said: &str| {
        let lines: Vec<_> = said.lines().collect();
        let at = lines.iter().position(|line| line.starts_with("RSS hash key")).expect(said);
        lines[at + 1].to_string()
    };
    assert_eq!(key(&table("context 2")), key(&table("")));
    assert!(table("context 2").contains("15"), "{}", table("context 2"));

    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} context 1 loc 3"));
    assert!(run(&format!("ethtool -n {DEVICE}")).contains("RSS Context ID: 1"));
    // Each differs in bits of its own: the key is random, and may ignore a few of them.
    let found: Vec<_> = (0..12).map(|bit| queue_of(0, 1 << 14 | 1 << bit).unwrap()).collect();
    assert!(found.iter().all(|queue| [4, 5].contains(queue)), "{found:?}");
    assert!(found.contains(&4) && found.contains(&5), "{found:?}");
    assert!(queue_of(1, 1000).unwrap() < 2, "no rule names this flow");

    // It can be changed, its queues cannot be removed, and neither can it be while a rule names it.
    run(&format!("ethtool -X {DEVICE} context 1 start 6 equal 1"));
    assert_eq!(queue_of(0, 1000), Some(6));
    run(&format!("ethtool -X {DEVICE} context 2 delete"));
    let said = ethtool(&format!("-L {DEVICE} combined 6")).unwrap_err();
    assert!(said.contains("indirection table (6)"), "{said}");
    let said = ethtool(&format!("-X {DEVICE} context 1 delete")).unwrap_err();
    assert!(said.contains("busy"), "{said}");
    run(&format!("ethtool -N {DEVICE} delete 3"));
    assert!(queue_of(0, 1000).unwrap() < 2);
    run(&format!("ethtool -X {DEVICE} context 1 delete"));
    let said = complaint(&format!("-N {DEVICE} flow-type udp4 dst-port 1 context 1 loc 0"));
    assert!(said.contains("Invalid argument"), "{said}");
    // The remaining ones are deleted with the device.
    for _ in 0..63 {
        run(&format!("ethtool -X {DEVICE} context new"));
    }
    assert!(ethtool(&format!("-X {DEVICE} context new")).is_err());
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} context 5 loc 3"));
}

#[test]
#[ignore = "needs the lab"]
fn frames_are_counted_where_they_are_lost() {
    let _pair = Pair::new();
    let lost_there = || {
        let dropped = format!("/sys/class/net/{PEER}/statistics/tx_dropped");
        run(&format!("ip netns exec {NAMESPACE} cat {dropped}")).trim().parse::<u64>().unwrap()
    };
    let here = |name: &str| {
        let path = format!("/sys/class/net/{DEVICE}/statistics/{name}");
        std::fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap()
    };
    assert!(arrives(0));
    let before = lost_there();

    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} action -1 loc 0"));
    send(0, PORT);
    assert_eq!(counter("rx_filtered"), 1);
    assert_eq!(here("rx_dropped"), 1);
    run(&format!("ethtool -N {DEVICE} delete 0"));

    run(&format!("ip -n {NAMESPACE} link set {PEER} mtu 9000"));
    far(|| {
        let sender = UdpSocket::bind((FAR[0], PORT)).unwrap();
        sender.send_to(&[0; 5000], (NEAR[0], PORT)).unwrap();
    });
    assert_eq!(counter("rx_oversized"), 1);
    assert_eq!(here("rx_length_errors"), 1);

    run(&format!("ethtool -G {DEVICE} rx 1"));
    put_off_interrupts(10);
    // The first frame is processed, the second waits.
    for _ in 0..5 {
        send(0, PORT);
    }
    assert!(overruns() >= 3, "{}", overruns());
    assert!(here("rx_missed_errors") >= 3);
    assert_eq!(lost_there(), before);
}

/// Frames lost because their queue was full.
fn overruns() -> u64 {
    (0..QUEUES).map(|queue| counter(&format!("rx{queue}_overruns"))).sum()
}

/// Makes the stack wait this many seconds after a first frame, on 32 bit four at most.
fn put_off_interrupts(seconds: u64) {
    let most = usize::MAX.try_into().unwrap_or(u64::MAX);
    let nanoseconds = (seconds * 1_000_000_000).min(most).to_string();
    for (file, value) in [("gro_flush_timeout", &nanoseconds[..]), ("napi_defer_hard_irqs", "1")] {
        std::fs::write(format!("/sys/class/net/{DEVICE}/{file}"), value).unwrap();
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_queue_holds_so_much_memory_at_most() {
    let _pair = Pair::new();
    run(&format!("ip link set {DEVICE} mtu 65000"));
    run(&format!("ip -n {NAMESPACE} link set {PEER} mtu 65000"));
    run(&format!("ethtool -G {DEVICE} rx 8192"));
    put_off_interrupts(10);
    // A socket for each, as frames in flight are limited by a socket's buffer.
    for _ in 0..200 {
        far(|| {
            let sender = UdpSocket::bind((FAR[0], PORT)).unwrap();
            sender.send_to(&vec![0; 60_000], (NEAR[0], PORT)).unwrap();
        });
    }
    assert!(overruns() > 0, "12 MB wait");
}

/// Netconsole itself frees sent frames while another processor sends.
#[test]
#[ignore = "needs the lab"]
fn a_kernel_that_logs_over_it_does_not_make_it_deaf() {
    const MESSAGES: usize = 1000;
    let _pair = Pair::new();
    // One queue, so that both use it.
    run(&format!("ethtool -L {DEVICE} combined 1"));
    assert!(arrives(0));
    run(&format!("modprobe netconsole netconsole=@{}/{DEVICE},@{}/", NEAR[0], FAR[0]));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = UdpSocket::bind((NEAR[0], 0)).unwrap();
            while !ended.load(Ordering::Relaxed) {
                let _ = sender.send_to(b"x", (FAR[0], PORT));
            }
        });
        for number in 0..MESSAGES {
            std::fs::write("/dev/kmsg", format!("<1>netconsole {number}")).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    run("modprobe -r netconsole");
    assert!((0..60).any(|_| !is_dropped(0)), "it is deaf");
}

#[test]
#[ignore = "needs the lab"]
fn a_key_of_zeros_is_nobodys_default() {
    let _pair = Pair::new();
    let zeros = ["00"; 40].join(":");
    run(&format!("ethtool -X {DEVICE} hkey {zeros}"));
    assert!(run(&format!("ethtool -x {DEVICE}")).contains(&zeros));
    // The core warns of a context that has one without having been asked for it.
    run(&format!("ethtool -X {DEVICE} context new"));
    assert!(!run(&format!("ethtool -x {DEVICE} context 1")).contains(&zeros));
}

#[test]
#[ignore = "needs the lab"]
fn a_frame_has_so_many_tags_at_most() {
    let _pair = Pair::new();
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} action -1 loc 0"));
    // Ethernet, tags, IPv4 without a checksum, UDP
    let frame = |tags: usize| {
        let packet = "08004500001e00000000401100000a4d00020a4d0001";
        let tags = "81000001".repeat(tags);
        format!("'027700000001027700000002{tags}{packet}{PORT:04x}{PORT:04x}000a00000000'")
    };
    let send = |tags: &[usize]| {
        let frames = tags.iter().map(|tags| frame(*tags)).collect::<Vec<_>>().join(",");
        let program = format!(
            "import socket\n\
             end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
             end.bind(('{PEER}', 0))\n\
             for frame in [{frames}]: end.send(bytes.fromhex(frame))"
        );
        let mut python = Command::new("ip");
        python.args(["netns", "exec", NAMESPACE, "/usr/bin/python3", "-IS", "-c", &program]);
        assert!(python.status().unwrap().success());
    };
    send(&[0, 1, 2, 8]);
    assert_eq!(counter("rx_filtered"), 4);
    send(&[9, 300]);
    assert_eq!(counter("rx_filtered"), 4, "what is behind many tags is not looked at");
}

#[test]
#[ignore = "needs the lab"]
fn frames_wait_for_others_as_they_are_told() {
    let _pair = Pair::new();
    for (arguments, says) in [
        ("rx-frames 0", "rx-frames must be at least 1"),
        ("rx-usecs 10000001", "rx-usecs must be 10 s or less"),
        ("tx-usecs 5", "unsupported parameter"),
    ] {
        let said = ethtool(&format!("-C {DEVICE} {arguments}")).unwrap_err();
        assert!(said.contains(says), "{arguments}: {said}");
    }
    let receiver = UdpSocket::bind((NEAR[0], PORT)).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let receive = |count: u32| (0..count).for_each(|_| assert!(receiver.recv(&mut [0; 8]).is_ok()));
    send(0, PORT);
    receive(1);

    // The third one interrupts.
    run(&format!("ethtool -C {DEVICE} rx-usecs 10000000 rx-frames 3"));
    let said = run(&format!("ethtool -c {DEVICE}"));
    assert!(said.contains("rx-usecs: 10000000") && said.contains("rx-frames: 3"), "{said}");
    (0..3).for_each(|_| send(0, PORT));
    receive(3);
    // So does a ring that has no room for more.
    run(&format!("ethtool -G {DEVICE} rx 2"));
    (0..4).for_each(|_| send(0, PORT));
    receive(4);
    assert_eq!(overruns(), 0);
    run(&format!("ethtool -G {DEVICE} rx 1024"));
    // So do other settings: frames that wait do so by the old ones.
    send(0, PORT);
    run(&format!("ethtool -C {DEVICE} rx-usecs 9000000"));
    receiver.set_nonblocking(true).unwrap();
    receive(1);
    receiver.set_nonblocking(false).unwrap();
    // So does the time limit.
    run(&format!("ethtool -C {DEVICE} rx-usecs 20000 rx-frames 1000"));
    (0..3).for_each(|_| send(0, PORT));
    receive(3);
    // Interrupts that the stack defers are deferred, and no frame stays behind.
    run(&format!("ethtool -C {DEVICE} rx-usecs 0"));
    for (file, value) in [("gro_flush_timeout", "2000000"), ("napi_defer_hard_irqs", "5")] {
        std::fs::write(format!("/sys/class/net/{DEVICE}/{file}"), value).unwrap();
    }
    for _ in 0..100 {
        send(0, PORT);
    }
    receive(100);
}

#[test]
#[ignore = "needs the lab"]
fn headers_and_data_are_kept_apart_if_they_are_to_be() {
    let pair = Pair::new();
    let listener = TcpListener::bind((NEAR[0], PORT)).unwrap();
    // The part of the socket's memory for a segment of 1000 bytes: its data has a page of its own.
    let is_split = || {
        let mut sender = far(|| TcpStream::connect((NEAR[0], PORT)).unwrap());
        let (mut socket, _) = listener.accept().unwrap();
        sender.write_all(&[7; 1000]).unwrap();
        let mut memory = 0;
        wait_until("the segment", || {
            let said = run(&format!("ss -tmnH state established sport = :{PORT}"));
            let (_, rest) = said.split_once("skmem:(r").expect(&said);
            memory = rest.split_once(',').unwrap().0.parse().unwrap();
            memory > 0
        });
        socket.read_exact(&mut [0; 1000]).unwrap();
        memory > 4096_u32
    };
    assert!(!is_split());
    let receiver = pair.receiver(4 << 20);
    assert!(is_split());
    drop(receiver);
    assert!(!is_split());
}

#[test]
#[ignore = "needs the lab"]
fn it_answers_as_nics_do() {
    let _pair = Pair::new();
    let said = run(&format!("ethtool -T {DEVICE}"));
    assert!(said.contains("software-transmit") && said.contains("software-receive"), "{said}");
    run(&format!("ip maddr add 33:33:00:00:00:57 dev {DEVICE}"));
    assert!(run(&format!("ip maddr show dev {DEVICE}")).contains("33:33:00:00:00:57"));
    run(&format!("ip maddr del 33:33:00:00:00:57 dev {DEVICE}"));
}

#[test]
#[ignore = "needs the lab"]
fn rings_and_tables_have_their_limits() {
    let _pair = Pair::new();
    run(&format!("ethtool -G {DEVICE} rx 1"));
    assert!(arrives(0));
    let said = ethtool(&format!("-G {DEVICE} rx 0")).unwrap_err();
    assert!(said.contains("at least 1"), "{said}");
    let said = ethtool(&format!("-G {DEVICE} rx 8193")).unwrap_err();
    assert!(said.contains("exceeds maximum"), "{said}");
    assert!(ethtool(&format!("-X {DEVICE} equal 17")).is_err());
}
