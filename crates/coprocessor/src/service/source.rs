//! Sends numbered messages on request, at a rate.
//!
//! A [`Request`] is answered with as many [`data`] messages, numbered from 0,
//! and then a [`Summary`]. Each sender has at most one request; another one ends the first, whose
//! summary comes before the messages of the next, and one for 0 messages only ends it.
//!
//! | bytes | request |
//! |---|---|
//! | 0–3 | `SEND` |
//! | 4–7 | token, any |
//! | 8–11 | number of messages |
//! | 12–15 | bytes of each message, 12 to 496 |
//! | 16–19 | messages per second, 0 for as fast as Linux takes them |
//!
//! | bytes | summary |
//! |---|---|
//! | 0–3 | `SENT` |
//! | 4–7 | token of the request |
//! | 8–11 | outcome: 0 done, 1 ended by another request, 2 refused for its size, 3 refused for too many requests |
//! | 12–15 | messages sent |
//! | 16–23 | bytes sent |
//! | 24–31 | nanoseconds from the request to the last message |
//!
//! All numbers are little-endian. Messages that a full ring has delayed are sent afterwards: the rate is
//! kept on average.

use std::time::{Duration, Instant};

use busbar::{Error, Result, later};

use super::data;
use super::{Port, Service};
use crate::message::MTU;
use crate::wire::{Fields, u32_at, u64_at};

/// Senders whose requests are served at a time.
pub const MAX_REQUESTS: usize = 32;

const REQUEST_TAG: [u8; 4] = *b"SEND";
const SUMMARY_TAG: [u8; 4] = *b"SENT";
const REQUEST_SIZE: usize = 20;
const SUMMARY_SIZE: usize = 32;

/// Asks a source to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Returned with the summary.
    pub token: u32,
    /// Number of messages.
    pub count: u32,
    /// Bytes of each message, 12 to 496.
    pub size: u32,
    /// Messages per second, 0 for as fast as Linux takes them.
    pub rate: u32,
}

impl Request {
    /// The message to the source.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_SIZE] {
        let mut fields = Fields::new().put(&REQUEST_TAG);
        for field in [self.token, self.count, self.size, self.rate] {
            fields = fields.put(&field.to_le_bytes());
        }
        fields.finish()
    }

    /// Fails where `message` is no request.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let malformed =
            || Error::invalid("request to the source", message.escape_ascii(), "SEND …");
        if message.len() != REQUEST_SIZE || !message.starts_with(&REQUEST_TAG) {
            return Err(malformed());
        }
        let field = |index: usize| u32_at(message, 4 + 4 * index).ok_or_else(malformed);
        Ok(Self { token: field(0)?, count: field(1)?, size: field(2)?, rate: field(3)? })
    }

    fn size(&self) -> Option<usize> {
        let size = usize::try_from(self.size).ok()?;
        data::check_size(size).is_ok().then_some(size)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All messages were sent.
    Done,
    /// Another request of the same sender ended it.
    Replaced,
    /// No message can have that size.
    BadSize,
    /// Too many senders have requests.
    Busy,
}

impl Outcome {
    fn from_code(code: u32) -> Option<Self> {
        let all = [Self::Done, Self::Replaced, Self::BadSize, Self::Busy];
        all.into_iter().find(|outcome| *outcome as u32 == code)
    }
}

/// What a source has done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Token of the request.
    pub token: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Messages sent.
    pub messages: u32,
    /// Bytes sent.
    pub bytes: u64,
    /// Nanoseconds from the request to the last message.
    pub nanoseconds: u64,
}

impl Summary {
    /// The message from the source.
    #[must_use]
    pub fn encode(&self) -> [u8; SUMMARY_SIZE] {
        Fields::new()
            .put(&SUMMARY_TAG)
            .put(&self.token.to_le_bytes())
            .put(&(self.outcome as u32).to_le_bytes())
            .put(&self.messages.to_le_bytes())
            .put(&self.bytes.to_le_bytes())
            .put(&self.nanoseconds.to_le_bytes())
            .finish()
    }

    /// Fails where `message` is no summary.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let decode = || {
            Some(Self {
                token: u32_at(message, 4)?,
                outcome: Outcome::from_code(u32_at(message, 8)?)?,
                messages: u32_at(message, 12)?,
                bytes: u64_at(message, 16)?,
                nanoseconds: u64_at(message, 24)?,
            })
        };
        let whole = message.len() == SUMMARY_SIZE && message.starts_with(&SUMMARY_TAG);
        whole.then(decode).flatten().ok_or_else(|| {
            Error::invalid("summary of the source", message.escape_ascii(), "SENT …")
        })
    }
}

