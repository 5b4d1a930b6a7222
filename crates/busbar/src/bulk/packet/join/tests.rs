use proptest::prelude::*;

use super::super::buffer::{Direction, Kind};
use super::super::cut::{Cutter, Pattern, Sealed};
use super::super::open::Opening;
use super::super::pattern::pattern;
use super::*;

const LONGEST: u32 = 1 << 20;

fn joiner() -> Joiner {
    Joiner::new(LONGEST)
}

/// The messages of a packet.
fn cut(block: &[u8], limit: usize) -> Vec<Vec<u8>> {
    let mut cutter = Cutter::new(block, limit).unwrap();
    let mut messages = Vec::new();
    while let Some(piece) = cutter.piece() {
        messages.push([piece.head, piece.body].concat());
        cutter.advance();
    }
    messages
}

/// The pattern with a long header, even if it is short.
fn long(length: u32, value: u32) -> Vec<u8> {
    let bytes = pattern(0, length as usize);
    let mut header = Header { kind: DATA, length, value, crc: 0, form: Form::Long };
    header.crc = crc::combine(header.covered_crc(), crc::crc16(bytes), u64::from(length));
    [&header.encode(), bytes].concat()
}

fn push_all(joiner: &mut Joiner, messages: &[Vec<u8>]) -> Vec<Event> {
    messages.iter().flat_map(|message| joiner.push(message)).collect()
}

fn stream_all(joiner: &mut Joiner, mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        match joiner.push_stream(&mut bytes) {
            Some(event) => events.push(event),
            None if bytes.is_empty() => return events,
            None => panic!("{} bytes are left", bytes.len()),
        }
    }
}

