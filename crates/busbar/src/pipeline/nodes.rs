//! The nodes of a pipeline, and the edges between them.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::io::Errno;

use super::config::{self, Config, SourceKind, StageConfig};
use super::control::Control;
use super::counters::Counters;
use super::edge::{Edge, Item, Next};
use super::node::{Producer, SinkNode, StageNode};
use super::shape::Shape;
use super::sink::{self, Sink};
use super::source::{Admitted, Farewell, Source};
use super::stage::{Made, Stage};
use crate::stream::{Lost, StreamSetup};
use crate::wait::{Interest, Poller};
use crate::{Error, Result};

/// What becomes of the first sender of a source.
#[derive(Debug)]
pub(super) enum Admission {
    Taken,
    /// A node behind the source is still being opened: to be asked again.
    Pending,
    /// The nodes do not take samples of this shape.
    Refused(Error),
}

#[derive(Debug)]
pub(super) struct Nodes {
    pub controls: Vec<Control>,
    pub sources: Vec<Source>,
    /// Each stage is behind its input.
    pub stages: Vec<StageNode>,
    pub sinks: Vec<SinkNode>,
    /// For each node, how often it had been opened when it was watched last.
    watched: Vec<u64>,
    /// Of stages and sinks: whether the number of blocks of the edge before it follows their length.
    suited: (Vec<bool>, Vec<bool>),
}

impl Nodes {
    pub(super) fn open(config: &Config) -> Result<Self> {
        let is_owned = |name: &String| config.controls.iter().any(|it| it.sources.contains(name));
        let sources: Vec<_> = config
            .sources
            .iter()
            .map(|it| Source::new(it, config, !is_owned(&it.name)))
            .collect::<Result<_>>()?;
        let stages = in_order(config);
        let producer = |name: &str| {
            let stage = stages.iter().position(|it| it.name == name).map(Producer::Stage);
            let source = config.sources.iter().position(|it| it.name == name);
            // The configuration was checked: there is one.
            stage.or(source.map(Producer::Source)).unwrap_or(Producer::Source(0))
        };
        let edge = |it: &config::Edge| {
            let source = config
                .sources
                .iter()
                .find(|source| config.source_of(&it.from).is_some_and(|name| name == source.name));
            // The configuration was checked: there is one.
            let len = source.map_or(0, |source| source.block_len);
            Edge::new(it, config.queue(it, len))
        };
        let sinks = config.sinks.iter().map(|it| {
            let from = config.source_of(&it.input.from);
            let from = config.sources.iter().find(|source| Some(source.name.as_str()) == from);
            let hw = from.and_then(|source| match &source.from {
                SourceKind::Device(name) => Some(name.clone()),
                _ => None,
            });
            SinkNode {
                edge: edge(&it.input),
                input: producer(&it.input.from),
                sink: Sink::new(it, config, hw),
            }
        });
        let sinks: Vec<_> = sinks.collect();
        let suited = (
            stages.iter().map(|it| config.is_suited(&it.input)).collect(),
            config.sinks.iter().map(|it| config.is_suited(&it.input)).collect(),
        );
        let stages: Vec<_> = stages
            .iter()
            .map(|it| StageNode::new(it, producer(&it.input.from), edge(&it.input)))
            .collect();
        let controls: Vec<_> = config.controls.iter().map(Control::new).collect();
        let watched = vec![0; controls.len() + sources.len() + stages.len() + sinks.len()];
        Ok(Self { controls, sources, stages, sinks, watched, suited })
    }

    /// The edges behind a node, each with the number of blocks under way in its sink.
    fn edges(&mut self, producer: Producer) -> impl Iterator<Item = (&mut Edge, usize)> {
        let stages = self.stages.iter_mut().filter(move |it| it.input == producer);
        let sinks = self.sinks.iter_mut().filter(move |it| it.input == producer);
        stages
            .map(|it| (&mut it.edge, 0))
            .chain(sinks.map(|it| (&mut it.edge, it.sink.under_way())))
    }

