//! Where samples come from, and come from again after a crash.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::config::{Config, SinkKind, SourceConfig, SourceKind};
use super::edge::{Item, NOTHING, sum};
use super::endpoint;
use super::stage::Shape;
use crate::block::{Block, Memory, Purpose};
use crate::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use crate::receive;
use crate::stream::net::{FrameReceiver, Options, Pool};
use crate::stream::sigmf::{Player, Recording};
use crate::stream::{self, Format, Interface, Lost, Meta, Samples, StreamSetup};
use crate::{Error, Reason, Result};

/// Between two attempts to have something back.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A converter that fails with so many blocks in a row is opened anew.
const MOST_FAILURES: u32 = 16;
/// Memory that a network device has beyond what blocks take, and at least.
const SLACK: usize = 4 << 20;
const LEAST_MEMORY: usize = 16 << 20;
/// How long the end waits for senders to hear of it.
const FAREWELL: Duration = Duration::from_secs(1);
const ENOUGH: &str = "the receiver has what it wanted, and takes no more";
/// For ever, as far as anybody can tell.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// When to try again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub at: Instant,
    since: Instant,
    pause: Duration,
    patience: Duration,
}

impl Retry {
    pub(super) fn new(patience: Option<Duration>) -> Self {
        let now = Instant::now();
        let patience = patience.unwrap_or(FOREVER);
        Self { at: now, since: now, pause: SHORTEST_PAUSE, patience }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Another attempt has failed.
    pub(super) fn failed(&mut self, error: Error) -> Result<Error> {
        if self.since.elapsed() >= self.patience {
            return Err(error);
        }
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(error)
    }
}

/// How long to try to have a part back.
pub(super) fn patience(own: Option<Duration>, all: &Config) -> Option<Duration> {
    if all.fail_fast { Some(Duration::ZERO) } else { own }
}

/// Options of a connection that is not given up before `patience`.
pub(super) fn options(patience: Option<Duration>) -> Options {
    Options { patience: patience.unwrap_or(FOREVER), ..Options::default() }
}

fn listening(config: &SourceConfig) -> Options {
    let options = options(config.patience);
    let memory_limit = config.memory_limit.unwrap_or(options.memory_limit);
    Options { memory_limit, ..options }
}

/// What gives samples.
#[derive(Debug)]
enum Feed {
    Device(stream::Source),
    Net(Box<FrameReceiver>),
    Recording(Box<Player>),
    Endpoint(Box<Messages>),
}

/// What a sender is told whose samples nobody takes any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Farewell<'a> {
    /// There are no more blocks than there were.
    Enough,
    /// Why.
    Because(&'a str),
}

/// A source, whatever becomes of it.
#[derive(Debug)]
pub(super) struct Source {
    config: SourceConfig,
    setup: StreamSetup,
    /// How long to try to have it back.
    patience: Option<Duration>,
    state: State,
    /// A sender that has to hear of the end, and how long there is for that.
    leaving: Option<(Box<FrameReceiver>, Instant)>,
    /// How what is open now or was last is read, and where its blocks are.
    about: Option<(Interface, Memory)>,
    /// Known from the first time on; may not change.
    shape: Option<Shape>,
    /// Whether what is open now was seen to be such.
    is_known: bool,
    /// Missing before the next block, beyond what it says.
    lost: Lost,
    failures: u32,
    /// How often it was opened: each time there is another descriptor.
    pub opens: u64,
    pub counts: Counts,
}

#[derive(Debug)]
enum State {
    /// Not wanted.
    Off,
    Down(Retry),
    Open(Feed),
    /// There is nothing more to come.
    Ended,
}

/// What a source has given.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub blocks: u64,
    pub samples: u64,
    pub bytes: u64,
    pub lost: u64,
    pub unknown: u64,
    pub failed: u64,
    pub restarts: u64,
    /// Of feeds that are closed.
    copied: u64,
    reconnects: u64,
    corrupted: u64,
}

/// What a look at a source has found.
#[derive(Debug)]
pub(super) enum Taken {
    Nothing,
    Item(Item),
    End(Lost),
    /// It goes on.
    Trouble(Error),
}