fn blocks(events: &[Event]) -> Vec<&[u8]> {
    events
        .iter()
        .map(|event| match event {
            Event::Block(received) => received.bytes.as_slice(),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn refused(length: u32, status: u32) -> Event {
    Event::Refused { length, status }
}

fn good(joiner: &mut Joiner) -> bool {
    push_all(joiner, &cut(b"good", 496)) == [Event::Block(received(b"good"))]
}

fn received(bytes: &[u8]) -> Received {
    Received { bytes: bytes.to_vec(), crc: crc::crc16(bytes), form: Form::Short }
}

#[test]
fn answers_have_the_form_of_the_header() {
    let short = Event::Block(received(&[0; 1000])).answer().unwrap();
    assert_eq!(*short, 1006u16.to_le_bytes());
    let form = Form::Long;
    let long = Event::Block(Received { form, ..received(&[0; 1000]) }).answer().unwrap();
    assert_eq!(*long, *Control::Status { length: 1000, status: 0 }.encode());
    let refused = refused(3, 74).answer().unwrap();
    assert_eq!(*refused, *Control::Status { length: 3, status: 74 }.encode());
    assert_eq!(Event::Taken { size: 9 }.answer(), None);
}

#[test]
fn a_preamble_in_the_data_is_data() {
    let mut block = vec![0; 5000];
    for at in [0, 6, 490, 506, 986, 4984] {
        block[at..at + 16].copy_from_slice(&Control::Reset { value: 1 }.encode());
    }
    let mut joiner = joiner();
    assert_eq!(blocks(&push_all(&mut joiner, &cut(&block, 496))), [&block]);
    // Every message of this one looks like a packet.
    let block = Control::Reset { value: 1 }.encode().repeat(100);
    let messages = cut(&block[6..], 16);
    assert_eq!(messages[2], *Control::Reset { value: 1 }.encode());
    assert_eq!(blocks(&push_all(&mut joiner, &messages)), [&block[6..]]);
}

#[test]
fn a_buffer_message_in_the_data_is_data() {
    let buffer = BufferMessage {
        kind: Kind::Given,
        direction: Direction::ToRemote,
        cookie: 1,
        address: 2,
        offset: 3,
        length: 4,
        status: 0,
    };
    let block = buffer.encode().repeat(10);
    let mut joiner = joiner();
    let messages = cut(&block[6..], 48);
    assert_eq!(messages[1], buffer.encode());
    assert_eq!(blocks(&push_all(&mut joiner, &messages)), [&block[6..]]);
    assert_eq!(push_all(&mut joiner, &messages[1..2]), [Event::Buffer(buffer)]);
    joiner.push(&messages[0]).for_each(drop);
    joiner.push(&messages[1][..47]).for_each(drop);
    assert_eq!(push_all(&mut joiner, &messages[1..2]), [Event::Buffer(buffer)]);
}

#[test]
fn a_message_of_another_length_ends_the_packet_and_is_the_next() {
    let messages = cut(&[7; 1000], 496);
    let reset = Control::Reset { value: 5 };
    let mut joiner = joiner();
    for cut_off in [1, 2] {
        let begun = push_all(&mut joiner, &messages[..cut_off]);
        assert_eq!(begun, []);
        let come = u32::try_from(496 * cut_off - 6).unwrap();
        assert_eq!(joiner.progress(), Some(Progress { received: come, length: 1000 }));
        let events: Vec<_> = joiner.push(&reset.encode()).collect();
        assert_eq!(events, [refused(come, STATUS_PROTOCOL), Event::Control(reset)]);
        assert_eq!(joiner.progress(), None);
    }
}

#[test]
fn a_broken_packet_is_answered_once() {
    let mut messages = cut(&[7; 5000], 496);
    messages.remove(3).truncate(495);
    messages[3].pop();
    let mut joiner = joiner();
    for _ in 0..2 {
        let events = push_all(&mut joiner, &messages);
        assert_eq!(events, [refused(496 * 3 - 6, STATUS_PROTOCOL)]);
        assert!(good(&mut joiner));
    }
    let junk = [vec![7; 496], vec![7; 300], vec![7; 6]];
    assert_eq!(push_all(&mut joiner, &junk), [refused(0, STATUS_PROTOCOL)]);
    assert!(good(&mut joiner));
}

#[test]
fn a_first_message_beyond_its_packet_is_refused() {
    let mut joiner = joiner();
    let mut message = cut(b"four", 496).remove(0);
    message.push(0);
    assert_eq!(push_all(&mut joiner, &[message]), [refused(0, STATUS_PROTOCOL)]);
    let message = [&Control::Reset { value: 1 }.encode(), &[0][..]].concat();
    assert_eq!(push_all(&mut joiner, &[message]), []);
    assert!(good(&mut joiner));
}

#[test]
fn what_is_too_short_for_a_header_is_passed_over() {
    let mut joiner = joiner();
    let long = Control::Reset { value: 1 }.encode();
    let short: Vec<Vec<u8>> = [&long[..0], &[0], &long[..3], &long[..6], &long[..15]]
        .into_iter()
        .map(<[u8]>::to_vec)
        .collect();
    assert_eq!(push_all(&mut joiner, &short), []);
    assert_eq!(push_all(&mut joiner, &[vec![9, 1]]), [Event::Taken { size: 0x109 }]);
    assert!(good(&mut joiner));
}

#[test]
fn a_wrong_check_sum_is_refused_whichever_byte_is_wrong() {
    let mut joiner = joiner();
    let packet = long(300, 0);
    assert_eq!(blocks(&push_all(&mut joiner, std::slice::from_ref(&packet))).len(), 1);
    for at in (4..6).chain(16..packet.len()) {
        let mut wrong = packet.clone();
        wrong[at] ^= 0x10;
        assert_eq!(push_all(&mut joiner, &[wrong]), [refused(300, STATUS_BAD_MESSAGE)]);
    }
    let packet = cut(&[1; 10], 496).remove(0);
    for at in 4..packet.len() {
        let mut wrong = packet.clone();
        wrong[at] ^= 1;
        assert_eq!(push_all(&mut joiner, &[wrong]), [refused(10, STATUS_BAD_MESSAGE)]);
    }
}

#[test]
fn a_control_packet_with_a_wrong_check_sum_is_refused_unless_it_is_an_answer() {
    let mut joiner = joiner();
    let mut wrong = Control::Receive { length: 9, credit: 9 }.encode().to_vec();
    wrong[12] ^= 1;
    assert_eq!(push_all(&mut joiner, &[wrong]), [refused(0, STATUS_BAD_MESSAGE)]);
    for answer in [Control::Status { length: 1, status: 0 }, Control::ResetDone { value: 1 }] {
        let mut wrong = answer.encode().to_vec();
        wrong[12] ^= 1;
        assert_eq!(push_all(&mut joiner, &[wrong]), []);
    }
    let unknown = Header::alone(7, 0, 0).encode().to_vec();
    assert_eq!(push_all(&mut joiner, &[unknown]), [refused(0, STATUS_PROTOCOL)]);
    assert!(good(&mut joiner));
}

#[test]
fn blocks_that_are_too_long_are_passed_over_to_their_end() {
    let mut joiner = Joiner::new(999);
    let messages = cut(&[7; 1000], 496);
    assert_eq!(push_all(&mut joiner, &messages), [refused(1000, STATUS_MESSAGE_SIZE)]);
    assert!(good(&mut joiner));
    assert_eq!(blocks(&push_all(&mut joiner, &cut(&[7; 999], 496))).len(), 1);
}

#[test]
fn a_length_that_lies_takes_no_memory() {
    let mut joiner = joiner();
    let header = Header::of_block(u32::MAX, 0).encode();
    assert_eq!(push_all(&mut joiner, &[[&header[..], &[0; 480]].concat()]), []);
    assert_eq!(joiner.progress(), Some(Progress { received: 480, length: u32::MAX }));
    let State::Packet(packet) = &joiner.state else { panic!("no packet") };
    assert_eq!(packet.bytes.capacity(), 0);
}

#[test]
fn packets_that_contradict_themselves_are_passed_over_to_their_end() {
    let mut joiner = joiner();
    assert_eq!(push_all(&mut joiner, &[long(300, 1)]), [refused(300, STATUS_PROTOCOL)]);
    let mut messages = cut(&vec![7; 0xabcd - 7], 4096);
    messages[0][2..4].copy_from_slice(&0xabcdu16.to_le_bytes());
    messages.last_mut().unwrap().push(7);
    let length = 0xabcd - 6;
    assert_eq!(push_all(&mut joiner, &messages), [refused(length, STATUS_PROTOCOL)]);
    assert!(good(&mut joiner));
}

#[test]
fn an_opening_ends_whatever_is_unfinished() {
    let messages = cut(&[7; 1000], 496);
    let opening = Opening::new(3).messages().map(|message| message.to_vec());
    let reset = Event::Control(Control::Reset { value: 3 });
    let mut unfinished: Vec<Vec<Vec<u8>>> =
        (0..messages.len()).map(|count| messages[..count].to_vec()).collect();
    // One byte of these is missing, and that byte is sent.
    unfinished.push(cut(&[7; 491], 496)[..1].to_vec());
    unfinished.push(vec![cut(&[7; 30], 6 + 30)[0][..6].to_vec()]);
    for before in unfinished {
        let mut joiner = joiner();
        push_all(&mut joiner, &before);
        let mut events = push_all(&mut joiner, &opening);
        assert_eq!(events.pop(), Some(reset.clone()));
        assert!(events.iter().all(|event| matches!(event, Event::Refused { .. })));
        assert!(good(&mut joiner));
    }
}

#[test]
fn a_stream_loses_its_way_until_reset() {
    let mut joiner = joiner();
    let control = Control::Status { length: 1, status: 0 };
    let stream = [&1000u16.to_le_bytes()[..], &control.encode(), &cut(b"good", 496)[0]].concat();
    let expected =
        [Event::Taken { size: 1000 }, Event::Control(control), Event::Block(received(b"good"))];
    assert_eq!(stream_all(&mut joiner, &stream), expected);
    let unknown = Header::alone(9, 0, 0).encode();
    assert_eq!(stream_all(&mut joiner, &unknown), [refused(0, STATUS_PROTOCOL)]);
    assert_eq!(stream_all(&mut joiner, &stream), []);
    joiner.reset();
    assert_eq!(stream_all(&mut joiner, &stream), expected);
}

fn any_blocks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let length = prop_oneof![0usize..20, 470usize..510, 960usize..1010, 65_480usize..65_536];
    let block =
        (length, any::<u8>()).prop_map(|(length, seed)| pattern(u64::from(seed), length).to_vec());
    prop::collection::vec(block, 1..5)
}

/// Anything, but often a beginning.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(any::<u8>(), 0..60);
    let header = (any::<u16>(), 0u16..80, 0u16..9, 0u32..100, 0u32..2);
    let short = |(crc, size, ..): (u16, u16, u16, u32, u32), body: Vec<u8>| {
        [&[0xcd, 0xab][..], &size.to_le_bytes(), &crc.to_le_bytes(), &body].concat()
    };
    let long = |(_, _, kind, length, value): (u16, u16, u16, u32, u32), body: Vec<u8>| {
        [&Header::alone(kind, length, value).encode()[..], &body].concat()
    };
    prop_oneof![
        body.clone(),
        (header.clone(), body.clone()).prop_map(move |(header, body)| short(header, body)),
        (header, body).prop_map(move |(header, body)| long(header, body)),
        (0usize..100).prop_map(|length| cut(pattern(0, length), 496).remove(0)),
    ]
}

proptest! {
    #[test]
    fn what_is_cut_is_joined(sent in any_blocks(), limit in 16usize..2000) {
        let mut joiner = joiner();
        let messages: Vec<_> = sent.iter().flat_map(|block| cut(block, limit)).collect();
        let events = push_all(&mut joiner, &messages);
        prop_assert_eq!(blocks(&events), sent);
    }

    #[test]
    fn what_is_cut_is_joined_from_a_stream(
        sent in any_blocks(),
        limit in 16usize..2000,
        size in 1usize..3000,
    ) {
        let mut joiner = joiner();
        let stream = sent.iter().flat_map(|block| cut(block, limit)).flatten().collect::<Vec<_>>();
        let mut events = Vec::new();
        for piece in stream.chunks(size) {
            events.extend(stream_all(&mut joiner, piece));
        }
        prop_assert_eq!(blocks(&events), sent);
    }

    #[test]
    fn a_flipped_bit_of_the_block_is_found(length in 1usize..3000, at: prop::sample::Index, bit in 0u8..8) {
        let mut messages = cut(pattern(0, length), 496);
        let at = at.index(length) + 6;
        messages[at / 496][at % 496] ^= 1 << bit;
        let length = u32::try_from(length).unwrap();
        let events = push_all(&mut joiner(), &messages);
        prop_assert_eq!(events, [refused(length, STATUS_BAD_MESSAGE)]);
    }

    #[test]
    fn a_missing_message_never_makes_a_block(length in 491usize..3000, missing: prop::sample::Index) {
        let mut messages = cut(pattern(0, length), 496);
        messages.remove(missing.index(messages.len()));
        let mut joiner = joiner();
        // What is left of the packet can look like an answer.
        let events = push_all(&mut joiner, &messages).into_iter();
        let mut events = events.filter(|event| !matches!(event, Event::Taken { .. }));
        let first = events.next();
        let is_refusal = |event| matches!(event, Event::Refused { .. });
        prop_assert!(first.is_none_or(is_refusal));
        prop_assert_eq!(events.next(), None);
        push_all(&mut joiner, &Opening::new(1).messages().map(|message| message.to_vec()));
        prop_assert!(good(&mut joiner));
    }

    #[test]
    fn messages_of_any_kind_are_taken_or_refused(messages in prop::collection::vec(any_message(), 0..40)) {
        let mut joiner = Joiner::new(90);
        for message in &messages {
            for event in joiner.push(message) {
                let answers = !matches!(event, Event::Control(_) | Event::Taken { .. } | Event::Buffer(_));
                prop_assert_eq!(event.answer().is_some(), answers);
                if let Event::Block(block) = event {
                    prop_assert!(block.bytes.len() <= 90);
                    prop_assert_eq!(block.crc, crc::crc16(&block.bytes));
                }
            }
            if let Some(progress) = joiner.progress() {
                prop_assert!(progress.received < progress.length);
            }
        }
        push_all(&mut joiner, &Opening::new(1).messages().map(|message| message.to_vec()));
        prop_assert!(good(&mut joiner));
    }

    #[test]
    fn any_stream_is_taken_whole(messages in prop::collection::vec(any_message(), 0..40), size in 1usize..50) {
        let whole = stream_all(&mut Joiner::new(90), &messages.concat());
        let mut joiner = Joiner::new(90);
        let mut events = Vec::new();
        for piece in messages.concat().chunks(size) {
            events.extend(stream_all(&mut joiner, piece));
        }
        prop_assert_eq!(events, whole);
    }
}

#[test]
fn content_with_a_wrong_seal_is_refused() {
    let mut cutter = Cutter::new(Sealed::new(b"bytes", 1), 496).unwrap();
    let mut message = Vec::new();
    cutter.piece().unwrap().write_to(&mut message);
    cutter.advance();
    assert_eq!(push_all(&mut joiner(), &[message]), [refused(5, STATUS_BAD_MESSAGE)]);
    assert_eq!(Cutter::new(Pattern(5), 496).unwrap().content(), &Pattern(5));
}
