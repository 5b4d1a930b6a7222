//! Tests that only device memory has: bound queues, settings that are undone, tokens, steering. They use the
//! two ends of a `vnic` pair, in the lab.

mod common;
mod pair;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Listener, Offer, Piece, Queues, ReceiveSetup, Receiver, Tokens};

use common::{child, descriptors, plays};
use pair::{
    Check, DEVICE, MOMENT, PATIENCE, Pair, Place, QUEUES, V4, far, pattern, run, send, settings,
    take, take_all, wait_until,
};

const LEN: usize = 4 << 20;
const PORT: u16 = 5201;

fn pages(len: usize) -> Block {
    Block::with(len, &Memory::Pages).unwrap()
}

fn refused(setup: &ReceiveSetup) -> String {
    Receiver::open(DEVICE, pages(LEN), setup).unwrap_err().to_string()
}

/// Receives and verifies this much over a connection.
fn receive(place: &Pair, receiver: &Receiver, seed: u64, len: u64) {
    let (mut connection, sender) = place.connect(receiver);
    let sending = send(sender, seed, len);
    let mut check = Check::new(seed);
    take_all(&mut connection, &mut check);
    sending.join().unwrap();
    assert_eq!(check.at, len);
}

/// The same over the same device, but with a socket like any other.
fn receive_ordinarily(seed: u64, len: u64) {
    let listener = TcpListener::bind((V4[0], 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let sending = send(far(|| TcpStream::connect(address).unwrap()), seed, len);
    let mut bytes = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
    sending.join().unwrap();
    assert!(bytes == pattern(seed, 0, usize::try_from(len).unwrap()));
}

#[test]
#[ignore = "needs the lab"]
fn every_setting_is_undone() {
    let pair = Pair::new();
    let before = settings();
    let setup = ReceiveSetup::new().queues(Queues::Count(3));
    let open = || Receiver::open(DEVICE, pages(LEN), &setup).unwrap();
    // Dropped in any order.
    let receiver = open();
    let (connection, sender) = pair.connect(&receiver);
    assert_ne!(settings(), before);
    drop((receiver, connection, sender));
    assert_eq!(settings(), before);
    let receiver = open();
    let (connection, sender) = pair.connect(&receiver);
    drop(connection);
    receiver.close().unwrap();
    drop(sender);
    assert_eq!(settings(), before);
    // By a panic.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let receiver = open();
        let _ends = pair.connect(&receiver);
        panic!("as the test wants it");
    }));
    assert!(panicked.is_err());
    assert_eq!(settings(), before);
    // While views exist.
    let receiver = open();
    let (mut connection, mut sender) = pair.connect(&receiver);
    sender.write_all(b"hello").unwrap();
    let piece = take(&mut connection);
    drop((receiver, connection));
    assert_eq!(settings(), before);
    assert_eq!(piece.len(), 5);
}

#[test]
#[ignore = "needs the lab"]
fn settings_that_were_other_than_usual_are_put_back() {
    let pair = Pair::new();
    run(&format!("ethtool -K {DEVICE} ntuple on"));
    run(&format!("ethtool -X {DEVICE} weight 1 2 3 4 0 0 0 0 0 0 0 0 0 0 5 6"));
    let rule =
        |port: u16| format!("ethtool -N {DEVICE} flow-type tcp4 dst-port {port} queue 3 loc 5");
    run(&rule(PORT));
    let before = settings();
    let setup = ReceiveSetup::new().queues(Queues::These(vec![15, 1]));
    let receiver = Receiver::open(DEVICE, pages(LEN), &setup).unwrap();
    // The earlier rule for the same port is replaced, and restored.
    let listener = receiver.listen((pair.address(), PORT).into()).unwrap();
    let other = receiver.listen(([0, 0, 0, 0], PORT + 1).into()).unwrap();
    assert!(settings().contains("Filter: 0"), "{}", settings());
    drop((listener, other));
    receiver.close().unwrap();
    assert_eq!(settings(), before);
}

#[test]
#[ignore = "needs the lab"]
fn a_rule_for_the_same_port_does_not_get_in_the_way() {
    let pair = Pair::new();
    run(&format!("ethtool -K {DEVICE} ntuple on"));
    run(&format!("ethtool -N {DEVICE} flow-type tcp4 dst-port {PORT} queue 3 loc 0"));
    let before = settings();
    let receiver = pair.receiver(LEN);
    let listener = receiver.listen(([0, 0, 0, 0], PORT).into()).unwrap();
    let sender = far(|| TcpStream::connect((pair.address(), PORT)).unwrap());
    let mut connection = listener.accept_timeout(PATIENCE).unwrap().unwrap();
    let sending = send(sender, 1, 1 << 20);
    take_all(&mut connection, &mut Check::new(1));
    sending.join().unwrap();
    assert_eq!(receiver.statistics().unwrap().copied, 0);
    drop((listener, connection, receiver));
    assert_eq!(settings(), before);
}

