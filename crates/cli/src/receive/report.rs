//! What is printed while data arrives, and at the end.

use std::net::SocketAddr;
use std::time::Instant;

use busbar::receive::{Receiver, Statistics, Tokens};
use busbar::{Error, Result};
use indicatif::{HumanBytes, ProgressBar};
use serde::Serialize;

use crate::print::{complain, json_line, print_line};
use crate::progress::{self, EACH, cpu};

/// What was received.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    pub connections: u64,
    pub bytes: u64,
    /// Bytes that a processor has copied to where they were received.
    pub copied: u64,
    /// Views that were not returned yet.
    pub tokens: usize,
    /// Bytes of `memory` that they hold.
    pub held: usize,
    pub memory: usize,
    /// How often memory was short, if the kernel counts it.
    pub shortages: Option<u64>,
    /// Calls that returned tokens, and tokens that the kernel refused.
    pub returns: u64,
    pub refused: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<u64>,
}

impl Counts {
    pub fn take(&mut self, now: Statistics) {
        let Statistics { bytes, copied, views, held, memory, shortages, returns, refused, .. } =
            now;
        (self.bytes, self.copied, self.tokens) = (bytes, copied, views);
        (self.held, self.memory, self.shortages) = (held, memory, shortages);
        (self.returns, self.refused) = (returns, refused);
    }
}

#[derive(Serialize)]
struct Listening<'a> {
    event: &'static str,
    address: SocketAddr,
    device: &'a str,
    queues: &'a [u32],
    token_mode: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    #[serde(flatten)]
    counts: &'a Counts,
    seconds: f64,
    cpu_seconds: f64,
    /// Bytes per second since the previous line; so is the share of processors below.
    bytes_per_second: f64,
    cpu_share: f64,
}

/// The state at one time, to tell what has happened since.
pub struct Mark {
    time: Instant,
    cpu: f64,
    bytes: u64,
}

impl Mark {
    fn new(bytes: u64) -> Self {
        Self { time: Instant::now(), cpu: cpu(), bytes }
    }

    /// Seconds, seconds of processor time, and bytes per second.
    #[allow(clippy::cast_precision_loss)] // for people
    fn until(&self, now: &Self) -> (f64, f64, f64) {
        let seconds = now.time.duration_since(self.time).as_secs_f64();
        let rate = now.bytes.saturating_sub(self.bytes) as f64 / seconds.max(1e-9);
        (seconds, now.cpu - self.cpu, rate)
    }
}

pub struct Report {
    pub counts: Counts,
    json: bool,
    bar: ProgressBar,
    /// When the first connection came.
    start: Mark,
    last: Mark,
}

impl Report {
    pub fn new(json: bool) -> Self {
        let bar = progress::bar(json, "{spinner} {msg}");
        Self { counts: Counts::default(), json, bar, start: Mark::new(0), last: Mark::new(0) }
    }

    /// Prints where it listens.
    pub fn listening(&self, device: &str, receiver: &Receiver, address: SocketAddr) -> Result<()> {
        let (queues, token_mode) = (receiver.queues(), receiver.tokens());
        let token_mode = token_mode.as_ref().map(Tokens::to_string);
        if self.json {
            return json_line(&Listening {
                event: "listening",
                address,
                device,
                queues,
                token_mode,
            });
        }
        let about = match &token_mode {
            Some(mode) => format!("{device}, queues {queues:?}, tokens {mode}"),
            None => "ordinary receive".into(),
        };
        self.bar.set_message(format!("listening on {address} ({about})"));
        self.bar.tick();
        Ok(())
    }

    /// A connection was accepted.
    pub fn connected(&mut self) {
        if self.counts.connections == 0 {
            (self.start, self.last) = (Mark::new(0), Mark::new(0));
        }
        self.counts.connections += 1;
    }

    /// The state now.
    pub fn now(&self) -> Mark {
        Mark::new(self.counts.bytes)
    }

    /// Whether it is time to print progress.
    pub fn is_due(&self) -> bool {
        self.counts.connections > 0 && self.last.time.elapsed() >= EACH
    }

    /// Prints progress.
    pub fn progress(&mut self) -> Result<()> {
        let now = self.now();
        let (seconds, cpu, rate) = self.last.until(&now);
        if self.json {
            self.line("progress", &now, rate, cpu / seconds.max(1e-9))?;
        }
        self.last = now;
        let Counts { bytes, tokens, held, memory, .. } = self.counts;
        self.bar.set_message(format!(
            "{}, {:.1} MB/s, {:.0} % CPU, {tokens} tokens out, {} of {} held{}",
            HumanBytes(bytes),
            rate / 1e6,
            100.0 * cpu / seconds.max(1e-9),
            HumanBytes(held as u64),
            HumanBytes(memory as u64),
            self.shortages(),
        ));
        self.bar.tick();
        Ok(())
    }

    /// Prints the error of one connection.
    pub fn warn(&self, error: &Error) {
        self.bar.suspend(|| complain(&format!("busbar: {error}; the other connections go on")));
    }

    /// Prints the summary, up to `end`.
    pub fn summary(&self, end: &Mark) -> Result<()> {
        self.bar.finish_and_clear();
        let (seconds, cpu, rate) = self.start.until(end);
        let share = cpu / seconds.max(1e-9);
        if self.json {
            return self.line("summary", end, rate, share);
        }
        let Counts { connections, bytes, copied, verified, .. } = self.counts;
        let verified = verified.map_or(String::new(), |bytes| format!(", {bytes} bytes verified"));
        print_line(&format!(
            "{} of {connections} {} in {seconds:.3} s ({:.1} MB/s, {:.0} % CPU), {} copied{}{verified}",
            HumanBytes(bytes),
            if connections == 1 { "connection" } else { "connections" },
            rate / 1e6,
            100.0 * share,
            HumanBytes(copied),
            self.shortages(),
        ))
    }

    fn shortages(&self) -> String {
        match self.counts.shortages {
            None | Some(0) => String::new(),
            Some(count) => format!(", {count} times short of memory"),
        }
    }

    fn line(
        &self,
        event: &'static str,
        now: &Mark,
        bytes_per_second: f64,
        cpu_share: f64,
    ) -> Result<()> {
        let (seconds, cpu_seconds, _) = self.start.until(now);
        let counts = &self.counts;
        json_line(&Line { event, counts, seconds, cpu_seconds, bytes_per_second, cpu_share })
    }
}
