//! Receiving.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use rustix::io::Errno;

use super::device::{Device, Direction};
use super::driver::{self, Filled, Monitor, Receiver, Taken};
use super::loss::Detector;
use super::{Format, Interface, Lost, Meta, Scale, StreamSetup, iio, synth};
use crate::block::{Block, Memory, Reading};
use crate::poll::{self, Deadline};
use crate::receive::Piece;
use crate::{Error, Result};

/// Where samples come from.
///
/// Dropping it stops the device and puts its settings back. [`Samples`] that were handed out stay
/// as they are.
///
/// All methods take `&self` and may be used from many threads; each block goes to one of them. A
/// signal does not end a wait: poll the descriptor together with the signal for that.
///
/// The descriptor ([`AsFd`]) is readable while [`next`](Self::next) has a block or an error to
/// tell. It may be readable when there is nothing; then [`try_next`](Self::try_next) says so.
pub struct Source {
    shared: Arc<Shared>,
    back: Back,
    home: Home,
    about: About,
}

/// What does not change.
#[derive(Debug)]
pub(super) struct About {
    pub format: Format,
    pub interface: Interface,
    pub memory: Memory,
    pub blocks: usize,
    pub block_len: usize,
    /// The device, which is asked for what may change.
    pub device: Option<Box<(Device, Direction)>>,
}

impl About {
    /// How values of a channel get a unit.
    pub(super) fn scale(&self, channel: &str) -> Result<Scale> {
        let channel = self.format.channel(channel)?;
        let Some(device) = &self.device else { return Ok(Scale::default()) };
        let (device, direction) = &**device;
        Ok(device.scale(*direction, &channel.name))
    }
}

/// What the source shares with the blocks that were handed out.
#[derive(Debug)]
struct Shared {
    label: String,
    /// Told when a block was given back, or the stream has ended.
    monitor: Monitor<State>,
    poller: Arc<OwnedFd>,
    is_watched: AtomicBool,
}

#[derive(Debug)]
struct State {
    driver: Box<dyn Receiver>,
    detector: Detector,
    sequence: u64,
    /// What went wrong when a block was given back.
    trouble: Option<Error>,
    ended: bool,
    /// Keeps the poller readable.
    end: Option<OwnedFd>,
}

impl Source {
    /// Opens `name`, see [Names](super#names), and starts it.
    ///
    /// # Errors
    ///
    /// `ENOENT` where there is no such device, `EBUSY` if somebody uses it, `EACCES`; bad input for a
    /// name, a channel or a number that is not allowed; as [`Block::with`] for its memory. With an
    /// interface that was asked for, `EPERM` or `ENOTTY` where the driver does not offer it.
    pub fn open(name: &str, setup: &StreamSetup) -> Result<Self> {
        setup.check()?;
        if let Some(synth) = name.strip_prefix("synth:") {
            return synth::open(synth, setup);
        }
        if let Some(device) = name.strip_prefix("iio:") {
            return iio::receive(device, setup);
        }
        Err(Error::invalid("the name of a source", name, "iio:NAME, synth:PATTERN"))
    }

    /// Starts to hand out what the driver has.
    pub(super) fn start(
        label: String,
        driver: Box<dyn Receiver>,
        detector: Detector,
        about: About,
    ) -> Result<Self> {
        let state = State { driver, detector, sequence: 0, trouble: None, ended: false, end: None };
        let shared = Shared {
            label,
            monitor: Monitor::new(state),
            poller: driver::poller()?,
            is_watched: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let home = Arc::clone(&shared);
        let back: Back = Arc::new(move |block| home.give_back(&mut home.lock(), block));
        Ok(Self { shared, back, home: Home::default(), about })
    }

    /// What a sample looks like.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.about.format
    }

    /// How to make the values of a channel ones with a unit, as the device says now: `scale` and `offset`
    /// in sysfs, where it has them. Setting a gain may change it.
    ///
    /// # Errors
    ///
    /// Bad input for a channel that is not received.
    pub fn scale(&self, channel: &str) -> Result<Scale> {
        self.about.scale(channel)
    }

