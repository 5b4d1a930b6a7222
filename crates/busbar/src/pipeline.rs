//! Pipelines: sources, stages and sinks that are joined in one loop.
//!
//! A [`Pipeline`] is opened from a [`Config`], which is parsed from TOML or built by a program.
//! [`Pipeline::turn`] does what can be done now and then waits for the next event. It uses one thread and one
//! [`Poller`].
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
//! A block passes by reference: all sinks of a source share it, and it goes back to its driver when the last
//! of them is done with it. Stages that change samples (`decimate`, `select`) copy them;
//! [`Counters::copied`] counts the bytes.
//!
//! # Edges
//!
//! Each stage and sink has an edge before it: a queue of the blocks that wait, and of those that the sink has
//! under way. A full edge makes the source wait, or drops the oldest or the newest block ([`WhenFull`]). The block
//! after a dropped one says how many samples are missing. Sinks treat this as a loss of the converter: it is
//! sent, recorded and verified.
//!
//! # Failures
//!
//! If a converter, a peer or a coprocessor fails, the pipeline opens it again and again for the time
//! `patience`: without a limit unless one is given. What is lost meanwhile is a loss, known or unknown.
//! [`Pipeline::turn`] returns permanent failures as errors: a file that cannot be written, samples that are
//! wrong, a converter that comes back with another format. At the start, converters, files and addresses have
//! to exist; coprocessors may come later.
//!
//! A thread opens what may wait for a name or for another machine, and writes attributes there. A turn does not wait for
//! it; nor does the end, and the thread then goes on for 10 s at most, and for what the system's resolver takes. So the
//! error of such a node at the start is that of a turn, not of [`Pipeline::open`]. A peer that is silent for too long
//! has failed; [names](crate::stream#names) can say how long that is.
//!
//! A sender over the network determines what its samples look like. If a node behind the source does not take them,
//! or they are other than those of the sender before, the sender is refused with this reason, an [`Event`] says so,
//! and the pipeline goes on. The same happens if its blocks, with those of the stages and devices behind the source,
//! would take more than [`SourceConfig::memory_limit`].
//!
//! # Control
//!
//! A coprocessor can control sources ([`ControlConfig`]). When it comes, the pipeline sends it `start SOURCE` for
//! each of its sources; it then starts, stops and tunes them by commands, see [`message`]. Its events open and
//! close gates and cause actions. All of this comes first in a turn. The time of a reaction is measured
//! from the wake-up that its message caused or, if the loop was busy, from the last check that did not find
//! it, until everything is done. Reactions that took longer than the deadline are counted.

mod bulk;
mod config;
mod control;
mod counters;
mod edge;
mod endpoint;
mod file;
mod log;
pub mod message;
mod node;
mod nodes;
mod retry;
mod settings;
mod shape;
mod sink;
mod source;
mod stage;

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

use self::log::Log;
use self::message::{Action, Name, Report, Request};
use self::node::{Producer, SinkNode};
use self::nodes::{Admission, Nodes};
use self::settings::{Cause, Done, Setting, Settings};
use self::source::{Farewell, Source, Taken};
use crate::poll::{Bell, later};
use crate::stream::iiod::is_remote_device;
use crate::wait::{Events, Interest, Poller};
use crate::{Error, Reason, Result, stream};

/// The longest wait: everything is checked this often, even without an event.
const TICK: Duration = Duration::from_millis(100);
/// A call that took longer than this has waited.
const BLINK: Duration = Duration::from_micros(200);
/// Most blocks of one source in a turn, so that others have their turn.
const BATCH: usize = 16;
/// Most rounds of a turn that does not wait.
const ROUNDS: usize = 4;
/// How long the end may take by default.
const DRAIN: Duration = Duration::from_secs(5);

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Samples pass through.
    Running,
    /// No more samples come, and some are under way.
    Draining,
    /// Nothing is left to do.
    Finished,
}

/// A pipeline that runs.
///
/// Dropping it ends it at once and drops blocks under way. Call [`stop`](Self::stop) before to have them
/// delivered.
#[derive(Debug)]
pub struct Pipeline {
    config: Config,
    poller: Poller,
    events: Events,
    /// Readable while `rings`: there may be more to do than events tell.
    bell: Bell,
    rings: bool,
    nodes: Nodes,
    settings: Settings,
    log: Log,
    /// When the end has to be over.
    deadline: Option<Instant>,
    /// When messages were checked for last, or the last wait ended.
    looked: Instant,
    /// Why it ends, while senders are informed.
    failure: Option<Error>,
    is_finished: bool,
}

