//! Stages and sinks with the edges before them.

use super::config::StageConfig;
use super::counters::{SinkCounters, StageCounters};
use super::edge::Edge;
use super::shape::Shape;
use super::sink::Sink;
use super::stage::Stage;

/// A stage with its input.
#[derive(Debug)]
pub(super) struct StageNode {
    pub config: StageConfig,
    pub edge: Edge,
    pub input: Producer,
    pub stage: Option<(Stage, Shape)>,
    pub ended: bool,
    /// Blocks that came out, and the samples in them.
    pub counts: (u64, u64),
}

#[derive(Debug)]
pub(super) struct SinkNode {
    pub edge: Edge,
    pub input: Producer,
    pub sink: Sink,
}

/// A node that blocks come from, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Producer {
    Source(usize),
    Stage(usize),
}

impl StageNode {
    pub(super) fn new(config: &StageConfig, input: Producer, edge: Edge) -> Self {
        Self { config: config.clone(), edge, input, stage: None, ended: false, counts: (0, 0) }
    }

    pub(super) fn counters(&self) -> StageCounters {
        let stage = self.stage.as_ref().map(|(stage, _)| stage);
        let (kept_back, opened) = match stage {
            Some(Stage::Gate(gate)) => gate.counts,
            _ => (0, 0),
        };
        StageCounters {
            name: self.config.name.clone(),
            waiting: self.edge.len(),
            blocks: self.counts.0,
            samples: self.counts.1,
            dropped_blocks: self.edge.counts.dropped_blocks,
            dropped_samples: self.edge.counts.dropped_samples,
            kept_back,
            opened,
            copied: stage.map_or(0, Stage::copied),
        }
    }
}

impl SinkNode {
    pub(super) fn counters(&self) -> SinkCounters {
        self.sink.counters(&self.edge)
    }
}
