//! What is printed about a pipeline while it runs, and at the end.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

use busbar::Result;
use busbar::pipeline::{Counters, Event, SinkCounters, SourceCounters};
use indicatif::{HumanBytes, HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget};
use serde::Serialize;

use crate::print::{complain, json_line, print_line};
use crate::progress::{bar, cpu};

/// A line for each node, or lines of JSON.
pub struct View {
    json: bool,
    all: MultiProgress,
    lines: HashMap<String, ProgressBar>,
    start: Instant,
    /// Processor time at the start.
    cpu: f64,
    last: Mark,
}

/// The state at one time.
struct Mark {
    time: Instant,
    cpu: f64,
    /// Bytes of each source and sink.
    bytes: HashMap<String, u64>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    seconds: f64,
    cpu_seconds: f64,
    #[serde(flatten)]
    counters: &'a Counters,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<HashMap<&'a str, usize>>,
}

/// An event, as JSON.
#[derive(Serialize)]
struct Happened<'a> {
    event: &'a str,
    node: &'a str,
    text: &'a str,
}

/// The summary, as it goes to the journal.
#[derive(Serialize)]
pub struct Summary {
    what: &'static str,
    #[serde(flatten)]
    counters: Counters,
}

impl Summary {
    pub fn new(counters: Counters) -> Self {
        Self { what: "summary", counters }
    }
}

impl View {
    pub fn new(json: bool) -> Self {
        let target = if json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let now = Instant::now();
        let last = Mark { time: now, cpu: cpu(), bytes: HashMap::new() };
        let all = MultiProgress::with_draw_target(target);
        Self { json, all, lines: HashMap::new(), start: now, cpu: cpu(), last }
    }

    pub fn event(&self, happened: &Event) -> Result<()> {
        let Event { node, what, text, .. } = happened;
        if self.json {
            return json_line(&Happened { event: what, node, text });
        }
        // Events of a coprocessor are ordinary, and may be many.
        if *what != "event" {
            let colon = if text.is_empty() { "" } else { ": " };
            self.all.suspend(|| complain(&format!("busbar: `{node}` {what}{colon}{text}")));
        }
        Ok(())
    }

    pub fn progress(&mut self, counters: &Counters) -> Result<()> {
        let now = Mark::new(counters);
        if self.json {
            self.last = now;
            return self.line("progress", counters, None);
        }
        let seconds = now.time.saturating_duration_since(self.last.time).as_secs_f64().max(1e-9);
        let share = 100.0 * (now.cpu - self.last.cpu) / seconds;
        for source in &counters.sources {
            let text = source_text(source, now.rate(&self.last, &source.name, seconds));
            self.show(&source.name, text);
        }
        for sink in &counters.sinks {
            let text = sink_text(sink, now.rate(&self.last, &sink.name, seconds));
            self.show(&sink.name, text);
        }
        let copied = HumanBytes(counters.copied);
        self.show("", format!("{:>12}  {share:.0} % CPU, {copied} copied", ""));
        self.last = now;
        Ok(())
    }

    fn show(&mut self, name: &str, text: String) {
        let line = self.lines.entry(name.into()).or_insert_with(|| {
            let line = bar(self.json, "{msg}");
            self.all.add(line)
        });
        line.set_message(text);
        line.tick();
    }

    /// Prints the summary.
    pub fn summary(&self, counters: &Counters, remaining: &[(String, usize)]) -> Result<()> {
        self.lines.values().for_each(ProgressBar::finish_and_clear);
        if self.json {
            let remaining = remaining.iter().map(|(name, left)| (name.as_str(), *left)).collect();
            return self.line("summary", counters, Some(remaining));
        }
        print_line(self.text(counters, remaining).trim_end())
    }

    fn text(&self, counters: &Counters, remaining: &[(String, usize)]) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = |bytes: u64| rate(bytes, seconds);
        let mut text = String::new();
        for source in &counters.sources {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", source_text(source, rate(source.bytes)));
        }
        for sink in &counters.sinks {
            let _ = writeln!(text, "{}", sink_text(sink, rate(sink.bytes)));
        }
        for control in &counters.controls {
            let _ = writeln!(
                text,
                "{:>12}: {} commands, {} refused, {} events, {} reactions too late, slowest {} us",
                control.name,
                control.commands,
                control.refused,
                control.events,
                control.late,
                control.slowest
            );
        }
        let cpu = 100.0 * (cpu() - self.cpu) / seconds.max(1e-9);
        let copied = HumanBytes(counters.copied);
        let _ = writeln!(text, "{seconds:.3} s, {cpu:.0} % CPU, {copied} copied");
        for (sink, left) in remaining {
            let _ = writeln!(text, "not delivered: {left} blocks for `{sink}`");
        }
        text
    }

    fn line<'a>(
        &self,
        event: &'static str,
        counters: &'a Counters,
        remaining: Option<HashMap<&'a str, usize>>,
    ) -> Result<()> {
        let (seconds, cpu_seconds) = (self.start.elapsed().as_secs_f64(), cpu() - self.cpu);
        json_line(&Line { event, seconds, cpu_seconds, counters, remaining })
    }
}

impl Mark {
    fn new(counters: &Counters) -> Self {
        let sources = counters.sources.iter().map(|it| (it.name.clone(), it.bytes));
        let sinks = counters.sinks.iter().map(|it| (it.name.clone(), it.bytes));
        Self { time: Instant::now(), cpu: cpu(), bytes: sources.chain(sinks).collect() }
    }

    /// Megabytes per second since `before`.
    fn rate(&self, before: &Self, node: &str, seconds: f64) -> f64 {
        let bytes = |mark: &Self| mark.bytes.get(node).copied().unwrap_or(0);
        rate(bytes(self).saturating_sub(bytes(before)), seconds)
    }
}

#[allow(clippy::cast_precision_loss)] // for people
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / 1e6 / seconds.max(1e-9)
}

fn source_text(source: &SourceCounters, rate: f64) -> String {
    let SourceCounters { name, state, samples, lost, unknown, failed, restarts, .. } = source;
    let samples = HumanCount(*samples);
    let mut text = format!("{name:>12}: {state}, {samples} samples, {rate:.1} MB/s, {lost} lost");
    add(
        &mut text,
        &[
            (*unknown, "blocks of unknown loss"),
            (*failed, "blocks failed"),
            (*restarts, "restarts"),
            (source.reconnects, "reconnects"),
            (source.corrupted, "corrupted frames"),
        ],
    );
    text
}

fn sink_text(sink: &SinkCounters, rate: f64) -> String {
    let SinkCounters { name, state, samples, lost, waiting, under_way, .. } = sink;
    let samples = HumanCount(*samples);
    let flight = waiting + under_way;
    let mut text = format!(
        "{name:>12}: {state}, {samples} samples, {rate:.1} MB/s, {lost} lost, {flight} in flight, \
         {:.1}/{:.1} ms",
        milliseconds(sink.latency_p50),
        milliseconds(sink.latency_p99)
    );
    add(
        &mut text,
        &[
            (sink.unknown, "blocks of unknown loss"),
            (sink.dropped_blocks, "blocks dropped"),
            (sink.failed, "blocks lost in flight"),
            (sink.restarts, "restarts"),
            (sink.reconnects, "reconnects"),
            (sink.resent, "blocks sent again"),
            (sink.verified, "verified"),
        ],
    );
    text
}

#[allow(clippy::cast_precision_loss)] // for people
fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1e3
}

/// Appends the counts that are not 0.
fn add(text: &mut String, counts: &[(u64, &str)]) {
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        let _ = write!(text, ", {count} {what}");
    }
}
