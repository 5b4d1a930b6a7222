use std::collections::HashMap;

use busbar::bulk::packet::{Cutter, Form, Joiner, Opening, Window, crc16, pattern};
use busbar_uapi::rpmsg_bulk::{STATUS_BAD_MESSAGE, STATUS_FAULT, STATUS_MESSAGE_SIZE};
use proptest::prelude::*;

use super::super::testing::{self, Sent};
use super::*;
use crate::machine::Machine;
use crate::message::MTU;
use crate::mock::{Dmabufs, Linux};
use crate::service::{ROOM, Services};
use crate::table::Image;

const A: u32 = 0x777;
const B: u32 = 0x778;
const PLENTY: u32 = u32::MAX;

/// The service without rings, and Linux's end of its conversations.
struct Bench {
    service: testing::Bench,
    dmabufs: Dmabufs,
    joiners: HashMap<u32, Joiner>,
}

impl Bench {
    fn new(service: Bulk) -> Self {
        let dmabufs = Dmabufs::default();
        let service = testing::Bench::new(service).with_window(dmabufs.clone());
        Self { service, dmabufs, joiners: HashMap::new() }
    }

    /// Sends a message and ticks until there is nothing to do.
    fn message(&mut self, from: u32, data: &[u8]) -> Sent {
        let mut sent = self.service.message(from, data).unwrap();
        sent.extend(self.tick());
        sent
    }

    fn tick(&mut self) -> Sent {
        let mut sent = Sent::new();
        while self.service.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            sent.extend(self.service.tick(Instant::now()).unwrap());
        }
        sent
    }

    /// The block as Linux decodes it.
    fn join(&mut self, sent: Sent) -> Vec<(u32, Event)> {
        let mut events = Vec::new();
        for (to, data) in sent {
            let joiner = self.joiners.entry(to).or_insert_with(|| Joiner::new(u32::MAX));
            events.extend(joiner.push(&data).map(|event| (to, event)));
        }
        events
    }

    fn events(&mut self, from: u32, data: &[u8]) -> Vec<(u32, Event)> {
        let sent = self.message(from, data);
        self.join(sent)
    }

    /// Sends a block; returns the one answer.
    fn block(&mut self, from: u32, block: &[u8]) -> Event {
        let mut cutter = Cutter::new(block, MTU).unwrap();
        let (mut message, mut events) = (Vec::new(), Vec::new());
        while let Some(piece) = cutter.piece() {
            assert_eq!(events, [], "answered too soon");
            piece.write_to(&mut message);
            events.extend(self.events(from, &message));
            cutter.advance();
        }
        only(events, from)
    }

    fn control(&mut self, from: u32, control: Control) -> Vec<(u32, Event)> {
        self.events(from, &control.encode())
    }

    fn receive(&mut self, from: u32, length: u32) -> Event {
        only(self.control(from, Control::Receive { length, credit: PLENTY }), from)
    }

    fn received(&mut self, from: u32, length: u32) -> Vec<u8> {
        match self.receive(from, length) {
            Event::Block(received) => received.bytes,
            other => panic!("{other:?}"),
        }
    }

    /// Gives a part of a shared buffer; returns length and status of the answer.
    fn give(&mut self, from: u32, message: BufferMessage) -> (u64, u32) {
        let Event::Buffer(done) = only(self.events(from, &message.encode()), from) else {
            panic!("not given back");
        };
        assert_eq!(done, message.done(done.length, done.status));
        (done.length, done.status)
    }
}

fn only(mut events: Vec<(u32, Event)>, to: u32) -> Event {
    let (address, event) = events.pop().expect("an answer");
    assert_eq!((address, events), (to, vec![]));
    event
}

fn status(length: u32, status: u32) -> Event {
    Event::Control(Control::Status { length, status })
}

fn given(direction: Direction, address: u64, offset: u64, length: u64) -> BufferMessage {
    BufferMessage { kind: Kind::Given, direction, cookie: 9, address, offset, length, status: 0 }
}

fn bulk() -> Bench {
    Bench::new(Bulk::new("bulk"))
}

/// Anything but the pattern.
fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 3).to_le_bytes()[0] ^ seed).collect()
}