/// A request that is being served.
#[derive(Clone, Copy, Debug)]
struct Job {
    to: u32,
    request: Request,
    size: usize,
    begun: Instant,
    last: Instant,
    sent: u32,
}

impl Job {
    /// When the next message or the summary is due.
    fn due(&self) -> Instant {
        match self.request.rate {
            _ if self.is_done() => self.last,
            0 => self.begun,
            rate => {
                let nanoseconds = u64::from(self.sent) * 1_000_000_000 / u64::from(rate);
                later(self.begun, Duration::from_nanos(nanoseconds))
            }
        }
    }

    fn is_done(&self) -> bool {
        self.sent == self.request.count
    }

    fn send(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
        let mut message = [0; MTU];
        let message = &mut message[..self.size];
        data::fill(self.sent, message)?;
        port.send(self.to, message)?;
        self.sent += 1;
        self.last = now;
        Ok(())
    }

    fn summary(&self, outcome: Outcome) -> Summary {
        let nanoseconds = self.last.saturating_duration_since(self.begun).as_nanos();
        Summary {
            token: self.request.token,
            outcome,
            messages: self.sent,
            bytes: u64::from(self.sent) * self.size as u64,
            nanoseconds: u64::try_from(nanoseconds).unwrap_or(u64::MAX),
        }
    }
}

/// Sends numbered messages on request, see the [module](self).
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    jobs: Vec<Job>,
}

impl Source {
    /// A source that is announced as `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), jobs: Vec::new() }
    }

    fn end(&mut self, port: &mut Port<'_>, to: u32) -> Result<()> {
        match self.jobs.iter().position(|job| job.to == to) {
            Some(at) => {
                let job = self.jobs.swap_remove(at);
                port.send(to, &job.summary(Outcome::Replaced).encode())
            }
            None => Ok(()),
        }
    }

    /// Ends the jobs that have nothing more to send.
    fn finish(&mut self, port: &mut Port<'_>) -> Result<()> {
        while let Some(at) = self.jobs.iter().position(Job::is_done) {
            if port.room() == 0 {
                break;
            }
            let job = self.jobs.swap_remove(at);
            port.send(job.to, &job.summary(Outcome::Done).encode())?;
        }
        Ok(())
    }
}

impl Service for Source {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_start(&mut self, _port: &mut Port<'_>) -> Result<()> {
        self.jobs.clear();
        Ok(())
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        let request = Request::decode(data)?;
        let now = Instant::now();
        self.end(port, from)?;
        let size = request.size();
        let job =
            Job { to: from, request, size: size.unwrap_or(0), begun: now, last: now, sent: 0 };
        if size.is_none() {
            return port.send(from, &job.summary(Outcome::BadSize).encode());
        }
        if self.jobs.len() == MAX_REQUESTS {
            return port.send(from, &job.summary(Outcome::Busy).encode());
        }
        self.jobs.push(job);
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.jobs.iter().map(Job::due).min()
    }

