//! Pipelines: sources, stages and sinks that one loop joins.
//!
//! A [`Pipeline`] is opened from a [`Config`], which is a file of TOML or put together by a program.
//! [`Pipeline::turn`] does what can be done and waits until there is more; all of it in one thread and
//! at one [`Poller`].
//!
//! ```
//! use std::time::Duration;
//!
//! use busbar::pipeline::{Config, Pipeline, State};
//!
//! # fn main() -> busbar::Result<()> {
//! let config = Config::parse("example", r#"
//!     [source.adc]
//!     from = "synth:counter?rate=10M"
//!
//!     [stage.tenth]
//!     input = "adc"
//!     do = "decimate"
//!     by = 10
//!
//!     [sink.all]
//!     input = "adc"
//!     to = "verify:counter"
//!
//!     [sink.some]
//!     input = "tenth"
//!     to = "null:"
//! "#)?;
//! let mut pipeline = Pipeline::open(config)?;
//! while pipeline.counters().sinks[0].samples < 100_000 {
//!     pipeline.turn()?;
//! }
//! pipeline.stop();
//! while pipeline.turn()? != State::Finished {}
//! let counters = pipeline.counters();
//! assert_eq!(counters.sinks[0].verified, counters.sources[0].samples);
//! # Ok(())
//! # }
//! ```
//!
//! # Blocks
//!
//! A block passes by reference: each sink behind a source has the same one, and it goes back to its
//! driver when the last of them is done with it. Stages that make samples of their own (`decimate`,
//! `select`) copy those; [`Counters::copied`] tells how many bytes.
//!
//! # Edges
//!
//! Each node has an edge before it: blocks that wait, and those that a sink has under way. A full edge
//! has the source wait, or drops the oldest or newest block ([`WhenFull`]). A block that follows a
//! dropped one says how many samples are missing, as it does of those that a converter has lost: over the
//! network, in recordings, to whoever verifies.
//!
//! # What fails
//!
//! A converter, a peer or a coprocessor that goes is opened anew, again and again, for as long as
//! `patience` says: for ever unless it is given. What is lost meanwhile is told as a loss, known or
//! unknown. What cannot be right later either is an error of [`Pipeline::turn`]: a file that cannot be
//! written, samples that are not what they should be, a converter that comes back with other samples. At
//! the start, converters, files and addresses have to be there; coprocessors may come later.
//!
//! # Control
//!
//! A coprocessor that has a say ([`ControlConfig`]) is told `start SOURCE` when it comes, and starts,
//! stops and tunes the sources that are its own by commands; see [`message`]. Its events open and close
//! gates and cause actions. All that is done before anything else in a turn. How long a reaction took is
//! measured from the wake-up that its message caused or, if the loop was busy, from the last look that
//! did not find it, until everything is done. Those that took longer than the deadline are counted.

mod bulk;
mod config;
mod control;
mod counters;
mod edge;
mod endpoint;
mod file;
pub mod message;
mod sink;
mod source;
mod stage;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

pub use self::config::{
    Config, ControlConfig, Edge, Gate, Reaction, SinkConfig, SinkKind, SourceConfig, SourceKind,
    StageConfig, WhenFull, Work,
};
pub use self::counters::{
    ControlCounters, Counters, Event, SinkCounters, SourceCounters, StageCounters,
};

use self::control::Control;
use self::edge::Next;
use self::message::{Action, Report, Request};
use self::sink::Sink;
use self::source::{Farewell, Source, Taken};
use self::stage::{Made, Shape, Stage};
use crate::stream::Lost;
use crate::wait::{Events, Interest, Poller};
use crate::{Error, Reason, Result};

/// Between two looks at everything, with or without an event.
const TICK: Duration = Duration::from_millis(100);
/// A wait that is longer than this was one.
const BLINK: Duration = Duration::from_micros(200);
/// Blocks of one source in a turn: others want theirs, too.
const BATCH: usize = 16;
/// How long the end may take, unless it is said.
const DRAIN: Duration = Duration::from_secs(5);
/// Events that nobody has taken yet, at most.
const MOST_EVENTS: usize = 1024;

