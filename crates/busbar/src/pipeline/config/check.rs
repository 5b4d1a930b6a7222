//! Checks of a configuration.

use std::collections::HashSet;

use super::Config;
use super::edge::{Edge, WhenFull};
use super::fault::Fault;
use super::source::SourceConfig;
use super::stage::Work;
use crate::Result;
use crate::pipeline::message::Action;
use crate::stream::StreamSetup;

/// Most nodes of one kind.
const MOST_NODES: usize = 64;

impl Config {
    /// Checks everything that can be checked without opening anything.
    ///
    /// # Errors
    ///
    /// Bad input, naming the node, the key, its value and the allowed values.
    pub fn check(&self) -> Result<()> {
        Ok(self.verify()?)
    }

    pub(in crate::pipeline) fn verify(&self) -> Result<(), Fault> {
        self.verify_names()?;
        self.verify_edges()?;
        self.verify_controls()?;
        for source in &self.sources {
            self.verify_blocks(source)?;
        }
        Ok(())
    }

    fn verify_names(&self) -> Result<(), Fault> {
        let all = [
            ("source", self.sources.iter().map(|it| it.name.as_str()).collect::<Vec<_>>()),
            ("stage", self.stages.iter().map(|it| it.name.as_str()).collect()),
            ("sink", self.sinks.iter().map(|it| it.name.as_str()).collect()),
            ("control", self.controls.iter().map(|it| it.name.as_str()).collect()),
        ];
        let mut seen = HashSet::new();
        for (kind, names) in all {
            if names.len() > MOST_NODES {
                return Err(Fault::new(&[kind], names.len(), format!("up to {MOST_NODES}")));
            }
            if names.is_empty() && matches!(kind, "source" | "sink") {
                return Err(Fault::new(&[kind], "nothing", format!("one {kind} or more")));
            }
            for name in names {
                if !is_name(name) {
                    let allowed = "names of 1 to 31 letters, digits, - and _";
                    return Err(Fault::new(&[kind, name], name, allowed));
                }
                if !seen.insert(name) {
                    return Err(Fault::new(&[kind, name], name, "each name once"));
                }
            }
        }
        Ok(())
    }

    fn verify_edges(&self) -> Result<(), Fault> {
        for (kind, name, edge) in self.edges() {
            if self.producers().all(|it| it != edge.from) {
                let names: Vec<_> = self.producers().collect();
                let allowed = format!("the name of a source or stage: {}", names.join(", "));
                return Err(Fault::new(&[kind, name, "input"], &edge.from, allowed));
            }
            if let Some(queue) = edge.queue
                && !(1..=StreamSetup::MAX_BLOCKS).contains(&queue)
            {
                let allowed = format!("1 to {}", StreamSetup::MAX_BLOCKS);
                return Err(Fault::new(&[kind, name, "queue"], queue, allowed));
            }
        }
        for stage in &self.stages {
            self.source_of(&stage.name).ok_or_else(|| {
                let allowed = "a source, or a stage that does not come behind this one";
                Fault::new(&["stage", &stage.name, "input"], &stage.input.from, allowed)
            })?;
        }
        let used: HashSet<_> = self.edges().map(|(_, _, edge)| edge.from.as_str()).collect();
        match self.producers().find(|name| !used.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let kind = if self.is_source(name) { "source" } else { "stage" };
                Err(Fault::new(&[kind, name], name, "a node that another one has as its input"))
            }
        }
    }

    fn verify_controls(&self) -> Result<(), Fault> {
        let names = || self.controls.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
        for stage in &self.stages {
            let Work::Gate(gate) = &stage.work else { continue };
            if !names().contains(&gate.control.as_str()) {
                let allowed = format!("the name of a control: {}", names().join(", "));
                return Err(Fault::new(&["stage", &stage.name, "control"], &gate.control, allowed));
            }
        }
        let mut owned = HashSet::new();
        for control in &self.controls {
            for source in &control.sources {
                let path = ["control", &control.name, "sources"];
                if !self.is_source(source) {
                    return Err(Fault::new(&path, source, "names of sources"));
                }
                if !owned.insert(source) {
                    return Err(Fault::new(&path, source, "each source in one control"));
                }
            }
            for sink in &control.sinks {
                if self.is_source(sink) || self.converter(sink).is_none() {
                    let path = ["control", &control.name, "sinks"];
                    return Err(Fault::new(&path, sink, "names of sinks that are converters"));
                }
            }
            let actions = control.on.iter().flat_map(|reaction| {
                reaction.actions.iter().map(move |action| (&reaction.event, action))
            });
            for (event, action) in actions {
                let name = action.source().as_str();
                let sets = matches!(action, Action::Set { .. });
                let is_sink = sets && self.converter(name).is_some();
                if !self.is_source(name) && !is_sink {
                    let path = ["control", &control.name, "on", event];
                    let allowed =
                        "actions on sources of the pipeline, or set on sinks that are converters";
                    return Err(Fault::new(&path, action, allowed));
                }
            }
        }
        Ok(())
    }

    /// An edge that drops, and those behind it, must not hold so many blocks that the source has none
    /// left for the others.
    fn verify_blocks(&self, source: &SourceConfig) -> Result<(), Fault> {
        let needed = 1 + self.queued(source, |edge| self.drops(edge));
        match source.blocks {
            Some(blocks) if !(1..=StreamSetup::MAX_BLOCKS).contains(&blocks) => {
                let allowed = format!("1 to {}", StreamSetup::MAX_BLOCKS);
                Err(Fault::new(&["source", &source.name, "blocks"], blocks, allowed))
            }
            Some(blocks) if blocks < needed => {
                let allowed = format!(
                    "{needed} or more: edges that drop, and those behind them, hold up to {}, and one is \
                     filled meanwhile",
                    needed - 1
                );
                Err(Fault::new(&["source", &source.name, "blocks"], blocks, allowed))
            }
            None if needed > StreamSetup::MAX_BLOCKS => {
                let allowed =
                    format!("edges that hold up to {} in all", StreamSetup::MAX_BLOCKS - 1);
                Err(Fault::new(&["source", &source.name], needed, allowed))
            }
            _ => Ok(()),
        }
    }

    /// Whether this edge, or one before it, drops blocks when it is full.
    pub(super) fn drops(&self, edge: &Edge) -> bool {
        let mut edge = edge;
        for _ in 0..=self.stages.len() {
            if edge.when_full != WhenFull::Block {
                return true;
            }
            match self.stages.iter().find(|it| it.name == edge.from) {
                Some(stage) => edge = &stage.input,
                None => return false,
            }
        }
        false
    }
}

/// Whether this is a valid name of a node.
fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=31).contains(&text.len()) && text.bytes().all(fits)
}
