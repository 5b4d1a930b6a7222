//! Packets that were cut are joined, and any other input is accepted or refused, message by message and as a
//! stream.

#![no_main]

use arbitrary::Arbitrary;
use busbar::bulk::packet::{
    BufferMessage, Control, Cutter, Event, Joiner, Opening, Sealed, crc16, errno,
};
use libfuzzer_sys::fuzz_target;

/// Bytes of the longest block that the joiners accept.
const LONGEST: u32 = 5000;

#[derive(Arbitrary, Debug)]
enum Step {
    /// A block, cut as by a sender.
    Block { length: u16, limit: u16, byte: u8 },
    /// A block with the long header, though it may be short.
    Long { length: u8, value: bool },
    /// A block with this checksum.
    Sealed { length: u8, crc: u16 },
    /// A block of which messages are lost, truncated or changed.
    Broken { length: u16, limit: u8, message: u8, change: Change },
    /// A packet without a block.
    Control { kind: u8, length: u32, value: u32 },
    /// A header with random fields, and the bytes after it.
    Header { size: u16, crc: u16, rest: Vec<u8> },
    /// Any message.
    Any(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Change {
    Lost,
    Shortened,
    Lengthened,
    Flipped(u16),
}

#[derive(Arbitrary, Debug)]
struct Input {
    steps: Vec<Step>,
    /// Bytes that a stream delivers at once.
    chunk: u8,
}

fuzz_target!(|input: Input| {
    let mut joiner = Joiner::new(LONGEST);
    let mut stream = Vec::new();
    for step in &input.steps {
        let messages = messages(step);
        // No block is in progress: a whole packet has to be returned.
        let clean = joiner.progress().is_none();
        let mut events = Vec::new();
        for message in &messages {
            events.extend(joiner.push(message));
            stream.extend_from_slice(message);
        }
        events.iter().for_each(check);
        if let (Step::Long { value, .. }, true) = (step, clean) {
            assert_eq!(matches!(events[..], [Event::Block(_)]), !value);
        }
        if let (Step::Block { length, .. }, true) = (step, clean) {
            let [event] = &events[..] else { panic!("{} events of a block", events.len()) };
            let taken =
                matches!(event, Event::Block(block) if block.bytes.len() == block_length(*length));
            assert_eq!(taken, block_length(*length) <= LONGEST as usize);
        }
    }
    open(&mut joiner);
    as_stream(&stream, usize::from(input.chunk.max(1)));
});

/// Not much more than the longest block that is accepted.
fn block_length(length: u16) -> usize {
    usize::from(length % 6000)
}

fn long(length: u8, value: u32) -> Vec<u8> {
    let covered = [
        &1u16.to_le_bytes()[..],
        &u32::from(length).to_le_bytes(),
        &value.to_le_bytes(),
        &vec![3; usize::from(length)],
    ]
    .concat();
    [&[0xcd, 0xab, 0, 0][..], &crc16(&covered).to_le_bytes(), &covered].concat()
}

/// The messages of a step.
fn messages(step: &Step) -> Vec<Vec<u8>> {
    match step {
        Step::Block { length, limit, byte } => {
            cut(&mut Cutter::new(vec![*byte; block_length(*length)], usize::from(limit % 600 + 16))
                .unwrap())
        }
        Step::Sealed { length, crc } => {
            cut(&mut Cutter::new(Sealed::new(vec![1; usize::from(*length)], *crc), 100).unwrap())
        }
        Step::Broken { length, limit, message, change } => {
            let bytes = vec![2; block_length(*length)];
            let mut messages = cut(&mut Cutter::new(bytes, usize::from(*limit) + 16).unwrap());
            let at = usize::from(*message) % messages.len();
            match change {
                Change::Lost => drop(messages.remove(at)),
                Change::Shortened => drop(messages[at].pop()),
                Change::Lengthened => messages[at].push(0),
                Change::Flipped(bit) => {
                    let bit = usize::from(*bit) % (8 * messages[at].len());
                    messages[at][bit / 8] ^= 1 << (bit % 8);
                }
            }
            messages
        }
        Step::Control { kind, length, value } => {
            let (length, value) = (*length, *value);
            let control = match kind % 5 {
                0 => Control::Status { length, status: value },
                1 => Control::Receive { length, credit: value },
                2 => Control::Credit { bytes: value },
                3 => Control::Reset { value },
                _ => Control::ResetDone { value },
            };
            vec![control.encode().to_vec()]
        }
        Step::Header { size, crc, rest } => {
            vec![[&[0xcd, 0xab][..], &size.to_le_bytes(), &crc.to_le_bytes(), rest].concat()]
        }
        Step::Long { length, value } => vec![long(*length, u32::from(*value))],
        Step::Any(message) => vec![message.clone()],
    }
}

fn cut(cutter: &mut Cutter<impl busbar::bulk::packet::Content>) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some(piece) = cutter.piece() {
        assert_eq!(piece.len(), cutter.piece_size());
        messages.push([piece.head, piece.body].concat());
        cutter.advance();
    }
    messages
}

/// The returned event agrees with its header.
fn check(event: &Event) {
    match event {
        Event::Block(block) => {
            assert!(block.bytes.len() <= LONGEST as usize);
            assert_eq!(block.crc, crc16(&block.bytes));
        }
        Event::Control(control) => {
            let encoded = control.encode();
            assert_eq!(Joiner::new(0).push(&encoded).collect::<Vec<_>>(), [event.clone()]);
        }
        Event::Buffer(buffer) => assert_eq!(BufferMessage::decode(&buffer.encode()), Some(*buffer)),
        Event::Refused { status, .. } => assert!(errno(*status).is_some()),
        Event::Taken { .. } => {}
    }
    let owed = matches!(event, Event::Block(_) | Event::Refused { .. });
    assert_eq!(event.answer().is_some(), owed);
}

/// After any input, an opening resets the joiner.
fn open(joiner: &mut Joiner) {
    let opening = Opening::new(0x5eed);
    let events: Vec<_> =
        opening.messages().iter().flat_map(|message| joiner.push(message)).collect();
    assert_eq!(events.last(), Some(&Event::Control(Control::Reset { value: 0x5eed })));
    let done = Control::ResetDone { value: 0x5eed }.encode();
    assert!(opening.is_done(&done) && !opening.is_done(&opening.messages()[2]));
}

/// A stream gives the same events, in whatever pieces it arrives.
fn as_stream(stream: &[u8], chunk: usize) {
    let events = |chunk: usize| {
        let mut joiner = Joiner::new(LONGEST);
        let mut events = Vec::new();
        for mut bytes in stream.chunks(chunk) {
            while let Some(event) = joiner.push_stream(&mut bytes) {
                check(&event);
                events.push(event);
            }
            assert!(bytes.is_empty());
        }
        events
    };
    assert_eq!(events(chunk), events(stream.len().max(1)));
    let mut opening = Opening::new(0x5eed);
    let done = Control::ResetDone { value: 0x5eed }.encode();
    let with_end = [stream, &done, b"behind"].concat();
    let mut rest = Vec::new();
    let mut found = false;
    for mut bytes in with_end.chunks(chunk) {
        found = found || opening.find(&mut bytes);
        if found {
            rest.extend_from_slice(bytes);
        }
    }
    assert!(found && rest.ends_with(b"behind"));
}
