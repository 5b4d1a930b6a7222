//! Sinks, which are opened again after a failure.

mod messages;
mod serving;
mod way;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::io::Errno;

use self::way::Way;
use super::config::{Config, SinkConfig, SinkKind};
use super::counters::SinkCounters;
use super::edge::{Edge, Item, NOTHING, Next, sum};
use super::retry::{Retry, patience};
use super::shape::Shape;
use crate::poll::Task;
use crate::stream::Lost;
use crate::{Error, Result};

/// The longest latency that is recorded, in microseconds: an hour.
const MOST_MICROSECONDS: u64 = 3_600_000_000;

/// Bytes of blocks that a way takes before it has a turn: many short ones cost one turn, and a long one does not
/// wait for another.
const BURST: usize = 256 << 10;

/// A sink, open or not.
#[derive(Debug)]
pub(super) struct Sink {
    config: SinkConfig,
    /// How long to try to open it again.
    patience: Option<Duration>,
    /// The hardware that recordings name.
    from: Option<String>,
    state: State,
    /// A thread that opens a way nobody wants any more: the sender it was opened for was refused meanwhile.
    abandoned: Option<Task<Way>>,
    /// The attempts before this opening, until it has delivered a block.
    retry: Option<Retry>,
    /// Blocks that were taken and are not delivered yet, the oldest first.
    under_way: VecDeque<Item>,
    /// How often it was opened: each time it has another descriptor.
    pub opens: u64,
    counts: Counts,
    latency: Histogram<u64>,
}

#[derive(Debug)]
enum State {
    /// The shape of its samples is not known yet.
    New,
    Down(Retry),
    /// The first sender of the source waits until it is open. `None`: the thread of a sender before has not ended.
    Admitting(Option<Task<Way>>),
    /// A thread opens it: again, if there is a retry.
    Opening(Task<Way>, Option<Retry>),
    Open(Way),
    /// Everything was delivered.
    Finished,
}

/// Totals of a sink.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    blocks: u64,
    samples: u64,
    bytes: u64,
    /// Samples missing in what was delivered.
    lost: u64,
    unknown: u64,
    /// Blocks that were under way when the sink failed.
    failed: u64,
    restarts: u64,
    verified: u64,
    /// These three count ways that are closed.
    copied: u64,
    reconnects: u64,
    resent: u64,
}

/// The result of one turn of a sink.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub moved: bool,
    /// An error; the sink goes on.
    pub trouble: Option<Error>,
    /// What has happened at its clients.
    pub news: Vec<String>,
}

impl Sink {
    pub(super) fn new(config: &SinkConfig, all: &Config, from: Option<String>) -> Self {
        // These bounds are valid.
        let latency = Histogram::new_with_bounds(1, MOST_MICROSECONDS, 2);
        Self {
            config: config.clone(),
            patience: patience(config.patience, all),
            from,
            state: State::New,
            abandoned: None,
            retry: None,
            under_way: VecDeque::new(),
            opens: 0,
            counts: Counts::default(),
            latency: latency.unwrap_or_else(|_| unreachable!("1 to an hour, 2 digits")),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn state(&self) -> &'static str {
        match self.state {
            State::New | State::Admitting(_) | State::Opening(_, None) => "new",
            State::Down(_) | State::Opening(_, Some(_)) => "down",
            State::Open(_) => "open",
            State::Finished => "finished",
        }
    }

    /// How often it was opened again after a failure.
    pub(super) fn restarts(&self) -> u64 {
        self.counts.restarts
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// Number of blocks under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Down(retry) => Some(retry.at),
            _ => None,
        }
    }

