//! `busbar::bulk`: one suite of tests over every transport.
//!
//! Each test starts a coprocessor of its own in the lab, with the faults that it needs.

mod support;

use std::io::ErrorKind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use busbar::bulk::{Link, Transfer, Transport, Wanted};
use busbar::endpoint::Controller;
use busbar_lab::stage::Side;
use rustix::io::Errno;
use support::{eptfd, in_tree};

/// Time limit for every expected event, also in an emulated debug kernel.
const PATIENCE: Duration = Duration::from_secs(240);

/// A coprocessor whose service for `transport` has these `options`.
fn side(transport: Transport, options: &str) -> Side {
    let kind = match transport {
        Transport::Tty => "bulk-tty",
        Transport::Netlink => "bulk-netlink",
        _ => "bulk",
    };
    let service = format!("{kind}{options}");
    if transport == Transport::Node { in_tree(&[&service]) } else { eptfd(&[&service]) }
}

fn link(side: &Side, transport: Transport) -> Link {
    let controller = Controller::open(side.controller()).unwrap();
    let mut opened = Link::open(&controller, transport);
    // The driver of a TTY or of netlink is loaded and bound by udev.
    support::wait_until("the driver of the channel", || {
        let missing = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if missing {
            opened = Link::open(&controller, transport);
        }
        !missing
    });
    opened.unwrap()
}

fn patient<'a>() -> Transfer<'a> {
    Transfer::new().timeout(PATIENCE)
}

/// Bytes without a pattern that two blocks would share.
fn block(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

fn assert_same(received: &[u8], sent: &[u8]) {
    let differs = received.iter().zip(sent).position(|(a, b)| a != b);
    assert!(
        received == sent,
        "{} bytes for {}, the first difference at {differs:?}",
        received.len(),
        sent.len()
    );
}

fn exchange(link: &mut Link, bytes: &[u8]) {
    link.send_timeout(bytes, PATIENCE).unwrap();
    assert_same(&link.recv_timeout(Wanted::Last, PATIENCE).unwrap(), bytes);
}

fn blocks_of_every_size_come_back(transport: Transport) {
    let side = side(transport, "");
    let mut link = link(&side, transport);
    assert_eq!(link.transport(), transport);
    let message = [1, 2, 3, 479, 480, 481, 489, 490, 491, 495, 496, 497, 512, 985, 986, 987];
    let page = [1024, 2048, 4095, 4096, 4097, 8192, 16_384, 32_768];
    // Where the header changes, and where the packet is 0xabcd bytes long.
    let header = [43_974, 43_975, 43_976, 65_528, 65_529, 65_530, 65_536, 100_003];
    for (seed, size) in message.into_iter().chain(page).chain(header).enumerate() {
        exchange(&mut link, &block(size, seed as u64));
    }
}

fn sixteen_mebibytes_come_back(transport: Transport) {
    let side = side(transport, "");
    exchange(&mut link(&side, transport), &block(16 << 20, 16));
}

fn blocks_keep_their_order(transport: Transport) {
    let side = side(transport, "");
    let mut link = link(&side, transport);
    for seed in 0..30 {
        let length = 1 + usize::try_from(seed * 7919 % 3000).unwrap();
        exchange(&mut link, &block(length, seed));
    }
}

fn a_pattern_is_received_without_having_been_sent(transport: Transport) {
    let side = side(transport, "");
    let mut link = link(&side, transport);
    for length in [1, 255, 480, 481, 4096, 65_530, 200_000] {
        let expected: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
        let wanted = Wanted::Pattern(u32::try_from(length).unwrap());
        assert_same(&link.recv_timeout(wanted, PATIENCE).unwrap(), &expected);
    }
}

fn what_looks_like_a_packet_is_data(transport: Transport) {
    let side = side(transport, "");
    let mut link = link(&side, transport);
    for length in [2, 6, 490, 496, 5000] {
        exchange(&mut link, &[0xcd, 0xab].repeat(length / 2));
    }
    // A whole packet of one byte, and a RESET, over and over.
    exchange(&mut link, &[0xcd, 0xab, 7, 0, 0, 0, 0].repeat(300));
    exchange(&mut link, &[0xcd, 0xab, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 1, 2, 3, 4].repeat(300));
    exchange(&mut link, &[0; 1000]);
}

fn a_deadline_ends_a_transfer_and_the_next_one_works(transport: Transport) {
    let side = side(transport, "+delay=3000");
    let mut link = link(&side, transport);
    let late = block(5000, 1);
    let error = link.send_timeout(&late, Duration::from_millis(300));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    exchange(&mut link, &block(3000, 2));
}

fn a_crash_ends_a_transfer_in_its_middle(transport: Transport) {
    let mut side = side(transport, "+delay=60000");
    let mut link = link(&side, transport);
    let (tell, told) = mpsc::channel();
    let sender = thread::spawn(move || {
        tell.send(()).unwrap();
        link.send_timeout(&block(4 << 20, 3), PATIENCE).unwrap_err().kind()
    });
    told.recv().unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(!sender.is_finished());
    side.kill().unwrap();
    assert_eq!(sender.join().unwrap(), ErrorKind::BrokenPipe);
}

fn progress_grows_and_ends_with_the_whole(transport: Transport) {
    let side = side(transport, "");
    let mut link = link(&side, transport);
    let bytes = block(300_000, 4);
    let mut told = Vec::new();
    link.send_with(&bytes, &mut patient().progress(&mut |done, total| told.push((done, total))))
        .unwrap();
    assert_told(&told, bytes.len());
    told.clear();
    link.recv_with(
        Wanted::Last,
        &mut patient().progress(&mut |done, total| told.push((done, total))),
    )
    .unwrap();
    assert_told(&told, bytes.len());
}

fn assert_told(told: &[(u64, u64)], length: usize) {
    let length = length as u64;
    assert_eq!(told.last(), Some(&(length, length)));
    assert!(told.is_sorted() && told.iter().all(|&(_, total)| total == length), "{told:?}");
}

fn changed_bytes_are_an_error(transport: Transport) {
    let side = side(transport, "+corrupt=2");
    let mut link = link(&side, transport);
    for size in [1, 496, 5000, 70_000] {
        let wanted = Wanted::Pattern(size);
        link.recv_timeout(wanted, PATIENCE).unwrap();
        let error = link.recv_timeout(wanted, PATIENCE).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::BADMSG), "{size}: {error}");
    }
}

