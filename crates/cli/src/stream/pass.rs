//! A stream is a pipeline of one source and one sink that ends with the first failure.

use std::time::{Duration, Instant};

use busbar::pipeline::{
    Config, Counters, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind, StageConfig,
    Work,
};
use busbar::{Result, later};

use super::report::Report;
use super::{Expected, Flags};
use crate::drive;
use crate::progress::interruption;

/// Time in which the blocks in flight have to arrive.
const FAREWELL: Duration = Duration::from_secs(5);
/// Names of the nodes.
const SOURCE: &str = "source";
const SUM: &str = "sum";
const SINK: &str = "sink";
const EXPECTED: &str = "expected";

pub fn run(from: SourceKind, to: SinkKind, flags: &Flags) -> Result<()> {
    let stop = interruption(flags.json)?;
    let mut pipeline = drive::open(config(from, to, flags), &stop)?;
    let mut report = Report::new(flags.json, flags.count);
    let mut until = None;
    // The time counts from when the kind of the samples is known.
    let is_enough = |pipeline: &Pipeline| {
        let now = Instant::now();
        if until.is_none() && flags.seconds.is_some() && has_begun(&pipeline.counters()) {
            until = flags.seconds.map(|seconds| later(now, seconds));
            return false;
        }
        until.is_some_and(|until| now >= until)
    };
    let result = drive::turns(&mut pipeline, &stop, &mut report, is_enough);
    // The summary comes before the error.
    let counters = pipeline.counters();
    if result.is_err() && !has_begun(&counters) {
        return result;
    }
    report.summary(&counters).and(result)
}

fn config(from: SourceKind, to: SinkKind, flags: &Flags) -> Config {
    let blocks = flags.blocks.map(usize::from);
    let edge = |from: &str| Edge::new(from).queue(blocks);
    let source = SourceConfig::new(SOURCE, from)
        .blocks(blocks)
        .block_len(flags.block_len)
        .memory(flags.memory.clone())
        .interface(flags.interface)
        .channels(flags.channels.clone())
        .count(flags.count)
        .patience(flags.patience)
        .memory_limit(flags.memory_limit);
    let sum = StageConfig::new(SUM, edge(SOURCE), Work::Checksum);
    let stages: Vec<_> = flags.checksum.then_some(sum).into_iter().collect();
    let last = if flags.checksum { SUM } else { SOURCE };
    let sink = SinkConfig::new(SINK, edge(last), to)
        .blocks(blocks)
        .memory(flags.memory.clone())
        .interface(flags.interface)
        .patience(flags.patience)
        .announce(flags.announce);
    let expected = flags.expect.map(|Expected::Counter| {
        SinkConfig::new(EXPECTED, edge(last), SinkKind::Verify { counter: true })
    });
    let mut config =
        Config::new().drain(flags.patience.max(FAREWELL)).fail_fast(true).source(source);
    config.stages = stages;
    config.sinks = [Some(sink), expected].into_iter().flatten().collect();
    config
}

/// Whether the kind of the samples is known.
fn has_begun(counters: &Counters) -> bool {
    counters.sinks[0].state != "new"
}