    /// The descriptor to watch.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Open(way) => way.descriptor(),
            State::Opening(task, _) | State::Admitting(Some(task)) => Some(task.as_fd()),
            _ => None,
        }
    }

    /// Takes blocks from `edge`, as many as there is room for, and counts those that were delivered.
    pub(super) fn turn(&mut self, edge: &mut Edge, shape: Option<&Shape>) -> Result<Turn> {
        let mut turn = Turn::default();
        let opened = match (&mut self.state, shape) {
            // No sample came, and none will.
            (State::New, None) | (State::Admitting(_), _) if edge.has_ended() => {
                self.state = State::Finished;
                return Ok(Turn { moved: true, ..Turn::default() });
            }
            // A device without a sample to transmit need not be opened.
            (State::Opening(..), _) if edge.has_ended() && self.config.to.is_remote() => {
                if let Some(Next::End(lost)) = edge.next() {
                    self.counts.lose(lost);
                }
                self.state = State::Finished;
                return Ok(Turn { moved: true, ..Turn::default() });
            }
            (State::New, Some(shape)) => self.begin(shape, None),
            (State::Down(retry), Some(shape)) if retry.is_due() => {
                let retry = *retry;
                self.begin(shape, Some(retry))
            }
            (State::Opening(..), _) => self.await_opening(),
            _ => Ok(None),
        };
        turn.trouble = opened?;
        if matches!(self.state, State::Open(_)) {
            match self.pass(edge) {
                Ok(moved) => turn.moved = moved,
                Err(error) => turn.trouble = Some(self.failed(edge, error)?),
            }
        }
        if turn.trouble.is_none()
            && let State::Open(Way::Net(sender)) = &mut self.state
        {
            turn.trouble = sender.take_trouble();
        }
        if let State::Open(Way::Iiod(serving)) = &mut self.state {
            turn.news = serving.news();
        }
        Ok(turn)
    }

    /// The first sender of the source before it has come: fails if the sink does not take its samples. Only a
    /// device has to be opened for that; what its blocks take is taken from `room`, in bytes.
    pub(super) fn admit(&mut self, shape: &Shape, room: &mut usize) -> Result<()> {
        if matches!(self.config.to, SinkKind::Device(_)) {
            self.dismiss();
            let memory = self.config.memory.as_ref().unwrap_or(&shape.memory).clone();
            Shape { memory, ..shape.clone() }.take(Way::blocks(&self.config, shape), room)?;
            if self.config.to.is_remote() {
                self.state = State::Admitting(None);
                return Ok(());
            }
            let opened = Way::open(&self.config, shape, self.from.as_deref());
            return self.opened(opened, true).map(drop);
        }
        Way::check(&self.config, shape)
    }

    /// Whether [`admit`](Self::admit) is over; fails as that.
    pub(super) fn is_admitted(&mut self, shape: &Shape) -> Result<bool> {
        match &self.state {
            State::Admitting(None) => {
                if self.abandoned.as_ref().is_some_and(|task| task.take().is_none()) {
                    return Ok(false);
                }
                self.abandoned = None;
                self.state = State::Admitting(Some(self.task(shape)?));
                self.opens += 1;
                Ok(false)
            }
            State::Admitting(Some(task)) => {
                let Some(opened) = task.take() else { return Ok(false) };
                self.state = State::New;
                self.opened(opened, true).map(|_| true)
            }
            _ => Ok(true),
        }
    }

    /// That sender was refused: closes the sink until the next one comes.
    pub(super) fn dismiss(&mut self) {
        self.abandon();
        self.state = State::New;
    }

    /// Remembers a thread that opens it for a sender, so that there is one at a time.
    fn abandon(&mut self) {
        if let State::Admitting(task @ Some(_)) = &mut self.state {
            self.abandoned = task.take();
        }
    }

    /// Opens it, or has a thread do so if that may wait: others have their turn meanwhile. Without a retry it is the first
    /// time.
    fn begin(&mut self, shape: &Shape, retry: Option<Retry>) -> Result<Option<Error>> {
        if !self.config.to.may_wait() {
            let opened = Way::open(&self.config, shape, self.from.as_deref());
            return self.opened(opened, retry.is_none());
        }
        match self.task(shape) {
            Ok(task) => {
                self.state = State::Opening(task, retry);
                self.opens += 1;
                Ok(None)
            }
            Err(error) => self.opened(Err(error), retry.is_none()),
        }
    }

    fn task(&self, shape: &Shape) -> Result<Task<Way>> {
        let (config, shape, hw) = (self.config.clone(), shape.clone(), self.from.clone());
        let what = format!("sink `{}`", self.name());
        Task::start(&what, move || Way::open(&config, &shape, hw.as_deref()))
    }

    /// What has become of that.
    fn await_opening(&mut self) -> Result<Option<Error>> {
        let State::Opening(task, retry) = &self.state else { return Ok(None) };
        let is_over = retry.is_some_and(|retry| retry.is_over());
        let opened = match task.take() {
            Some(opened) => opened,
            None if is_over => Err(Error::new("open", self.name(), Errno::TIMEDOUT)),
            None => return Ok(None),
        };
        let retry = *retry;
        self.state = retry.map_or(State::New, State::Down);
        self.opened(opened, retry.is_none())
    }

    fn opened(&mut self, opened: Result<Way>, is_first: bool) -> Result<Option<Error>> {
        match opened {
            Ok(way) => {
                if let State::Down(mut retry) = self.state {
                    retry.succeeded();
                    self.retry = Some(retry);
                }
                self.counts.restarts += u64::from(!is_first);
                self.state = State::Open(way);
                self.opens += 1;
                Ok(None)
            }
            // A coprocessor may take longer to start than a program.
            Err(error)
                if is_first
                    && !matches!(self.config.to, SinkKind::Endpoint(_) | SinkKind::Bulk(_)) =>
            {
                Err(error)
            }
            Err(error) => {
                if let State::Down(retry) = &mut self.state {
                    return retry.failed(error).map(|_| None);
                }
                let mut retry = Retry::new(self.patience);
                let error = retry.failed(error)?;
                self.state = State::Down(retry);
                Ok(Some(error))
            }
        }
    }

    fn pass(&mut self, edge: &mut Edge) -> Result<bool> {
        if let State::Open(Way::Iiod(serving)) = &mut self.state
            && edge.will_end()
        {
            serving.hurry();
        }
        let mut moved = self.settle()?;
        // Bytes that the way has taken since its last turn.
        let mut burst = 0;
        while edge.has_next() {
            if self.under_way.len() >= edge.window() || burst >= BURST {
                let settled = self.settle()?;
                burst = 0;
                if self.under_way.len() >= edge.window() && !settled {
                    break;
                }
                continue;
            }
            let State::Open(way) = &mut self.state else { break };
            match edge.next() {
                Some(Next::Block(item)) => match way.take(&item) {
                    Ok(true) => {
                        burst += item.samples.meta().len;
                        self.under_way.push_back(item);
                    }
                    Ok(false) => {
                        edge.put_back(item);
                        break;
                    }
                    Err(error) => {
                        edge.put_back(item);
                        // Counts those before it; the first error matters more.
                        let _ = self.settle();
                        return Err(error);
                    }
                },
                Some(Next::End(lost)) => {
                    self.settle()?;
                    moved |= self.finish(lost)?;
                    break;
                }
                None => break,
            }
            moved = true;
        }
        if burst > 0 {
            self.settle()?;
        }
        Ok(moved)
    }

    /// Does what can be done, and counts blocks that were delivered.
    fn settle(&mut self) -> Result<bool> {
        let State::Open(way) = &mut self.state else { return Ok(false) };
        let left = way.turn(self.under_way.len())?;
        let arrived = self.under_way.len().saturating_sub(left);
        self.arrived(arrived);
        let State::Open(way) = &self.state else { return Ok(false) };
        if let Way::Verify(Some(counter)) = way {
            self.counts.verified = counter.samples();
        }
        Ok(arrived > 0)
    }

    /// Counts the first blocks under way, which were delivered.
    fn arrived(&mut self, count: usize) {
        for item in self.under_way.drain(..count) {
            self.retry = None;
            self.counts.add(&item);
            let micros = u64::try_from(item.latency().as_micros()).unwrap_or(u64::MAX);
            self.latency.saturating_record(micros.clamp(1, MOST_MICROSECONDS));
        }
    }

    /// Ends the sink; `lost` is what was lost after the last block. Returns whether everything was delivered.
    fn finish(&mut self, lost: Lost) -> Result<bool> {
        let State::Open(way) = &mut self.state else { return Ok(false) };
        if !way.finish(lost)? || !self.under_way.is_empty() {
            return Ok(false);
        }
        self.counts.lose(lost);
        let State::Open(way) = std::mem::replace(&mut self.state, State::Finished) else {
            return Ok(false);
        };
        self.counts.keep(&way);
        way.close(lost)?;
        Ok(true)
    }

    /// Closes the sink. The next block says that those under way are lost.
    fn failed(&mut self, edge: &mut Edge, error: Error) -> Result<Error> {
        let State::Open(way) = &self.state else { return Err(error) };
        if matches!(way, Way::Recording(_) | Way::Verify(_) | Way::Null) {
            return Err(error);
        }
        self.counts.keep(way);
        let left = way.left(self.under_way.len());
        self.arrived(self.under_way.len().saturating_sub(left));
        let retry = self.retry.take().filter(Retry::goes_on);
        let mut retry = retry.unwrap_or_else(|| Retry::new(self.patience));
        let error = retry.failed(error)?;
        // Closes it.
        self.state = State::Down(retry);
        self.counts.failed += self.under_way.len() as u64;
        let lost = self
            .under_way
            .drain(..)
            .fold(NOTHING, |lost, item| sum(lost, sum(item.lost, Lost::Samples(item.count))));
        edge.lose(lost);
        Ok(error)
    }

    /// `edge` is the edge before the sink.
    pub(super) fn counters(&self, edge: &Edge) -> SinkCounters {
        let mut counts = self.counts;
        if let State::Open(way) = &self.state {
            counts.keep(way);
        }
        let latency = |quantile| self.latency.value_at_quantile(quantile);
        SinkCounters {
            name: self.name().into(),
            state: self.state().into(),
            blocks: counts.blocks,
            samples: counts.samples,
            bytes: counts.bytes,
            lost: counts.lost,
            unknown: counts.unknown,
            waiting: edge.len(),
            under_way: self.under_way(),
            dropped_blocks: edge.counts.dropped_blocks,
            dropped_samples: edge.counts.dropped_samples,
            failed: counts.failed,
            restarts: counts.restarts,
            reconnects: counts.reconnects,
            resent: counts.resent,
            verified: counts.verified,
            copied: counts.copied,
            latency_p50: latency(0.5),
            latency_p99: latency(0.99),
            latency_max: self.latency.max(),
        }
    }
}

impl Counts {
    fn add(&mut self, item: &Item) {
        self.blocks += 1;
        self.samples += item.count;
        self.bytes += item.samples.meta().len as u64;
        self.lose(item.lost);
    }

    fn lose(&mut self, lost: Lost) {
        match lost {
            Lost::Samples(lost) => self.lost = self.lost.saturating_add(lost),
            Lost::Unknown => self.unknown += 1,
        }
    }

    /// Adds the counters of a way.
    fn keep(&mut self, way: &Way) {
        let (reconnects, resent) = way.connections();
        self.copied += way.copied();
        self.reconnects += reconnects;
        self.resent += resent;
    }
}