    /// How it talks to its driver.
    #[must_use]
    pub fn interface(&self) -> Interface {
        self.about.interface
    }

    /// Where the blocks' memory is from.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.about.memory
    }

    /// Number of blocks that the source has.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.about.blocks
    }

    /// Bytes of samples that a block holds.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.about.block_len
    }

    /// The next block. Waits for it as long as it takes.
    ///
    /// While all blocks are handed out there is nothing to come until one is given back.
    ///
    /// # Errors
    ///
    /// That of the driver if it has failed with a block; the next one is tried then. `EIO` if nothing
    /// was filled of it. Kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the stream has
    /// ended: by [`stop`](Self::stop), or since the device was disabled or has gone.
    pub fn next(&self) -> Result<Samples> {
        poll::forever(|deadline| self.next_until(deadline))
    }

    /// The next block if one is complete now.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use busbar::stream::{Source, StreamSetup};
    /// use busbar::wait::{Events, Interest, Poller};
    ///
    /// # fn main() -> busbar::Result<()> {
    /// let source = Source::open("synth:sine?rate=1M", &StreamSetup::new().block_len(8000))?;
    /// let (poller, mut events) = (Poller::new()?, Events::new(8)?);
    /// poller.add(&source, 1, Interest::READABLE)?;
    /// let mut blocks = 0;
    /// while blocks < 3 && poller.wait_timeout(&mut events, Duration::from_secs(60))? > 0 {
    ///     while let Some(samples) = source.try_next()? {
    ///         blocks += 1;
    ///         assert_eq!(samples.meta().len, 8000);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn try_next(&self) -> Result<Option<Samples>> {
        self.next_until(Deadline::now())
    }

    /// The next block, or nothing if none was complete within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Samples>> {
        self.next_until(Deadline::after(timeout))
    }

    fn next_until(&self, deadline: Deadline) -> Result<Option<Samples>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(block) = self.shared.take(&mut state, self.about.format.sample_len)? {
                let (block, meta) = block;
                let (home, back) = (Arc::clone(&self.home), Arc::clone(&self.back));
                return Ok(Some(Samples::pooled(block, meta, self.about.blocks, home, back)));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            state = self.shared.wait(state, deadline)?;
        }
    }

    /// Bytes that were copied from one place in memory to another on the way into blocks.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.shared.lock().driver.copied()
    }

    /// Stops the device and puts its settings back; who waits in [`next`](Self::next) hears of it.
    ///
    /// # Errors
    ///
    /// What could not be put back.
    pub fn stop(&self) -> Result<()> {
        self.shared.end(&mut self.shared.lock())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shared, back: _, home: _, about } = self;
        f.debug_struct("Source").field("shared", shared).field("about", about).finish()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.stop();
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.shared.is_watched.swap(true, Ordering::Relaxed) {
            let mut state = self.shared.lock();
            if !state.ended
                && let Err(error) = state.driver.watch(&self.shared.poller)
            {
                state.trouble = Some(error);
                state.end = driver::end(&self.shared.poller);
            }
        }
        self.shared.poller.as_fd()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.monitor.lock()
    }

    /// The next block if it is there.
    fn take(&self, state: &mut State, sample_len: usize) -> Result<Option<(Block, Meta)>> {
        if let Some(error) = state.trouble.take() {
            return Err(error);
        }
        if state.ended {
            return Err(self.over());
        }
        match state.driver.take() {
            Ok(Taken::Nothing) => Ok(None),
            Ok(Taken::Filled(filled)) => self.filled(state, filled, sample_len).map(Some),
            Ok(Taken::Failed(block, error)) => {
                state.sequence += 1;
                self.give_back(state, block);
                Err(error)
            }
            Err(error) => {
                // What comes of it matters less than why.
                let _ = self.end(state);
                Err(error)
            }
        }
    }

    fn filled(
        &self,
        state: &mut State,
        filled: Filled,
        sample_len: usize,
    ) -> Result<(Block, Meta)> {
        let Filled { block, time, mut samples, lost } = filled;
        let sequence = state.sequence;
        state.sequence += 1;
        let lost = match lost {
            Some(lost) => lost,
            None => match state.look(&block, samples) {
                Ok(found) => {
                    samples = found.0;
                    found.1
                }
                Err(error) => {
                    self.give_back(state, block);
                    return Err(error);
                }
            },
        };
        if samples == 0 {
            self.give_back(state, block);
            return Err(Error::new("take samples from", &self.label, Errno::IO)
                .help("the driver says that a block is complete, but has put nothing into it"));
        }
        Ok((block, Meta { sequence, time, lost, len: samples * sample_len }))
    }

    /// Waits until something may have changed.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> Result<MutexGuard<'a, State>> {
        let pending = state.driver.pending();
        self.monitor.wait(state, pending, deadline, &self.label)
    }

    /// Gives a block to the driver again; what goes wrong is told by the next [`Source::next`].
    fn give_back(&self, state: &mut State, block: Block) {
        if state.ended {
            return;
        }
        if let Err(error) = state.driver.queue(block) {
            // The block is lost to the stream, so it would stop sooner or later.
            let _ = self.end(state);
            state.trouble = Some(error);
        }
        self.monitor.notify();
    }

    fn end(&self, state: &mut State) -> Result<()> {
        if state.ended {
            return Ok(());
        }
        state.ended = true;
        if state.end.is_none() {
            state.end = driver::end(&self.poller);
        }
        self.monitor.notify();
        state.driver.stop()
    }

    fn over(&self) -> Error {
        Error::new("take samples from", &self.label, Errno::PIPE).help("the stream has ended")
    }
}