/// What a pipeline does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Samples pass.
    Running,
    /// There are no more to come, and some are under way.
    Draining,
    /// There is nothing left to do.
    Finished,
}

/// A pipeline that runs.
///
/// Dropping it ends it at once, whatever is under way; [`stop`](Self::stop) before.
#[derive(Debug)]
pub struct Pipeline {
    config: Config,
    poller: Poller,
    events: Events,
    nodes: Nodes,
    log: Vec<Event>,
    /// What was told last of each node that has trouble.
    troubles: HashMap<String, String>,
    /// When it has to be over.
    deadline: Option<Instant>,
    /// When messages were looked for last, or a wait has ended that was one.
    looked: Instant,
    /// Why it ends, while senders are told.
    failure: Option<Error>,
    is_finished: bool,
}

#[derive(Debug)]
struct Nodes {
    controls: Vec<Control>,
    sources: Vec<Source>,
    /// In an order in which each comes behind those that it needs.
    stages: Vec<StageNode>,
    sinks: Vec<SinkNode>,
    /// For each node with a descriptor, how often it was opened when it was watched last.
    watched: Vec<u64>,
}

/// A stage and what is before it.
#[derive(Debug)]
struct StageNode {
    config: StageConfig,
    edge: edge::Edge,
    input: Producer,
    stage: Option<(Stage, Shape)>,
    ended: bool,
    /// Blocks that came out, and samples.
    counts: (u64, u64),
}

#[derive(Debug)]
struct SinkNode {
    edge: edge::Edge,
    input: Producer,
    sink: Sink,
}

/// Where blocks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Producer {
    Source(usize),
    Stage(usize),
}

impl Pipeline {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// As [`Config::check`]; what a source says, see [the module](self#what-fails).
    pub fn open(config: Config) -> Result<Self> {
        config.check()?;
        let nodes = Nodes::open(&config)?;
        Ok(Self {
            poller: Poller::new()?,
            events: Events::new(64)?,
            nodes,
            config,
            log: Vec::new(),
            troubles: HashMap::new(),
            deadline: None,
            looked: Instant::now(),
            failure: None,
            is_finished: false,
        })
    }

    /// Wakes a [`turn`](Self::turn) when `fd` is readable: for signals. Level-triggered, so that a
    /// turn does not wait as long as it is.
    ///
    /// # Errors
    ///
    /// As [`Poller::add`].
    pub fn wake_for(&self, fd: &impl AsFd) -> Result<()> {
        self.poller.add(fd, 0, Interest::READABLE)
    }

    /// Does what there is to do; if there is nothing, waits until there may be something.
    ///
    /// # Errors
    ///
    /// As [`turn_timeout`](Self::turn_timeout).
    pub fn turn(&mut self) -> Result<State> {
        self.turn_timeout(Duration::MAX)
    }

    /// Does what there is to do now.
    ///
    /// # Errors
    ///
    /// As [`turn_timeout`](Self::turn_timeout).
    pub fn try_turn(&mut self) -> Result<State> {
        self.turn_timeout(Duration::ZERO)
    }

    /// Does what there is to do; if there is nothing, waits for it, at most for `timeout`.
    ///
    /// # Errors
    ///
    /// See [the module](self#what-fails). Whoever sends to the pipeline is told first: until they know,
    /// for a second at most, it is [`Draining`](State::Draining). `TimedOut` if not everything could be delivered in time at
    /// the end: [`remaining`](Self::remaining) tells what.
    pub fn turn_timeout(&mut self, timeout: Duration) -> Result<State> {
        if self.is_finished {
            return Ok(State::Finished);
        }
        if self.failure.is_some() {
            return self.leave(timeout);
        }
        let moved = match self.round() {
            Ok(moved) => moved,
            Err(error) => {
                self.nodes.end(&error.to_string());
                self.failure = Some(error);
                return self.leave(timeout);
            }
        };
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let has_left = self.nodes.have_left() || is_late;
        if has_left && self.nodes.sinks.iter().all(|node| node.sink.is_finished()) {
            self.is_finished = true;
            return Ok(State::Finished);
        }
        if is_late {
            self.is_finished = true;
            return Err(self.too_late());
        }
        self.wait(if moved { Duration::ZERO } else { timeout })?;
        let ended = self.deadline.is_some() || self.nodes.have_ended();
        Ok(if ended { State::Draining } else { State::Running })
    }