    pub(super) fn has_room(&mut self, producer: Producer) -> bool {
        self.edges(producer).all(|(edge, under_way)| edge.has_room(under_way))
    }

    pub(super) fn push(&mut self, producer: Producer, item: &Item) {
        self.edges(producer).for_each(|(edge, under_way)| edge.push(item.clone(), under_way));
    }

    pub(super) fn finish(&mut self, producer: Producer, lost: Lost) {
        self.edges(producer).for_each(|(edge, _)| edge.finish(lost));
    }

    /// Whether all senders know of the end.
    pub(super) fn have_left(&mut self) -> bool {
        self.sources.iter_mut().all(Source::has_left)
    }

    /// Ends all sources; senders get the reason.
    pub(super) fn end(&mut self, reason: &str) {
        for source in &mut self.sources {
            source.end(Farewell::Because(reason));
        }
    }

    /// Blocks that wait before stages on the way to this node.
    pub(super) fn waiting_before(&self, producer: Producer) -> usize {
        match producer {
            Producer::Source(_) => 0,
            Producer::Stage(index) => {
                let StageNode { edge, input, .. } = &self.stages[index];
                edge.len() + self.waiting_before(*input)
            }
        }
    }

    pub(super) fn have_ended(&self) -> bool {
        self.sources.iter().all(|it| it.state() == "ended")
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let controls = self.controls.iter().filter_map(Control::due);
        let sources = self.sources.iter().filter_map(Source::due);
        controls.chain(sources).chain(self.sinks.iter().filter_map(|it| it.sink.due())).min()
    }

    /// Passes an event of a control to the gates.
    pub(super) fn hear(&mut self, control: &str, event: &str) {
        for node in &mut self.stages {
            if let Some((Stage::Gate(gate), _)) = &mut node.stage {
                gate.hear(control, event);
            }
        }
    }