impl State {
    /// Has a look at the samples.
    fn look(&mut self, block: &Block, samples: usize) -> Result<(usize, Lost)> {
        let found = if self.detector.looks() {
            self.detector.inspect(&block.read()?, samples)
        } else {
            self.detector.inspect(&[], samples)
        };
        Ok((found.samples, found.lost))
    }
}

/// A block of samples. It goes back to the driver when it is dropped, from any thread and in any
/// order.
///
/// A clone is another reference to the same block, which goes back with the last of them. It may
/// outlive its [`Source`].
#[derive(Clone, Debug)]
pub struct Samples {
    held: Arc<Held>,
    meta: Meta,
}

/// Takes a block back.
pub(crate) type Back = Arc<dyn Fn(Block) + Send + Sync>;

/// What all blocks of one pool share: it is there as long as the pool or one of them is handed out.
pub(crate) type Home = Arc<()>;

/// Told that parts are not needed any more, after their memory is free.
pub(crate) type Done = Box<dyn Fn() + Send + Sync>;

/// Where the bytes are.
enum Held {
    Block {
        /// Taken only when it is dropped.
        block: Option<Block>,
        total: usize,
        home: Home,
        back: Back,
    },
    Parts {
        parts: Vec<Piece>,
        /// Bytes that had to be put together.
        copied: Arc<AtomicU64>,
        done: Done,
    },
}

impl Samples {
    /// A block of a pool that has `total` of them; it goes to `back` when it is dropped.
    pub(crate) fn pooled(block: Block, meta: Meta, total: usize, home: Home, back: Back) -> Self {
        Self { held: Arc::new(Held::Block { block: Some(block), total, home, back }), meta }
    }

    /// Samples that lie where the network has put them, in parts of any length, [`Meta::len`] bytes
    /// in all. What is copied to put them together is added to `copied`.
    pub(crate) fn scattered(
        parts: Vec<Piece>,
        meta: Meta,
        copied: &Arc<AtomicU64>,
        done: Done,
    ) -> Self {
        Self { held: Arc::new(Held::Parts { parts, copied: Arc::clone(copied), done }), meta }
    }

