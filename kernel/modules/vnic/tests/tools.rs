//! Features of the network stack work over a pair as well: queueing disciplines,
//! a bad link, filters, VLANs, bridges, BPF programs, `AF_XDP`.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;
mod xdp;

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use busbar::block::{Block, Memory};
use busbar::receive::{ReceiveSetup, Receiver};
use pair::{
    Check, DEVICE, MOMENT, NAMESPACE, PATIENCE, PEER, Pair, Place, V4, V6, far, pattern, run, send,
    take_all, try_run,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use support::wait_until;

const PORT: u16 = 4961;
const LEN: u64 = 1_000_000;

/// Runs `work` in a namespace.
fn inside<T: Send>(namespace: &str, body: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        body()
    };
    thread::scope(|scope| scope.spawn(enter).join().unwrap())
}

/// `ip` or `tc` for the near end, and for the far one.
fn both(program: &str, command: impl Fn(&str) -> String) {
    run(&format!("{program} {}", command(DEVICE)));
    run(&format!("{program} -n {NAMESPACE} {}", command(PEER)));
}

fn at(address: &str) -> SocketAddr {
    (address.parse::<IpAddr>().unwrap(), PORT).into()
}

fn connect(address: &str) -> TcpStream {
    TcpStream::connect_timeout(&at(address), PATIENCE).unwrap()
}

/// Sends bytes to a listener, and verifies them.
fn crosses(listener: &TcpListener, sender: TcpStream) {
    let (mut stream, _) = listener.accept().unwrap();
    let sending = send(sender, 1, LEN);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    sending.join().unwrap();
    assert!(got == pattern(1, 0, usize::try_from(LEN).unwrap()), "other bytes arrived");
}

/// TCP from the far end to this address of the near one.
fn comes(address: &str) {
    let listener = TcpListener::bind(at(address)).unwrap();
    crosses(&listener, far(|| connect(address)));
}

/// TCP from the near end to this address of the far one.
fn goes(address: &str) {
    let listener = far(|| TcpListener::bind(at(address)).unwrap());
    crosses(&listener, connect(address));
}

/// A socket at the far end that sends to one at the near end.
struct Datagrams {
    near: UdpSocket,
    far: UdpSocket,
}

impl Datagrams {
    fn new() -> Self {
        let far = far(|| UdpSocket::bind(at(V4[1])).unwrap());
        far.connect(at(V4[0])).unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { near: UdpSocket::bind(at(V4[0])).unwrap(), far }
    }

    /// One that is sent now arrives.
    fn cross(&self) {
        self.near.set_read_timeout(Some(PATIENCE)).unwrap();
        self.far.send(b"datagram").unwrap();
        assert_eq!(self.near.recv(&mut [0; 100]).unwrap(), 8);
    }

    fn do_not_cross(&self) {
        self.near.set_read_timeout(Some(MOMENT)).unwrap();
        self.far.send(b"datagram").unwrap();
        assert!(self.near.recv(&mut [0; 100]).is_err());
    }
}

