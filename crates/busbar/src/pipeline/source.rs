//! Sources, which are opened again after a failure.

mod feed;
mod messages;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::feed::Feed;
use super::config::{Config, SinkKind, SourceConfig, SourceKind};
use super::counters::SourceCounters;
use super::edge::{Item, NOTHING, sum};
use super::retry::{Retry, patience};
use super::shape::Shape;
use crate::block::{Memory, Purpose};
use crate::poll::{Task, later};
use crate::stream::net::{Count, FrameReceiver};
use crate::stream::{Interface, Lost, Samples, StreamSetup};
use crate::{Error, Result};

/// A converter that fails with more blocks in a row is opened again.
const MOST_FAILURES: u32 = 16;
/// How long the end waits until senders know of it.
const FAREWELL: Duration = Duration::from_secs(1);
const ENOUGH: &str = "the receiver has what it wanted, and takes no more";
/// What a sender is told when its samples are no longer taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Farewell<'a> {
    /// The receiver has all blocks that it wants.
    Enough,
    /// The reason.
    Because(&'a str),
}

/// A source, open or not.
#[derive(Debug)]
pub(super) struct Source {
    config: SourceConfig,
    setup: StreamSetup,
    /// Number of blocks, if a sender determines how long they are.
    count: Count,
    /// How long to try to open it again.
    patience: Option<Duration>,
    state: State,
    /// A sender that does not know of the end yet, and when to stop waiting for it.
    leaving: Option<(Box<FrameReceiver>, Instant)>,
    /// Interface and memory of the feed that is open or was open last.
    about: Option<(Interface, Memory)>,
    /// Known once the first feed was open; must not change.
    shape: Option<Shape>,
    /// Whether the feed that is open has this shape.
    is_known: bool,
    /// Whether the nodes behind it take samples of this shape.
    pub admitted: Admitted,
    /// A thread that opens a feed nobody wants any more: the source was stopped meanwhile.
    abandoned: Option<Task<Feed>>,
    /// Whether it has failed since it was started: opening it is a restart.
    has_failed: bool,
    /// What is missing before the next block, in addition to its own loss.
    lost: Lost,
    failures: u32,
    /// How often it was opened: each time it has another descriptor.
    pub opens: u64,
    counts: Counts,
}

/// Whether the nodes behind a source take its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    No,
    /// They are being opened for the first sender.
    Pending,
    Yes,
}

#[derive(Debug)]
enum State {
    /// It was not started, or was stopped.
    Off,
    Down(Retry),
    /// A thread opens it. Without a retry, it is the start of the pipeline, and a failure ends that.
    Opening(Task<Feed>, Option<Retry>),
    Open(Feed),
    /// No more samples come.
    Ended,
}

/// Totals of a source.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    blocks: u64,
    samples: u64,
    bytes: u64,
    lost: u64,
    unknown: u64,
    failed: u64,
    restarts: u64,
    /// These three count feeds that are closed.
    copied: u64,
    reconnects: u64,
    corrupted: u64,
}

/// The result of taking from a source.
#[derive(Debug)]
pub(super) enum Taken {
    Nothing,
    /// The first sender has come. It waits until its shape is [admitted](Source::admit) or
    /// [rejected](Source::reject).
    Hello,
    Item(Item),
    End(Lost),
    /// An error; the source goes on.
    Trouble(Error),
}

impl Source {
    /// `is_on`: it is opened at once, not when it is started.
    pub(super) fn new(config: &SourceConfig, all: &Config, is_on: bool) -> Result<Self> {
        let setup = StreamSetup {
            blocks: Some(all.blocks(config)),
            block_len: config.block_len,
            memory: config.memory.clone().or_else(|| memory(config, all)),
            interface: config.interface,
            channels: config.channels.clone(),
            rate: None,
        };
        let mut source = Self {
            config: config.clone(),
            setup,
            count: all.count(config),
            patience: patience(config.patience, all),
            state: State::Off,
            leaving: None,
            about: None,
            shape: None,
            is_known: false,
            admitted: Admitted::No,
            abandoned: None,
            has_failed: false,
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
            _ if is_on => source.open(None)?,
            _ => {}
        }
        Ok(source)
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// How often it was opened again after a failure.
    pub(super) fn restarts(&self) -> u64 {
        self.counts.restarts
    }

    pub(super) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    pub(super) fn state(&self) -> &'static str {
        match self.state {
            State::Off => "off",
            State::Down(_) | State::Opening(..) => "down",
            State::Open(_) => "open",
            State::Ended => "ended",
        }
    }