    /// One turn of each stage. Returns whether a block has moved.
    pub(super) fn work(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.stages.len() {
            if self.stages[index].stage.is_none() {
                self.open_stage(index, &mut { usize::MAX })?;
            }
            while self.stages[index].edge.has_next() && self.has_room(Producer::Stage(index)) {
                if !self.work_once(index)? {
                    break;
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Opens the nodes behind a source whose first sender has come, as far as its shape decides whether that
    /// succeeds.
    ///
    /// # Errors
    ///
    /// An error that has nothing to do with the shape.
    pub(super) fn admit(&mut self, source: usize) -> Result<Admission> {
        let is_pending = self.sources[source].admitted == Admitted::Pending;
        let opened = if is_pending { Ok(()) } else { self.open_behind(source) };
        let error = match opened.and_then(|()| self.are_admitted(source)) {
            Ok(true) => return Ok(Admission::Taken),
            Ok(false) => {
                self.sources[source].admitted = Admitted::Pending;
                return Ok(Admission::Pending);
            }
            Err(error) => error,
        };
        if !is_of_shape(&error) {
            return Err(error);
        }
        for index in 0..self.stages.len() {
            if self.source_of(Producer::Stage(index)) == source {
                self.stages[index].stage = None;
            }
        }
        for index in 0..self.sinks.len() {
            if self.source_of(self.sinks[index].input) == source {
                self.sinks[index].sink.dismiss();
            }
        }
        Ok(Admission::Refused(error))
    }

    /// Whether all sinks behind a source are open that have to be.
    fn are_admitted(&mut self, source: usize) -> Result<bool> {
        let mut are = true;
        self.each_sink_behind(source, |sink, shape| {
            are &= sink.is_admitted(shape)?;
            Ok(())
        })?;
        Ok(are)
    }

    /// Does something with each sink behind a source of which the shape is known. Errors are those of the sink.
    fn each_sink_behind(
        &mut self,
        source: usize,
        mut act: impl FnMut(&mut Sink, &Shape) -> Result<()>,
    ) -> Result<()> {
        for index in 0..self.sinks.len() {
            let input = self.sinks[index].input;
            if self.source_of(input) != source {
                continue;
            }
            let Self { sources, stages, sinks, .. } = self;
            if let Some(shape) = shape(sources, stages, input) {
                let sink = &mut sinks[index].sink;
                let place = format!("sink `{}`", sink.name());
                act(sink, shape).map_err(|error| error.within(&place))?;
            }
        }
        Ok(())
    }

    fn open_behind(&mut self, source: usize) -> Result<()> {
        self.suit(source);
        let mut room = self.sources[source].room();
        for index in 0..self.stages.len() {
            if self.source_of(Producer::Stage(index)) == source {
                self.open_stage(index, &mut room)?;
            }
        }
        self.each_sink_behind(source, |sink, shape| sink.admit(shape, &mut room))
    }

    /// Has edges behind a source hold as many blocks as are enough, now that it is known how long they are.
    fn suit(&mut self, source: usize) {
        let Some(shape) = self.sources[source].shape() else { return };
        let stage = |&index: &usize| {
            self.suited.0[index] && self.source_of(Producer::Stage(index)) == source
        };
        let sink = |&index: &usize| {
            self.suited.1[index] && self.source_of(self.sinks[index].input) == source
        };
        let stages: Vec<_> = (0..self.stages.len()).filter(stage).collect();
        let sinks: Vec<_> = (0..self.sinks.len()).filter(sink).collect();
        let enough = StreamSetup::enough_of(shape.block_len, stages.len() + sinks.len());
        for index in stages {
            self.stages[index].edge.set_capacity(enough);
        }
        for index in sinks {
            self.sinks[index].edge.set_capacity(enough);
        }
    }

    /// The source that the blocks of a producer come from.
    fn source_of(&self, producer: Producer) -> usize {
        match producer {
            Producer::Source(index) => index,
            Producer::Stage(index) => self.source_of(self.stages[index].input),
        }
    }

    /// Opens a stage once the shape of its input is known. Its blocks are taken from `room`.
    fn open_stage(&mut self, index: usize, room: &mut usize) -> Result<()> {
        let node = &self.stages[index];
        let Some(input) = shape(&self.sources, &self.stages, node.input) else { return Ok(()) };
        let queued = self.queued(Producer::Stage(index));
        let stage = Stage::open(&node.config.work, input, queued, room)
            .map_err(|error| error.within(&format!("stage `{}`", node.config.name)))?;
        self.stages[index].stage = Some(stage);
        Ok(())
    }

    /// Blocks of a node that the edges behind it can hold.
    fn queued(&self, producer: Producer) -> usize {
        let sinks = self.sinks.iter().filter(|it| it.input == producer);
        let stages = self.stages.iter().enumerate().filter(|(_, it)| it.input == producer);
        sinks.map(|it| it.edge.capacity()).sum::<usize>()
            + stages
                .map(|(index, it)| it.edge.capacity() + self.queued(Producer::Stage(index)))
                .sum::<usize>()
    }

    /// Has a stage work on one block. Returns whether there was one.
    fn work_once(&mut self, index: usize) -> Result<bool> {
        let producer = Producer::Stage(index);
        let node = &mut self.stages[index];
        match node.edge.next() {
            None => Ok(false),
            Some(Next::End(_)) if node.ended => Ok(false),
            Some(Next::End(lost)) => {
                node.ended = true;
                let lost = node.stage.as_mut().map_or(lost, |(stage, _)| stage.finish(lost));
                self.finish(producer, lost);
                Ok(true)
            }
            Some(Next::Block(item)) => {
                let Some((stage, _)) = &mut node.stage else {
                    node.edge.put_back(item);
                    return Ok(false);
                };
                match stage.make(item)? {
                    Made::NoRoom(item) => {
                        node.edge.put_back(item);
                        return Ok(false);
                    }
                    Made::Nothing => {}
                    Made::Item(item) => {
                        node.counts = (node.counts.0 + 1, node.counts.1 + item.count);
                        self.push(producer, &item);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Watches new descriptors. The kernel removes those that are closed.
    pub(super) fn watch(&mut self, poller: &Poller) -> Result<()> {
        let both = (Interest::READABLE | Interest::WRITABLE).edge();
        let input = Interest::READABLE.edge();
        let controls = self.controls.iter().map(|it| (it.opens, it.descriptor(), both));
        let sources = self.sources.iter().map(|it| (it.opens, it.descriptor(), input));
        let pools = self.stages.iter().map(|it| {
            let pool = it.stage.as_ref().and_then(|(stage, _)| stage.pool());
            (u64::from(pool.is_some()), pool.map(AsFd::as_fd), input)
        });
        let sinks = self.sinks.iter().map(|it| (it.sink.opens, it.sink.descriptor(), both));
        let all = controls.chain(sources).chain(pools).chain(sinks);
        for (index, (opens, fd, interest)) in all.enumerate() {
            let (Some(fd), true) = (fd, self.watched[index] != opens) else { continue };
            match poller.add(&fd, index as u64 + 1, interest) {
                // A recording is always readable.
                Err(error) if error.errno() != Some(Errno::PERM) => return Err(error),
                _ => self.watched[index] = opens,
            }
        }
        Ok(())
    }

    /// One turn of a sink; also returns whether the sink was opened again in it.
    pub(super) fn turn_sink(&mut self, index: usize) -> Result<(sink::Turn, bool)> {
        let Self { sources, stages, sinks, .. } = self;
        let SinkNode { edge, sink, input } = &mut sinks[index];
        let restarts = sink.restarts();
        let turn = sink.turn(edge, shape(sources, stages, *input))?;
        Ok((turn, sink.restarts() > restarts))
    }

    pub(super) fn counters(&self) -> Counters {
        let mut all = Counters {
            sources: self.sources.iter().map(Source::counters).collect(),
            stages: self.stages.iter().map(StageNode::counters).collect(),
            sinks: self.sinks.iter().map(SinkNode::counters).collect(),
            controls: self.controls.iter().map(Control::counters).collect(),
            copied: 0,
        };
        all.copied = all.sources.iter().map(|it| it.copied).sum::<u64>()
            + all.stages.iter().map(|it| it.copied).sum::<u64>()
            + all.sinks.iter().map(|it| it.copied).sum::<u64>();
        all
    }
}

/// Whether another shape of samples may succeed.
fn is_of_shape(error: &Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, OutOfMemory, StorageFull};
    matches!(error.kind(), InvalidData | InvalidInput | OutOfMemory | StorageFull)
}

/// The shape of the blocks of a producer, once it is known.
fn shape<'a>(
    sources: &'a [Source],
    stages: &'a [StageNode],
    producer: Producer,
) -> Option<&'a Shape> {
    match producer {
        Producer::Source(index) => sources[index].shape(),
        Producer::Stage(index) => stages[index].stage.as_ref().map(|(_, shape)| shape),
    }
}

/// The stages in an order in which each is behind its input.
fn in_order(config: &Config) -> Vec<&StageConfig> {
    let mut ordered: Vec<&StageConfig> = Vec::new();
    let is_source = |name: &str| config.sources.iter().any(|it| it.name == name);
    while ordered.len() < config.stages.len() {
        let next = config.stages.iter().find(|it| {
            let from = it.input.from.as_str();
            let has_input = is_source(from) || ordered.iter().any(|before| before.name == from);
            has_input && ordered.iter().all(|before| before.name != it.name)
        });
        // The configuration was checked: there is no circle.
        let Some(next) = next else { break };
        ordered.push(next);
    }
    ordered
}
