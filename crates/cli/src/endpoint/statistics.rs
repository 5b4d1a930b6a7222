//! The statistics of `ping`.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Messages whose answers are told from duplicates; older ones are forgotten.
const WINDOW: usize = 1 << 16;

/// Counts of messages and times of replies.
#[derive(Debug, Default)]
pub struct Statistics {
    sent: VecDeque<Sent>,
    pub transmitted: u32,
    pub received: u32,
    pub duplicates: u32,
    pub corrupted: u32,
    times: Times,
}

#[derive(Debug)]
struct Sent {
    at: Instant,
    answered: bool,
}

/// The message that a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    First(Duration),
    Duplicate(Duration),
    /// It answers no message that is remembered.
    Unknown,
}

/// Times of round trips, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    pub min: f64,
    pub avg: f64,
    pub max: f64,
    /// Standard deviation, as ping(8) has it.
    pub mdev: f64,
}

#[derive(Debug, Default)]
struct Times {
    count: u32,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
}

impl Statistics {
    /// Number of the next message; the first is 1.
    pub fn next(&self) -> u32 {
        self.transmitted.wrapping_add(1)
    }

    /// The message with the number [`next`](Self::next) was sent.
    pub fn sent(&mut self, at: Instant) {
        self.transmitted = self.next();
        self.sent.push_back(Sent { at, answered: false });
        if self.sent.len() > WINDOW {
            self.sent.pop_front();
        }
    }

    /// A reply to the message `sequence` came at `now`.
    pub fn reply(&mut self, sequence: u32, intact: bool, now: Instant) -> Reply {
        let Some(sent) = self.find(sequence) else { return Reply::Unknown };
        let time = now.saturating_duration_since(sent.at);
        if sent.answered {
            self.duplicates += 1;
            return Reply::Duplicate(time);
        }
        sent.answered = true;
        if intact {
            self.received += 1;
            self.times.add(time.as_secs_f64() * 1e3);
        }
        Reply::First(time)
    }

    /// Whether the last message was answered, or none was sent.
    pub fn is_last_answered(&self) -> bool {
        self.sent.back().is_none_or(|sent| sent.answered)
    }

    /// Whether all remembered messages were answered.
    pub fn are_all_answered(&self) -> bool {
        self.sent.iter().all(|sent| sent.answered)
    }

    /// When the last message was sent.
    pub fn last_sent(&self) -> Option<Instant> {
        self.sent.back().map(|sent| sent.at)
    }

    /// Percentage of the messages without an intact reply.
    pub fn loss(&self) -> f64 {
        match self.transmitted {
            0 => 0.0,
            sent => f64::from(sent.saturating_sub(self.received)) * 100.0 / f64::from(sent),
        }
    }

    /// Times of the intact replies, if there are any.
    pub fn summary(&self) -> Option<Summary> {
        self.times.summary()
    }

    fn find(&mut self, sequence: u32) -> Option<&mut Sent> {
        let age = self.transmitted.wrapping_sub(sequence);
        let index = self.sent.len().checked_sub(usize::try_from(age).ok()?.checked_add(1)?)?;
        self.sent.get_mut(index)
    }
}

impl Times {
    fn add(&mut self, time: f64) {
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.count += 1;
        self.sum += time;
        self.squares += time * time;
    }

    fn summary(&self) -> Option<Summary> {
        if self.count == 0 {
            return None;
        }
        let count = f64::from(self.count);
        let avg = self.sum / count;
        // Rounding can bring it below zero.
        let variance = (self.squares / count - avg * avg).max(0.0);
        Some(Summary { min: self.min, avg, max: self.max, mdev: variance.sqrt() })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, avg, max, mdev } = self;
        write!(f, "rtt min/avg/max/mdev = {min:.3}/{avg:.3}/{max:.3}/{mdev:.3} ms")
    }
}

/// Milliseconds with as many digits as ping(8) prints.
pub fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    let digits = match ms {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{ms:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn run(times: &[u64]) -> Statistics {
        let mut statistics = Statistics::default();
        let start = Instant::now();
        for (sequence, time) in (1..).zip(times) {
            assert_eq!(statistics.next(), sequence);
            statistics.sent(start);
            let took = Duration::from_millis(*time);
            assert_eq!(statistics.reply(sequence, true, start + took), Reply::First(took));
        }
        statistics
    }

    #[test]
    fn the_summary_is_that_of_ping() {
        let text = run(&[1, 2, 3, 6]).summary().unwrap().to_string();
        assert_eq!(text, "rtt min/avg/max/mdev = 1.000/3.000/6.000/1.871 ms");
        assert!(run(&[]).summary().is_none());
    }

    #[test]
    fn equal_times_do_not_deviate() {
        let summary = run(&[7; 1000]).summary().unwrap();
        assert!(summary.mdev < 1e-6, "{summary:?}");
    }

    #[test]
    fn loss_counts_what_has_no_intact_reply() {
        let mut statistics = run(&[1, 1]);
        assert!(statistics.loss().abs() < f64::EPSILON);
        let start = Instant::now();
        statistics.sent(start);
        assert!(!statistics.is_last_answered() && !statistics.are_all_answered());
        statistics.sent(start);
        statistics.reply(4, false, start);
        assert!(statistics.is_last_answered() && !statistics.are_all_answered());
        assert!((statistics.loss() - 50.0).abs() < f64::EPSILON);
        assert_eq!((statistics.transmitted, statistics.received), (4, 2));
        assert!(Statistics::default().loss().abs() < f64::EPSILON);
    }

    #[test]
    fn a_second_reply_is_a_duplicate_and_not_timed() {
        let mut statistics = run(&[5]);
        let sent = statistics.last_sent().unwrap();
        assert_eq!(statistics.reply(1, true, sent + 9 * MS), Reply::Duplicate(9 * MS));
        assert_eq!((statistics.received, statistics.duplicates), (1, 1));
        assert!((statistics.summary().unwrap().max - 5.0).abs() < 1e-9);
    }

    #[test]
    fn replies_to_what_was_never_sent_are_unknown() {
        let mut statistics = run(&[1, 1]);
        for sequence in [0, 3, u32::MAX] {
            assert_eq!(statistics.reply(sequence, true, Instant::now()), Reply::Unknown);
        }
    }

    #[test]
    fn old_messages_are_forgotten() {
        let mut statistics = Statistics::default();
        let start = Instant::now();
        for _ in 0..=WINDOW {
            statistics.sent(start);
        }
        assert_eq!(statistics.sent.len(), WINDOW);
        assert_eq!(statistics.reply(1, true, start), Reply::Unknown);
        assert_eq!(statistics.reply(2, true, start), Reply::First(Duration::ZERO));
    }

    #[test]
    fn digits_follow_those_of_ping() {
        let text = |us| milliseconds(Duration::from_micros(us));
        assert_eq!(
            [text(123), text(1234), text(12345), text(123_456)],
            ["0.123", "1.23", "12.3", "123"]
        );
    }
}
