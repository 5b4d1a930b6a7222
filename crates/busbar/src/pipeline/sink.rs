//! Where samples go to, and go to again after a crash.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::bulk::Bulk;
use super::config::{Config, SinkConfig, SinkKind};
use super::edge::{Edge, Item, NOTHING, Next, sum};
use super::endpoint;
use super::source::{Retry, options, patience};
use super::stage::Shape;
use crate::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use crate::stream::net::FrameSender;
use crate::stream::sigmf::Recorder;
use crate::stream::verify::Counter;
use crate::stream::{self, Lost, StreamSetup};
use crate::{Error, Result};

/// Latencies are told in microseconds, up to an hour.
const MOST_MICROSECONDS: u64 = 3_600_000_000;

/// A sink, whatever becomes of it.
#[derive(Debug)]
pub(super) struct Sink {
    config: SinkConfig,
    /// How long to try to have it back.
    patience: Option<Duration>,
    /// What recordings say that samples are from.
    from: Option<String>,
    state: State,
    /// Blocks that were taken and not delivered, the oldest first.
    under_way: VecDeque<Item>,
    /// How often it was opened: each time there is another descriptor.
    pub opens: u64,
    pub counts: Counts,
    latency: Histogram<u64>,
}

#[derive(Debug)]
enum State {
    /// It is not known what comes.
    New,
    Down(Retry),
    Open(Way),
    /// Everything has arrived.
    Finished,
}

/// How samples leave.
#[derive(Debug)]
enum Way {
    Device(stream::Sink),
    Net(Box<FrameSender>),
    Recording(Box<Recorder>),
    Endpoint(Box<Messages>),
    Bulk(Bulk),
    Null,
    Verify(Option<Counter>),
}

/// What a sink has delivered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub blocks: u64,
    pub samples: u64,
    pub bytes: u64,
    /// Missing in what was delivered.
    pub lost: u64,
    pub unknown: u64,
    /// Blocks that were under way when the sink failed.
    pub failed: u64,
    pub restarts: u64,
    pub verified: u64,
    copied: u64,
    reconnects: u64,
    resent: u64,
}

/// What one turn of a sink has brought.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub moved: bool,
    /// It goes on.
    pub trouble: Option<Error>,
}