#[test]
#[ignore = "needs the lab"]
fn tcp_crosses_every_queueing_discipline() {
    let _pair = Pair::new();
    for discipline in [
        "fq",
        "fq_codel",
        "mq",
        "prio",
        "tbf rate 1gbit burst 200kb latency 400ms",
        "netem delay 2ms loss 1% duplicate 5% reorder 20%",
    ] {
        both("tc", |device| format!("qdisc replace dev {device} root {discipline}"));
        for [near, far] in [V4, V6] {
            comes(near);
            goes(far);
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn device_memory_gets_right_bytes_over_a_bad_link() {
    let pair = Pair::new();
    let receiver = pair.receiver(4 << 20);
    let faults = "corrupt 2% loss 1% duplicate 2% delay 1ms reorder 10%";
    run(&format!("tc -n {NAMESPACE} qdisc add dev {PEER} root netem {faults}"));
    let (mut connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, LEN);
    take_all(&mut connection, &mut Check::new(1));
    sending.join().unwrap();
    let statistics = receiver.statistics().unwrap();
    assert_eq!((statistics.bytes, statistics.copied), (LEN, 0));
}

#[test]
#[ignore = "needs the lab"]
fn filters_see_what_arrives() {
    let _pair = Pair::new();
    let datagrams = Datagrams::new();
    // IPv4 with UDP in it
    let code = tempfile::NamedTempFile::new().unwrap();
    let instructions = "6,40 0 0 12,21 0 3 2048,48 0 0 23,21 0 1 17,6 0 0 4294967295,6 0 0 0";
    fs::write(&code, instructions).unwrap();
    run(&format!("tc qdisc add dev {DEVICE} clsact"));
    for filter in [
        format!("flower ip_proto udp dst_port {PORT}"),
        "u32 match ip protocol 17 0xff".into(),
        format!("bpf bytecode-file {}", code.path().display()),
    ] {
        datagrams.cross();
        run(&format!("tc filter add dev {DEVICE} ingress protocol ip pref 1 {filter} action drop"));
        datagrams.do_not_cross();
        comes(V4[0]);
        run(&format!("tc filter del dev {DEVICE} ingress"));
    }
}

#[test]
#[ignore = "needs the lab"]
fn devices_on_top_have_a_network_of_their_own() {
    let _pair = Pair::new();
    for kind in ["vlan id 5", "macvlan mode private", "ipvlan mode l2"] {
        both("ip", |device| format!("link add link {device} name top type {kind}"));
        for (options, end) in [(String::new(), 0), (format!("-n {NAMESPACE}"), 1)] {
            run(&format!("ip {options} addr add {}/24 dev top", TOP[end]));
            run(&format!("ip {options} link set top up"));
        }
        comes(TOP[0]);
        goes(TOP[1]);
        both("ip", |_| "link del top".into());
    }
}

const TOP: [&str; 2] = ["10.78.0.1", "10.78.0.2"];

#[test]
#[ignore = "needs the lab"]
fn device_memory_is_reached_through_a_vlan() {
    let pair = Pair::new();
    both("ip", |device| format!("link add link {device} name top type vlan id 5"));
    both("ip", |_| "link set top up".into());
    run(&format!("ip addr add {}/24 dev top", TOP[0]));
    run(&format!("ip -n {NAMESPACE} addr add {}/24 dev top", TOP[1]));
    let receiver = pair.receiver(4 << 20);
    let listener = receiver.listen((TOP[0].parse::<IpAddr>().unwrap(), PORT).into()).unwrap();
    let sending = send(far(|| connect(TOP[0])), 1, LEN);
    let mut connection = listener.accept_timeout(PATIENCE).unwrap().expect("a connection");
    take_all(&mut connection, &mut Check::new(1));
    sending.join().unwrap();
    let statistics = receiver.statistics().unwrap();
    assert_eq!((statistics.bytes, statistics.copied), (LEN, 0));
}

/// The far end of another pair.
const OTHER: &str = "busbar-other";
const OTHER_V4: &str = "10.77.0.3";

/// A bridge and that pair, removed when this is dropped.
struct Bridge;

impl Bridge {
    fn new() -> Self {
        run("ip link add nic1 type vnic");
        let line = run("ip -o link show nic1");
        let peer = line.split_once('@').and_then(|(_, rest)| rest.split_once(':')).unwrap().0;
        run(&format!("ip link set {peer} name vnic1"));
        run(&format!("ip netns add {OTHER}"));
        run(&format!("ip link set vnic1 netns {OTHER}"));
        run(&format!("ip -n {OTHER} addr add {OTHER_V4}/24 dev vnic1"));
        run(&format!("ip -n {OTHER} link set vnic1 up"));
        run("ip link add bridge0 type bridge");
        for device in [DEVICE, "nic1", "bridge0"] {
            if device != "bridge0" {
                run(&format!("ip link set {device} master bridge0"));
            }
            run(&format!("ip link set {device} up"));
        }
        Self
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        run("ip link del nic1");
        run("ip link del bridge0");
        run(&format!("ip netns del {OTHER}"));
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_bridge_forwards_between_pairs() {
    let _pair = Pair::new();
    let _bridge = Bridge::new();
    let listener = inside(OTHER, || TcpListener::bind(at(OTHER_V4)).unwrap());
    crosses(&listener, far(|| connect(OTHER_V4)));
    let listener = far(|| TcpListener::bind(at(V4[1])).unwrap());
    crosses(&listener, inside(OTHER, || connect(V4[1])));
}

/// A mounted `bpf`, in which programs have names; unmounted when this is dropped.
struct Names(tempfile::TempDir);

impl Names {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        run(&format!("mount -t bpf bpf {}", folder.path().display()));
        Self(folder)
    }

    /// Attaches a program with `ip`.
    fn try_attach(&self, program: &OwnedFd) -> Result<String, String> {
        let path = self.0.path().join("program");
        if !path.exists() {
            xdp::pin(program, &path);
        }
        try_run(&format!("ip link set dev {DEVICE} xdpgeneric pinned {}", path.display()))
    }

    fn attach(&self, program: &OwnedFd) {
        self.try_attach(program).unwrap();
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        run(&format!("umount {}", self.0.path().display()));
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_generic_xdp_program_decides_what_arrives() {
    let _pair = Pair::new();
    let names = Names::new();
    let datagrams = Datagrams::new();
    datagrams.cross();
    names.attach(&xdp::always(xdp::XDP_DROP));
    datagrams.do_not_cross();
    run(&format!("ip link set dev {DEVICE} xdpgeneric off"));
    datagrams.cross();
    comes(V4[0]);
}

#[test]
#[ignore = "needs the lab"]
fn xdp_and_device_memory_exclude_each_other() {
    let pair = Pair::new();
    let names = Names::new();
    let receiver = pair.receiver(4 << 20);
    let program = xdp::always(xdp::XDP_PASS);
    let said = names.try_attach(&program).unwrap_err();
    // Newer kernels refuse for the setting, before they come to the memory.
    assert!(said.contains("memory provider") || said.contains("tcp-data-split"), "{said}");
    drop(receiver);
    names.try_attach(&program).unwrap();
    let memory = Block::with(4 << 20, &Memory::Pages).unwrap();
    let error = Receiver::open(DEVICE, memory, &ReceiveSetup::default()).expect_err("no receiver");
    assert!(format!("{error:?}").contains("XDP"), "{error:?}");
    run(&format!("ip link set dev {DEVICE} xdpgeneric off"));
    comes(V4[0]);
}

/// Swaps the addresses of an IPv4 frame with UDP, so that it is returned with the same checksums.
fn turn_round(frame: &mut [u8]) {
    for [first, second, len] in [[0, 6, 6], [26, 30, 4], [34, 36, 2]] {
        for byte in 0..len {
            frame.swap(first + byte, second + byte);
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn an_af_xdp_socket_has_the_frames_of_its_queue() {
    const QUEUE: u32 = 5;
    let _pair = Pair::new();
    let names = Names::new();
    let datagrams = Datagrams::new();
    datagrams.cross();
    let index = fs::read_to_string(format!("/sys/class/net/{DEVICE}/ifindex")).unwrap();
    let socket = xdp::Socket::new(index.trim().parse().unwrap(), QUEUE);
    let sockets = xdp::SocketMap::new(pair::QUEUES);
    sockets.insert(QUEUE, &socket);
    names.attach(&xdp::to_sockets(&sockets));
    run(&format!("ethtool -N {DEVICE} flow-type udp4 dst-port {PORT} queue {QUEUE}"));

    for number in 0..10_u8 {
        let sent = [number; 300];
        datagrams.far.send(&sent).unwrap();
        let mut frame = None;
        wait_until("a frame", || {
            // The hash may select this queue for other frames as well, such as a router solicitation.
            frame = socket.receive().and_then(|mut frame| {
                let is_ours = frame.bytes().len() == 42 + sent.len();
                is_ours.then_some(frame)
            });
            frame.is_some()
        });
        let mut frame = frame.unwrap();
        assert_eq!(frame.bytes()[42..], sent);
        turn_round(frame.bytes());
        frame.send();
        let mut back = [0; 1000];
        let len = datagrams.far.recv(&mut back).expect("the datagram comes back");
        assert_eq!(back[..len], sent);
        wait_until("the frame's end", || socket.completed());
    }
    // A frame shorter than a header cannot be sent.
    let drops = format!("/sys/class/net/{DEVICE}/statistics/tx_dropped");
    let before: u64 = fs::read_to_string(&drops).unwrap().trim().parse().unwrap();
    for len in [1, 13] {
        datagrams.far.send(b"x").unwrap();
        let mut frame = None;
        wait_until("a frame", || {
            frame = socket.receive();
            frame.is_some()
        });
        let mut frame = frame.unwrap();
        frame.truncate(len);
        frame.send();
        wait_until("the frame's end", || socket.completed());
    }
    let after: u64 = fs::read_to_string(&drops).unwrap().trim().parse().unwrap();
    assert_eq!(after, before + 2);
    // The other queues deliver to the stack. The hash might select that of the socket.
    run(&format!("ethtool -N {DEVICE} flow-type tcp4 dst-port {PORT} queue 0"));
    comes(V4[0]);
    run(&format!("ip link set dev {DEVICE} xdpgeneric off"));
    for rule in [62, 63] {
        run(&format!("ethtool -N {DEVICE} delete {rule}"));
    }
    datagrams.cross();
}
