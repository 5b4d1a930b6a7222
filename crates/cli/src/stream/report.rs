//! What is printed while samples pass, and at the end.

use std::fmt::Write as _;
use std::time::Instant;

use busbar::Result;
use busbar::pipeline::{Counters, Event, SourceCounters};
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde::Serialize;

use crate::drive::Audience;
use crate::print::{complain, json_line, print_line};
use crate::progress::{self, cpu};

/// What was passed on.
#[derive(Debug, Serialize)]
struct Counts {
    samples: u64,
    bytes: u64,
    /// Samples that are known to be lost.
    lost: u64,
    /// Blocks before which an unknown number of samples was lost.
    unknown: u64,
    /// Blocks that the converter returned with an error.
    failed: u64,
    /// Bytes copied; a byte that was copied twice counts twice.
    copied: u64,
    reconnects: u64,
    /// Frames that were not valid.
    corrupted: u64,
    /// Blocks that were sent again.
    resent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<u64>,
}

impl Counts {
    fn new(counters: &Counters) -> Self {
        let (source, sink) = (&counters.sources[0], &counters.sinks[0]);
        Self {
            samples: source.samples,
            bytes: source.bytes,
            lost: source.lost,
            unknown: source.unknown,
            failed: source.failed,
            copied: counters.copied,
            reconnects: source.reconnects + sink.reconnects,
            corrupted: source.corrupted,
            resent: sink.resent,
            verified: counters.sinks.get(1).map(|expected| expected.verified),
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    cpu_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a str>,
}

pub struct Report {
    json: bool,
    bar: ProgressBar,
    start: Instant,
    /// CPU time before the first sample.
    cpu: f64,
}

impl Audience for Report {
    /// Prints what does not end the stream.
    fn event(&mut self, event: &Event) -> Result<()> {
        // A failure, unless it is of a client.
        let more = if event.what == "client" { "" } else { "; going on" };
        self.bar.suspend(|| complain(&format!("busbar: {}{more}", event.text)));
        Ok(())
    }

    fn progress(&mut self, counters: Counters) -> Result<()> {
        let counts = Counts::new(&counters);
        if self.json {
            return self.line("progress", counts, None);
        }
        let lost = match (counts.lost, counts.unknown) {
            (0, 0) => String::new(),
            (lost, 0) => format!(", {lost} lost"),
            (lost, _) => format!(", {lost} lost, perhaps more"),
        };
        self.bar.set_message(format!(", {:.1} MB/s{lost}", self.speed(&counts)));
        let most = self.bar.length().unwrap_or(u64::MAX);
        self.bar.set_position(counts.samples.min(most));
        Ok(())
    }
}

impl Report {
    pub fn new(json: bool, count: Option<u64>) -> Self {
        let bar = match count {
            Some(_) => progress::bar(json, "{bar:30} {human_pos} of {human_len} samples{msg}"),
            None => progress::bar(json, "{spinner} {human_pos} samples{msg}"),
        };
        if let Some(count) = count {
            bar.set_length(count);
        }
        Self { json, bar, start: Instant::now(), cpu: cpu() }
    }

    /// Prints the summary.
    pub fn summary(&self, counters: &Counters) -> Result<()> {
        self.bar.finish_and_clear();
        let counts = Counts::new(counters);
        if self.json {
            return self.line("summary", counts, Some(&counters.sources[0]));
        }
        let Counts { samples, bytes, lost, unknown, failed, copied, reconnects, .. } = counts;
        let (seconds, speed) = (self.start.elapsed().as_secs_f64(), self.speed(&counts));
        let mut text = format!(
            "{} samples, {} in {seconds:.3} s ({speed:.1} MB/s), {} copied, {lost} lost",
            HumanCount(samples),
            HumanBytes(bytes),
            HumanBytes(copied),
        );
        let more = [
            (unknown, "blocks of unknown loss"),
            (failed, "blocks failed"),
            (reconnects, "reconnects"),
            (counts.corrupted, "corrupted frames"),
            (counts.verified.unwrap_or(0), "verified"),
        ];
        for (count, what) in more.into_iter().filter(|(count, _)| *count > 0) {
            // Writing to a string does not fail.
            let _ = write!(text, ", {count} {what}");
        }
        print_line(&text)
    }

    /// Megabytes per second, on average.
    #[allow(clippy::cast_precision_loss)] // for people
    fn speed(&self, counts: &Counts) -> f64 {
        counts.bytes as f64 / 1e6 / self.start.elapsed().as_secs_f64().max(1e-9)
    }

    fn line(
        &self,
        event: &'static str,
        counts: Counts,
        about: Option<&SourceCounters>,
    ) -> Result<()> {
        json_line(&Line {
            event,
            counts,
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: cpu() - self.cpu,
            interface: about.and_then(|source| source.interface.as_deref()),
            memory: about.and_then(|source| source.memory.as_deref()),
        })
    }
}