#[test]
#[ignore = "needs the lab"]
fn a_table_that_somebody_else_has_set_is_theirs() {
    let _pair = Pair::new();
    let receiver = Receiver::open(DEVICE, pages(LEN), &ReceiveSetup::default()).unwrap();
    run(&format!("ethtool -X {DEVICE} equal 2"));
    let theirs = run(&format!("ethtool -x {DEVICE}"));
    receiver.close().unwrap();
    assert_eq!(run(&format!("ethtool -x {DEVICE}")), theirs);
}

#[test]
#[ignore = "needs the lab"]
fn queues_are_taken_once_and_others_go_on() {
    let pair = Pair::new();
    let free = Receiver::offered(DEVICE).unwrap();
    assert_eq!(free, QUEUES as usize - 1);
    let first = pair.receiver(LEN);
    assert_eq!(first.queues(), [QUEUES - 1]);
    let second = pair.receiver(LEN);
    assert_eq!(second.queues(), [QUEUES - 2]);
    assert_eq!(Receiver::offered(DEVICE).unwrap(), free - 2);
    let these = |queues: Vec<u32>| ReceiveSetup::new().queues(Queues::These(queues));
    let error = refused(&these(vec![QUEUES - 1]));
    assert!(error.contains("some of [0, 1,"), "{error}");
    let error = refused(&ReceiveSetup::new().queues(Queues::Count(14)));
    assert!(error.contains("1 to 13"), "{error}");
    // Both receive, each into its own block, and all other traffic continues.
    thread::scope(|scope| {
        scope.spawn(|| receive(&pair, &first, 1, 1 << 20));
        scope.spawn(|| receive(&pair, &second, 2, 1 << 20));
    });
    receive_ordinarily(4, 1 << 20);
    assert_eq!(first.statistics().unwrap().bytes, 1 << 20);
    assert_eq!(second.statistics().unwrap().bytes, 1 << 20);
    first.close().unwrap();
    receive(&pair, &second, 3, 1 << 20);
}

#[test]
#[ignore = "needs the lab"]
fn listeners_take_turns_with_the_queues() {
    let setup = ReceiveSetup::new().queues(Queues::Count(4));
    let pair = Pair::with(setup);
    let receiver = pair.receiver(8 << 20);
    let ends: Vec<_> = (0..4).map(|_| pair.connect(&receiver)).collect();
    let rules = run(&format!("ethtool -n {DEVICE}"));
    for queue in 12..16 {
        assert!(rules.contains(&format!("Direct to queue {queue}")), "{rules}");
    }
    for (seed, (mut connection, sender)) in ends.into_iter().enumerate() {
        let sending = send(sender, seed as u64, 1 << 20);
        take_all(&mut connection, &mut Check::new(seed as u64));
        sending.join().unwrap();
    }
    assert_eq!(receiver.statistics().unwrap().copied, 0);
}

#[test]
#[ignore = "needs the lab"]
fn a_listener_on_all_addresses_takes_both_protocols() {
    let pair = Pair::new();
    let receiver = pair.receiver(LEN);
    let listener: Listener = receiver.listen("[::]:5201".parse().unwrap()).unwrap();
    for address in [pair::V4[0], pair::V6[0]] {
        let sender = far(|| TcpStream::connect((address, PORT)).unwrap());
        let mut connection = listener.accept_timeout(PATIENCE).unwrap().unwrap();
        let sending = send(sender, 1, 1 << 20);
        take_all(&mut connection, &mut Check::new(1));
        sending.join().unwrap();
    }
    assert_eq!(receiver.statistics().unwrap().copied, 0);
}

