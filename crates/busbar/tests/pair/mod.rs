//! Where the tests of `receive` run: on the loopback interface of any host, or between the two ends of
//! a `vnic` pair, one of them in a network namespace of its own.

#![allow(dead_code)]

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Listener, Piece, ReceiveSetup, Receiver};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// More time than anything that has to happen takes, even emulated with a debug kernel.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which nothing should happen.
pub const MOMENT: Duration = Duration::from_millis(50);

/// The receiving end and its address; the address of the other end has 2 instead of 1.
pub const DEVICE: &str = "nic0";
pub const PEER: &str = "vnic0";
/// The network namespace of the other end.
pub const NAMESPACE: &str = "busbar-peer";
pub const V4: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
pub const V6: [&str; 2] = ["fd77::1", "fd77::2"];
/// Hardware addresses, set when the pair is made: udev changes those that were not set, after a neighbour may
/// have resolved them.
const MACS: [&str; 2] = ["02:77:00:00:00:01", "02:77:00:00:00:02"];
pub const QUEUES: u32 = 16;

/// The network between sender and receiver.
pub trait Place: Sync {
    /// A receiver with a block of so many bytes.
    fn receiver(&self, len: usize) -> Receiver;
    /// The address that the receiver listens on.
    fn address(&self) -> IpAddr;
    /// The address of the sender.
    fn peer_address(&self) -> IpAddr;
    /// Runs something at the end of the sender.
    fn far<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T;
    /// Bytes of the smallest block.
    fn least(&self) -> usize;
    /// Whether a processor copies the data.
    fn copies(&self) -> bool;