    /// What is known of it.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The bytes of the samples: as many as [`Meta::len`]. Those that the network has put into parts
    /// are copied together; [`parts`](Self::parts) spares that.
    ///
    /// # Errors
    ///
    /// As [`Block::read`].
    pub fn read(&self) -> Result<SamplesRead<'_>> {
        let Held::Parts { copied, .. } = &*self.held else {
            return Ok(SamplesRead(Bytes::There(self.parts()?)));
        };
        let together: Vec<u8> = self.parts()?.iter().flatten().copied().collect();
        copied.fetch_add(together.len() as u64, Ordering::Relaxed);
        Ok(SamplesRead(Bytes::Together(together)))
    }

    /// The bytes where they are: in one part, unless the network has put them into several. A part may
    /// end within a sample.
    ///
    /// # Errors
    ///
    /// As [`Block::read`].
    pub fn parts(&self) -> Result<Parts<'_>> {
        match &*self.held {
            Held::Block { block, .. } => {
                let reading = block.as_ref().map(Block::read).transpose()?;
                Ok(Parts { reading, pieces: &[], len: self.meta.len })
            }
            Held::Parts { parts, .. } => Parts::of(parts, self.meta.len),
        }
    }

    /// The whole block, to hand it over by its descriptor. The samples are its first [`Meta::len`]
    /// bytes. The driver fills it again once this guard and all its clones are dropped. Nothing for
    /// samples that the network has put into parts.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        match &*self.held {
            Held::Block { block, .. } => block.as_ref(),
            Held::Parts { .. } => None,
        }
    }

    /// What tells whether its source, or any of its blocks, still exists.
    pub(crate) fn home(&self) -> Option<Weak<()>> {
        match &*self.held {
            Held::Block { home, .. } => Some(Arc::downgrade(home)),
            Held::Parts { .. } => None,
        }
    }

    /// How many blocks its source has.
    pub(crate) fn total(&self) -> usize {
        match &*self.held {
            Held::Block { total, .. } => *total,
            Held::Parts { .. } => usize::MAX,
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { block, total, .. } => {
                f.debug_struct("Block").field("block", block).field("total", total).finish()
            }
            Self::Parts { parts, .. } => f.debug_tuple("Parts").field(&parts.len()).finish(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self {
            Self::Block { block, back, .. } => {
                if let Some(block) = block.take() {
                    back(block);
                }
            }
            Self::Parts { parts, done, .. } => {
                Piece::drop_all(std::mem::take(parts));
                done();
            }
        }
    }
}

/// The bytes of [`Samples`], where they are.
#[derive(Debug)]
pub struct Parts<'a> {
    reading: Option<Reading<'a>>,
    /// Of the block that is read; none where all of it is one.
    pieces: &'a [Piece],
    len: usize,
}

impl<'a> Parts<'a> {
    /// Of pieces of one receiver, and so of one block, of `len` bytes in all.
    pub(super) fn of(pieces: &'a [Piece], len: usize) -> Result<Self> {
        let block = pieces.iter().find_map(|piece| match piece {
            Piece::View(view) => Some(view.block()),
            Piece::Bytes(_) => None,
        });
        Ok(Self { reading: block.map(Block::read).transpose()?, pieces, len })
    }

    /// CRC-32C of all of them.
    pub(crate) fn crc32c(&self) -> u32 {
        self.iter().fold(0, crc32c::crc32c_append)
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let block = self.reading.as_deref().unwrap_or_default();
        let whole = self.pieces.is_empty().then(|| &block[..self.len]);
        whole.into_iter().chain(self.pieces.iter().map(move |piece| match piece {
            Piece::View(view) => &block[view.range()],
            Piece::Bytes(bytes) => bytes,
        }))
    }
}

/// The bytes of [`Samples`].
#[derive(Debug)]
pub struct SamplesRead<'a>(Bytes<'a>);

#[derive(Debug)]
enum Bytes<'a> {
    There(Parts<'a>),
    Together(Vec<u8>),
}

impl Deref for SamplesRead<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::There(parts) => parts.iter().next().unwrap_or_default(),
            Bytes::Together(bytes) => bytes,
        }
    }
}