#[test]
fn blocks_come_back_as_they_were_sent() {
    let mut bench = bulk();
    for length in [0, 1, 489, 490, 491, 0xabcd - 7, 0xabcd - 6, 65_529, 65_530, 300_001] {
        let block = bytes(length, 5);
        let length = u32::try_from(length).unwrap();
        let expected = match Form::of(length) {
            Form::Short => Event::Taken { size: u16::try_from(length + 6).unwrap() },
            Form::Long => status(length, 0),
        };
        assert_eq!(bench.block(A, &block), expected);
        assert_eq!(bench.received(A, 0), block);
    }
}

#[test]
fn what_is_asked_for_with_a_length_is_the_pattern() {
    let mut bench = bulk();
    bench.block(A, b"does not matter");
    for length in [1u32, 255, 490, 491, 32768, 65_530, 1_000_000] {
        let expected: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0]).collect();
        assert_eq!(bench.received(A, length), expected);
    }
}

#[test]
fn the_last_block_is_that_of_the_address_or_else_of_anyone() {
    let mut bench = bulk();
    assert_eq!(bench.receive(A, 0), status(0, STATUS_NO_DATA));
    bench.block(A, b"from A");
    assert_eq!(bench.received(B, 0), b"from A");
    bench.block(B, b"from B");
    assert_eq!(bench.received(A, 0), b"from A");
    assert_eq!(bench.received(3, 0), b"from B");
    let value = 77;
    let done = only(bench.control(A, Control::Reset { value }), A);
    assert_eq!(done, Event::Control(Control::ResetDone { value }));
    assert_eq!(bench.received(A, 0), b"from B");
    assert_eq!(bench.received(B, 0), b"from B");
    bench.service.start().unwrap();
    assert_eq!(bench.receive(B, 0), status(0, STATUS_NO_DATA));
}

#[test]
fn blocks_of_several_addresses_do_not_mix() {
    let mut bench = bulk();
    let cut = |address: u32| {
        let mut cutter = Cutter::new(bytes(3000, address.to_le_bytes()[0]), MTU).unwrap();
        std::iter::from_fn(move || {
            let piece = cutter.piece().map(|piece| [piece.head, piece.body].concat());
            cutter.advance();
            piece
        })
    };
    let mut events = Vec::new();
    for (a, b) in cut(A).zip(cut(B)) {
        events.extend(bench.events(A, &a));
        events.extend(bench.events(B, &b));
    }
    assert_eq!(events, [(A, Event::Taken { size: 3006 }), (B, Event::Taken { size: 3006 })]);
    assert_eq!(bench.received(A, 0), bytes(3000, 0x77));
    assert_eq!(bench.received(B, 0), bytes(3000, 0x78));
}

#[test]
fn wrong_packets_are_answered_with_why_and_keep_nothing() {
    let mut bench = bulk();
    bench.block(A, b"good");
    let mut message = Vec::new();
    Cutter::new(b"bad", MTU).unwrap().piece().unwrap().write_to(&mut message);
    message[8] ^= 1;
    assert_eq!(only(bench.events(A, &message), A), status(3, STATUS_BAD_MESSAGE));
    message.push(0);
    assert_eq!(only(bench.events(A, &message), A), status(0, STATUS_PROTOCOL));
    assert_eq!(bench.received(A, 0), b"good");
}

#[test]
fn a_block_that_is_too_long_is_passed_over() {
    let mut bench = bulk();
    bench.block(A, b"good");
    let mut cutter = Cutter::new(vec![0; MAX_BLOCK as usize + 1], 65_536).unwrap();
    let (mut message, mut events) = (Vec::new(), Vec::new());
    while let Some(piece) = cutter.piece() {
        piece.write_to(&mut message);
        events.extend(bench.events(A, &message));
        cutter.advance();
    }
    assert_eq!(only(events, A), status(MAX_BLOCK + 1, STATUS_MESSAGE_SIZE));
    assert_eq!(bench.received(A, 0), b"good");
}

