//! What a pipeline has done and has.

use serde::Serialize;

/// How a pipeline stands: totals since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// The sources.
    pub sources: Vec<SourceCounters>,
    /// The stages.
    pub stages: Vec<StageCounters>,
    /// The sinks.
    pub sinks: Vec<SinkCounters>,
    /// The controls.
    pub controls: Vec<ControlCounters>,
    /// Bytes that were copied, as often as they were, in all nodes.
    pub copied: u64,
}

/// Of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceCounters {
    /// What it is called.
    pub name: String,
    /// `off`, `down`, `open` or `ended`.
    pub state: String,
    /// How it is read, where that was a choice: `dmabuf`, `fileio`, `synth`.
    pub interface: Option<String>,
    /// Where its blocks are, where that was a choice.
    pub memory: Option<String>,
    /// Blocks that came.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Samples that are known to be missing.
    pub lost: u64,
    /// Blocks of which it is not known whether samples are missing before them.
    pub unknown: u64,
    /// Blocks with which a converter has failed.
    pub failed: u64,
    /// How often it was opened anew after a failure.
    pub restarts: u64,
    /// How often a sender came back.
    pub reconnects: u64,
    /// Frames that could not be.
    pub corrupted: u64,
    /// Bytes that were copied.
    pub copied: u64,
}

/// Of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageCounters {
    /// What it is called.
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
    /// Bytes that were copied.
    pub copied: u64,
}

/// Of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SinkCounters {
    /// What it is called.
    pub name: String,
    /// `new` (nothing came yet), `down`, `open` or `finished`.
    pub state: String,
    /// Blocks that were delivered.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Samples that are missing in what was delivered, and told so.
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
    /// How often it was opened anew after a failure.
    pub restarts: u64,
    /// How often a connection was made anew.
    pub reconnects: u64,
    /// Blocks that were sent again.
    pub resent: u64,
    /// Samples that were verified.
    pub verified: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Microseconds within which half of the blocks were delivered since they were complete.
    pub latency_p50: u64,
    /// The same for 99 of 100.
    pub latency_p99: u64,
    /// The same for all.
    pub latency_max: u64,
}

/// Of a control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ControlCounters {
    /// What it is called.
    pub name: String,
    /// `down` or `up`.
    pub state: String,
    /// Commands that were carried out.
    pub commands: u64,
    /// Commands that were not.
    pub refused: u64,
    /// Events.
    pub events: u64,
    /// Messages that could not be.
    pub malformed: u64,
    /// Reactions that took longer than the deadline.
    pub late: u64,
    /// Microseconds of the slowest reaction.
    pub slowest: u64,
    /// How often it came back.
    pub restarts: u64,
}

/// Something that has happened in a pipeline, and is not only counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The node.
    pub node: String,
    /// What: `trouble`, `restarted`, `came`, `event`, `refused`.
    pub what: &'static str,
    /// More of it.
    pub text: String,
}