    /// After a failure: tells it once all senders know of it.
    fn leave(&mut self, timeout: Duration) -> Result<State> {
        if !self.nodes.have_left() {
            self.wait(timeout)?;
        }
        if !self.nodes.have_left() {
            return Ok(State::Draining);
        }
        self.is_finished = true;
        self.failure.take().map_or(Ok(State::Finished), Err)
    }

    /// Ends it: nothing more is taken from the sources, and what is under way is delivered by further
    /// [`turn`](Self::turn)s, within the time that [`Config::drain`] allows (5 s).
    pub fn stop(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        self.deadline = Some(Instant::now() + self.config.drain.unwrap_or(DRAIN));
        for control in &mut self.nodes.controls {
            for source in control.config.sources.clone() {
                if let Ok(name) = source.parse() {
                    control.say(Request::Stop(name));
                }
            }
            // Who is not there need not know.
            let _ = control.flush();
        }
        for index in 0..self.nodes.sources.len() {
            let lost = self.nodes.sources[index].end(Farewell::Because("the receiver has ended"));
            self.nodes.finish(Producer::Source(index), lost);
        }
    }

    /// Blocks that were not delivered yet, by sink.
    #[must_use]
    pub fn remaining(&self) -> Vec<(String, usize)> {
        let left = |node: &SinkNode| {
            let behind = self.nodes.waiting_before(node.input);
            (node.sink.name().to_owned(), node.edge.len() + node.sink.under_way() + behind)
        };
        self.nodes.sinks.iter().map(left).filter(|(_, left)| *left > 0).collect()
    }