#[test]
fn no_more_is_sent_than_there_is_credit_for() {
    let mut bench = bulk();
    let mut sizes = |control: Control| -> Vec<usize> {
        bench.message(A, &control.encode()).iter().map(|(_, data)| data.len()).collect()
    };
    let none: [usize; 0] = [];
    assert_eq!(sizes(Control::Receive { length: 2000, credit: 495 }), none);
    assert_eq!(sizes(Control::Credit { bytes: 1 }), [496]);
    assert_eq!(sizes(Control::Credit { bytes: 1000 }), [496, 496]);
    assert_eq!(sizes(Control::Credit { bytes: 480 }), none);
    assert_eq!(sizes(Control::Credit { bytes: 20 }), [496]);
    // The last one is 22 bytes, for which 12 are left.
    assert_eq!(sizes(Control::Credit { bytes: 9 }), none);
    assert_eq!(sizes(Control::Credit { bytes: 1 }), [22]);
    // Excess credit is lost.
    assert_eq!(sizes(Control::Credit { bytes: 5000 }), none);
    assert_eq!(sizes(Control::Receive { length: 100, credit: 105 }), none);
    assert_eq!(sizes(Control::Credit { bytes: PLENTY }), [106]);
}

#[test]
fn answers_wait_behind_a_block_and_a_second_request_is_refused() {
    let mut bench = bulk();
    let receive = Control::Receive { length: 1000, credit: 496 };
    assert_eq!(bench.control(A, receive), []);
    assert_eq!(bench.control(A, receive), []);
    let mut message = Vec::new();
    Cutter::new(b"block", MTU).unwrap().piece().unwrap().write_to(&mut message);
    assert_eq!(bench.events(A, &message), []);
    let events = bench.control(A, Control::Credit { bytes: 1000 });
    let events: Vec<_> = events.into_iter().map(|(_, event)| event).collect();
    assert!(matches!(&events[0], Event::Block(block) if block.bytes == pattern(0, 1000)));
    assert_eq!(events[1..], [status(0, STATUS_PROTOCOL), Event::Taken { size: 11 }]);
}

#[test]
fn who_never_takes_what_it_asked_for_has_no_more_than_so_many_answers_kept() {
    let mut bench = bulk();
    bench.control(A, Control::Receive { length: 1000, credit: 0 });
    let mut message = Vec::new();
    Cutter::new(b"block", MTU).unwrap().piece().unwrap().write_to(&mut message);
    let mut events = Vec::new();
    for sent in 1.. {
        events = bench.events(A, &message);
        if !events.is_empty() {
            assert_eq!(sent, 64);
            break;
        }
    }
    assert_eq!(only(events, A), status(0, STATUS_NO_BUFFERS));
    assert_eq!(only(bench.events(A, &message), A), Event::Taken { size: 11 });
}

#[test]
fn a_reset_ends_what_is_being_sent_and_received() {
    let mut bench = bulk();
    bench.control(A, Control::Receive { length: 1000, credit: 496 });
    assert!(bench.joiners[&A].progress().is_some());
    let mut message = Vec::new();
    Cutter::new([0; 1000], MTU).unwrap().piece().unwrap().write_to(&mut message);
    assert_eq!(bench.events(A, &message), []);
    let opening = Opening::new(5);
    let mut answers = Vec::new();
    for message in opening.messages() {
        answers.extend(bench.message(A, &message));
    }
    let (to, last) = answers.pop().unwrap();
    assert!(to == A && opening.is_done(&last));
    assert_eq!(answers, []);
    bench.joiners.clear();
    assert_eq!(bench.block(A, b"new"), Event::Taken { size: 9 });
    assert_eq!(bench.received(A, 0), b"new");
}

#[test]
fn a_refusal_of_linux_is_told() {
    let mut bench = bulk();
    let told = Control::Status { length: 5, status: STATUS_BAD_MESSAGE };
    let error = bench.service.message(A, &told.encode()).unwrap_err();
    assert_eq!(error.errno().map(busbar::bulk::packet::status), Some(STATUS_BAD_MESSAGE));
    assert_eq!(bench.control(A, Control::Status { length: 5, status: 0 }), []);
    assert_eq!(bench.message(A, &11u16.to_le_bytes()), []);
}

#[test]
fn the_address_that_was_silent_the_longest_is_forgotten() {
    let mut bench = bulk();
    let addresses: Vec<u32> = (0..).take(MAX_PEERS).collect();
    for address in &addresses {
        bench.block(*address, &address.to_le_bytes());
    }
    assert_eq!(bench.received(0, 0), 0u32.to_le_bytes());
    bench.block(5000, b"one too many");
    assert_eq!(bench.received(0, 0), 0u32.to_le_bytes());
    assert_eq!(bench.received(2, 0), 2u32.to_le_bytes());
    assert_eq!(bench.received(1, 0), b"one too many");
}