impl Sink {
    pub(super) fn new(config: &SinkConfig, all: &Config, from: Option<String>) -> Self {
        // These bounds are allowed.
        let latency = Histogram::new_with_bounds(1, MOST_MICROSECONDS, 2);
        Self {
            config: config.clone(),
            patience: patience(config.patience, all),
            from,
            state: State::New,
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
            State::New => "new",
            State::Down(_) => "down",
            State::Open(_) => "open",
            State::Finished => "finished",
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// Blocks that are in it.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// 50 and 99 of 100 blocks were delivered within so many microseconds, and all within the last.
    pub(super) fn latency(&self) -> [u64; 3] {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        [at(0.5), at(0.99), self.latency.max()]
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Down(retry) => Some(retry.at),
            _ => None,
        }
    }

    /// What tells that a turn has something to do.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Open(way) => way.descriptor(),
            _ => None,
        }
    }

    /// Takes from `edge` what there is room for, and counts what has arrived.
    pub(super) fn turn(&mut self, edge: &mut Edge, shape: Option<&Shape>) -> Result<Turn> {
        let mut turn = Turn::default();
        let opened = match (&mut self.state, shape) {
            // Nothing ever came, nor will.
            (State::New, None) if edge.has_ended() => {
                self.state = State::Finished;
                return Ok(Turn { moved: true, trouble: None });
            }
            (State::New, Some(shape)) => self.open(shape, true),
            (State::Down(retry), Some(shape)) if retry.is_due() => self.open(shape, false),
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
        Ok(turn)
    }

    fn open(&mut self, shape: &Shape, is_first: bool) -> Result<Option<Error>> {
        match Way::open(&self.config, shape, self.from.as_deref()) {
            Ok(way) => {
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
        let mut moved = self.settle()?;
        while let State::Open(way) = &mut self.state {
            if self.under_way.len() >= edge.window() || !edge.has_next() {
                break;
            }
            match edge.next() {
                Some(Next::Block(item)) => match way.take(&item) {
                    Ok(true) => {
                        self.under_way.push_back(item);
                        self.settle()?;
                    }
                    Ok(false) => {
                        edge.put_back(item);
                        break;
                    }
                    Err(error) => {
                        edge.put_back(item);
                        return Err(error);
                    }
                },
                Some(Next::End(lost)) => {
                    moved |= self.finish(lost)?;
                    break;
                }
                None => break,
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Does what can be done, and counts what has arrived.
    fn settle(&mut self) -> Result<bool> {
        let State::Open(way) = &mut self.state else { return Ok(false) };
        let left = way.turn(self.under_way.len())?;
        let arrived = self.under_way.len().saturating_sub(left);
        for item in self.under_way.drain(..arrived) {
            self.counts.add(&item);
            let micros = u64::try_from(item.latency().as_micros()).unwrap_or(u64::MAX);
            self.latency.saturating_record(micros.clamp(1, MOST_MICROSECONDS));
        }
        if let Way::Verify(Some(counter)) = way {
            self.counts.verified = counter.samples();
        }
        Ok(arrived > 0)
    }

    /// There is nothing more to come; whether everything has arrived.
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

    /// What is lost with the sink is told by what comes next.
    fn failed(&mut self, edge: &mut Edge, error: Error) -> Result<Error> {
        let State::Open(way) = &self.state else { return Err(error) };
        if matches!(way, Way::Recording(_) | Way::Verify(_) | Way::Null) {
            return Err(error);
        }
        self.counts.keep(way);
        let mut retry = Retry::new(self.patience);
        let error = retry.failed(error)?;
        // Closes it: nothing of it is on its way any more.
        self.state = State::Down(retry);
        self.counts.failed += self.under_way.len() as u64;
        let lost = self
            .under_way
            .drain(..)
            .fold(NOTHING, |lost, item| sum(lost, sum(item.lost, Lost::Samples(item.count))));
        edge.lose(lost);
        Ok(error)
    }

    /// Bytes that were copied on the way out.
    pub(super) fn copied(&self) -> u64 {
        self.counts.copied + if let State::Open(way) = &self.state { way.copied() } else { 0 }
    }

    /// How often a connection was made anew, and blocks that were sent again.
    pub(super) fn connections(&self) -> (u64, u64) {
        let (again, resent) =
            if let State::Open(way) = &self.state { way.connections() } else { (0, 0) };
        (self.counts.reconnects + again, self.counts.resent + resent)
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

    /// What a way that is closed has counted.
    fn keep(&mut self, way: &Way) {
        let (reconnects, resent) = way.connections();
        self.copied += way.copied();
        self.reconnects += reconnects;
        self.resent += resent;
    }
}

impl Way {
    fn open(config: &SinkConfig, shape: &Shape, from: Option<&str>) -> Result<Self> {
        Ok(match &config.to {
            SinkKind::Device(name) => {
                let default = StreamSetup::default();
                let setup = StreamSetup {
                    blocks: config.blocks.unwrap_or(default.blocks),
                    block_len: shape.block_len,
                    memory: config.memory.clone(),
                    interface: config.interface,
                    ..default
                };
                Self::Device(stream::Sink::open_for(name, &shape.format, &setup)?)
            }
            SinkKind::Connect(target) => {
                let options = options(config.patience);
                let sender = FrameSender::open(target, &shape.format, shape.block_len, &options)?;
                Self::Net(Box::new(sender))
            }
            SinkKind::Recording(path) => {
                Self::Recording(Box::new(Recorder::create(path, &shape.format, from)?))
            }
            SinkKind::Endpoint(service) => {
                Self::Endpoint(Box::new(Messages::open(service, shape.format.sample_len)?))
            }
            SinkKind::Bulk(transport) => Self::Bulk(Bulk::open(*transport)?),
            SinkKind::Null => Self::Null,
            SinkKind::Verify { counter } => {
                Self::Verify(counter.then(|| Counter::new(&shape.format)).transpose()?)
            }
        })
    }

    /// Whether it has taken the block.
    fn take(&mut self, item: &Item) -> Result<bool> {
        match self {
            Self::Device(sink) => sink.try_forward(&item.samples),
            Self::Net(sender) => {
                sender.push_as(item.samples.clone(), item.lost, item.check).map(|()| true)
            }
            Self::Recording(recorder) => recorder.write_as(&item.samples, item.lost).map(|()| true),
            Self::Endpoint(messages) => Ok(messages.take(item)),
            Self::Bulk(bulk) => bulk.take(item),
            Self::Null => Ok(true),
            Self::Verify(counter) => {
                check(item)?;
                if let Some(counter) = counter {
                    counter.verify(&item.samples, item.lost)?;
                }
                Ok(true)
            }
        }
    }

    /// Does what can be done without waiting; how many of `under_way` have not arrived.
    fn turn(&mut self, under_way: usize) -> Result<usize> {
        match self {
            Self::Device(sink) => {
                sink.reap()?;
                Ok(sink.queued().min(under_way))
            }
            Self::Net(sender) => {
                sender.advance()?;
                Ok(sender.unacknowledged())
            }
            Self::Endpoint(messages) => messages.turn(),
            Self::Bulk(bulk) => bulk.turn(),
            Self::Recording(_) | Self::Null | Self::Verify(_) => Ok(0),
        }
    }

    /// There is nothing more to come; whether everything is where it should be.
    fn finish(&mut self, lost: Lost) -> Result<bool> {
        match self {
            Self::Device(sink) => sink.try_drain(),
            Self::Net(sender) => {
                sender.finish(lost);
                sender.advance()?;
                Ok(sender.is_finished())
            }
            Self::Endpoint(_)
            | Self::Bulk(_)
            | Self::Recording(_)
            | Self::Null
            | Self::Verify(_) => Ok(true),
        }
    }

    fn close(self, lost: Lost) -> Result<()> {
        match self {
            Self::Recording(recorder) => recorder.finish(lost),
            _ => Ok(()),
        }
    }

    fn copied(&self) -> u64 {
        match self {
            Self::Device(sink) => sink.copied(),
            Self::Net(sender) => sender.copied(),
            Self::Recording(recorder) => recorder.copied(),
            Self::Endpoint(messages) => messages.copied,
            Self::Bulk(bulk) => bulk.copied(),
            Self::Null | Self::Verify(_) => 0,
        }
    }

    fn connections(&self) -> (u64, u64) {
        match self {
            Self::Net(sender) => (sender.reconnects(), sender.resent()),
            _ => (0, 0),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Device(sink) => Some(sink.as_fd()),
            Self::Net(sender) => Some(sender.as_fd()),
            Self::Endpoint(messages) => Some(messages.endpoint.as_fd()),
            Self::Bulk(bulk) => Some(bulk.as_fd()),
            Self::Recording(_) | Self::Null | Self::Verify(_) => None,
        }
    }
}

/// The check sum that a stage has computed still holds.
fn check(item: &Item) -> Result<()> {
    let Some(check) = item.check else { return Ok(()) };
    let found = item.samples.parts()?.crc32c();
    if found == check {
        return Ok(());
    }
    let sequence = item.samples.meta().sequence;
    let why =
        format!("the check sum of block {sequence} is {found:#010x} instead of {check:#010x}");
    let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
    Err(Error::new("verify", "samples", why))
}

/// Blocks as messages to a coprocessor.
#[derive(Debug)]
struct Messages {
    endpoint: Endpoint,
    /// Kept open with it.
    _controller: Controller,
    /// Bytes of a message: whole samples.
    len: usize,
    /// What is being sent, and how much of it was.
    item: Option<(Item, usize)>,
    copied: u64,
}

impl Messages {
    fn open(service: &str, sample_len: usize) -> Result<Self> {
        if sample_len > MAX_MESSAGE {
            let allowed = format!("up to {MAX_MESSAGE}, a message's");
            return Err(Error::invalid("the bytes of a sample", sample_len, allowed));
        }
        let (controller, endpoint) = endpoint::open(service)?;
        let len = MAX_MESSAGE / sample_len * sample_len;
        Ok(Self { endpoint, _controller: controller, len, item: None, copied: 0 })
    }

    fn take(&mut self, item: &Item) -> bool {
        let is_free = self.item.is_none();
        if is_free {
            self.item = Some((item.clone(), 0));
        }
        is_free
    }

    /// Sends what there is room for; how many blocks are left.
    fn turn(&mut self) -> Result<usize> {
        let Some((item, sent)) = &mut self.item else { return Ok(0) };
        let bytes = item.samples.read()?;
        while *sent < bytes.len() {
            let end = bytes.len().min(*sent + self.len);
            if !self.endpoint.try_send(&bytes[*sent..end])? {
                return Ok(1);
            }
            self.copied += (end - *sent) as u64;
            *sent = end;
        }
        drop(bytes);
        self.item = None;
        Ok(0)
    }
}