impl Source {
    /// `is_on`: opened at once, and not only when it is started.
    pub(super) fn new(config: &SourceConfig, all: &Config, is_on: bool) -> Result<Self> {
        let setup = StreamSetup {
            blocks: all.blocks(config),
            block_len: config.block_len,
            memory: config.memory.clone().or_else(|| memory(config, all)),
            interface: config.interface,
            channels: config.channels.clone(),
        };
        let mut source = Self {
            config: config.clone(),
            setup,
            patience: patience(config.patience, all),
            state: State::Off,
            leaving: None,
            about: None,
            shape: None,
            is_known: false,
            lost: NOTHING,
            failures: 0,
            opens: 0,
            counts: Counts::default(),
        };
        match config.from {
            // A coprocessor may take longer to start than a program.
            SourceKind::Endpoint { .. } if is_on => {
                source.state = State::Down(Retry::new(source.patience));
            }
            _ if is_on => source.open()?,
            _ => {}
        }
        Ok(source)
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// The converter's name, where it is one.
    pub(super) fn device(&self) -> Option<&str> {
        match &self.config.from {
            SourceKind::Device(name) => name.strip_prefix("iio:"),
            _ => None,
        }
    }

    pub(super) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// How a converter is read, and where its blocks are.
    pub(super) fn about(&self) -> Option<&(Interface, Memory)> {
        self.about.as_ref()
    }

    pub(super) fn state(&self) -> &'static str {
        match self.state {
            State::Off => "off",
            State::Down(_) => "down",
            State::Open(_) => "open",
            State::Ended => "ended",
        }
    }

