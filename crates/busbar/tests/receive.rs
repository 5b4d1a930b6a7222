//! Tests of every way to receive: ordinary receive on any host, and device memory in the lab.

mod pair;

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Piece, ReceiveSetup, Receiver, View};
use busbar::wait::{Events, Interest, Poller, Timeout};
use busbar_uapi::zerocopy::{self, ZEROCOPY};
use rustix::net::sockopt::set_socket_linger;
use rustix::time::{ClockId, clock_gettime};

use pair::{
    Check, Loopback, MOMENT, PATIENCE, Pair, Place, pattern, send, take, take_all, wait_until,
};

/// Makes a test of each function for ordinary receive, and one for device memory.
macro_rules! conform {
    ($($test:ident)*) => {
        mod host {
            $(#[test] fn $test() { super::$test(&super::Loopback); })*
        }
        mod device {
            $(#[test] #[ignore = "needs the lab"] fn $test() { super::$test(&super::Pair::new()); })*
        }
    };
}

conform! {
    every_byte_arrives_in_order
    many_connections_share_a_block
    many_connections_share_little_memory
    memory_that_runs_out_holds_the_sender_up
    the_smallest_block_is_enough
    held_views_stay_as_they_are
    views_outlive_connection_and_receiver
    views_may_be_dropped_by_other_threads
    an_end_comes_after_the_last_byte
    a_reset_is_an_error_once
    deadlines_are_kept
    a_poller_wakes_for_data
    a_poller_wakes_for_memory
    whoever_is_called_can_send
    nobody_there_is_an_error
}

#[test]
#[ignore = "needs the lab"]
fn ipv6_is_no_different() {
    let pair = Pair::new().six();
    every_byte_arrives_in_order(&pair);
    many_connections_share_a_block(&pair);
    a_poller_wakes_for_memory(&pair);
    whoever_is_called_can_send(&pair);
}

fn every_byte_arrives_in_order(place: &impl Place) {
    for (seed, len) in [1, 100, 4096, 65_536, 8 << 20].into_iter().enumerate() {
        let receiver = place.receiver(16 << 20);
        let (mut connection, sender) = place.connect(&receiver);
        let sending = send(sender, seed as u64, len);
        let mut check = Check::new(seed as u64);
        take_all(&mut connection, &mut check);
        sending.join().unwrap();
        let statistics = receiver.statistics().unwrap();
        assert_eq!((check.at, statistics.bytes), (len, len));
        assert_eq!(statistics.copied, if place.copies() { len } else { 0 });
        assert_eq!((statistics.views, statistics.held, statistics.refused), (0, 0, 0));
        assert_eq!(statistics.memory, 16 << 20);
        drop(connection);
        receiver.close().unwrap();
    }
}

fn many_connections_share_a_block(place: &impl Place) {
    const LEN: u64 = 1 << 20;
    let receiver = place.receiver(8 << 20);
    let connections: Vec<_> = (0..8).map(|_| place.connect(&receiver)).collect();
    thread::scope(|scope| {
        for (seed, (mut connection, sender)) in connections.into_iter().enumerate() {
            let sending = send(sender, seed as u64, LEN);
            scope.spawn(move || {
                let mut check = Check::new(seed as u64);
                take_all(&mut connection, &mut check);
                sending.join().unwrap();
                assert_eq!(check.at, LEN);
            });
        }
    });
    assert_eq!(receiver.statistics().unwrap().bytes, 8 * LEN);
    assert_eq!(receiver.statistics().unwrap().held, 0);
}

fn many_connections_share_little_memory(place: &impl Place) {
    const LEN: u64 = 2 << 20;
    let receiver = place.receiver(1 << 20);
    let connections: Vec<_> = (0..6).map(|_| place.connect(&receiver)).collect();
    thread::scope(|scope| {
        for (seed, (mut connection, sender)) in connections.into_iter().enumerate() {
            let sending = send(sender, seed as u64, LEN);
            scope.spawn(move || {
                take_all(&mut connection, &mut Check::new(seed as u64));
                sending.join().unwrap();
            });
        }
    });
    assert_eq!(receiver.statistics().unwrap().bytes, 6 * LEN);
}

/// Takes pieces until more than half of the memory is held and no more come. A sender whose frames
/// were dropped makes pauses.
fn hoard(receiver: &Receiver, connection: &mut Connection) -> Vec<Piece> {
    let mut hoard = Vec::new();
    loop {
        while let Some(piece) = connection.next_timeout(10 * MOMENT).unwrap() {
            hoard.push(piece);
        }
        assert!(!connection.is_finished());
        let statistics = receiver.statistics().unwrap();
        if statistics.held > statistics.memory / 2 {
            return hoard;
        }
    }
}

fn memory_that_runs_out_holds_the_sender_up(place: &impl Place) {
    const LEN: u64 = 16 << 20;
    let receiver = place.receiver(256 << 10);
    let (mut connection, sender) = place.connect(&receiver);
    let sending = send(sender, 3, LEN);
    let mut check = Check::new(3);
    for round in 0..3 {
        let held = hoard(&receiver, &mut connection);
        let statistics = receiver.statistics().unwrap();
        assert!(!sending.is_finished() && !connection.is_finished(), "round {round}");
        assert!(statistics.held <= statistics.memory, "{statistics:?}");
        assert_eq!(statistics.views, held.len());
        assert!(statistics.shortages.unwrap() > 0, "{statistics:?}");
        for piece in &held {
            check.piece(piece);
        }
    }
    take_all(&mut connection, &mut check);
    sending.join().unwrap();
    assert_eq!(check.at, LEN);
    assert_eq!(receiver.statistics().unwrap().held, 0);
}

fn the_smallest_block_is_enough(place: &impl Place) {
    const LEN: u64 = 1_000_000;
    let receiver = place.receiver(place.least());
    assert_eq!(receiver.block().len(), place.least());
    let (mut connection, sender) = place.connect(&receiver);
    let sending = send(sender, 4, LEN);
    let mut check = Check::new(4);
    take_all(&mut connection, &mut check);
    sending.join().unwrap();
    assert_eq!(check.at, LEN);
}

fn held_views_stay_as_they_are(place: &impl Place) {
    let receiver = place.receiver(1 << 20);
    let (mut kept, sender) = place.connect(&receiver);
    send(sender, 5, 200_000).join().unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = kept.next_timeout(PATIENCE).unwrap() {
        pieces.push(piece);
    }
    // All other data goes through the rest of the block, many times.
    let (mut other, sender) = place.connect(&receiver);
    let sending = send(sender, 6, 8 << 20);
    take_all(&mut other, &mut Check::new(6));
    sending.join().unwrap();
    let mut check = Check::new(5);
    for piece in &pieces {
        check.piece(piece);
    }
    assert_eq!(check.at, 200_000);
    // Views do not overlap.
    let mut ranges: Vec<_> = pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::View(view) => Some(view.range()),
            Piece::Bytes(_) => None,
        })
        .collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
}