#[test]
fn so_many_bytes_are_kept_and_no_more() {
    let mut peers = Peers::default();
    let block = || Kept::new(vec![0; MAX_BLOCK as usize], 0);
    for address in 0..6 {
        peers.keep(address, block());
    }
    let kept: Vec<_> =
        peers.iter().filter(|peer| peer.kept.is_some()).map(|peer| peer.address).collect();
    assert_eq!(kept, [2, 3, 4, 5]);
    peers.keep(2, block());
    peers.keep(0, Kept::new(vec![0], 0));
    assert!(peers.find(2).unwrap().kept.is_some() && peers.find(3).unwrap().kept.is_none());
}

#[test]
fn shared_buffers_are_blocks() {
    let mut bench = bulk();
    let address = bench.dmabufs.add();
    // The last one is more than one slice.
    for (offset, length) in [(0, 1), (4095, 2), (3, 100_000), (4096, 3 * SLICE + 5)] {
        let block = bytes(offset + length, 3);
        bench.dmabufs.give(address, &block);
        let (offset, length) = (offset as u64, length as u64);
        let to = given(Direction::ToRemote, address, offset, length);
        assert_eq!(bench.give(A, to), (length, 0));
        let [.., Transfer { peer: A, sent: false, shared: true, length: told, crc }] =
            bench.service.transfers[..]
        else {
            panic!("{:?}", bench.service.transfers);
        };
        let block = &block[usize::try_from(offset).unwrap()..];
        assert_eq!((told, crc), (length, crc16(block)));
        assert!(bench.received(A, 0) == block, "{offset} {length}");
    }
}

#[test]
fn shared_buffers_are_filled_with_the_last_block_or_the_pattern() {
    let mut bench = bulk();
    let address = bench.dmabufs.add();
    for (offset, length) in [(0u64, 5u32), (4000, 5000), (7, 2 << 20)] {
        let from = given(Direction::FromRemote, address, offset, u64::from(length));
        let block = bytes(length as usize, 9);
        let patterned: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0]).collect();
        let begin = usize::try_from(offset).unwrap();
        let filled = |bench: &Bench| {
            let mut bytes = bench.dmabufs.bytes(address, begin + block.len() + 1);
            assert_eq!(bytes.pop(), Some(0xee), "untouched behind");
            assert!(bytes[..begin].iter().all(|byte| *byte == 0xee), "untouched before");
            bytes.split_off(begin)
        };
        bench.dmabufs.give(address, &vec![0xee; begin + block.len() + 1]);
        bench.control(A, Control::Reset { value: 1 });
        assert_eq!(bench.give(A, from), (u64::from(length), 0));
        assert!(filled(&bench) == patterned);
        bench.block(B, &block);
        assert_eq!(bench.give(A, from), (u64::from(length), 0));
        assert!(filled(&bench) == block);
        let last = bench.service.transfers.last().unwrap();
        assert_eq!((last.sent, last.shared, last.crc), (true, true, crc16(&block)));
        bench.block(A, b"another length");
        assert_eq!(bench.give(A, from), (u64::from(length), 0));
        assert!(filled(&bench) == patterned);
    }
}

#[test]
fn shared_buffers_that_are_not_there_are_given_back_with_why() {
    let mut bench = bulk();
    let address = bench.dmabufs.add();
    bench.dmabufs.give(address, &[1; 4096]);
    for direction in [Direction::ToRemote, Direction::FromRemote] {
        for (address, offset, length, expected) in [
            (address, 4000, 97 + 4096, STATUS_FAULT),
            (address, 8192, 1, STATUS_FAULT),
            (address, 1 << 63, 10, STATUS_FAULT),
            (address, u64::MAX, 10, STATUS_FAULT),
            (5, 0, 1, STATUS_FAULT),
            (address, 0, 0, 0),
            (address, 4095, 1, 0),
        ] {
            let message = given(direction, address, offset, length);
            let (used, status) = bench.give(A, message);
            assert_eq!(status, expected, "{message:?}");
            assert_eq!(used, if status == 0 { length } else { 0 });
        }
    }
    let too_long = given(Direction::ToRemote, address, 0, u64::from(MAX_BLOCK) + 1);
    assert_eq!(bench.give(A, too_long), (0, STATUS_MESSAGE_SIZE));
    let too_long = given(Direction::FromRemote, address, 0, 1 << 32);
    assert_eq!(bench.give(A, too_long), (0, STATUS_MESSAGE_SIZE));
}