#[test]
#[ignore = "needs the lab"]
fn small_segments_and_all_token_modes_do_the_same() {
    let mut modes = vec![Tokens::Default, Tokens::Autorelease];
    let offer = Offer::ask().unwrap();
    // Linux 7.3 does not tell without a device that can.
    assert_ne!(offer.binds, Some(false));
    if offer.has_index_tokens {
        modes.push(Tokens::Index);
    }
    for tokens in modes {
        let pair = Pair::with(ReceiveSetup::new().tokens(tokens));
        let receiver = pair.receiver(LEN);
        let is_index = offer.has_index_tokens && tokens != Tokens::Autorelease;
        let expected = if is_index { Tokens::Index } else { Tokens::Autorelease };
        assert_eq!(receiver.tokens(), Some(expected));
        receive(&pair, &receiver, 1, 2 << 20);
        run("ip netns exec busbar-peer ethtool -K vnic0 tso off gso off");
        receive(&pair, &receiver, 2, 2 << 20);
        let statistics = receiver.statistics().unwrap();
        assert_eq!((statistics.bytes, statistics.copied, statistics.refused), (4 << 20, 0, 0));
        assert_eq!((statistics.views, statistics.held), (0, 0));
        assert!(statistics.returns > 0);
    }
    if !offer.has_index_tokens {
        let _pair = Pair::new();
        let error = refused(&ReceiveSetup::new().tokens(Tokens::Index));
        assert!(error.contains("autorelease"), "{error}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn tokens_come_back_in_batches() {
    let pair = Pair::new();
    let receiver = pair.receiver(32 << 20);
    let (mut connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, 4 << 20);
    let mut views = Vec::new();
    let mut check = Check::new(1);
    while let Some(piece) = connection.next_timeout(PATIENCE).unwrap() {
        check.piece(&piece);
        views.push(piece);
    }
    sending.join().unwrap();
    let tokens = views.len();
    assert!(tokens >= 1024, "{tokens}");
    drop(views);
    drop(connection);
    let statistics = receiver.statistics().unwrap();
    assert_eq!((statistics.refused, statistics.held), (0, 0));
    // After the end of the stream, each token was returned at once. Before it, they are returned together.
    receive(&pair, &receiver, 2, 4 << 20);
    let calls = receiver.statistics().unwrap().returns - statistics.returns;
    assert!(calls < tokens as u64 / 2, "{calls} calls");
}

#[test]
#[ignore = "needs the lab"]
fn an_end_of_the_binding_under_load_loses_nothing() {
    const BYTES: u64 = 16 << 20;
    let pair = Pair::new();
    let before = settings();
    let receiver = pair.receiver(LEN);
    let (mut connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, BYTES);
    let mut check = Check::new(1);
    let mut held = Vec::new();
    while check.at < BYTES / 8 {
        let piece = take(&mut connection);
        check.piece(&piece);
        if held.len() < 16 {
            held.push(piece);
        }
    }
    receiver.close().unwrap();
    let mut outside = 0;
    while let Some(piece) = connection.next_timeout(PATIENCE).unwrap() {
        check.piece(&piece);
        if let Piece::Bytes(bytes) = piece {
            outside += bytes.len();
        }
    }
    sending.join().unwrap();
    assert_eq!(check.at, BYTES);
    assert!(connection.is_finished() && outside > 0);
    // The held data has not changed.
    let mut again = Check::new(1);
    for piece in &held {
        again.piece(piece);
    }
    drop(held);
    drop(connection);
    assert_eq!(settings(), before);
    receive(&pair, &pair.receiver(LEN), 2, 1 << 20);
}

#[test]
#[ignore = "needs the lab"]
fn what_nobody_will_read_holds_no_memory() {
    const UNREAD: usize = 256 << 10;
    let pair = Pair::new();
    let receiver = pair.receiver(LEN);
    let (mut connection, mut sender) = pair.connect(&receiver);
    sender.write_all(b"hello").unwrap();
    // Keeps the socket open.
    let held = take(&mut connection);
    sender.write_all(&vec![7; UNREAD]).unwrap();
    wait_until("what is unread", || {
        rustix::io::ioctl_fionread(connection.socket()).unwrap() == UNREAD as u64
    });
    drop(connection);
    let statistics = receiver.statistics().unwrap();
    assert_eq!(statistics.bytes, (held.len() + UNREAD) as u64);
    assert_eq!((statistics.views, statistics.refused), (1, 0));
    drop(held);
    assert_eq!(receiver.statistics().unwrap().held, 0);
}

/// A process that receives until it is killed.
fn victim(name: &str) -> Child {
    child(name, "victim").spawn().unwrap()
}

fn receive_for_ever() -> ! {
    let setup = ReceiveSetup::new().queues(Queues::Count(2));
    let receiver = Receiver::open(DEVICE, pages(LEN), &setup).unwrap();
    let listener = receiver.listen(([0, 0, 0, 0], PORT).into()).unwrap();
    loop {
        let mut connection: Connection = listener.accept().unwrap();
        let mut held = Vec::new();
        while let Some(piece) = connection.next().unwrap() {
            held.push(piece);
            held.truncate(100);
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_killed_receiver_leaves_no_binding_and_another_can_take_over() {
    const NAME: &str = "a_killed_receiver_leaves_no_binding_and_another_can_take_over";
    if plays("victim") {
        receive_for_ever();
    }
    let pair = Pair::new();
    let free = Receiver::offered(DEVICE).unwrap();
    for _ in 0..3 {
        let mut victim = victim(NAME);
        let mut sender = None;
        wait_until("the receiver", || {
            sender = far(|| TcpStream::connect((pair.address(), PORT)).ok());
            sender.is_some()
        });
        let mut sender = sender.unwrap();
        let loading = thread::spawn(move || while sender.write_all(&[7; 4096]).is_ok() {});
        thread::sleep(10 * MOMENT);
        assert_eq!(Receiver::offered(DEVICE).unwrap(), free - 2);
        victim.kill().unwrap();
        victim.wait().unwrap();
        loading.join().unwrap();
        wait_until("the queues", || Receiver::offered(DEVICE).unwrap() == free);
        // Its rule is still there, since nothing removes it; it does not disturb others.
        let left = settings();
        let setup = ReceiveSetup::new().queues(Queues::Count(2));
        let receiver = Receiver::open(DEVICE, pages(LEN), &setup).unwrap();
        let listener = receiver.listen(([0, 0, 0, 0], PORT).into()).unwrap();
        let sender = far(|| TcpStream::connect((pair.address(), PORT)).unwrap());
        let mut connection = listener.accept_timeout(PATIENCE).unwrap().unwrap();
        let sending = send(sender, 3, 1 << 20);
        take_all(&mut connection, &mut Check::new(3));
        sending.join().unwrap();
        assert_eq!(receiver.statistics().unwrap().copied, 0);
        drop((listener, connection));
        receiver.close().unwrap();
        assert_eq!(settings(), left);
    }
}

#[test]
#[ignore = "needs the lab"]
fn many_rounds_leak_nothing() {
    let pair = Pair::new();
    let before = (settings(), descriptors());
    let rounds = if std::env::var_os("BUSBAR_QUICK").is_some() { 10 } else { 1_000 };
    for round in 0..rounds {
        let receiver = pair.receiver(pair.least());
        if round % 10 == 0 {
            receive(&pair, &receiver, round, 100_000);
        }
    }
    assert_eq!((settings(), descriptors()), before);
}

#[test]
#[ignore = "needs the lab"]
fn who_may_not_or_cannot_is_told_what_to_do() {
    let pair = Pair::new();
    let error = Receiver::open("lo", pages(LEN), &ReceiveSetup::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    let error = Receiver::open(DEVICE, pages(4096), &ReceiveSetup::default()).unwrap_err();
    assert!(error.to_string().contains("262144 bytes or more"), "{error}");
    // Settings are undone after an error.
    let before = settings();
    run(&format!("ip link set {DEVICE} down"));
    let down =
        Receiver::open(DEVICE, pages(LEN), &ReceiveSetup::default()).unwrap_err().to_string();
    assert!(down.contains("ip link set nic0 up"), "{down}");
    run(&format!("ip link set {DEVICE} up"));
    assert_eq!(settings(), before);
    // Without privilege, the first setting is refused.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"])
        .arg(std::env::current_exe().unwrap())
        .args(["unprivileged_is_told", "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(settings(), before);
    drop(pair);
}

#[test]
#[ignore = "needs the lab, and to be called by another test"]
fn unprivileged_is_told() {
    let has_device = Command::new("ip").args(["link", "show", DEVICE]).output().unwrap();
    if !has_device.status.success() {
        return;
    }
    let error = Receiver::open(DEVICE, pages(LEN), &ReceiveSetup::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    // Calls that need no privilege succeed.
    assert_eq!(Receiver::offered(DEVICE).unwrap(), QUEUES as usize - 1);
    assert_eq!(Offer::ask().unwrap().binds, None);
}

#[test]
#[ignore = "needs the lab"]
fn a_device_that_goes_is_an_error_and_no_more() {
    let pair = Pair::new();
    let receiver = pair.receiver(LEN);
    let (mut connection, mut sender) = pair.connect(&receiver);
    sender.write_all(b"hello").unwrap();
    let piece = take(&mut connection);
    run(&format!("ip link del {DEVICE}"));
    assert_eq!(piece.len(), 5);
    assert!(connection.next_timeout(MOMENT).unwrap().is_none());
    assert!(receiver.statistics().is_err());
    assert!(receiver.close().is_err());
    drop((connection, piece));
    thread::sleep(Duration::from_millis(100));
}
