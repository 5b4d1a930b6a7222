//! Counts what arrives and checks it.
//!
//! Messages are [`data`](super::data); they are not answered. The sink keeps
//! [`Counts`] for each address that sends. A [`Query`] is answered with the counts of its sender,
//! and since messages keep their order, with all that the sender sent before:
//!
//! | bytes | query | answer |
//! |---|---|---|
//! | 0–3 | `TELL` | `TOLD` |
//! | 4–7 | token, any | the same token |
//! | 8–11 | flags: bit 0 resets the counts afterwards | 0 |
//! | 12–… | | 64 bits each: messages, bytes, lost, repeated, corrupt, foreign |
//!
//! All numbers are little-endian.

use std::collections::HashMap;

use busbar::{Error, Result};
use serde::Serialize;

use super::data::{Data, Fault};
use super::{Port, Service};
use crate::wire::{Fields, u32_at, u64_at};

/// Senders whose counts are kept; the one that has been silent for the longest time is forgotten first.
pub const MAX_SENDERS: usize = 1024;

const QUERY_TAG: [u8; 4] = *b"TELL";
const ANSWER_TAG: [u8; 4] = *b"TOLD";
const QUERY_SIZE: usize = 12;
const ANSWER_SIZE: usize = 60;
const FLAG_RESET: u32 = 1 << 0;

/// Asks a sink for its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Returned with the answer.
    pub token: u32,
    /// Start the counts again, with sequence number 0, after the answer.
    pub reset: bool,
}

impl Query {
    /// The message to the sink.
    #[must_use]
    pub fn encode(&self) -> [u8; QUERY_SIZE] {
        let flags = if self.reset { FLAG_RESET } else { 0 };
        Fields::new()
            .put(&QUERY_TAG)
            .put(&self.token.to_le_bytes())
            .put(&flags.to_le_bytes())
            .finish()
    }

    /// `None` if `message` is no query.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<Self> {
        if message.len() != QUERY_SIZE || !message.starts_with(&QUERY_TAG) {
            return None;
        }
        let flags = u32_at(message, 8)?;
        Some(Self { token: u32_at(message, 4)?, reset: flags & FLAG_RESET != 0 })
    }
}

/// Counts of a sink for one sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Messages except queries, with any content.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sequence numbers that were skipped and have not arrived since.
    pub lost: u64,
    /// Messages with a lower sequence number than an earlier one.
    pub repeated: u64,
    /// Messages with a wrong checksum.
    pub corrupt: u64,
    /// Messages that are no numbered messages at all.
    pub foreign: u64,
}

impl Counts {
    /// Whether `messages` numbered messages have arrived, each once, in order and intact.
    #[must_use]
    pub fn is_complete(&self, messages: u64) -> bool {
        let faults = self.lost + self.repeated + self.corrupt + self.foreign;
        self.messages == messages && faults == 0
    }
}

/// The answer to a [`Query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Token of the query.
    pub token: u32,
    /// The counts.
    pub counts: Counts,
}

impl Answer {
    /// The message from the sink.
    #[must_use]
    pub fn encode(&self) -> [u8; ANSWER_SIZE] {
        let Counts { messages, bytes, lost, repeated, corrupt, foreign } = self.counts;
        let mut fields = Fields::new().put(&ANSWER_TAG).put(&self.token.to_le_bytes()).put(&[0; 4]);
        for count in [messages, bytes, lost, repeated, corrupt, foreign] {
            fields = fields.put(&count.to_le_bytes());
        }
        fields.finish()
    }

    /// Fails where `message` is no answer of a sink.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let malformed = || Error::invalid("answer of the sink", message.escape_ascii(), "TOLD …");
        if message.len() != ANSWER_SIZE || !message.starts_with(&ANSWER_TAG) {
            return Err(malformed());
        }
        let count = |index: usize| u64_at(message, 12 + 8 * index).ok_or_else(malformed);
        let counts = Counts {
            messages: count(0)?,
            bytes: count(1)?,
            lost: count(2)?,
            repeated: count(3)?,
            corrupt: count(4)?,
            foreign: count(5)?,
        };
        Ok(Self { token: u32_at(message, 4).ok_or_else(malformed)?, counts })
    }
}

/// The state of one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    counts: Counts,
    expected: u32,
    /// Time of its last message, in messages to the sink.
    heard: u64,
}

impl Sender {
    fn take(&mut self, message: &[u8]) {
        self.counts.messages += 1;
        self.counts.bytes += message.len() as u64;
        match Data::decode(message) {
            Ok(data) => self.number(data.sequence),
            Err(Fault::Corrupt) => self.counts.corrupt += 1,
            Err(Fault::Foreign) => self.counts.foreign += 1,
        }
    }

    /// Numbers wrap around: a number in the half ahead is new, one in the half behind is old.
    fn number(&mut self, sequence: u32) {
        let ahead = sequence.wrapping_sub(self.expected);
        if ahead < 1 << 31 {
            self.counts.lost += u64::from(ahead);
            self.expected = sequence.wrapping_add(1);
        } else {
            self.counts.repeated += 1;
        }
    }
}

/// Counts what arrives and checks it, see the [module](self).
#[derive(Clone, Debug)]
pub struct Sink {
    name: String,
    senders: HashMap<u32, Sender>,
    heard: u64,
}