#[test]
fn a_shared_buffer_that_is_taken_back_under_the_work_is_an_error() {
    let mut bench = bulk();
    let address = bench.dmabufs.add();
    let length = 3 * SLICE;
    bench.dmabufs.give(address, &vec![1; length]);
    for direction in [Direction::ToRemote, Direction::FromRemote] {
        bench.dmabufs.give(address, &vec![1; length]);
        let message = given(direction, address, 0, length as u64);
        assert_eq!(bench.service.message(A, &message.encode()).unwrap(), []);
        bench.dmabufs.take_back(address);
        let sent = bench.tick();
        assert_eq!(sent, [(A, message.done(0, STATUS_FAULT).encode().to_vec())]);
    }
    assert_eq!(bench.receive(A, 0), status(0, STATUS_NO_DATA));
}

#[test]
fn a_shared_buffer_is_given_back_though_a_block_waits_and_the_address_was_reset() {
    let mut bench = bulk();
    let address = bench.dmabufs.add();
    bench.dmabufs.give(address, &vec![1; 2 * SLICE]);
    bench.control(A, Control::Receive { length: 1000, credit: 0 });
    let message = given(Direction::ToRemote, address, 0, 2 * SLICE as u64);
    assert_eq!(bench.service.message(A, &message.encode()).unwrap(), []);
    let done = Control::ResetDone { value: 1 }.encode().to_vec();
    let mut sent = bench.service.message(A, &Control::Reset { value: 1 }.encode()).unwrap();
    sent.extend(bench.tick());
    let back = message.done(message.length, 0).encode().to_vec();
    assert_eq!(sent, [(A, done), (A, back)]);
    assert_eq!(bench.receive(A, 0), status(0, STATUS_NO_DATA));
}

#[test]
fn only_so_many_shared_buffers_wait() {
    let message = given(Direction::ToRemote, crate::mock::BUFFERS, 0, 5);
    let mut service = Bulk::new("bulk");
    service.given.extend((0..MAX_GIVEN).map(|_| Given::new(B, message)));
    let mut bench = Bench::new(service);
    bench.dmabufs.give(bench.dmabufs.add(), b"bytes");
    let mut sent = bench.service.message(A, &message.encode()).unwrap();
    assert_eq!(sent.len(), ROOM);
    sent.extend(bench.tick());
    let done = |(to, data): (u32, Vec<u8>)| (to, BufferMessage::decode(&data).unwrap().status);
    let mut answers: Vec<_> = sent.into_iter().map(done).collect();
    assert_eq!(answers.remove(0), (A, STATUS_NO_BUFFERS));
    assert_eq!(answers, [(B, 0); MAX_GIVEN]);
}

#[test]
fn an_untouched_buffer_need_not_even_be_there() {
    let mut bench = Bench::new(Bulk::new("handover").buffers(Treatment::Untouched));
    for direction in [Direction::ToRemote, Direction::FromRemote] {
        assert_eq!(bench.give(A, given(direction, 5, 6, 1 << 50)), (1 << 50, 0));
    }
    assert_eq!(bench.block(A, b"by message"), Event::Taken { size: 16 });
}

#[test]
fn a_checked_buffer_is_the_pattern_or_refused() {
    let mut bench = Bench::new(Bulk::new("check").buffers(Treatment::Checked));
    let address = bench.dmabufs.add();
    let whole: Vec<u8> = (0..40_000u32).map(|i| i.to_le_bytes()[0]).collect();
    for (at, status) in [(None, 0), (Some(0), 74), (Some(20_000), 74), (Some(39_999), 74)] {
        let mut bytes = whole.clone();
        if let Some(at) = at {
            bytes[at] ^= 1;
        }
        bench.dmabufs.give(address, &bytes);
        let length = if status == 0 { 40_000 } else { 0 };
        assert_eq!(bench.give(A, given(Direction::ToRemote, address, 0, 40_000)), (length, status));
    }
    // No part of it is kept.
    let receive = Control::Receive { length: 0, credit: PLENTY };
    assert_eq!(bench.message(A, &receive.encode()).len(), 1);
    assert_eq!(bench.give(A, given(Direction::FromRemote, address, 0, 40_000)), (40_000, 0));
}

