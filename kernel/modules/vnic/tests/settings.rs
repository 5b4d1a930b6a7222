//! What `ethtool` sets, and what it must not.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use pair::{DEVICE, Pair, V4, V6, far, run, try_run};

const PORT: u16 = 4970;
/// Addresses of the two ends, IPv4 and IPv6.
const NEAR: [&str; 2] = [V4[0], V6[0]];
const FAR: [&str; 2] = [V4[1], V6[1]];

fn ethtool(arguments: &str) -> Result<String, String> {
    try_run(&format!("ethtool {arguments}"))
}

/// What `ethtool` complains of. Its exit code does not tell of a rule that was refused.
fn complaint(arguments: &str) -> String {
    let output = Command::new("ethtool").args(arguments.split(' ')).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a datagram from the far end arrives.
fn arrives(index: usize) -> bool {
    let receiver = UdpSocket::bind((NEAR[index], PORT)).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
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
    // What the table, or a rule, names stays.
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
            // Only the lowest bit of the port counts: the mask says which do not.
            (format!("{kind} dst-port {} m 0xfffe", (PORT + 2) & 0xff), true),
            (format!("{kind} dst-port {} m 0xfffe", (PORT + 1) & 0xff), false),
        ] {
            run(&format!("ethtool -N {DEVICE} flow-type {rule} action -1 loc 7"));
            assert_eq!(arrives(index), !matches, "{rule}");
            run(&format!("ethtool -N {DEVICE} delete 7"));
        }
        assert!(arrives(index));
    }
    // The lowest location wins.
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} queue 3 loc 4"));
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} action -1 loc 5"));
    assert!(arrives(0));
    run(&format!("ethtool -N {DEVICE} delete 4"));
    assert!(!arrives(0));
    // No rule is left when they are switched off and on.
    run(&format!("ethtool -K {DEVICE} ntuple off"));
    assert!(arrives(0));
    run(&format!("ethtool -K {DEVICE} ntuple on"));
    assert!(run(&format!("ethtool -n {DEVICE}")).contains("Total 0 rules"));
}

#[test]
#[ignore = "needs the lab"]
fn rules_that_cannot_be_are_refused() {
    let _pair = Pair::new();
    for (arguments, says) in [
        ("flow-type tcp4 dst-port 1 queue 16", "Invalid argument"),
        ("flow-type tcp4 dst-port 1 queue 0 loc 64", "Invalid argument"),
        ("flow-type tcp4 dst-port 1 tos 1 queue 0", "not supported"),
        ("flow-type tcp6 dst-port 1 tclass 1 queue 0", "not supported"),
        ("flow-type sctp4 dst-port 1 queue 0", "not supported"),
        ("flow-type ether dst 02:00:00:00:00:01 queue 0", "not supported"),
        ("flow-type tcp4 dst-port 1 vlan 5 queue 0", "not supported"),
        ("delete 3", "No such file"),
        ("delete 64", "Invalid argument"),
    ] {
        let said = complaint(&format!("-N {DEVICE} {arguments}"));
        assert!(said.contains(says), "{arguments}: {said}");
    }
    assert!(run(&format!("ethtool -n {DEVICE}")).contains("Total 0 rules"));
    run(&format!("ethtool -K {DEVICE} ntuple off"));
    let said = complaint(&format!("-N {DEVICE} flow-type tcp4 dst-port 1 queue 0 loc 0"));
    assert!(said.contains("not supported"), "{said}");
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
