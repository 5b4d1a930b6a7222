//! What the tests of `vnic` share: a pair of which one end lives in a namespace of its own.

#![allow(dead_code)]

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::{modprobe, wait_until};

/// The end in the namespace of the test.
pub const NEAR: &str = "vnear";
/// The other end, in [`NAMESPACE`].
pub const FAR: &str = "vfar";
/// The namespace of the other end.
pub const NAMESPACE: &str = "vnic-test";
/// Addresses of the two, IPv4 and IPv6.
pub const NEAR_IP: [&str; 2] = ["198.18.60.1", "fd00:60::1"];
/// As [`NEAR_IP`].
pub const FAR_IP: [&str; 2] = ["198.18.60.2", "fd00:60::2"];

/// Runs a command, and says what it said if it failed.
pub fn try_run(program: &str, arguments: &str) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        Command::new(program).args(arguments.split_whitespace()).output().expect(program);
    if status.success() {
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&stderr).into_owned())
    }
}

/// Runs a command that must not fail.
pub fn run(program: &str, arguments: &str) -> String {
    try_run(program, arguments).unwrap_or_else(|said| panic!("{program} {arguments}: {said}"))
}

/// `ip` with these arguments.
pub fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

/// A pair, both ends up and with addresses. It goes with this.
pub struct Pair;

impl Pair {
    pub fn new() -> Self {
        modprobe(&["vnic"]).unwrap();
        // What a test that failed has left.
        drop(Self);
        let pair = Self;
        ip(&format!("netns add {NAMESPACE}"));
        // Addresses that a NIC has by chance udev changes, after the other end may have asked for them.
        ip(&format!("link add {NEAR} address 02:00:00:00:60:01 type vnic"));
        let peer = peer_of(NEAR);
        ip(&format!("link set {peer} address 02:00:00:00:60:02"));
        ip(&format!("link set {peer} netns {NAMESPACE} name {FAR}"));
        for (netns, device, addresses) in
            [("", NEAR, NEAR_IP), (&*format!("-n {NAMESPACE} "), FAR, FAR_IP)]
        {
            ip(&format!("{netns}addr add {}/24 dev {device}", addresses[0]));
            ip(&format!("{netns}addr add {}/64 dev {device} nodad", addresses[1]));
            ip(&format!("{netns}link set {device} up"));
        }
        pair
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = try_run("ip", &format!("link del {NEAR}"));
        let _ = try_run("ip", &format!("netns del {NAMESPACE}"));
    }
}

/// The name of the other end, while both are in one namespace.
pub fn peer_of(device: &str) -> String {
    let line = ip(&format!("-o link show {device}"));
    let (_, rest) = line.split_once('@').expect("a peer");
    rest.split_once(':').expect("its name").0.to_string()
}

/// Whether `device` has a carrier.
pub fn has_carrier(device: &str) -> bool {
    std::fs::read_to_string(format!("/sys/class/net/{device}/carrier"))
        .is_ok_and(|carrier| carrier.trim() == "1")
}

/// Does something in a thread that lives in [`NAMESPACE`].
pub fn far<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(|| {
        let namespace = File::open(format!("/run/netns/{NAMESPACE}")).expect("the namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    })
}

/// Connects as soon as somebody listens.
pub fn connect(address: &str, port: u16) -> TcpStream {
    let mut stream = None;
    wait_until("a listener", || {
        stream = TcpStream::connect((address, port)).ok();
        stream.is_some()
    });
    stream.unwrap()
}