impl Sink {
    /// A sink that is announced as `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), senders: HashMap::new(), heard: 0 }
    }

    fn sender(&mut self, from: u32) -> &mut Sender {
        if self.senders.len() == MAX_SENDERS && !self.senders.contains_key(&from) {
            self.forget_the_most_silent();
        }
        self.heard += 1;
        let sender = self.senders.entry(from).or_default();
        sender.heard = self.heard;
        sender
    }

    fn forget_the_most_silent(&mut self) {
        let silent = self.senders.iter().min_by_key(|(_, sender)| sender.heard);
        if let Some(address) = silent.map(|(address, _)| *address) {
            self.senders.remove(&address);
        }
    }
}

impl Service for Sink {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        self.senders.clear();
        Ok(())
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        let sender = self.sender(from);
        let Some(query) = Query::decode(data) else {
            sender.take(data);
            return Ok(());
        };
        let answer = Answer { token: query.token, counts: sender.counts };
        if query.reset {
            self.senders.remove(&from);
        }
        port.send(from, &answer.encode())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::data;
    use super::super::testing::Bench;
    use super::*;

    const LINUX: u32 = 0x401;

    fn numbered(sequence: u32) -> [u8; 20] {
        let mut message = [0; 20];
        data::fill(sequence, &mut message).unwrap();
        message
    }

    fn counts(bench: &mut Bench, from: u32, reset: bool) -> Counts {
        let sent = bench.message(from, &Query { token: 3, reset }.encode()).unwrap();
        let [(to, answer)] = &sent[..] else { panic!("{sent:?}") };
        let answer = Answer::decode(answer).unwrap();
        assert_eq!((*to, answer.token), (from, 3));
        answer.counts
    }

    #[test]
    fn messages_in_order_are_complete() {
        let mut bench = Bench::new(Sink::new("sink"));
        for sequence in 0..10 {
            assert_eq!(bench.message(LINUX, &numbered(sequence)).unwrap(), []);
        }
        let counts = counts(&mut bench, LINUX, false);
        assert!(counts.is_complete(10) && !counts.is_complete(9));
        assert_eq!(counts.bytes, 200);
    }

    #[test]
    fn each_fault_is_counted() {
        let mut bench = Bench::new(Sink::new("sink"));
        let mut damaged = numbered(4);
        damaged[19] ^= 1;
        let foreign = *b"not one of the data!";
        for message in [numbered(0), numbered(3), numbered(1), damaged, foreign] {
            bench.message(LINUX, &message).unwrap();
        }
        let expected =
            Counts { messages: 5, bytes: 100, lost: 2, repeated: 1, corrupt: 1, foreign: 1 };
        assert_eq!(counts(&mut bench, LINUX, false), expected);
    }

    #[test]
    fn senders_are_counted_apart_and_anew_after_a_reset() {
        let mut bench = Bench::new(Sink::new("sink"));
        bench.message(1, &numbered(0)).unwrap();
        bench.message(2, &numbered(0)).unwrap();
        bench.message(2, &numbered(1)).unwrap();
        assert!(counts(&mut bench, 1, true).is_complete(1));
        assert!(counts(&mut bench, 2, false).is_complete(2));
        bench.message(1, &numbered(0)).unwrap();
        assert!(counts(&mut bench, 1, false).is_complete(1));
        bench.start().unwrap();
        assert!(counts(&mut bench, 2, false).is_complete(0));
    }

    #[test]
    fn numbers_wrap_around() {
        let mut sender = Sender { expected: u32::MAX, ..Sender::default() };
        sender.take(&numbered(u32::MAX));
        sender.take(&numbered(0));
        assert!(sender.counts.is_complete(2));
    }

    #[test]
    fn the_most_silent_of_too_many_senders_is_forgotten() {
        let mut bench = Bench::new(Sink::new("sink"));
        for from in 1..=u32::try_from(MAX_SENDERS).unwrap() {
            bench.message(0, &numbered(from - 1)).unwrap();
            bench.message(from, &numbered(0)).unwrap();
        }
        assert!(counts(&mut bench, 0, false).is_complete(MAX_SENDERS as u64));
        assert!(counts(&mut bench, 2, false).is_complete(1));
        assert!(counts(&mut bench, 1, false).is_complete(0));
    }

    proptest! {
        #[test]
        fn queries_and_answers_decode(token: u32, reset: bool, numbers: [u64; 6]) {
            let query = Query { token, reset };
            prop_assert_eq!(Query::decode(&query.encode()), Some(query));
            let [messages, bytes, lost, repeated, corrupt, foreign] = numbers;
            let counts = Counts { messages, bytes, lost, repeated, corrupt, foreign };
            let answer = Answer { token, counts };
            prop_assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer);
        }

        #[test]
        fn any_message_is_counted_once(messages in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..64), 0..20,
        )) {
            let mut bench = Bench::new(Sink::new("sink"));
            for message in &messages {
                bench.message(LINUX, message).unwrap();
            }
            let counts = counts(&mut bench, LINUX, false);
            prop_assert_eq!(counts.messages, messages.len() as u64);
            prop_assert_eq!(counts.bytes, messages.iter().map(|m| m.len() as u64).sum::<u64>());
        }
    }
}
