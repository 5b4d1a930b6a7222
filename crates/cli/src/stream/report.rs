//! What there is to say while samples pass, and in the end.

use std::fmt::Write as _;
use std::time::Instant;

use busbar::stream::Lost;
use busbar::{Error, Result};
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde::Serialize;

use crate::endpoint::print_line;
use crate::progress::{self, EACH, complain, cpu, json_line};

/// What has passed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    pub samples: u64,
    pub bytes: u64,
    /// Samples that are known to be lost.
    pub lost: u64,
    /// Blocks of which it is not known whether samples were lost before them.
    pub unknown: u64,
    /// Blocks with which the converter has failed.
    pub failed: u64,
    /// Bytes that were copied, as often as they were.
    pub copied: u64,
    pub reconnects: u64,
    /// Frames that could not be.
    pub corrupted: u64,
    /// Blocks that were sent again.
    pub resent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<u64>,
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    #[serde(flatten)]
    counts: &'a Counts,
    seconds: f64,
    cpu_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
}

pub struct Report {
    pub counts: Counts,
    json: bool,
    bar: ProgressBar,
    start: Instant,
    /// CPU time before the first sample.
    cpu: f64,
    next: Instant,
    /// What was complained of last, and behind how many samples.
    told: Option<(String, u64)>,
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
        let start = Instant::now();
        Self {
            counts: Counts::default(),
            json,
            bar,
            start,
            cpu: cpu(),
            next: start + EACH,
            told: None,
        }
    }

    /// One more block.
    pub fn add(&mut self, samples: u64, bytes: u64, lost: Lost) {
        self.counts.samples += samples;
        self.counts.bytes += bytes;
        self.lose(lost);
    }

    pub fn lose(&mut self, lost: Lost) {
        match lost {
            Lost::Samples(lost) => self.counts.lost = self.counts.lost.saturating_add(lost),
            Lost::Unknown => self.counts.unknown += 1,
        }
    }

    /// Shows how it stands, now and then.
    pub fn progress(&mut self) -> Result<()> {
        if Instant::now() < self.next {
            return Ok(());
        }
        self.next = Instant::now() + EACH;
        if self.json {
            return self.line("progress", (None, None));
        }
        let lost = match (self.counts.lost, self.counts.unknown) {
            (0, 0) => String::new(),
            (lost, 0) => format!(", {lost} lost"),
            (lost, _) => format!(", {lost} lost, perhaps more"),
        };
        self.bar.set_message(format!(", {:.1} MB/s{lost}", self.speed()));
        let most = self.bar.length().unwrap_or(u64::MAX);
        self.bar.set_position(self.counts.samples.min(most));
        Ok(())
    }

    /// Says what goes wrong without an end to the stream; the same again is no news, until samples
    /// have passed.
    pub fn warn(&mut self, error: &Error) {
        let told = (error.to_string(), self.counts.samples);
        if self.told.as_ref() != Some(&told) {
            self.bar.suspend(|| complain(&format!("busbar: {error}; going on")));
            self.told = Some(told);
        }
    }

    /// The last word.
    pub fn summary(&self, about: (Option<String>, Option<String>)) -> Result<()> {
        self.bar.finish_and_clear();
        if self.json {
            return self.line("summary", about);
        }
        let Counts { samples, bytes, lost, unknown, failed, copied, reconnects, .. } = self.counts;
        let (seconds, speed) = (self.start.elapsed().as_secs_f64(), self.speed());
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
            (self.counts.corrupted, "corrupted frames"),
            (self.counts.verified.unwrap_or(0), "verified"),
        ];
        for (count, what) in more.into_iter().filter(|(count, _)| *count > 0) {
            // Text takes all that is written.
            let _ = write!(text, ", {count} {what}");
        }
        print_line(&text)
    }

    /// Megabytes each second, on average.
    #[allow(clippy::cast_precision_loss)] // for people
    fn speed(&self) -> f64 {
        self.counts.bytes as f64 / 1e6 / self.start.elapsed().as_secs_f64().max(1e-9)
    }

    fn line(&self, event: &'static str, about: (Option<String>, Option<String>)) -> Result<()> {
        let (interface, memory) = about;
        json_line(&Line {
            event,
            counts: &self.counts,
            seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: cpu() - self.cpu,
            interface,
            memory,
        })
    }
}