    fn on_tick(&mut self, port: &mut Port<'_>, now: Instant) -> Result<()> {
        // One message of each in turn, so that none waits for another to end.
        loop {
            self.finish(port)?;
            let mut idle = true;
            for job in self.jobs.iter_mut().filter(|job| !job.is_done() && job.due() <= now) {
                if port.room() == 0 {
                    return Ok(());
                }
                job.send(port, now)?;
                idle = false;
            }
            if idle {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ROOM;
    use super::super::data::Data;
    use super::super::testing::{Bench, Sent};
    use super::*;

    const LINUX: u32 = 0x401;

    fn request(count: u32, size: u32, rate: u32) -> Request {
        Request { token: 9, count, size, rate }
    }

    /// Ticks at each deadline, at the given pace of a clock that starts now.
    fn run(bench: &mut Bench) -> Sent {
        let mut sent = Sent::new();
        while let Some(deadline) = bench.deadline() {
            sent.extend(bench.tick(deadline.max(Instant::now())).unwrap());
        }
        sent
    }

    fn check(sent: &Sent, count: u32, size: usize) {
        assert_eq!(sent.len(), count as usize + 1);
        for (number, (to, message)) in (0..count).zip(sent) {
            let data = Data::decode(message).unwrap();
            assert_eq!((*to, data.sequence, message.len()), (LINUX, number, size));
            assert!(data.is_pattern());
        }
        let summary = Summary::decode(&sent.last().unwrap().1).unwrap();
        let expected = (9, Outcome::Done, count, u64::from(count) * size as u64);
        assert_eq!((summary.token, summary.outcome, summary.messages, summary.bytes), expected);
    }

    #[test]
    fn sends_what_is_asked_for_and_a_summary() {
        for (count, size) in [(0, 16), (1, 12), (200, 496), (ROOM.try_into().unwrap(), 40)] {
            let mut bench = Bench::new(Source::new("source"));
            assert_eq!(bench.message(LINUX, &request(count, size, 0).encode()).unwrap(), []);
            check(&run(&mut bench), count, size as usize);
        }
    }

    #[test]
    fn keeps_the_rate() {
        let mut bench = Bench::new(Source::new("source"));
        let begun = Instant::now();
        bench.message(LINUX, &request(1000, 16, 100).encode()).unwrap();
        let first = bench.tick(begun + Duration::from_millis(5)).unwrap();
        assert_eq!(first.len(), 1);
        let next = bench.deadline().unwrap();
        assert!(next >= begun + Duration::from_millis(10));
        assert!(bench.tick(begun + Duration::from_millis(9)).unwrap().is_empty());
        // Numbers 1 to 10 are due 100 ms later.
        assert_eq!(bench.tick(next + Duration::from_millis(91)).unwrap().len(), 10);
    }

    #[test]
    fn another_request_ends_the_first_one() {
        let mut bench = Bench::new(Source::new("source"));
        bench.message(LINUX, &request(1000, 16, 1).encode()).unwrap();
        bench.tick(Instant::now()).unwrap();
        let sent = bench.message(LINUX, &request(0, 16, 0).encode()).unwrap();
        let summary = Summary::decode(&sent[0].1).unwrap();
        assert_eq!((summary.outcome, summary.messages), (Outcome::Replaced, 1));
        check(&run(&mut bench), 0, 16);
    }

    #[test]
    fn bad_requests_are_refused() {
        let mut bench = Bench::new(Source::new("source"));
        for size in [0, 11, 497, u32::MAX] {
            let sent = bench.message(LINUX, &request(1, size, 0).encode()).unwrap();
            assert_eq!(Summary::decode(&sent[0].1).unwrap().outcome, Outcome::BadSize);
        }
        assert!(bench.message(LINUX, b"hello").is_err());
        assert_eq!(bench.deadline(), None);
    }

    #[test]
    fn requests_are_limited_and_served_in_turn() {
        let mut bench = Bench::new(Source::new("source"));
        for from in 0..u32::try_from(MAX_REQUESTS).unwrap() {
            bench.message(from, &request(3, 16, 0).encode()).unwrap();
        }
        let sent = bench.message(LINUX, &request(3, 16, 0).encode()).unwrap();
        assert_eq!(Summary::decode(&sent[0].1).unwrap().outcome, Outcome::Busy);
        let first: Vec<u32> = run(&mut bench).iter().take(32).map(|(to, _)| *to).collect();
        assert_eq!(first, (0..32).collect::<Vec<_>>());
    }

    #[test]
    fn a_new_start_forgets_requests() {
        let mut bench = Bench::new(Source::new("source"));
        bench.message(LINUX, &request(3, 16, 0).encode()).unwrap();
        bench.start().unwrap();
        assert_eq!(bench.deadline(), None);
    }

    proptest! {
        #[test]
        fn requests_and_summaries_decode(numbers: [u32; 4], bytes: u64, nanoseconds: u64) {
            let [token, count, size, rate] = numbers;
            let request = Request { token, count, size, rate };
            prop_assert_eq!(Request::decode(&request.encode()).unwrap(), request);
            let outcome = Outcome::from_code(count % 4).unwrap();
            let summary = Summary { token, outcome, messages: count, bytes, nanoseconds };
            prop_assert_eq!(Summary::decode(&summary.encode()).unwrap(), summary);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(
            message in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = (Request::decode(&message).is_ok(), Summary::decode(&message).is_ok());
        }
    }
}
