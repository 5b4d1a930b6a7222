//! The configuration of a pipeline.

mod check;
mod control;
mod edge;
mod fault;
mod sink;
mod source;
mod stage;

use std::time::Duration;

pub use self::control::{ControlConfig, Reaction};
pub use self::edge::{Edge, WhenFull};
pub use self::sink::{SinkConfig, SinkKind};
pub use self::source::{SourceConfig, SourceKind};
pub use self::stage::{Gate, StageConfig, Work};

pub(super) use self::control::REACTION;
pub(super) use self::fault::Fault;

use crate::stream::StreamSetup;
use crate::stream::net::Count;

/// Least blocks of a source that does not set them, and of an edge that drops.
const BLOCKS: usize = 4;
/// Blocks of a source in addition to those that its edges hold.
const SPARE: usize = 2;

/// The configuration of a pipeline.
///
/// It is parsed from a file by [`Config::parse`], or built by a program. [`Pipeline::open`](super::Pipeline::open)
/// checks it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// How long the end may take: blocks under way are delivered within this time. `None`: 5 s.
    pub drain: Option<Duration>,
    /// Whether a part that fails ends the pipeline at once. Otherwise it is opened again for the time `patience`.
    pub fail_fast: bool,
    /// The sources of samples.
    pub sources: Vec<SourceConfig>,
    /// The stages that process them.
    pub stages: Vec<StageConfig>,
    /// The sinks that they go to.
    pub sinks: Vec<SinkConfig>,
    /// The coprocessors that control the sources.
    pub controls: Vec<ControlConfig>,
}

/// ```
/// use busbar::pipeline::{Config, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind, State};
///
/// # fn main() -> busbar::Result<()> {
/// let adc = SourceConfig::new("adc", SourceKind::Device("synth:counter".into())).count(100_000);
/// let all = SinkConfig::new("all", Edge::new("adc"), SinkKind::Verify { counter: true });
/// let mut pipeline = Pipeline::open(Config::new().source(adc).sink(all))?;
/// while pipeline.turn()? != State::Finished {}
/// # Ok(())
/// # }
/// ```
impl Config {
    /// An empty configuration. A pipeline needs at least one source and one sink.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`drain`](Self#structfield.drain).
    #[must_use]
    pub fn drain(mut self, drain: impl Into<Option<Duration>>) -> Self {
        self.drain = drain.into();
        self
    }

    /// Sets [`fail_fast`](Self#structfield.fail_fast).
    #[must_use]
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Adds one of [`sources`](Self#structfield.sources).
    #[must_use]
    pub fn source(mut self, source: SourceConfig) -> Self {
        self.sources.push(source);
        self
    }

    /// Adds one of [`stages`](Self#structfield.stages).
    #[must_use]
    pub fn stage(mut self, stage: StageConfig) -> Self {
        self.stages.push(stage);
        self
    }

    /// Adds one of [`sinks`](Self#structfield.sinks).
    #[must_use]
    pub fn sink(mut self, sink: SinkConfig) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Adds one of [`controls`](Self#structfield.controls).
    #[must_use]
    pub fn control(mut self, control: ControlConfig) -> Self {
        self.controls.push(control);
        self
    }

    /// Number of blocks of a source: as configured, or two more than its edges can hold.
    pub(super) fn blocks(&self, source: &SourceConfig) -> usize {
        source.blocks.unwrap_or_else(|| {
            let held = SPARE + self.queued(source, |_| true);
            held.clamp(BLOCKS, StreamSetup::MAX_BLOCKS)
        })
    }

    /// As [`blocks`](Self::blocks), for a source whose sender determines how long they are.
    pub(super) fn count(&self, source: &SourceConfig) -> Count {
        if let Some(fixed) = source.blocks {
            return Count { fixed, suited: 0 };
        }
        let fixed = SPARE + self.queued(source, |edge| !self.is_suited(edge));
        Count { fixed, suited: self.behind(source).filter(|edge| self.is_suited(edge)).count() }
    }

    /// The edges behind a source.
    fn behind(&self, source: &SourceConfig) -> impl Iterator<Item = &Edge> {
        let edges = self.edges().map(|(_, _, edge)| edge);
        edges.filter(|edge| self.source_of(&edge.from).is_some_and(|it| it == source.name))
    }

    /// Blocks of a source that the edges for which `counts` holds can hold.
    fn queued(&self, source: &SourceConfig, counts: impl Fn(&Edge) -> bool) -> usize {
        let edges = self.behind(source).filter(|edge| counts(edge));
        edges.map(|edge| self.queue(edge, source.block_len)).sum()
    }

    /// Whether the number of blocks of an edge follows their length.
    pub(super) fn is_suited(&self, edge: &Edge) -> bool {
        edge.queue.is_none() && !self.drops(edge)
    }

    /// The number of blocks of an edge, for blocks of a length.
    pub(super) fn queue(&self, edge: &Edge, block_len: usize) -> usize {
        let source = self.source_of(&edge.from);
        let beside = |other: &&Edge| self.is_suited(other) && self.source_of(&other.from) == source;
        let suited = || {
            if self.drops(edge) {
                return BLOCKS;
            }
            let edges = self.edges().map(|(_, _, edge)| edge);
            StreamSetup::enough_of(block_len, edges.filter(beside).count())
        };
        edge.queue.unwrap_or_else(suited)
    }

    /// All edges, with the kind and name of the node behind each.
    pub(super) fn edges(&self) -> impl Iterator<Item = (&'static str, &str, &Edge)> {
        let stages = self.stages.iter().map(|it| ("stage", it.name.as_str(), &it.input));
        stages.chain(self.sinks.iter().map(|it| ("sink", it.name.as_str(), &it.input)))
    }

    fn producers(&self) -> impl Iterator<Item = &str> {
        let sources = self.sources.iter().map(|it| it.name.as_str());
        sources.chain(self.stages.iter().map(|it| it.name.as_str()))
    }

    /// The device of a source or a sink, `iio:` left out, if that is a converter.
    pub(super) fn converter(&self, name: &str) -> Option<&str> {
        let source = self.sources.iter().find(|it| it.name == name).map(|it| &it.from);
        let sink = self.sinks.iter().find(|it| it.name == name).map(|it| &it.to);
        match (source, sink) {
            (Some(SourceKind::Device(device)), _) | (_, Some(SinkKind::Device(device))) => {
                device.strip_prefix("iio:")
            }
            _ => None,
        }
    }

    fn is_source(&self, name: &str) -> bool {
        self.sources.iter().any(|it| it.name == name)
    }

    /// The source whose samples come to this node; `None` if the stages form a loop.
    pub(super) fn source_of<'a>(&'a self, node: &'a str) -> Option<&'a str> {
        let mut name = node;
        for _ in 0..=self.stages.len() {
            if self.is_source(name) {
                return Some(name);
            }
            name = &self.stages.iter().find(|it| it.name == name)?.input.from;
        }
        None
    }

    /// The sinks whose samples come from this source.
    pub(super) fn sinks_of<'a>(&'a self, source: &'a str) -> impl Iterator<Item = &'a SinkConfig> {
        self.sinks.iter().filter(move |it| self.source_of(&it.input.from) == Some(source))
    }
}

#[cfg(test)]
mod tests;