    /// When to look again without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Down(retry) => Some(retry.at),
            _ => None,
        }
    }

    /// What tells of something to take.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Open(feed) => Some(feed.as_fd()),
            _ => self.leaving.as_ref().map(|(receiver, _)| receiver.as_fd()),
        }
    }

    /// Opens it, unless it is.
    pub(super) fn start(&mut self) -> Result<()> {
        if matches!(self.state, State::Open(_) | State::Ended) {
            return Ok(());
        }
        self.open()
    }

    /// Closes it until it is started again.
    pub(super) fn stop(&mut self) {
        if let State::Open(feed) = &self.state {
            self.counts.keep(feed);
        }
        if !matches!(self.state, State::Ended) {
            self.state = State::Off;
            self.lost = sum(self.lost, self.gap());
        }
    }

    /// Closes it for good, and tells who sends why; what was lost after the last block.
    pub(super) fn end(&mut self, farewell: Farewell<'_>) -> Lost {
        let lost = match std::mem::replace(&mut self.state, State::Ended) {
            State::Open(feed) => {
                self.counts.keep(&feed);
                let lost = feed.end();
                if let Feed::Net(mut receiver) = feed
                    && !receiver.is_finished()
                {
                    match farewell {
                        Farewell::Enough => receiver.leave_content(ENOUGH),
                        Farewell::Because(reason) => receiver.leave(reason),
                    }
                    self.leaving = Some((receiver, Instant::now() + FAREWELL));
                }
                lost
            }
            _ => NOTHING,
        };
        let lost = sum(std::mem::replace(&mut self.lost, NOTHING), lost);
        self.counts.lose(lost);
        lost
    }

    /// Whether nobody has to hear of its end any more.
    pub(super) fn has_left(&mut self) -> bool {
        if let Some((receiver, until)) = &mut self.leaving
            && (receiver.has_left() || Instant::now() >= *until)
        {
            self.leaving = None;
        }
        self.leaving.is_none()
    }

    /// What is missing between before and after a time in which it was closed.
    fn gap(&self) -> Lost {
        if self.counts.blocks == 0 { NOTHING } else { Lost::Unknown }
    }

    fn open(&mut self) -> Result<()> {
        let feed = Feed::open(&self.config, &self.setup)?;
        self.is_known = false;
        self.learn(feed.shape(self.setup.memory.as_ref()))?;
        if let Feed::Device(device) = &feed {
            self.about = Some((device.interface(), device.memory().clone()));
        }
        self.state = State::Open(feed);
        self.opens += 1;
        self.failures = 0;
        Ok(())
    }

    /// What its samples look like, once that is known; it stays.
    fn learn(&mut self, shape: Option<Shape>) -> Result<()> {
        let Some(shape) = shape else { return Ok(()) };
        self.is_known = true;
        match &self.shape {
            Some(known) if known.format != shape.format || known.block_len < shape.block_len => {
                let why = "its samples are others than before";
                let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
                Err(Error::new("open again", format!("source `{}`", self.name()), why))
            }
            Some(_) => Ok(()),
            None => {
                self.shape = Some(shape);
                Ok(())
            }
        }
    }

    /// What comes next, if something has.
    pub(super) fn take(&mut self) -> Result<Taken> {
        match &mut self.state {
            State::Down(retry) if retry.is_due() => self.reopen(),
            State::Off | State::Down(_) | State::Ended => Ok(Taken::Nothing),
            State::Open(_) if self.config.count.is_some_and(|it| self.counts.samples >= it) => {
                Ok(Taken::End(self.end(Farewell::Enough)))
            }
            State::Open(feed) => match feed.next() {
                Ok(Some(samples)) => {
                    self.look()?;
                    Ok(Taken::Item(self.taken(samples)))
                }
                Ok(None) if feed.is_finished() => Ok(Taken::End(self.end(Farewell::Enough))),
                Ok(None) => {
                    let trouble = feed.take_trouble();
                    self.look()?;
                    Ok(trouble.map_or(Taken::Nothing, Taken::Trouble))
                }
                Err(error) => self.failed(error),
            },
        }
    }

    /// Whether it is known by now what comes.
    fn look(&mut self) -> Result<()> {
        match &self.state {
            State::Open(feed) if !self.is_known => {
                self.learn(feed.shape(self.setup.memory.as_ref()))
            }
            _ => Ok(()),
        }
    }

    fn taken(&mut self, samples: Samples) -> Item {
        let sample_len = self.shape.as_ref().map_or(1, |shape| shape.format.sample_len);
        let mut item = Item::new(samples, sample_len);
        item.lost = sum(item.lost, std::mem::replace(&mut self.lost, NOTHING));
        self.failures = 0;
        self.counts.blocks += 1;
        self.counts.samples += item.count;
        self.counts.bytes += item.samples.meta().len as u64;
        self.counts.lose(item.lost);
        item
    }

    /// A converter can fail with one block and go on with the next; what else fails is opened anew.
    fn failed(&mut self, error: Error) -> Result<Taken> {
        let State::Open(feed) = &self.state else { return Ok(Taken::Nothing) };
        self.failures += 1;
        let is_block = matches!(feed, Feed::Device(_)) && error.errno() != Some(Errno::PIPE);
        if is_block && self.failures <= MOST_FAILURES {
            self.counts.failed += 1;
            return Ok(Taken::Trouble(error));
        }
        if matches!(feed, Feed::Recording(_)) {
            return Err(error);
        }
        self.counts.keep(feed);
        self.lost = sum(self.lost, self.gap());
        let mut retry = Retry::new(self.patience);
        let error = retry.failed(error)?;
        self.state = State::Down(retry);
        Ok(Taken::Trouble(error))
    }

    fn reopen(&mut self) -> Result<Taken> {
        match self.open() {
            Ok(()) => {
                self.counts.restarts += 1;
                Ok(Taken::Nothing)
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(error),
            Err(error) => {
                if let State::Down(retry) = &mut self.state {
                    retry.failed(error)?;
                }
                Ok(Taken::Nothing)
            }
        }
    }

    /// Bytes that were copied on the way in.
    pub(super) fn copied(&self) -> u64 {
        let now = if let State::Open(feed) = &self.state { feed.copied() } else { 0 };
        self.counts.copied + now
    }

    /// How often a sender came back, and frames that could not be.
    pub(super) fn connections(&self) -> (u64, u64) {
        let (back, corrupted) =
            if let State::Open(feed) = &self.state { feed.connections() } else { (0, 0) };
        (self.counts.reconnects + back, self.counts.corrupted + corrupted)
    }
}

impl Counts {
    fn lose(&mut self, lost: Lost) {
        match lost {
            Lost::Samples(lost) => self.lost = self.lost.saturating_add(lost),
            Lost::Unknown => self.unknown += 1,
        }
    }

