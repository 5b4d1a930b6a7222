//! Counters of a pipeline.

use serde::Serialize;

/// Counters of a pipeline: totals since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// The sources.
    pub sources: Vec<SourceCounters>,
    /// The stages.
    pub stages: Vec<StageCounters>,
    /// The sinks.
    pub sinks: Vec<SinkCounters>,
    /// The controls.
    pub controls: Vec<ControlCounters>,
    /// Bytes that were copied in all nodes, each time they were.
    pub copied: u64,
}

/// Counters of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SourceCounters {
    /// Its name.
    pub name: String,
    /// `off`, `down`, `open` or `ended`.
    pub state: String,
    /// Its interface, if it is a converter: `dmabuf`, `fileio`, `synth`.
    pub interface: Option<String>,
    /// The memory of its blocks, if it is a converter.
    pub memory: Option<String>,
    /// Blocks received.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Samples that are known to be missing.
    pub lost: u64,
    /// Blocks of which it is not known whether samples are missing before them.
    pub unknown: u64,
    /// Blocks that a converter failed to fill.
    pub failed: u64,
    /// How often it was opened again after a failure.
    pub restarts: u64,
    /// How often a sender came back.
    pub reconnects: u64,
    /// Invalid frames.
    pub corrupted: u64,
    /// Bytes copied.
    pub copied: u64,
}

/// Counters of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageCounters {
    /// Its name.
    pub name: String,
    /// Blocks that wait for it.
    pub waiting: usize,
    /// Blocks that came out of it.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Blocks that its edge has dropped.
    pub dropped_blocks: u64,
    /// Samples in those.
    pub dropped_samples: u64,
    /// Samples that a gate has kept back.
    pub kept_back: u64,
    /// How often a gate was opened.
    pub opened: u64,
    /// Bytes copied.
    pub copied: u64,
}

/// Counters of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SinkCounters {
    /// Its name.
    pub name: String,
    /// `new` (no samples yet), `down`, `open` or `finished`.
    pub state: String,
    /// Blocks that were delivered.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Samples that are known to be missing in what was delivered.
    pub lost: u64,
    /// Blocks of which it is not known whether samples are missing before them.
    pub unknown: u64,
    /// Blocks that wait.
    pub waiting: usize,
    /// Blocks that are under way.
    pub under_way: usize,
    /// Blocks that its edge has dropped.
    pub dropped_blocks: u64,
    /// Samples in those.
    pub dropped_samples: u64,
    /// Blocks that were lost when the sink failed.
    pub failed: u64,
    /// How often it was opened again after a failure.
    pub restarts: u64,
    /// How often a connection was made again.
    pub reconnects: u64,
    /// Blocks that were sent again.
    pub resent: u64,
    /// Samples that were verified.
    pub verified: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Median latency in microseconds, from the completion of a block to its delivery.
    pub latency_p50: u64,
    /// 99th percentile of the latency.
    pub latency_p99: u64,
    /// Maximum of the latency.
    pub latency_max: u64,
}

/// Counters of a control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ControlCounters {
    /// Its name.
    pub name: String,
    /// `down` or `up`.
    pub state: String,
    /// Commands that were carried out.
    pub commands: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Events received.
    pub events: u64,
    /// Invalid messages.
    pub malformed: u64,
    /// Reactions that took longer than the deadline.
    pub late: u64,
    /// The slowest reaction, in microseconds.
    pub slowest: u64,
    /// How often it came back.
    pub restarts: u64,
}

/// An event of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// The name of the node.
    pub node: String,
    /// What happened: `trouble`, `restarted`, `came`, `event`, `refused`.
    pub what: &'static str,
    /// Details: the text of an error, or the name of a coprocessor's event and its value.
    pub text: String,
}