    fn listen(&self, receiver: &Receiver) -> (Listener, SocketAddr) {
        let listener = receiver.listen((self.address(), 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// A connection and its other end.
    fn connect(&self, receiver: &Receiver) -> (Connection, TcpStream) {
        let (listener, address) = self.listen(receiver);
        let sender = self.far(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap());
        (listener.accept_timeout(PATIENCE).unwrap().expect("a connection in time"), sender)
    }
}

/// The loopback interface.
pub struct Loopback;

impl Place for Loopback {
    fn receiver(&self, len: usize) -> Receiver {
        Receiver::host(Block::with(len, &Memory::Memfd).unwrap()).unwrap()
    }

    fn address(&self) -> IpAddr {
        [127, 0, 0, 1].into()
    }

    fn peer_address(&self) -> IpAddr {
        self.address()
    }

    fn far<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        body()
    }

    fn least(&self) -> usize {
        rustix::param::page_size()
    }

    fn copies(&self) -> bool {
        true
    }
}

/// A pair, which is removed when this is dropped.
pub struct Pair {
    pub setup: ReceiveSetup,
    addresses: [&'static str; 2],
}

impl Pair {
    pub fn new() -> Self {
        if !Path::new("/sys/module/vnic").exists() {
            run("modprobe vnic");
        }
        let pair = Self { setup: ReceiveSetup::default(), addresses: V4 };
        Self::remove();
        // Few processes: to start one in an emulated machine takes long.
        let count = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
        ip(
            &[],
            &format!(
                "link add {DEVICE} address {} {count} type vnic\nlink set {PEER} address {}\n\
                 netns add {NAMESPACE}\n\
                 link set {PEER} netns {NAMESPACE}\n{}",
                MACS[0],
                MACS[1],
                end(0, DEVICE)
            ),
        );
        ip(&["-n", NAMESPACE], &end(1, PEER));
        pair
    }

    pub fn with(setup: ReceiveSetup) -> Self {
        let mut pair = Self::new();
        pair.setup = setup;
        pair
    }

    pub fn six(mut self) -> Self {
        self.addresses = V6;
        self
    }

    /// Removes the pair, if it exists.
    fn remove() {
        if Path::new(&format!("/sys/class/net/{DEVICE}")).exists() {
            run(&format!("ip link del {DEVICE}"));
        }
        if Path::new(&format!("/run/netns/{NAMESPACE}")).exists() {
            run(&format!("ip netns del {NAMESPACE}"));
        }
    }
}

/// Commands for `ip` that set up one end.
fn end(index: usize, device: &str) -> String {
    format!(
        "addr add {}/24 dev {device}\naddr add {}/64 dev {device} nodad\nlink set {device} up\n",
        V4[index], V6[index]
    )
}

/// Runs these commands with `ip`.
fn ip(options: &[&str], commands: &str) {
    let mut ip = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    ip.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = ip.wait_with_output().unwrap();
    assert!(output.status.success(), "{commands}{}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for Pair {
    fn drop(&mut self) {
        Self::remove();
    }
}

impl Place for Pair {
    fn receiver(&self, len: usize) -> Receiver {
        Receiver::open(DEVICE, Block::with(len, &Memory::Pages).unwrap(), &self.setup).unwrap()
    }

    fn address(&self) -> IpAddr {
        self.addresses[0].parse().unwrap()
    }

    fn peer_address(&self) -> IpAddr {
        self.addresses[1].parse().unwrap()
    }

    fn far<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        far(body)
    }

    fn least(&self) -> usize {
        64 * rustix::param::page_size()
    }

    fn copies(&self) -> bool {
        false
    }
}

/// Runs something in the namespace of the other end. Sockets that it makes stay in that namespace.
pub fn far<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        let namespace = File::open(format!("/run/netns/{NAMESPACE}")).unwrap();
        move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&namespace),
            Some(LinkNameSpaceType::Network),
        )
        .unwrap();
        body()
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

/// The output of a command, which has to succeed.
pub fn run(command: &str) -> String {
    try_run(command).unwrap_or_else(|said| panic!("{command}: {said}"))
}

/// The output of a command, or its error output if it fails.
pub fn try_run(command: &str) -> Result<String, String> {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// All settings of the device that a receiver may change.
pub fn settings() -> String {
    ["-g", "-k", "-x", "-n", "-l"].map(|what| run(&format!("ethtool {what} {DEVICE}"))).concat()
}

/// Bytes `at..at + len` of a stream that differs from those with another `seed`.
pub fn pattern(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 16);
    for number in at / 8..=(at + len as u64) / 8 {
        bytes.extend_from_slice(&(number ^ seed << 40).to_le_bytes());
    }
    bytes.drain(..usize::try_from(at % 8).unwrap());
    bytes.truncate(len);
    bytes
}

/// Sends so many bytes in pieces of random lengths.
pub fn send(mut socket: TcpStream, seed: u64, len: u64) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut sent = 0;
        while sent < len {
            let most = if random.bool() { 100 } else { 200_000 };
            let len = random.u64(1..most).min(len - sent);
            let bytes = pattern(seed, sent, usize::try_from(len).unwrap());
            socket.write_all(&bytes).unwrap();
            sent += bytes.len() as u64;
        }
    })
}

/// Verifies received bytes.
pub struct Check {
    seed: u64,
    pub at: u64,
}

impl Check {
    pub fn new(seed: u64) -> Self {
        Self { seed, at: 0 }
    }

    pub fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::View(view) => self.bytes(&view.read().unwrap().bytes().to_vec()),
            Piece::Bytes(bytes) => self.bytes(bytes),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        let expected = pattern(self.seed, self.at, bytes.len());
        if bytes != expected {
            let wrong = bytes.iter().zip(&expected).position(|(found, expected)| found != expected);
            panic!("stream {}: wrong at {:?} of {}", self.seed, wrong, self.at);
        }
        self.at += bytes.len() as u64;
    }
}

/// Takes the next piece.
pub fn take(connection: &mut Connection) -> Piece {
    connection.next_timeout(PATIENCE).unwrap().expect("a piece in time")
}

/// Takes pieces of so many bytes in all, and keeps them.
pub fn hold(connection: &mut Connection, len: usize) -> Vec<Piece> {
    let (mut held, mut got) = (Vec::new(), 0);
    while got < len {
        held.push(take(connection));
        got += held.last().unwrap().len();
    }
    held
}

/// Takes and verifies everything up to the end.
pub fn take_all(connection: &mut Connection, check: &mut Check) {
    while let Some(piece) = connection.next_timeout(PATIENCE).unwrap() {
        check.piece(&piece);
    }
    assert!(connection.is_finished(), "no end after {} bytes", check.at);
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not in time");
        thread::sleep(Duration::from_millis(5));
    }
}