fn missing_bytes_are_an_error_or_a_timeout(transport: Transport) {
    let side = side(transport, "+truncate=2");
    let mut link = link(&side, transport);
    for size in [100, 5000] {
        let wanted = Wanted::Pattern(size);
        link.recv_timeout(wanted, PATIENCE).unwrap();
        let error = link.recv_timeout(wanted, Duration::from_secs(1)).unwrap_err();
        // A stream cannot know that nothing follows.
        let timed_out = error.kind() == ErrorKind::TimedOut;
        assert!(error.errno() == Some(Errno::PROTO) || timed_out, "{size}: {error}");
    }
}

fn clients_at_once_get_their_own(transport: Transport) {
    let side = side(transport, "");
    let links: Vec<_> = (0..4).map(|_| link(&side, transport)).collect();
    thread::scope(|scope| {
        for (client, mut link) in links.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..10 {
                    exchange(&mut link, &block(1 + round * 777, (client * 100 + round) as u64));
                }
            });
        }
    });
}

fn nothing_is_received_where_nobody_has_sent(transport: Transport) {
    let side = side(transport, "");
    let error = link(&side, transport).recv_timeout(Wanted::Last, PATIENCE).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NODATA), "{error}");
}

fn no_block_has_no_bytes(transport: Transport) {
    let side = side(transport, "");
    let mut link = link(&side, transport);
    let error = link.send_timeout(&[], PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = link.recv_timeout(Wanted::Pattern(0), PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    exchange(&mut link, b"still good");
}

/// One test for each transport.
macro_rules! over {
    ($module:ident, $transport:expr, $($test:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[test]
                #[ignore = "needs the lab"]
                fn $test() {
                    super::$test($transport);
                }
            )*
        }
    };
}

macro_rules! over_packets {
    ($module:ident, $transport:expr, $($more:ident)*) => {
        over! { $module, $transport,
            blocks_of_every_size_come_back
            sixteen_mebibytes_come_back
            blocks_keep_their_order
            a_pattern_is_received_without_having_been_sent
            what_looks_like_a_packet_is_data
            a_deadline_ends_a_transfer_and_the_next_one_works
            a_crash_ends_a_transfer_in_its_middle
            progress_grows_and_ends_with_the_whole
            changed_bytes_are_an_error
            missing_bytes_are_an_error_or_a_timeout
            nothing_is_received_where_nobody_has_sent
            no_block_has_no_bytes
            $($more)*
        }
    };
}

over_packets! { tty, Transport::Tty, }
over_packets! { netlink, Transport::Netlink, clients_at_once_get_their_own }
over_packets! { node, Transport::Node, clients_at_once_get_their_own }
over_packets! { fd, Transport::Fd, clients_at_once_get_their_own }
over! { buffer, Transport::Buffer,
    blocks_of_every_size_come_back
    sixteen_mebibytes_come_back
    blocks_keep_their_order
    a_pattern_is_received_without_having_been_sent
    what_looks_like_a_packet_is_data
    a_deadline_ends_a_transfer_and_the_next_one_works
    a_crash_ends_a_transfer_in_its_middle
    progress_grows_and_ends_with_the_whole
    clients_at_once_get_their_own
    no_block_has_no_bytes
}

#[test]
#[ignore = "needs the lab"]
fn a_tty_has_one_user() {
    let side = side(Transport::Tty, "");
    let mut first = link(&side, Transport::Tty);
    let controller = Controller::open(side.controller()).unwrap();
    let Err(error) = Link::open(&controller, Transport::Tty) else { panic!("a second user") };
    assert_eq!(error.errno(), Some(Errno::BUSY), "{error}");
    exchange(&mut first, b"undisturbed");
}

/// A client that goes away in the middle of a block does not disturb the next one.
#[test]
#[ignore = "needs the lab"]
fn half_a_block_does_not_harm_the_next_client() {
    for transport in [Transport::Tty, Transport::Netlink, Transport::Node, Transport::Fd] {
        let side = side(transport, "");
        let mut gone = link(&side, transport);
        let error = gone.send_timeout(&block(8 << 20, 5), Duration::from_millis(50));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut, "{transport}");
        drop(gone);
        exchange(&mut link(&side, transport), &block(2000, 6));
    }
}