    /// When it needs a turn without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Down(retry) => Some(retry.at),
            _ => None,
        }
    }

    /// The descriptor to watch.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Open(feed) => Some(feed.as_fd()),
            State::Opening(task, _) => Some(task.as_fd()),
            _ => self.leaving.as_ref().map(|(receiver, _)| receiver.as_fd()),
        }
    }

    /// Opens it, unless it is open.
    pub(super) fn start(&mut self) -> Result<()> {
        if matches!(self.state, State::Open(_) | State::Opening(..) | State::Ended) {
            return Ok(());
        }
        self.has_failed = false;
        self.open(Some(Retry::new(self.patience)))
    }

    /// Closes it until it is started again.
    pub(super) fn stop(&mut self) {
        if let State::Open(feed) = &self.state {
            self.counts.keep(feed);
        }
        if !matches!(self.state, State::Ended) {
            if let State::Opening(task, _) = std::mem::replace(&mut self.state, State::Off) {
                self.abandoned = Some(task);
            }
            self.lost = sum(self.lost, self.gap());
        }
    }

    /// Closes it for good; a sender gets the reason. Returns what was lost after the last block.
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
                    self.leaving = Some((receiver, later(Instant::now(), FAREWELL)));
                }
                lost
            }
            _ => NOTHING,
        };
        let lost = sum(std::mem::replace(&mut self.lost, NOTHING), lost);
        self.counts.lose(lost);
        lost
    }

    /// Whether its sender, if there is one, knows of the end.
    pub(super) fn has_left(&mut self) -> bool {
        if let Some((receiver, until)) = &mut self.leaving
            && (receiver.has_left() || Instant::now() >= *until)
        {
            self.leaving = None;
        }
        self.leaving.is_none()
    }

    /// What is missing after a time in which it was closed.
    fn gap(&self) -> Lost {
        if self.counts.blocks == 0 { NOTHING } else { Lost::Unknown }
    }

    /// Opens it, or has a thread do so if that may wait: others have their turn meanwhile.
    fn open(&mut self, retry: Option<Retry>) -> Result<()> {
        let (config, setup, count) = (self.config.clone(), self.setup.clone(), self.count);
        let place = format!("source `{}`", config.name);
        let what = place.clone();
        let open = move || Feed::open(&config, &setup, count).map_err(|error| error.within(&place));
        if !self.config.from.may_wait() {
            return self.opened(open()?);
        }
        let task = match self.abandoned.take() {
            Some(task) => task,
            None => Task::start(&what, open)?,
        };
        self.state = State::Opening(task, retry);
        self.opens += 1;
        Ok(())
    }

    fn opened(&mut self, feed: Feed) -> Result<()> {
        self.is_known = false;
        self.forget_admission();
        self.learn(feed.shape(self.setup.memory.as_ref()))?;
        if let Feed::Device(device) = &feed {
            self.about = Some((device.interface(), device.memory().clone()));
        }
        self.state = State::Open(feed);
        self.opens += 1;
        self.failures = 0;
        Ok(())
    }

    /// Nodes that are being opened for a sender have to be for another one.
    fn forget_admission(&mut self) {
        if self.admitted == Admitted::Pending {
            self.admitted = Admitted::No;
        }
    }

    /// Remembers the shape once it is known; fails if it has changed.
    fn learn(&mut self, shape: Option<Shape>) -> Result<()> {
        let Some(shape) = shape else { return Ok(()) };
        self.is_known = true;
        match &self.shape {
            Some(known) if known.format != shape.format || known.block_len < shape.block_len => {
                let why = "its samples have another format than before";
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

    /// Takes the next block, if there is one.
    pub(super) fn take(&mut self) -> Result<Taken> {
        match &mut self.state {
            State::Down(retry) if retry.is_due() => self.reopen(),
            State::Opening(..) => self.await_opening(),
            State::Off => {
                // A feed that comes late is closed.
                self.abandoned.take_if(|task| task.take().is_some());
                Ok(Taken::Nothing)
            }
            State::Down(_) | State::Ended => Ok(Taken::Nothing),
            State::Open(_) if self.config.count.is_some_and(|it| self.counts.samples >= it) => {
                Ok(Taken::End(self.end(Farewell::Enough)))
            }
            State::Open(feed) => match feed.next() {
                Ok(None) if matches!(feed, Feed::Net(receiver) if receiver.is_asked()) => {
                    Ok(self.hear())
                }
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

    /// A sender has come. The shape of a later one must be that of the first one.
    fn hear(&mut self) -> Taken {
        match self.look() {
            Ok(()) if self.admitted == Admitted::Yes => self.admit(),
            Ok(()) => return Taken::Hello,
            Err(error) => {
                self.reject(&error);
                return Taken::Trouble(error);
            }
        }
        Taken::Nothing
    }

    /// The nodes behind it take the samples of the sender that waits.
    pub(super) fn admit(&mut self) {
        self.admitted = Admitted::Yes;
        if let State::Open(Feed::Net(receiver)) = &mut self.state {
            receiver.admit();
        }
    }

    /// Refuses the sender that waits; the next one may come.
    pub(super) fn reject(&mut self, error: &Error) {
        self.is_known = false;
        if self.admitted != Admitted::Yes {
            self.shape = None;
        }
        self.forget_admission();
        if let State::Open(Feed::Net(receiver)) = &mut self.state {
            receiver.reject(&error.to_string());
        }
    }

    /// Bytes that the nodes behind it may allocate for its samples: what its own blocks leave of the memory limit, if
    /// a sender determines how long they are.
    pub(super) fn room(&self) -> usize {
        let (State::Open(Feed::Net(receiver)), Some(shape)) = (&self.state, &self.shape) else {
            return usize::MAX;
        };
        let blocks = receiver.blocks().unwrap_or_default();
        let own = shape.memory.size_of(blocks, shape.block_len);
        receiver.memory_limit().saturating_sub(own.unwrap_or(usize::MAX))
    }

    /// Asks the feed for its shape, unless that is known.
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

    /// A converter can fail with one block and go on with the next. After any other error, the source is opened
    /// again.
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
        (self.state, self.has_failed) = (State::Down(retry), true);
        Ok(Taken::Trouble(error))
    }

    fn reopen(&mut self) -> Result<Taken> {
        let State::Down(mut retry) = self.state else { return Ok(Taken::Nothing) };
        match self.open(Some(retry)) {
            Ok(()) => {
                self.counts.restarts += u64::from(matches!(self.state, State::Open(_)));
                Ok(Taken::Nothing)
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(error),
            Err(error) => {
                retry.failed(error)?;
                self.state = State::Down(retry);
                Ok(Taken::Nothing)
            }
        }
    }

    /// What has become of the opening.
    fn await_opening(&mut self) -> Result<Taken> {
        let State::Opening(task, retry) = &self.state else { return Ok(Taken::Nothing) };
        let (feed, retry) = (task.take(), *retry);
        let Some(feed) = feed else {
            // The first time has a limit of its own, however short the patience.
            if self.has_failed && retry.is_some_and(|retry| retry.is_over()) {
                let what = format!("source `{}`", self.name());
                return Err(Error::new("open", what, Errno::TIMEDOUT));
            }
            return Ok(Taken::Nothing);
        };
        match (feed, retry) {
            (Ok(feed), _) => {
                self.opened(feed)?;
                self.counts.restarts += u64::from(self.has_failed);
                Ok(Taken::Nothing)
            }
            (Err(error), None) => Err(error),
            (Err(error), Some(mut retry)) => {
                let error = retry.failed(error)?;
                self.state = State::Down(retry);
                Ok(Taken::Trouble(error))
            }
        }
    }

    pub(super) fn counters(&self) -> SourceCounters {
        let mut counts = self.counts;
        if let State::Open(feed) = &self.state {
            counts.keep(feed);
        }
        let about = self.about.as_ref();
        SourceCounters {
            name: self.name().into(),
            state: self.state().into(),
            interface: about.map(|(interface, _)| interface.to_string()),
            memory: about.map(|(_, memory)| memory.to_string()),
            blocks: counts.blocks,
            samples: counts.samples,
            bytes: counts.bytes,
            lost: counts.lost,
            unknown: counts.unknown,
            failed: counts.failed,
            restarts: counts.restarts,
            reconnects: counts.reconnects,
            corrupted: counts.corrupted,
            copied: counts.copied,
        }
    }
}

impl Counts {
    fn lose(&mut self, lost: Lost) {
        match lost {
            Lost::Samples(lost) => self.lost = self.lost.saturating_add(lost),
            Lost::Unknown => self.unknown += 1,
        }
    }

    /// Adds the counters of a feed.
    fn keep(&mut self, feed: &Feed) {
        let (reconnects, corrupted) = feed.connections();
        self.copied += feed.copied();
        self.reconnects += reconnects;
        self.corrupted += corrupted;
    }
}

/// The best memory for a source and its sinks, if the source alone would choose another.
fn memory(config: &SourceConfig, all: &Config) -> Option<Memory> {
    let is_converter = matches!(&config.from, SourceKind::Device(name) if name.starts_with("iio:"));
    let leads =
        |wanted: fn(&SinkKind) -> bool| all.sinks_of(&config.name).any(|sink| wanted(&sink.to));
    let is_sent =
        leads(|to| to.is_remote() || matches!(to, SinkKind::Connect(_) | SinkKind::Iiod(_)));
    if is_sent && is_converter {
        return Some(Memory::choose(Purpose::Network));
    }
    let is_device = leads(|to| match to {
        SinkKind::Device(_) => !to.is_remote(),
        #[cfg(feature = "usb")]
        SinkKind::Usb(address) => matches!(address, crate::stream::usb::Address::Gadget(_)),
        _ => false,
    });
    (is_device && !is_converter).then(|| Memory::choose(Purpose::Device))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn however_short_the_patience_the_first_opening_has_its_time_and_the_next_has_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let text = format!(
            "[source.adc]\nfrom = \"iio:adc@ip:{at}\"\n[sink.s]\ninput = \"adc\"\nto = \"null:\""
        );
        let config = Config { fail_fast: true, ..Config::parse("test", &text).unwrap() };
        let mut source = Source::new(&config.sources[0], &config, false).unwrap();
        source.start().unwrap();
        // The server has not answered yet.
        let (server, _) = listener.accept().unwrap();
        assert!(matches!(source.take(), Ok(Taken::Nothing)));
        drop(server);
        let error = loop {
            match source.take() {
                Ok(taken) => assert!(matches!(taken, Taken::Nothing)),
                Err(error) => break error,
            }
            std::thread::yield_now();
        };
        assert_ne!(error.errno(), Some(Errno::TIMEDOUT), "{error}");
    }
}