    /// What a feed that is closed has counted.
    fn keep(&mut self, feed: &Feed) {
        let (reconnects, corrupted) = feed.connections();
        self.copied += feed.copied();
        self.reconnects += reconnects;
        self.corrupted += corrupted;
    }
}

impl Feed {
    fn open(config: &SourceConfig, setup: &StreamSetup) -> Result<Self> {
        Ok(match &config.from {
            SourceKind::Device(name) => Self::Device(stream::Source::open(name, setup)?),
            SourceKind::Listen(address) => {
                Self::Net(Box::new(FrameReceiver::listen(address, setup, &listening(config))?))
            }
            SourceKind::Receive { device, address } => {
                Self::Net(Box::new(received(device.as_deref(), *address, config, setup)?))
            }
            SourceKind::Recording(path) => {
                Self::Recording(Box::new(Player::new(Recording::open(path)?, setup)?))
            }
            SourceKind::Endpoint { service, datatype, channels } => {
                let format = datatype.format(*channels, None, None, None);
                Self::Endpoint(Box::new(Messages::open(service, format, setup)?))
            }
        })
    }

    /// Known at once, but for what comes by the network.
    fn shape(&self, memory: Option<&Memory>) -> Option<Shape> {
        let (format, block_len, memory) = match self {
            Self::Device(source) => (source.format(), source.block_len(), Some(source.memory())),
            Self::Net(receiver) => (receiver.format()?, receiver.block_len()?, memory),
            Self::Recording(player) => (player.format(), player.block_len(), memory),
            Self::Endpoint(messages) => (&messages.format, messages.block_len, memory),
        };
        let memory = memory.filter(|memory| **memory != Memory::Foreign);
        let memory = memory.cloned().unwrap_or(Memory::Memfd);
        Some(Shape { format: format.clone(), block_len, memory })
    }

    fn next(&mut self) -> Result<Option<Samples>> {
        match self {
            Self::Device(source) => source.try_next(),
            Self::Net(receiver) => receiver.try_next(),
            Self::Recording(player) => player.try_next(),
            Self::Endpoint(messages) => messages.next(),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Net(receiver) => receiver.is_finished(),
            Self::Recording(player) => player.is_finished(),
            Self::Device(_) | Self::Endpoint(_) => false,
        }
    }

    /// What was lost after the last block, if there is nothing more to come.
    fn end(&self) -> Lost {
        match self {
            Self::Net(receiver) if receiver.is_finished() => {
                receiver.end().unwrap_or(Lost::Unknown)
            }
            Self::Recording(player) if player.is_finished() => player.end(),
            // What comes later is not lost but not wanted.
            _ => NOTHING,
        }
    }

    fn copied(&self) -> u64 {
        match self {
            Self::Device(source) => source.copied(),
            Self::Net(receiver) => receiver.copied(),
            Self::Recording(player) => player.copied(),
            Self::Endpoint(messages) => messages.copied,
        }
    }

    fn connections(&self) -> (u64, u64) {
        match self {
            Self::Net(receiver) => (receiver.reconnects(), receiver.corrupted()),
            _ => (0, 0),
        }
    }

    fn take_trouble(&mut self) -> Option<Error> {
        match self {
            Self::Net(receiver) => receiver.take_trouble(),
            _ => None,
        }
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Device(source) => source.as_fd(),
            Self::Net(receiver) => receiver.as_fd(),
            Self::Recording(player) => player.as_fd(),
            Self::Endpoint(messages) => messages.endpoint.as_fd(),
        }
    }
}

/// Frames that a network device puts into memory, or ordinary receive.
fn received(
    device: Option<&str>,
    address: SocketAddr,
    config: &SourceConfig,
    setup: &StreamSetup,
) -> Result<FrameReceiver> {
    // As `stream::net` asks for, of what is known before anybody calls.
    let all = setup.blocks.checked_mul(4).and_then(|count| count.checked_mul(setup.block_len));
    let len = all.and_then(|all| all.checked_add(SLACK)).ok_or_else(|| {
        let blocks = format!("{} of {} bytes", setup.blocks, setup.block_len);
        Error::invalid("blocks to receive", blocks, "what four times as much has an address for")
    })?;
    let len = len.max(LEAST_MEMORY);
    let usual = if device.is_some() { Memory::Pages } else { Memory::Memfd };
    let block = Block::with(len, config.memory.as_ref().unwrap_or(&usual))?;
    let receiver = match device {
        Some(device) => receive::Receiver::open(device, block, &receive::ReceiveSetup::default())?,
        None => receive::Receiver::host(block)?,
    };
    FrameReceiver::over(receiver, address, setup, &listening(config))
}