fn views_outlive_connection_and_receiver(place: &impl Place) {
    let receiver = place.receiver(1 << 20);
    let (mut connection, sender) = place.connect(&receiver);
    send(sender.try_clone().unwrap(), 7, 100_000).join().unwrap();
    let mut pieces = Vec::new();
    let mut len = 0;
    while len < 100_000 {
        pieces.push(take(&mut connection));
        len += pieces.last().unwrap().len();
    }
    // The peer does not wait for the views.
    drop(connection);
    sender.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = std::io::Read::read(&mut &sender, &mut [0]);
    assert!(
        matches!(&end, Ok(0)) || end.is_err_and(|why| why.kind() == ErrorKind::ConnectionReset)
    );
    receiver.close().unwrap();
    let mut check = Check::new(7);
    for piece in &pieces {
        check.piece(piece);
    }
    assert_eq!(check.at, 100_000);
    drop(pieces);
    // And the memory can be used again.
    let receiver = place.receiver(1 << 20);
    let (mut connection, sender) = place.connect(&receiver);
    let sending = send(sender, 8, 4 << 20);
    take_all(&mut connection, &mut Check::new(8));
    sending.join().unwrap();
}

fn views_may_be_dropped_by_other_threads(place: &impl Place) {
    const LEN: u64 = 8 << 20;
    let receiver = place.receiver(512 << 10);
    let (mut connection, sender) = place.connect(&receiver);
    let sending = send(sender, 9, LEN);
    // The queue holds more than the block: the receiving thread waits, and only other threads drop views.
    let (pieces, taken) = mpsc::channel::<Piece>();
    let checking = thread::spawn(move || {
        let mut check = Check::new(9);
        for piece in taken {
            check.piece(&piece);
        }
        check.at
    });
    while let Some(piece) = connection.next_timeout(PATIENCE).unwrap() {
        pieces.send(piece).unwrap();
    }
    drop(pieces);
    sending.join().unwrap();
    assert!(connection.is_finished());
    assert_eq!(checking.join().unwrap(), LEN);
    let statistics = receiver.statistics().unwrap();
    assert_eq!((statistics.views, statistics.held, statistics.refused), (0, 0, 0));
}