#[test]
fn faults_hit_every_nth_block() {
    let two = NonZeroU64::new(2).unwrap();
    let mut bench = Bench::new(Bulk::new("bulk").corrupt(two));
    for length in [1, 490, 5000, 70_000] {
        assert_eq!(bench.received(A, length).len(), length as usize);
        let refused = Event::Refused { length, status: STATUS_BAD_MESSAGE };
        assert_eq!(bench.receive(A, length), refused);
    }
    let mut bench = Bench::new(Bulk::new("bulk").truncate(two));
    for length in [1, 490, 5000, 70_000] {
        assert_eq!(bench.received(A, length).len(), length as usize);
        let receive = Control::Receive { length, credit: PLENTY };
        let messages = bench.message(A, &receive.encode());
        let size: usize = messages.iter().map(|(_, data)| data.len()).sum();
        let whole = length as usize + Form::of(length).size();
        assert_eq!(size, whole - 1);
        let events = bench.join(messages);
        assert!(!events.iter().any(|(_, event)| matches!(event, Event::Block(_))));
        bench.joiners.clear();
    }
}

#[test]
fn answers_come_late_and_in_order() {
    let delay = Duration::from_millis(30);
    let mut bench = Bench::new(Bulk::new("bulk").delay(delay));
    let address = bench.dmabufs.add();
    bench.dmabufs.give(address, b"shared");
    let begun = Instant::now();
    let mut message = Vec::new();
    Cutter::new(b"block", MTU).unwrap().piece().unwrap().write_to(&mut message);
    assert_eq!(bench.message(A, &message), []);
    let to = given(Direction::ToRemote, address, 0, 6);
    assert_eq!(bench.message(A, &to.encode()), []);
    // A reset is answered at once, and cancels pending answers to blocks.
    let done = bench.message(A, &Control::Reset { value: 1 }.encode());
    assert_eq!(done, [(A, Control::ResetDone { value: 1 }.encode().to_vec())]);
    assert_eq!(bench.message(B, &message), []);
    let mut late = Vec::new();
    while late.len() < 2 {
        late.extend(bench.tick());
        let deadline = bench.service.deadline();
        assert!(late.len() == 2 || deadline.is_some_and(|deadline| deadline >= begun + delay));
    }
    assert!(begun.elapsed() >= delay);
    assert_eq!(late, [(A, to.done(6, 0).encode().to_vec()), (B, 11u16.to_le_bytes().to_vec())]);
    assert_eq!(bench.service.deadline(), None);
}

#[test]
fn one_call_sends_no_more_than_there_is_room_for_and_the_rest_later() {
    let mut bench = bulk();
    let begin = Control::Receive { length: 8 << 20, credit: PLENTY }.encode();
    let mut counts = HashMap::new();
    for (count, address) in [(ROOM, A), (ROOM, B)] {
        let sent = bench.service.message(address, &begin).unwrap();
        assert_eq!(sent.len(), count);
    }
    for _ in 0..100 {
        for (to, _) in bench.service.tick(Instant::now()).unwrap() {
            *counts.entry(to).or_insert(0usize) += 1;
        }
    }
    assert_eq!(counts[&A] + counts[&B], 100 * ROOM);
    assert!(counts[&A].abs_diff(counts[&B]) <= 2, "{counts:?}");
}

/// The repeated actions of one user of the service.
struct User {
    address: u32,
    block: Vec<u8>,
    window: Window,
    joiner: Joiner,
    /// Messages that it still has to send.
    out: VecDeque<Vec<u8>>,
    rounds: usize,
    asked: bool,
}

impl User {
    fn new(address: u32, length: usize, window: u32) -> Self {
        let block = bytes(length, address.to_le_bytes()[0]);
        let mut user = Self {
            address,
            block,
            window: Window::new(window),
            joiner: Joiner::new(u32::MAX),
            out: VecDeque::new(),
            rounds: 0,
            asked: false,
        };
        user.send_block();
        user
    }

    fn send_block(&mut self) {
        let mut cutter = Cutter::new(&self.block, MTU).unwrap();
        while let Some(piece) = cutter.piece() {
            self.out.push_back([piece.head, piece.body].concat());
            cutter.advance();
        }
    }

    /// Sends up to `most` messages to a service at `to`.
    fn send(&mut self, linux: &mut Linux, to: u32, most: usize) {
        for _ in 0..most {
            let Some(message) = self.out.front() else { break };
            if !linux.send(self.address, to, message) {
                break;
            }
            self.out.pop_front();
        }
    }