/// The memory that a source and what is behind it do best with, where it would choose another.
fn memory(config: &SourceConfig, all: &Config) -> Option<Memory> {
    let is_converter = matches!(&config.from, SourceKind::Device(name) if name.starts_with("iio:"));
    let leads =
        |wanted: fn(&SinkKind) -> bool| all.sinks_of(&config.name).any(|sink| wanted(&sink.to));
    if leads(|to| matches!(to, SinkKind::Connect(_))) && is_converter {
        return Some(Memory::choose(Purpose::Network));
    }
    let is_device = leads(|to| matches!(to, SinkKind::Device(_)));
    (is_device && !is_converter).then(|| Memory::choose(Purpose::Device))
}

/// Messages of a coprocessor as blocks: as many as wait and fit, whole samples each.
#[derive(Debug)]
struct Messages {
    endpoint: Endpoint,
    /// Kept open with it.
    _controller: Controller,
    format: Format,
    block_len: usize,
    blocks: usize,
    pool: Pool,
    sequence: u64,
    /// Missing before the next block.
    lost: Lost,
    /// What went wrong behind messages that were handed out.
    trouble: Option<Error>,
    copied: u64,
}

impl Messages {
    fn open(service: &str, format: Format, setup: &StreamSetup) -> Result<Self> {
        let (controller, endpoint) = endpoint::open(service)?;
        // Whoever sends has to know where to.
        endpoint.try_send(&[])?;
        let most = setup.block_len.max(MAX_MESSAGE);
        let block_len = most / format.sample_len * format.sample_len;
        let memory = setup.memory.clone().unwrap_or(Memory::Memfd);
        let blocks = (0..setup.blocks).map(|_| Block::with(block_len, &memory));
        let pool = Pool::new(blocks.collect::<Result<_>>()?)?;
        Ok(Self {
            endpoint,
            _controller: controller,
            format,
            block_len,
            blocks: setup.blocks,
            pool,
            sequence: 0,
            // What was said before somebody listened is not missing.
            lost: NOTHING,
            trouble: None,
            copied: 0,
        })
    }

    fn next(&mut self) -> Result<Option<Samples>> {
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        self.pool.returned();
        let Some(mut block) = self.pool.take() else { return Ok(None) };
        let filled = self.fill(&mut block);
        match filled {
            Ok(0) => {
                self.pool.put(block);
                Ok(None)
            }
            Err(error) => {
                self.pool.put(block);
                Err(error)
            }
            Ok(len) => {
                let time = std::time::SystemTime::now();
                let lost = std::mem::replace(&mut self.lost, NOTHING);
                let meta = Meta { sequence: self.sequence, time, lost, len };
                self.sequence += 1;
                self.copied += len as u64;
                Ok(Some(self.pool.hand_out(block, meta, self.blocks, 0)))
            }
        }
    }

    /// Takes what waits and fits; a failure behind some messages is told after them.
    fn fill(&mut self, block: &mut Block) -> Result<usize> {
        let mut room = block.write()?;
        let mut len = 0;
        while self.block_len - len >= MAX_MESSAGE {
            let place = &mut room[len..len + MAX_MESSAGE];
            let length = match self.endpoint.try_recv(place) {
                Ok(Some(length)) => length,
                Ok(None) => break,
                // Messages were dropped since nobody took them in time.
                Err(error) if error.reason() == Reason::Lost => {
                    if len > 0 {
                        self.lost = Lost::Unknown;
                        break;
                    }
                    self.lost = Lost::Unknown;
                    continue;
                }
                Err(error) if len > 0 => {
                    self.trouble = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            };
            if !length.is_multiple_of(self.format.sample_len) {
                let why = format!(
                    "a message of {length} bytes is not whole samples of {}",
                    self.format.sample_len
                );
                let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
                return Err(Error::new("take samples from", "an endpoint", why));
            }
            len += length;
        }
        Ok(len)
    }
}