impl Pipeline {
    /// Opens a pipeline.
    ///
    /// # Errors
    ///
    /// As [`Config::check`]; the error of a source, see [Failures](self#failures).
    pub fn open(config: Config) -> Result<Self> {
        config.check()?;
        let nodes = Nodes::open(&config)?;
        let (poller, bell) = (Poller::new()?, Bell::new()?);
        poller.add(&bell, 0, Interest::READABLE)?;
        Ok(Self {
            poller,
            events: Events::new(64)?,
            bell,
            rings: false,
            nodes,
            settings: Settings::default(),
            config,
            log: Log::default(),
            deadline: None,
            looked: Instant::now(),
            failure: None,
            is_finished: false,
        })
    }

    /// Ends the wait of a [`turn`](Self::turn) when `fd` is readable, such as a `signalfd`. It is
    /// level-triggered: no turn waits while `fd` is readable.
    ///
    /// # Errors
    ///
    /// As [`Poller::add`].
    pub fn wake_for(&self, fd: &impl AsFd) -> Result<()> {
        self.poller.add(fd, 0, Interest::READABLE)
    }

    /// Does what can be done now; if there is nothing, waits for the next event.
    ///
    /// # Errors
    ///
    /// As [`turn_timeout`](Self::turn_timeout).
    pub fn turn(&mut self) -> Result<State> {
        self.turn_timeout(Duration::MAX)
    }

    /// Does what can be done now. Does not wait.
    ///
    /// This is the turn for a loop that polls the pipeline: afterwards it is readable if there is more to do, and
    /// becomes so when there is.
    ///
    /// # Errors
    ///
    /// As [`turn_timeout`](Self::turn_timeout).
    pub fn try_turn(&mut self) -> Result<State> {
        self.ring(false)?;
        // Taken before the rounds, events tell nothing that these do not find. What comes later is a new event.
        self.wait(Duration::ZERO)?;
        let (mut state, mut moved) = (State::Running, true);
        for _ in 0..ROUNDS {
            if moved {
                (state, moved) = self.step(Duration::ZERO)?;
            }
        }
        // There may be more, of which the events are taken.
        self.ring(moved)?;
        Ok(state)
    }

    /// Does what can be done now; if there is nothing, waits for the next event, for `timeout` at most.
    ///
    /// # Errors
    ///
    /// See [Failures](self#failures). Senders over the network are informed first: until they know, for a second
    /// at most, the state is [`Draining`](State::Draining). `TimedOut` if not all blocks could be delivered
    /// in time at the end; [`remaining`](Self::remaining) lists them.
    pub fn turn_timeout(&mut self, timeout: Duration) -> Result<State> {
        if timeout.is_zero() {
            return self.try_turn();
        }
        self.ring(false)?;
        let (state, moved) = self.step(timeout)?;
        if !moved && !self.is_finished && self.failure.is_none() {
            self.wait(timeout)?;
        }
        Ok(state)
    }

    /// What can be done now, and whether there may be more. After a failure it waits for `timeout` at most.
    fn step(&mut self, timeout: Duration) -> Result<(State, bool)> {
        if self.is_finished {
            return Ok((State::Finished, false));
        }
        if self.failure.is_some() {
            return Ok((self.leave(timeout)?, false));
        }
        let moved = match self.round() {
            Ok(moved) => moved,
            Err(error) => {
                self.nodes.end(&error.to_string());
                self.failure = Some(error);
                return Ok((self.leave(timeout)?, false));
            }
        };
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let has_left = self.nodes.have_left() || is_late;
        if has_left && self.nodes.sinks.iter().all(|node| node.sink.is_finished()) {
            self.is_finished = true;
            return Ok((State::Finished, false));
        }
        if is_late {
            self.is_finished = true;
            return Err(self.too_late());
        }
        let ended = self.deadline.is_some() || self.nodes.have_ended();
        Ok((if ended { State::Draining } else { State::Running }, moved))
    }

    /// Keeps the pipeline readable, or no longer.
    fn ring(&mut self, rings: bool) -> Result<()> {
        self.bell
            .set(&mut self.rings, rings)
            .map_err(|errno| Error::new("ring", "a pipeline", errno))
    }

    /// After a failure: returns it once all senders know of it.
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