    /// How it stands.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.nodes.counters()
    }

    /// What has happened since the last call. The oldest are left out if there are many.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.log)
    }

    fn too_late(&self) -> Error {
        let left: Vec<_> =
            self.remaining().iter().map(|(sink, left)| format!("{left} for `{sink}`")).collect();
        let left = if left.is_empty() { "an acknowledgement".into() } else { left.join(", ") };
        let why = std::io::Error::new(std::io::ErrorKind::TimedOut, format!("missing: {left}"));
        Error::new("deliver", "all blocks in the time for the end", why)
    }

    /// Everybody's turn, once. Whether something has moved.
    fn round(&mut self) -> Result<bool> {
        let mut moved = self.control();
        moved |= self.take()?;
        moved |= self.nodes.work()?;
        for index in 0..self.nodes.sinks.len() {
            let Nodes { sources, stages, sinks, .. } = &mut self.nodes;
            let SinkNode { edge, sink, input } = &mut sinks[index];
            let restarts = sink.counts.restarts;
            let turn = sink.turn(edge, shape(sources, stages, *input))?;
            let again = sink.counts.restarts > restarts;
            moved |= turn.moved;
            if turn.moved {
                self.troubles.remove(sink.name());
            }
            if again || turn.trouble.is_some() {
                let name = sink.name().to_owned();
                self.note_trouble(&name, turn.trouble, again);
            }
        }
        self.nodes.watch(&self.poller)?;
        Ok(moved)
    }

    /// The same trouble again is no news, until it is over.
    fn note_trouble(&mut self, node: &str, trouble: Option<Error>, again: bool) {
        if let Some(error) = trouble {
            let text = error.to_string();
            if self.troubles.get(node) != Some(&text) {
                self.note(node, "trouble", text.clone());
                self.troubles.insert(node.to_owned(), text);
            }
        }
        if again {
            self.troubles.remove(node);
            self.note(node, "restarted", String::new());
        }
    }

    fn note(&mut self, node: &str, what: &'static str, text: String) {
        if self.log.len() >= MOST_EVENTS {
            self.log.remove(0);
        }
        self.log.push(Event { node: node.to_owned(), what, text });
    }

    /// Hears the coprocessors and does what they say.
    fn control(&mut self) -> bool {
        let mut moved = false;
        let now = Instant::now();
        for index in 0..self.nodes.controls.len() {
            let turn = self.nodes.controls[index].turn();
            let name = self.nodes.controls[index].config.name.clone();
            if turn.came {
                self.troubles.remove(&name);
                self.note(&name, "came", String::new());
            }
            self.note_trouble(&name, turn.trouble, false);
            for report in turn.reports {
                moved = true;
                self.react(index, &name, report);
                let took = self.looked.elapsed();
                self.nodes.controls[index].reacted(took);
            }
            // Answers do not wait for the next turn.
            let _ = self.nodes.controls[index].flush();
        }
        self.looked = now;
        moved
    }

    fn react(&mut self, index: usize, name: &str, report: Report) {
        match report {
            Report::Command { number, action } => {
                let owns = self.nodes.controls[index].config.sources.iter();
                let result = if owns.into_iter().any(|it| it == action.source().as_str()) {
                    self.act(&action)
                } else {
                    let allowed = "its own sources, those of the key `sources`";
                    Err(Error::invalid("a source by a command", action.source(), allowed))
                };
                let control = &mut self.nodes.controls[index];
                match result {
                    Ok(()) => {
                        control.counts.commands += 1;
                        control.say(Request::Ok { number });
                    }
                    Err(error) => {
                        control.counts.refused += 1;
                        control.say(Request::error(number, &error));
                        self.note(name, "refused", error.to_string());
                    }
                }
            }
            Report::Event { name: event, value } => {
                self.nodes.controls[index].counts.events += 1;
                let value = value.map_or(String::new(), |value| format!(" {value}"));
                self.note(name, "event", format!("{event}{value}"));
                self.nodes.hear(name, event.as_str());
                let on = self.nodes.controls[index].config.on.clone();
                let actions = on.iter().filter(|it| it.event == event.as_str());
                for action in actions.flat_map(|it| &it.actions) {
                    if let Err(error) = self.act(action) {
                        self.note(name, "refused", error.to_string());
                    }
                }
            }
        }
    }

    fn act(&mut self, action: &Action) -> Result<()> {
        let wanted = action.source().as_str();
        let found = self.nodes.sources.iter_mut().find(|it| it.name() == wanted);
        let Some(source) = found else {
            return Err(Error::invalid("a source", wanted, "those that there are"));
        };
        match action {
            Action::Start(_) if self.deadline.is_some() => {
                Err(Error::new("start", format!("source `{wanted}`"), Errno::PIPE)
                    .help("the pipeline ends"))
            }
            Action::Start(_) => source.start(),
            Action::Stop(_) => {
                source.stop();
                Ok(())
            }
            Action::Set { attribute, value, .. } => {
                let device = source.device().ok_or_else(|| {
                    let allowed = "those that are converters: iio:NAME";
                    Error::invalid("a source with attributes", wanted, allowed)
                })?;
                crate::stream::set_attribute(device, attribute.as_str(), value.as_str())
            }
        }
    }

    /// Takes blocks from the sources, as long as nobody has them wait.
    fn take(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.nodes.sources.len() {
            let producer = Producer::Source(index);
            for _ in 0..BATCH {
                if !self.nodes.has_room(producer) {
                    break;
                }
                let source = &mut self.nodes.sources[index];
                let restarts = source.counts.restarts;
                let taken = source.take()?;
                if source.counts.restarts > restarts {
                    let name = source.name().to_owned();
                    self.note_trouble(&name, None, true);
                    moved = true;
                }
                match taken {
                    Taken::Nothing => break,
                    Taken::Trouble(error) => {
                        let name = self.nodes.sources[index].name().to_owned();
                        self.note_trouble(&name, Some(error), false);
                    }
                    Taken::Item(item) => {
                        self.troubles.remove(self.nodes.sources[index].name());
                        self.nodes.push(producer, &item);
                    }
                    Taken::End(lost) => self.nodes.finish(producer, lost),
                }
                moved = true;
            }
        }
        Ok(moved)
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        let now = Instant::now();
        let due = self.nodes.due().into_iter().chain(self.deadline).min();
        let due = due.map_or(TICK, |due| due.saturating_duration_since(now));
        let timeout = timeout.min(due).min(TICK);
        let waited = self.poller.wait_timeout(&mut self.events, timeout);
        // What was there before ends a wait at once; so what comes now came just now.
        if now.elapsed() > BLINK {
            self.looked = Instant::now();
        }
        match waited {
            Err(error) if error.reason() != Reason::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// Readable while a [`Pipeline::turn`] has something to do; it may be more often.
impl AsFd for Pipeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Nodes {
    fn open(config: &Config) -> Result<Self> {
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
            // The configuration was checked.
            stage.or(source.map(Producer::Source)).unwrap_or(Producer::Source(0))
        };
        let sinks = config.sinks.iter().map(|it| {
            let from = config.source_of(&it.input.from);
            let from = config.sources.iter().find(|source| Some(source.name.as_str()) == from);
            let hw = from.and_then(|source| match &source.from {
                SourceKind::Device(name) => Some(name.clone()),
                _ => None,
            });
            SinkNode {
                edge: edge::Edge::new(&it.input),
                input: producer(&it.input.from),
                sink: Sink::new(it, config, hw),
            }
        });
        let sinks: Vec<_> = sinks.collect();
        let stages: Vec<_> = stages
            .iter()
            .map(|it| StageNode {
                config: (*it).clone(),
                edge: edge::Edge::new(&it.input),
                input: producer(&it.input.from),
                stage: None,
                ended: false,
                counts: (0, 0),
            })
            .collect();
        let controls: Vec<_> = config.controls.iter().map(Control::new).collect();
        let watched = vec![0; controls.len() + sources.len() + stages.len() + sinks.len()];
        Ok(Self { controls, sources, stages, sinks, watched })
    }

    /// The edges behind a node, each with the blocks under way behind it.
    fn edges(&mut self, producer: Producer) -> impl Iterator<Item = (&mut edge::Edge, usize)> {
        let stages = self.stages.iter_mut().filter(move |it| it.input == producer);
        let sinks = self.sinks.iter_mut().filter(move |it| it.input == producer);
        stages
            .map(|it| (&mut it.edge, 0))
            .chain(sinks.map(|it| (&mut it.edge, it.sink.under_way())))
    }

    fn has_room(&mut self, producer: Producer) -> bool {
        self.edges(producer).all(|(edge, under_way)| edge.has_room(under_way))
    }

    fn push(&mut self, producer: Producer, item: &edge::Item) {
        self.edges(producer).for_each(|(edge, under_way)| edge.push(item.clone(), under_way));
    }

    fn finish(&mut self, producer: Producer, lost: Lost) {
        self.edges(producer).for_each(|(edge, _)| edge.finish(lost));
    }

    /// Whether every sender has heard of the end, as far as there is one.
    fn have_left(&mut self) -> bool {
        self.sources.iter_mut().all(Source::has_left)
    }

    /// Tells senders why nobody takes their samples any more.
    fn end(&mut self, reason: &str) {
        for source in &mut self.sources {
            source.end(Farewell::Because(reason));
        }
    }

    /// Blocks that wait in stages on the way to here.
    fn waiting_before(&self, producer: Producer) -> usize {
        match producer {
            Producer::Source(_) => 0,
            Producer::Stage(index) => {
                let StageNode { edge, input, .. } = &self.stages[index];
                edge.len() + self.waiting_before(*input)
            }
        }
    }

    fn have_ended(&self) -> bool {
        self.sources.iter().all(|it| it.state() == "ended")
    }

    fn due(&self) -> Option<Instant> {
        let controls = self.controls.iter().filter_map(Control::due);
        let sources = self.sources.iter().filter_map(Source::due);
        controls.chain(sources).chain(self.sinks.iter().filter_map(|it| it.sink.due())).min()
    }

    /// An event of a control, for the gates.
    fn hear(&mut self, control: &str, event: &str) {
        for node in &mut self.stages {
            if let Some((Stage::Gate(gate), _)) = &mut node.stage {
                gate.hear(control, event);
            }
        }
    }

    /// The stages' turn.
    fn work(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.stages.len() {
            if self.stages[index].stage.is_none() {
                self.open_stage(index)?;
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

    fn open_stage(&mut self, index: usize) -> Result<()> {
        let node = &self.stages[index];
        let Some(input) = shape(&self.sources, &self.stages, node.input) else { return Ok(()) };
        let stage = Stage::open(&node.config.work, input, self.queued(Producer::Stage(index)))?;
        self.stages[index].stage = Some(stage);
        Ok(())
    }

    /// Blocks that edges behind a node can hold, as far as they are its own.
    fn queued(&self, producer: Producer) -> usize {
        let sinks = self.sinks.iter().filter(|it| it.input == producer);
        let stages = self.stages.iter().enumerate().filter(|(_, it)| it.input == producer);
        sinks.map(|it| it.edge.capacity()).sum::<usize>()
            + stages
                .map(|(index, it)| it.edge.capacity() + self.queued(Producer::Stage(index)))
                .sum::<usize>()
    }

    /// One block of a stage; whether there was one.
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

    /// Watches descriptors that are new; those that are closed have left by themselves.
    fn watch(&mut self, poller: &Poller) -> Result<()> {
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

    fn counters(&self) -> Counters {
        let mut all = Counters {
            sources: self.sources.iter().map(of_source).collect(),
            stages: self.stages.iter().map(of_stage).collect(),
            sinks: self.sinks.iter().map(of_sink).collect(),
            controls: self.controls.iter().map(of_control).collect(),
            copied: 0,
        };
        all.copied = all.sources.iter().map(|it| it.copied).sum::<u64>()
            + all.stages.iter().map(|it| it.copied).sum::<u64>()
            + all.sinks.iter().map(|it| it.copied).sum::<u64>();
        all
    }
}

/// What comes from there, once it is known.
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

/// Each stage behind the one that it needs.
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

fn of_source(source: &Source) -> SourceCounters {
    let source::Counts { blocks, samples, bytes, lost, unknown, failed, restarts, .. } =
        source.counts;
    let (reconnects, corrupted) = source.connections();
    let about = source.about();
    SourceCounters {
        name: source.name().into(),
        state: source.state().into(),
        interface: about.map(|(interface, _)| interface.to_string()),
        memory: about.map(|(_, memory)| memory.to_string()),
        blocks,
        samples,
        bytes,
        lost,
        unknown,
        failed,
        restarts,
        reconnects,
        corrupted,
        copied: source.copied(),
    }
}

fn of_stage(node: &StageNode) -> StageCounters {
    let stage = node.stage.as_ref().map(|(stage, _)| stage);
    let (kept_back, opened) = match stage {
        Some(Stage::Gate(gate)) => gate.counts,
        _ => (0, 0),
    };
    StageCounters {
        name: node.config.name.clone(),
        waiting: node.edge.len(),
        blocks: node.counts.0,
        samples: node.counts.1,
        dropped_blocks: node.edge.counts.dropped_blocks,
        dropped_samples: node.edge.counts.dropped_samples,
        kept_back,
        opened,
        copied: stage.map_or(0, Stage::copied),
    }
}

fn of_sink(SinkNode { edge, sink, .. }: &SinkNode) -> SinkCounters {
    let sink::Counts { blocks, samples, bytes, lost, unknown, failed, restarts, verified, .. } =
        sink.counts;
    let (reconnects, resent) = sink.connections();
    let [latency_p50, latency_p99, latency_max] = sink.latency();
    SinkCounters {
        name: sink.name().into(),
        state: sink.state().into(),
        blocks,
        samples,
        bytes,
        lost,
        unknown,
        waiting: edge.len(),
        under_way: sink.under_way(),
        dropped_blocks: edge.counts.dropped_blocks,
        dropped_samples: edge.counts.dropped_samples,
        failed,
        restarts,
        reconnects,
        resent,
        verified,
        copied: sink.copied(),
        latency_p50,
        latency_p99,
        latency_max,
    }
}

fn of_control(control: &Control) -> ControlCounters {
    let control::Counts { commands, refused, events, malformed, late, slowest } = control.counts;
    ControlCounters {
        name: control.config.name.clone(),
        state: control.state().into(),
        commands,
        refused,
        events,
        malformed,
        late,
        slowest,
        restarts: control.opens.saturating_sub(1),
    }
}