    fn receive(&mut self, message: &[u8]) {
        if self.asked {
            let credit = self.window.take(message.len());
            self.out.extend(credit.map(|credit| credit.encode().to_vec()));
        }
        for event in self.joiner.push(message) {
            match event {
                Event::Block(received) => {
                    assert!(received.bytes == self.block, "the same came back");
                    (self.asked, self.rounds) = (false, self.rounds + 1);
                    self.send_block();
                }
                Event::Taken { .. } | Event::Control(Control::Status { status: 0, .. }) => {
                    assert!(!self.asked);
                    self.asked = true;
                    let receive = Control::Receive { length: 0, credit: self.window.open() };
                    self.out.push_back(receive.encode().to_vec());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Users send blocks and have them sent back through rings of `entries` buffers, in any order.
fn through_rings(entries: u16, users: &mut [User], mut order: impl FnMut() -> usize) {
    let mut linux = Linux::new(Image::default().entries(entries).unwrap());
    let shared = linux.shared();
    let mut services = Services::default();
    let at = services.add(Bulk::new("bulk")).unwrap();
    let mut machine = Machine::new(&shared, &mut services);
    linux.probe();
    machine.start();
    let (mut step, mut idle) = (0, 0);
    while users.iter().any(|user| user.rounds < 2) {
        let turn = machine.turn(Instant::now(), &mut |_| {});
        assert_eq!(turn.crash, None);
        for _ in 0..order() {
            let Some((header, data)) = linux.receive() else { break };
            if let Some(user) = users.iter_mut().find(|user| user.address == header.destination) {
                user.receive(&data);
                idle = 0;
            }
        }
        let count = users.len();
        users[step % count].send(&mut linux, at, order());
        linux.kicks();
        (step, idle) = (step + 1, idle + 1);
        assert!(idle < 10_000, "nothing comes any more");
    }
}

#[test]
fn large_blocks_go_through_small_rings() {
    let mut users = [User::new(A, 1 << 20, 4096), User::new(B, 500_000, 1000)];
    let mut turn = 0;
    through_rings(2, &mut users, || {
        turn += 1;
        turn
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn blocks_of_many_users_go_through_rings_in_any_order(
        exponent in 1u32..=8,
        users in prop::collection::vec((0usize..20_000, 500u32..20_000), 1..5),
        order in prop::collection::vec(0usize..20, 1..50),
    ) {
        let users = (1..).zip(users).map(|(address, (length, window))| User::new(address, length, window));
        let mut order = order.into_iter().chain(1..10).cycle();
        through_rings(1 << exponent, &mut users.collect::<Vec<_>>(), || order.next().unwrap());
    }

    #[test]
    fn any_messages_are_survived(
        messages in prop::collection::vec((0u32..3, any_message()), 0..60),
    ) {
        let mut bench = bulk();
        for (from, message) in messages {
            let _ = bench.service.message(from, &message);
            bench.tick();
        }
        for address in 0..3 {
            let opening = Opening::new(12345);
            let mut answers = Sent::new();
            for message in opening.messages() {
                answers.extend(bench.message(address, &message));
            }
            let done = answers.iter().position(|(to, data)| *to == address && opening.is_done(data));
            prop_assert_eq!(done, answers.len().checked_sub(1));
            bench.joiners.clear();
            prop_assert_eq!(bench.block(address, b"good"), Event::Taken { size: 10 });
            prop_assert_eq!(bench.received(address, 0), b"good");
        }
    }
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let small = || 0u32..2000;
    let block = (0usize..1000).prop_map(|length| {
        let mut message = Vec::new();
        Cutter::new(bytes(length, 1), MTU).unwrap().piece().unwrap().write_to(&mut message);
        message
    });
    let buffer = (any::<bool>(), any::<u64>(), 0u64..5000, 0u64..5000);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        block,
        (small(), small())
            .prop_map(|(length, credit)| Control::Receive { length, credit }.encode().to_vec()),
        small().prop_map(|bytes| Control::Credit { bytes }.encode().to_vec()),
        small().prop_map(|value| Control::Reset { value }.encode().to_vec()),
        (small(), small())
            .prop_map(|(length, status)| Control::Status { length, status }.encode().to_vec()),
        buffer.prop_map(|(to, address, offset, length)| {
            let direction = if to { Direction::ToRemote } else { Direction::FromRemote };
            given(direction, address, offset, length).encode().to_vec()
        }),
    ]
}