    /// Ends the pipeline: it takes no more blocks from the sources. Further [`turn`](Self::turn)s deliver the
    /// blocks under way, within the time [`Config::drain`]: 5 s by default.
    pub fn stop(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        self.deadline = Some(later(Instant::now(), self.config.drain.unwrap_or(DRAIN)));
        for control in &mut self.nodes.controls {
            for source in control.config.sources.clone() {
                if let Ok(name) = source.parse() {
                    control.say(Request::Stop(name));
                }
            }
            // A coprocessor that is not there need not know.
            let _ = control.flush();
        }
        for index in 0..self.nodes.sources.len() {
            let lost = self.nodes.sources[index].end(Farewell::Because("the receiver has ended"));
            self.nodes.finish(Producer::Source(index), lost);
        }
    }

    /// Number of blocks that were not delivered yet, for each sink that has some.
    #[must_use]
    pub fn remaining(&self) -> Vec<(String, usize)> {
        let left = |node: &SinkNode| {
            let behind = self.nodes.waiting_before(node.input);
            (node.sink.name().to_owned(), node.edge.len() + node.sink.under_way() + behind)
        };
        self.nodes.sinks.iter().map(left).filter(|(_, left)| *left > 0).collect()
    }

    /// Totals since the pipeline was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.nodes.counters()
    }

    /// Events since the last call. The oldest are left out if there are more than 1024.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.log.take()
    }

    fn too_late(&self) -> Error {
        let left: Vec<_> =
            self.remaining().iter().map(|(sink, left)| format!("{left} for `{sink}`")).collect();
        let left = if left.is_empty() { "an acknowledgement".into() } else { left.join(", ") };
        let why = std::io::Error::new(std::io::ErrorKind::TimedOut, format!("missing: {left}"));
        Error::new("deliver", "all blocks in the time for the end", why)
    }

    /// One turn of each node. Returns whether a block has moved.
    fn round(&mut self) -> Result<bool> {
        let mut moved = self.control();
        moved |= self.take()?;
        moved |= self.nodes.work()?;
        for index in 0..self.nodes.sinks.len() {
            let (turn, again) = self.nodes.turn_sink(index)?;
            let name = self.nodes.sinks[index].sink.name();
            moved |= turn.moved;
            if turn.moved {
                self.log.works(name);
            }
            if let Some(error) = turn.trouble {
                self.log.trouble(name, &error);
            }
            for text in turn.news {
                self.log.event(name, "client", text);
            }
            if again {
                self.log.opened(name, "restarted");
            }
        }
        self.nodes.watch(&self.poller)?;
        Ok(moved)
    }

    /// Receives messages of the coprocessors and reacts.
    fn control(&mut self) -> bool {
        let mut moved = self.answer_settings();
        let now = Instant::now();
        for index in 0..self.nodes.controls.len() {
            let turn = self.nodes.controls[index].turn();
            if !turn.came && turn.trouble.is_none() && turn.reports.is_empty() {
                continue;
            }
            let name = self.nodes.controls[index].config.name.clone();
            if turn.came {
                self.log.opened(&name, "came");
            }
            if let Some(error) = turn.trouble {
                self.log.trouble(&name, &error);
            }
            for report in turn.reports {
                moved = true;
                if self.react(index, &name, report) {
                    let took = self.looked.elapsed();
                    self.nodes.controls[index].reacted(took);
                }
            }
            // Sends the answers now, not in the next turn.
            let _ = self.nodes.controls[index].flush();
        }
        self.looked = now;
        moved
    }

    /// Answers the commands whose values were written on other machines by now.
    fn answer_settings(&mut self) -> bool {
        let done = self.settings.take(&self.poller);
        let moved = !done.is_empty();
        for (cause, done) in done {
            let result = match done {
                Done::Written(result) => result,
                Done::Due(action) => self.switch(&action),
            };
            self.nodes.controls[cause.control].reacted(cause.since.elapsed());
            self.answer(cause, result);
            let _ = self.nodes.controls[cause.control].flush();
        }
        moved
    }

    /// Answers a command, if it is one and not an event, and the coprocessor has not started anew since.
    fn answer(&mut self, cause: Cause, result: Result<()>) {
        let control = &mut self.nodes.controls[cause.control];
        let number = cause.number.filter(|_| control.opens == cause.opens);
        match (result, number) {
            (Ok(()), Some(number)) => {
                control.counts.commands += 1;
                control.say(Request::Ok { number });
            }
            (Ok(()), None) => {}
            (Err(error), number) => {
                if let Some(number) = number {
                    control.counts.refused += 1;
                    control.say(Request::error(number, &error));
                }
                let name = control.config.name.clone();
                self.log.event(&name, "refused", error.to_string());
            }
        }
    }

    /// Returns whether the reaction is complete: what another machine has to do is answered later.
    fn react(&mut self, index: usize, name: &str, report: Report) -> bool {
        let (since, opens) = (self.looked, self.nodes.controls[index].opens);
        let cause = |number| Cause { control: index, opens, number, since };
        match report {
            Report::Command { number, action } => {
                let ControlConfig { sources, sinks, .. } = &self.nodes.controls[index].config;
                let mut owns = sources.iter().chain(sinks);
                let cause = cause(Some(number));
                let result = if owns.any(|it| it == action.source().as_str()) {
                    self.act(&action, cause)
                } else {
                    let allowed = "its own: those of the keys `sources` and `sinks`";
                    Err(Error::invalid("a name in a command", action.source(), allowed))
                };
                let is_pending = matches!(result, Ok(false));
                if !is_pending {
                    self.answer(cause, result.map(drop));
                }
                !is_pending
            }
            Report::Event { name: event, value } => {
                self.nodes.controls[index].counts.events += 1;
                let value = value.map_or(String::new(), |value| format!(" {value}"));
                self.log.event(name, "event", format!("{event}{value}"));
                self.nodes.hear(name, event.as_str());
                let on = self.nodes.controls[index].config.on.clone();
                let actions = on.iter().filter(|it| it.event == event.as_str());
                let cause = cause(None);
                let mut is_complete = true;
                for action in actions.flat_map(|it| &it.actions) {
                    let result = self.act(action, cause);
                    is_complete &= !matches!(result, Ok(false));
                    self.answer(cause, result.map(drop));
                }
                is_complete
            }
        }
    }

    /// Returns whether it is done: another machine may take its time.
    fn act(&mut self, action: &Action, cause: Cause) -> Result<bool> {
        let remote = self.config.converter(action.source().as_str());
        let remote = remote.filter(|device| is_remote_device(device));
        let is_set = matches!(action, Action::Set { .. });
        // What comes after a value is done after it.
        if let Some(device) = remote
            && (is_set || self.settings.are_waiting(device))
        {
            let setting = Setting { action: action.clone(), cause };
            return self.settings.add(device, setting, &self.poller).map(|()| false);
        }
        self.switch(action).map(|()| true)
    }

    /// Does what does not wait for another machine.
    fn switch(&mut self, action: &Action) -> Result<()> {
        let ends = self.deadline.is_some();
        match action {
            Action::Start(name) => {
                let source = self.source(name)?;
                if ends {
                    let error = Error::new("start", format!("source `{name}`"), Errno::PIPE);
                    return Err(error.help("the pipeline ends"));
                }
                source.start()
            }
            Action::Stop(name) => {
                self.source(name)?.stop();
                Ok(())
            }
            Action::Set { source: name, attribute, value } => {
                let device = self.config.converter(name.as_str()).ok_or_else(|| {
                    Error::invalid("a source with attributes", name, "a converter: iio:NAME")
                })?;
                stream::set_attribute(device, attribute.as_str(), value.as_str())
            }
        }
    }

    /// The source of this name: sinks are not started and stopped.
    fn source(&mut self, name: &Name) -> Result<&mut Source> {
        let found = self.nodes.sources.iter_mut().find(|it| it.name() == name.as_str());
        found.ok_or_else(|| Error::invalid("a source", name, "a source of the pipeline"))
    }

    /// Takes blocks from the sources, as long as no edge makes them wait.
    fn take(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in 0..self.nodes.sources.len() {
            let producer = Producer::Source(index);
            for _ in 0..BATCH {
                if !self.nodes.has_room(producer) {
                    break;
                }
                let source = &mut self.nodes.sources[index];
                let restarts = source.restarts();
                let taken = source.take()?;
                if source.restarts() > restarts {
                    self.log.opened(source.name(), "restarted");
                    moved = true;
                }
                match taken {
                    Taken::Nothing => break,
                    Taken::Trouble(error) => self.log.trouble(source.name(), &error),
                    Taken::Hello => match self.nodes.admit(index)? {
                        Admission::Pending => break,
                        Admission::Taken => self.nodes.sources[index].admit(),
                        Admission::Refused(error) => {
                            let source = &mut self.nodes.sources[index];
                            source.reject(&error);
                            self.log.trouble(source.name(), &error);
                        }
                    },
                    Taken::Item(item) => {
                        self.log.works(source.name());
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
        // An event that was there before would have ended the wait at once; so this one is new.
        if now.elapsed() > BLINK {
            self.looked = Instant::now();
        }
        match waited {
            Err(error) if error.reason() != Reason::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}

/// Readable while [`Pipeline::try_turn`] has something to do, and possibly without. A turn that waits may take an event
/// and leave what it tells to the next turn.
impl AsFd for Pipeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