fn an_end_comes_after_the_last_byte(place: &impl Place) {
    let receiver = place.receiver(1 << 20);
    let (mut connection, mut sender) = place.connect(&receiver);
    sender.write_all(&pattern(1, 0, 10)).unwrap();
    assert_eq!(take(&mut connection).len(), 10);
    assert!(connection.next_timeout(MOMENT).unwrap().is_none() && !connection.is_finished());
    sender.write_all(&pattern(1, 10, 10)).unwrap();
    sender.shutdown(Shutdown::Write).unwrap();
    assert_eq!(take(&mut connection).len(), 10);
    assert!(connection.next_timeout(PATIENCE).unwrap().is_none() && connection.is_finished());
    // This does not change, and the other direction still works.
    assert!(connection.next().unwrap().is_none());
    connection.socket().write_all(b"thanks").unwrap();
    let mut answer = [0; 6];
    std::io::Read::read_exact(&mut sender, &mut answer).unwrap();
    assert_eq!(&answer, b"thanks");
}

fn a_reset_is_an_error_once(place: &impl Place) {
    let receiver = place.receiver(1 << 20);
    let (mut connection, mut sender) = place.connect(&receiver);
    sender.write_all(&pattern(1, 0, 10)).unwrap();
    let view = take(&mut connection);
    set_socket_linger(&sender, Some(Duration::ZERO)).unwrap();
    drop(sender);
    let error = loop {
        match connection.next_timeout(PATIENCE) {
            Ok(piece) => assert!(piece.is_some(), "neither data nor an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(connection.is_finished() && connection.next().unwrap().is_none());
    let mut check = Check::new(1);
    check.piece(&view);
    drop(view);
    assert_eq!(receiver.statistics().unwrap().held, 0);
}

fn deadlines_are_kept(place: &impl Place) {
    let receiver = place.receiver(1 << 20);
    let (listener, _) = place.listen(&receiver);
    let begun = Instant::now();
    assert!(listener.accept_timeout(MOMENT).unwrap().is_none());
    assert!(begun.elapsed() >= MOMENT);
    assert!(listener.try_accept().unwrap().is_none());
    let (mut connection, mut sender) = place.connect(&receiver);
    let begun = Instant::now();
    assert!(connection.next_timeout(MOMENT).unwrap().is_none());
    assert!(begun.elapsed() >= MOMENT);
    let begun = Instant::now();
    assert!(connection.try_next().unwrap().is_none());
    assert!(begun.elapsed() < PATIENCE);
    // A wait ends when data comes, before its timeout.
    let writing = thread::spawn(move || {
        thread::sleep(MOMENT);
        sender.write_all(b"late").unwrap();
        sender
    });
    assert_eq!(connection.next().unwrap().unwrap().len(), 4);
    drop(writing.join().unwrap());
}

fn a_poller_wakes_for_data(place: &impl Place) {
    let receiver = place.receiver(4 << 20);
    let mut ends: Vec<_> = (0..2).map(|_| place.connect(&receiver)).collect();
    let poller = Poller::new().unwrap();
    for (key, (connection, _)) in ends.iter().enumerate() {
        poller.add(connection, key as u64, Interest::READABLE).unwrap();
    }
    let mut events = Events::new(4).unwrap();
    // At first it may be readable without data.
    for (connection, _) in &mut ends {
        assert!(connection.try_next().unwrap().is_none());
    }
    assert_eq!(poller.wait_timeout(&mut events, MOMENT).unwrap(), 0);
    for (key, text) in [(1, "one"), (0, "zero"), (1, "again")] {
        ends[key].1.write_all(text.as_bytes()).unwrap();
        assert_eq!(poller.wait_timeout(&mut events, Timeout::from(PATIENCE)).unwrap(), 1);
        assert_eq!(events.iter().next().unwrap().key(), key as u64);
        let mut len = 0;
        while let Some(piece) = ends[key].0.try_next().unwrap() {
            len += piece.len();
        }
        assert_eq!(len, text.len());
        assert_eq!(poller.wait_timeout(&mut events, MOMENT).unwrap(), 0);
    }
}

fn a_poller_wakes_for_memory(place: &impl Place) {
    const LEN: u64 = 16 << 20;
    let receiver = place.receiver(256 << 10);
    let (mut connection, sender) = place.connect(&receiver);
    let sending = send(sender, 2, LEN);
    let mut check = Check::new(2);
    let held = hoard(&receiver, &mut connection);
    let poller = Poller::new().unwrap();
    poller.add(&connection, 0, Interest::READABLE).unwrap();
    let mut events = Events::new(4).unwrap();
    // There is data, but no memory for it: the descriptor must not be readable.
    assert_eq!(poller.wait_timeout(&mut events, MOMENT).unwrap(), 0);
    for piece in &held {
        check.piece(piece);
    }
    let dropping = thread::spawn(move || {
        thread::sleep(MOMENT);
        drop(held);
    });
    while !connection.is_finished() {
        assert_eq!(
            poller.wait_timeout(&mut events, Timeout::from(PATIENCE)).unwrap(),
            1,
            "{}",
            check.at
        );
        while let Some(piece) = connection.try_next().unwrap() {
            check.piece(&piece);
        }
    }
    dropping.join().unwrap();
    sending.join().unwrap();
    assert_eq!(check.at, LEN);
}

fn whoever_is_called_can_send(place: &impl Place) {
    let receiver = place.receiver(1 << 20);
    let address = (place.peer_address(), 0);
    let listener = place.far(|| TcpListener::bind(address).unwrap());
    let address = listener.local_addr().unwrap();
    let mut connection = receiver.connect_timeout(address, PATIENCE).unwrap();
    let (sender, from) = listener.accept().unwrap();
    assert_eq!(from, connection.socket().local_addr().unwrap());
    let sending = send(sender, 11, 1 << 20);
    let mut check = Check::new(11);
    take_all(&mut connection, &mut check);
    sending.join().unwrap();
    assert_eq!(check.at, 1 << 20);
    assert_eq!(receiver.statistics().unwrap().copied, if place.copies() { 1 << 20 } else { 0 });
}

fn nobody_there_is_an_error(place: &impl Place) {
    let receiver = place.receiver(place.least());
    let address =
        place.far(|| TcpListener::bind((place.peer_address(), 0)).unwrap().local_addr().unwrap());
    let error = receiver.connect_timeout(address, PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    let (_listener, address) = place.listen(&receiver);
    let error = receiver.listen(address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn what_is_no_device_is_refused_and_said_so() {
    let block = || Block::with(4096, &Memory::Memfd).unwrap();
    let error = Receiver::open("lo", block(), &ReceiveSetup::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("DMABUF"), "{error}");
    if let Ok(small) = Block::with(1, &Memory::Pages) {
        let error = Receiver::open("lo", small, &ReceiveSetup::default()).unwrap_err().to_string();
        assert!(error.contains("or more"), "{error}");
    }
    for name in ["busbar-none", "", "a name that is too long", "nul\0"] {
        let error = Receiver::offered(name).unwrap_err();
        assert!(error.to_string().contains("ip link"), "{error}");
    }
    // If the kernel supports device memory, the error is that it has a single queue.
    let error = Receiver::offered("lo").unwrap_err().to_string();
    assert!(error.contains("needs two") || error.contains("CONFIG_NET_DEVMEM"), "{error}");
}

/// The kinds of memory that this host has: ordinary pages, huge pages and heaps.
#[test]
fn any_memory_will_do_on_a_host() {
    for memory in ["memfd", "pages", "heap:system"] {
        let Ok(block) = Block::with(128 << 10, &memory.parse().unwrap()) else { continue };
        let receiver = Receiver::host(block).unwrap();
        let (mut connection, sender) = Loopback.connect(&receiver);
        let sending = send(sender, 1, 1 << 20);
        let mut check = Check::new(1);
        take_all(&mut connection, &mut check);
        sending.join().unwrap();
        assert_eq!(check.at, 1 << 20, "{memory}");
    }
}

#[test]
fn a_connection_that_is_dropped_is_gone_for_its_peer() {
    let receiver = Loopback.receiver(4096);
    let (mut connection, mut sender) = Loopback.connect(&receiver);
    sender.write_all(b"hello").unwrap();
    let view = take(&mut connection);
    drop(connection);
    wait_until("the end", || sender.write_all(b"more").is_err());
    assert_eq!(view.len(), 5);
}

/// The end of a zero-copy send waits in the queue of errors, for which a socket is readable all the time.
#[test]
fn whoever_waits_beside_a_queue_of_errors_sleeps() {
    let receiver = Loopback.receiver(1 << 20);
    let (mut connection, _sender) = Loopback.connect(&receiver);
    zerocopy::enable(connection.socket()).unwrap();
    let sent = rustix::net::send(connection.socket(), &[1; 5000], ZEROCOPY).unwrap();
    assert_eq!(sent, 5000);
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = used();
    assert!(connection.next_timeout(Duration::from_millis(500)).unwrap().is_none());
    // Processor time, which a busy machine does not make more.
    assert!(used().saturating_sub(before) < Duration::from_millis(100));
    assert!(zerocopy::completion(connection.socket()).unwrap().is_some());
}

#[test]
fn one_guard_reads_many_views() {
    let receiver = Loopback.receiver(1 << 20);
    let (mut connection, sender) = Loopback.connect(&receiver);
    send(sender, 1, 300_000).join().unwrap();
    let mut views = Vec::new();
    while let Some(piece) = connection.next_timeout(PATIENCE).unwrap() {
        let Piece::View(view) = piece else { panic!("not a view") };
        views.push(view);
    }
    let block = receiver.block().read().unwrap();
    let bytes = |view: &View| block.bytes().slice(view.range()).to_vec();
    let read: Vec<u8> = views.iter().flat_map(bytes).collect();
    assert!(read == pattern(1, 0, 300_000));
}

fn _types_are_what_threads_need() {
    fn is<T: Send + Sync + 'static>() {}
    is::<Receiver>();
    is::<busbar::receive::Listener>();
    is::<View>();
    is::<TcpStream>();
}
