//! Transmitting.

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::device::Direction;
use super::dmabuf::{self, Done, Queue};
use super::driver::{self, Monitor, Pending};
use super::fileio::Buffer;
use super::iio::{Access, Opened};
use super::source::About;
use super::{Channel, Format, Interface, Samples, StreamSetup};
use crate::block::{Block, Memory, Writing};
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// How often to look whether `write` was transmitted.
const DRAINING: Duration = Duration::from_millis(1);

/// Where samples go to.
///
/// ```no_run
/// use busbar::stream::{Sink, StreamSetup};
///
/// # fn main() -> busbar::Result<()> {
/// let sink = Sink::open("iio:vconv0-tx", &StreamSetup::new().block_len(4096))?;
/// for level in 0..100 {
///     let mut space = sink.space()?;
///     space.write()?.fill(level);
///     let len = space.len();
///     space.send(len)?;
/// }
/// sink.drain()?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping it stops the device at once, transmitted or not ([`drain`](Self::drain) before), and puts
/// its settings back.
///
/// All methods take `&self` and may be used from many threads. The descriptor ([`AsFd`]) is readable
/// while [`space`](Self::space) has a block or an error to tell, and when a forwarded block may go
/// back to its source: call `space` or [`reap`](Self::reap) then.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    about: About,
}

/// What the sink shares with the blocks that are being filled.
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
    driver: Driver,
    free: Vec<Block>,
    mode: Mode,
    /// Blocks from sources that the driver has.
    foreign: usize,
    guests: Vec<Guests>,
    copied: u64,
    trouble: Option<Error>,
    /// Makes the poller readable while it is: nothing until it is watched.
    bell: Option<OwnedFd>,
    rings: bool,
}

/// DMABUFs of one source that the driver may use, as long as the source or one of its blocks exists.
#[derive(Debug)]
struct Guests {
    home: Weak<()>,
    /// By inode. No other DMABUF has that as long as this one is open.
    dmabufs: HashMap<u64, OwnedFd>,
}

/// What the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It was not started.
    Off,
    On,
    /// It repeats one block.
    Cyclic,
    /// It was stopped, for good.
    Ended,
}

#[derive(Debug)]
enum Driver {
    Dmabuf(Queue<Load>),
    Fileio(Fileio),
}

/// What the driver has.
#[derive(Debug)]
enum Load {
    Own(Block),
    Foreign(Samples),
}

impl dmabuf::Load for Load {
    fn block(&self) -> &Block {
        match self {
            Self::Own(block) => block,
            Self::Foreign(samples) => samples.block().expect("others are copied"),
        }
    }
}

#[derive(Debug)]
struct Fileio {
    buffer: Buffer,
    /// What is to be written, and how many bytes of it.
    queued: VecDeque<(Load, usize)>,
    /// Bytes of the first that were written.
    written: usize,
    /// Bytes that were written in all.
    total: usize,
    /// Samples in a block, and bytes in a sample.
    samples: usize,
    sample_len: usize,
}

impl Sink {
    /// Opens `name`, `iio:NAME`, see [Names](super#names). The device starts with the first block.
    ///
    /// # Errors
    ///
    /// As [`Source::open`](super::Source::open).
    pub fn open(name: &str, setup: &StreamSetup) -> Result<Self> {
        setup.check()?;
        let device = name
            .strip_prefix("iio:")
            .ok_or_else(|| Error::invalid("the name of a sink", name, "iio:NAME"))?;
        let opened = Opened::new(device, setup, Direction::Transmit)?;
        let (label, samples, sample_len) =
            (opened.label.clone(), opened.samples, opened.format.sample_len);
        let (about, access, free) = opened.access(setup)?;
        let driver = match access {
            Access::Dmabuf(queue) => Driver::Dmabuf(queue),
            Access::Fileio(buffer) => Driver::Fileio(Fileio::new(buffer, samples, sample_len)),
        };
        let state = State {
            driver,
            free,
            mode: Mode::Off,
            foreign: 0,
            guests: Vec::new(),
            copied: 0,
            trouble: None,
            bell: None,
            rings: false,
        };
        let shared = Shared {
            label,
            monitor: Monitor::new(state),
            poller: driver::poller()?,
            is_watched: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared), about })
    }

    /// Opens `name` for samples of `format` that come from elsewhere: the channels of its names.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); bad input if the types or places of the channels are others here.
    pub fn open_for(name: &str, format: &Format, setup: &StreamSetup) -> Result<Self> {
        let channels = format.channels.iter().map(|channel| channel.name.clone()).collect();
        let sink = Self::open(name, &StreamSetup { channels, ..setup.clone() })?;
        let layout = |format: &Format| -> Vec<_> {
            let of = |channel: &Channel| {
                let Channel { bits, storage_bits, shift, big_endian, repeat, offset, .. } =
                    *channel;
                (bits, storage_bits, shift, big_endian, repeat, offset)
            };
            format.channels.iter().map(of).collect()
        };
        let same = layout(sink.format()) == layout(format);
        if same && sink.format().sample_len == format.sample_len {
            return Ok(sink);
        }
        let came = format!("samples of {} bytes", format.sample_len);
        let allowed = format!(
            "samples of {} bytes as {name} has them: types and places of the channels have to be the \
             same",
            sink.format().sample_len
        );
        Err(Error::invalid(format!("for {name}"), came, allowed))
    }

    /// What a sample looks like.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.about.format
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

    /// Number of blocks that the sink has.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.about.blocks
    }

    /// Bytes of samples that a block holds.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.about.block_len
    }

    /// A block to fill. Waits for it as long as it takes.
    ///
    /// # Errors
    ///
    /// That of the driver if it has failed with a block. `EBUSY` while a block is repeated. Kind
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the stream has ended.
    pub fn space(&self) -> Result<Space> {
        poll::forever(|deadline| self.space_until(deadline))
    }

    /// A block to fill if one is free now.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn try_space(&self) -> Result<Option<Space>> {
        self.space_until(Deadline::now())
    }

    /// A block to fill, or nothing if none was free within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn space_timeout(&self, timeout: Duration) -> Result<Option<Space>> {
        self.space_until(Deadline::after(timeout))
    }

    fn space_until(&self, deadline: Deadline) -> Result<Option<Space>> {
        let mut state = self.shared.lock();
        loop {
            self.shared.reap(&mut state)?;
            self.shared.refuse_cyclic(&state)?;
            if let Some(block) = state.free.pop() {
                state.ring();
                let shared = Arc::clone(&self.shared);
                let (len, sample_len) = (self.about.block_len, self.about.format.sample_len);
                return Ok(Some(Space { block: Some(block), len, sample_len, shared }));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            state = self.shared.wait(state, deadline)?;
        }
    }

    /// Transmits a received block. It goes back to its source when that is done.
    ///
    /// No byte is copied where the sink takes DMABUFs, the block is one, and the device can use its
    /// memory. Otherwise the samples are copied into a block of the sink.
    ///
    /// Waits while the sink has half of the blocks of the source or more, so that some are left to
    /// receive into. What was forwarded goes back at the next call of the sink: if no more is
    /// forwarded, call [`reap`](Self::reap).
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space); bad input if the samples are not whole ones here.
    pub fn forward(&self, samples: Samples) -> Result<()> {
        self.check_len(samples.meta().len)?;
        let mut state = self.shared.lock();
        self.shared.reap(&mut state)?;
        self.shared.refuse_cyclic(&state)?;
        if !state.can_take(&samples) {
            drop(state);
            return self.copy(&samples);
        }
        let keep = samples.total() / 2;
        self.shared.lend(&mut state, samples)?;
        while state.foreign > keep {
            state = self.shared.wait(state, Deadline::NEVER)?;
            self.shared.reap(&mut state)?;
        }
        Ok(())
    }

    /// As [`forward`](Self::forward), but does not wait: `false` if there is no room for it now. The
    /// descriptor tells when to try again.
    ///
    /// # Errors
    ///
    /// As `forward`; bad input if the samples have to be copied and are more than a block of the sink
    /// holds.
    pub fn try_forward(&self, samples: &Samples) -> Result<bool> {
        self.forward_until(samples, Deadline::now())
    }

    /// As [`forward`](Self::forward), but waits for room before, at most for `timeout`: `false` if there
    /// was none.
    ///
    /// # Errors
    ///
    /// As [`try_forward`](Self::try_forward).
    pub fn forward_timeout(&self, samples: &Samples, timeout: Duration) -> Result<bool> {
        self.forward_until(samples, Deadline::after(timeout))
    }

    fn forward_until(&self, samples: &Samples, deadline: Deadline) -> Result<bool> {
        let len = samples.meta().len;
        self.check_len(len)?;
        let mut state = self.shared.lock();
        self.shared.reap(&mut state)?;
        self.shared.refuse_cyclic(&state)?;
        if state.can_take(samples) {
            while state.foreign >= (samples.total() / 2).max(1) {
                if deadline.has_passed() {
                    return Ok(false);
                }
                state = self.shared.wait(state, deadline)?;
                self.shared.reap(&mut state)?;
            }
            self.shared.lend(&mut state, samples.clone())?;
            return Ok(true);
        }
        drop(state);
        if len > self.about.block_len {
            let allowed = format!("up to {}", self.about.block_len);
            return Err(Error::invalid("the length of samples", len, allowed));
        }
        let Some(space) = self.space_until(deadline)? else { return Ok(false) };
        self.fill(space, samples.parts()?.iter())?;
        Ok(true)
    }

    /// Blocks that the device has and has not transmitted yet, as far as is known.
    #[must_use]
    pub fn queued(&self) -> usize {
        let state = self.shared.lock();
        state.foreign + self.about.blocks.saturating_sub(state.free.len())
    }

    /// Takes back what was transmitted, and tells what has failed. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn reap(&self) -> Result<()> {
        self.shared.reap(&mut self.shared.lock())
    }

    fn copy(&self, samples: &Samples) -> Result<()> {
        let bytes = samples.read()?;
        for part in bytes.chunks(self.about.block_len) {
            self.fill(self.space()?, [part].into_iter())?;
        }
        Ok(())
    }

    /// Sends samples that fit into a block by a copy.
    fn fill<'a>(&self, mut space: Space, parts: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let mut filling = space.write()?;
        let mut at = 0;
        for part in parts {
            filling[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        drop(filling);
        self.shared.lock().copied += at as u64;
        space.send(at)
    }

    fn check_len(&self, len: usize) -> Result<()> {
        let sample_len = self.about.format.sample_len;
        if len > 0 && len.is_multiple_of(sample_len) {
            return Ok(());
        }
        Err(Error::invalid("the length of samples", len, format!("multiples of {sample_len}")))
    }

    /// Waits until all was transmitted.
    ///
    /// With [`Interface::Fileio`], a driver may transmit only full blocks: the rest of the last one is
    /// filled with zeros.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn drain(&self) -> Result<()> {
        self.drain_until(Deadline::NEVER).map(drop)
    }

    /// Whether all was transmitted by now. As [`drain`](Self::drain), it fills up the last block.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn try_drain(&self) -> Result<bool> {
        self.drain_until(Deadline::now())
    }

    /// Waits until all was transmitted; `false` if that took longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn drain_timeout(&self, timeout: Duration) -> Result<bool> {
        self.drain_until(Deadline::after(timeout))
    }

    fn drain_until(&self, deadline: Deadline) -> Result<bool> {
        let mut state = self.shared.lock();
        loop {
            self.shared.reap(&mut state)?;
            self.shared.refuse_cyclic(&state)?;
            if state.driver.is_drained()? {
                return Ok(true);
            }
            if deadline.has_passed() {
                return Ok(false);
            }
            state = self.shared.wait(state, deadline)?;
        }
    }

    /// Transmits `samples` again and again, until [`stop`](Self::stop) or the next such call. What
    /// was sent before and is not transmitted yet is dropped.
    ///
    /// Drivers based on `dmaengine` transmit them once in Linux 6.12; [`reap`](Self::reap) tells then.
    ///
    /// # Errors
    ///
    /// Kind [`Unsupported`](std::io::ErrorKind::Unsupported) with [`Interface::Fileio`]; bad input if
    /// they are not whole samples or do not fit in a block.
    pub fn cyclic(&self, samples: &[u8]) -> Result<()> {
        self.check_len(samples.len())?;
        if samples.len() > self.about.block_len {
            let allowed = format!("up to {} bytes", self.about.block_len);
            return Err(Error::invalid("the length of samples", samples.len(), allowed));
        }
        let mut state = self.shared.lock();
        self.shared.reap(&mut state)?;
        state.halt(&self.shared.label)?;
        let Some(mut block) = state.free.pop() else {
            return Err(Error::new("use", &self.shared.label, Errno::BUSY)
                .help("all of its blocks are being filled"));
        };
        block.write()?[..samples.len()].copy_from_slice(samples);
        state.copied += samples.len() as u64;
        let Driver::Dmabuf(queue) = &mut state.driver else {
            return Err(self.shared.no_cycles());
        };
        queue.push_cyclic(Load::Own(block), samples.len())?;
        queue.control().enable()?;
        state.mode = Mode::Cyclic;
        state.ring();
        Ok(())
    }

    /// Bytes that were copied from one place in memory to another, by the library or by `write`.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.shared.lock().copied
    }

    /// Stops the device, transmitted or not, and puts its settings back.
    ///
    /// # Errors
    ///
    /// What could not be put back.
    pub fn stop(&self) -> Result<()> {
        self.shared.end(&mut self.shared.lock())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.stop();
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.shared.is_watched.swap(true, Ordering::Relaxed) {
            let mut state = self.shared.lock();
            if let Err(error) = state.watch(&self.shared.poller) {
                state.trouble = Some(error);
            }
            state.ring();
        }
        self.shared.poller.as_fd()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.monitor.lock()
    }

    /// Takes back what the driver is done with.
    fn reap(&self, state: &mut State) -> Result<()> {
        state.forget_guests();
        if let Some(error) = state.trouble.take() {
            state.ring();
            return Err(error);
        }
        if state.mode == Mode::Ended {
            return Err(
                Error::new("transmit on", &self.label, Errno::PIPE).help("the stream has ended")
            );
        }
        let result = state.reap(&self.label);
        if result.as_ref().is_err_and(|error| error.errno() == Some(Errno::PIPE)) {
            // What comes of it matters less than why.
            let _ = self.end(state);
        }
        state.ring();
        result
    }

    fn refuse_cyclic(&self, state: &State) -> Result<()> {
        if state.mode != Mode::Cyclic {
            return Ok(());
        }
        Err(Error::new("transmit on", &self.label, Errno::BUSY)
            .help("it repeats a block until it is stopped"))
    }

    fn no_cycles(&self) -> Error {
        Error::new("repeat a block on", &self.label, std::io::ErrorKind::Unsupported)
            .help("that needs the interface dmabuf")
    }

    /// Gives a source's block to the driver.
    fn lend(&self, state: &mut State, samples: Samples) -> Result<()> {
        let len = samples.meta().len;
        state.foreign += 1;
        self.push(state, Load::Foreign(samples), len)
    }

    fn push(&self, state: &mut State, load: Load, len: usize) -> Result<()> {
        if state.mode == Mode::Ended {
            return Err(
                Error::new("transmit on", &self.label, Errno::PIPE).help("the stream has ended")
            );
        }
        self.refuse_cyclic(state)?;
        let pushed = state.push(load, len);
        if pushed.is_err() {
            // The block is lost to the stream, so it would stop sooner or later.
            let _ = self.end(state);
        }
        state.ring();
        pushed
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

    fn give_back(&self, block: Block) {
        let mut state = self.lock();
        if state.mode != Mode::Ended {
            state.free.push(block);
            state.ring();
        }
        self.monitor.notify();
    }

    fn end(&self, state: &mut State) -> Result<()> {
        if state.mode == Mode::Ended {
            return Ok(());
        }
        state.mode = Mode::Ended;
        state.ring();
        state.free.clear();
        state.guests.clear();
        self.monitor.notify();
        match &mut state.driver {
            Driver::Dmabuf(queue) => queue.stop(),
            Driver::Fileio(file) => {
                file.queued.clear();
                file.buffer.stop()
            }
        }
    }
}

impl State {
    /// Whether the driver can use the memory of a received block.
    fn can_take(&mut self, samples: &Samples) -> bool {
        let Driver::Dmabuf(queue) = &self.driver else { return false };
        let Some((block, home)) = samples.block().zip(samples.home()) else { return false };
        if !block.is_dmabuf() {
            return false;
        }
        let Ok(about) = rustix::fs::fstat(block) else { return false };
        let inode = about.st_ino;
        if self.guests.iter().any(|guests| guests.dmabufs.contains_key(&inode)) {
            return true;
        }
        let Ok(dmabuf) = block.as_fd().try_clone_to_owned() else { return false };
        if queue.attach(block).is_err() {
            return false;
        }
        match self.guests.iter_mut().find(|guests| guests.home.ptr_eq(&home)) {
            Some(guests) => drop(guests.dmabufs.insert(inode, dmabuf)),
            None => self.guests.push(Guests { home, dmabufs: HashMap::from([(inode, dmabuf)]) }),
        }
        true
    }

    /// Has the driver let go of the blocks of sources that are gone.
    fn forget_guests(&mut self) {
        let gone = self.guests.extract_if(.., |guests| guests.home.strong_count() == 0);
        for dmabuf in gone.flat_map(|guests| guests.dmabufs.into_values()) {
            if let Driver::Dmabuf(queue) = &self.driver {
                queue.detach(&dmabuf);
            }
        }
    }

    fn push(&mut self, load: Load, len: usize) -> Result<()> {
        let first = std::mem::replace(&mut self.mode, Mode::On) == Mode::Off;
        match &mut self.driver {
            Driver::Dmabuf(queue) => {
                queue.push(load, len)?;
                if first { queue.control().enable() } else { Ok(()) }
            }
            Driver::Fileio(file) => {
                if first {
                    file.start()?;
                }
                file.queued.push_back((load, len));
                self.write()
            }
        }
    }

    fn reap(&mut self, label: &str) -> Result<()> {
        let Driver::Dmabuf(queue) = &mut self.driver else { return self.write() };
        let Some(Done { load, time: _, result }) = queue.pop()? else { return Ok(()) };
        let failed = queue.failed(result.err().unwrap_or(Errno::IO));
        self.done(load);
        if self.mode == Mode::Cyclic {
            self.mode = Mode::On;
            return Err(Error::new("repeat a block on", label, std::io::ErrorKind::Unsupported)
                .help("its driver has transmitted it once"));
        }
        if result.is_err() { Err(failed) } else { self.reap(label) }
    }

    /// Writes as much as the driver takes.
    fn write(&mut self) -> Result<()> {
        let Driver::Fileio(file) = &mut self.driver else { return Ok(()) };
        let (count, done) = file.write()?;
        self.copied += count;
        for load in done {
            self.done(load);
        }
        Ok(())
    }

    fn done(&mut self, load: Load) {
        match load {
            Load::Own(block) => self.free.push(block),
            Load::Foreign(_) => self.foreign -= 1,
        }
    }

    /// Disables the device and takes back what it has.
    fn halt(&mut self, label: &str) -> Result<()> {
        let Driver::Dmabuf(queue) = &mut self.driver else {
            return Err(Error::new("repeat a block on", label, std::io::ErrorKind::Unsupported)
                .help("that needs the interface dmabuf"));
        };
        queue.control().disable()?;
        let loads = queue.recall();
        for load in loads {
            self.done(load);
        }
        self.mode = Mode::Off;
        Ok(())
    }

    fn watch(&mut self, poller: &Arc<OwnedFd>) -> Result<()> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::new("make", "an event", errno))?;
        driver::add(poller, &bell, EventFlags::IN)?;
        self.bell = Some(bell);
        match &mut self.driver {
            _ if self.mode == Mode::Ended => Ok(()),
            Driver::Dmabuf(queue) => queue.watch(poller),
            Driver::Fileio(file) => {
                file.buffer.watch(poller)?;
                file.buffer.want(!file.queued.is_empty())
            }
        }
    }

    /// Makes the poller readable if there is something to tell, or to have.
    fn ring(&mut self) {
        let Some(bell) = &self.bell else { return };
        let wanted = self.mode == Mode::Ended || self.trouble.is_some() || !self.free.is_empty();
        if wanted != self.rings {
            // An event of 0 or 1 takes and gives at once.
            let _ = if wanted {
                rustix::io::write(bell, &1_u64.to_ne_bytes())
            } else {
                rustix::io::read(bell, &mut [0; 8])
            };
            self.rings = wanted;
        }
    }
}

impl Driver {
    fn pending(&self) -> Pending {
        match self {
            Self::Dmabuf(queue) => queue.pending(),
            // There is no word of what was transmitted.
            Self::Fileio(file) if file.queued.is_empty() => {
                Pending::Until(Instant::now() + DRAINING)
            }
            Self::Fileio(file) => file.buffer.pending(),
        }
    }

    fn is_drained(&mut self) -> Result<bool> {
        match self {
            Self::Dmabuf(queue) => Ok(queue.len() == 0),
            Self::Fileio(file) => file.is_drained(),
        }
    }
}

impl Fileio {
    fn new(buffer: Buffer, samples: usize, sample_len: usize) -> Self {
        let queued = VecDeque::new();
        Self { buffer, queued, written: 0, total: 0, samples, sample_len }
    }

    fn start(&mut self) -> Result<()> {
        // Two blocks as large as ours.
        self.buffer.start(2 * self.samples, 1)
    }

    /// Writes what the driver takes: how many bytes, and what is written.
    fn write(&mut self) -> Result<(u64, Vec<Load>)> {
        let (mut count, mut done) = (0, Vec::new());
        while let Some((load, len)) = self.queued.front() {
            let Some(file) = self.buffer.is_ready()? else { break };
            let block = dmabuf::Load::block(load);
            let written = match rustix::io::write(file, &block.read()?[self.written..*len]) {
                Ok(written) => written,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::NODEV) => return Err(self.buffer.failed(Errno::PIPE)),
                Err(errno) => return Err(self.buffer.failed(errno)),
            };
            count += written as u64;
            (self.written, self.total) = (self.written + written, self.total + written);
            if self.written == *len {
                self.written = 0;
                done.extend(self.queued.pop_front().map(|(load, _)| load));
            }
        }
        self.buffer.want(!self.queued.is_empty())?;
        Ok((count, done))
    }

    fn is_drained(&mut self) -> Result<bool> {
        if self.total == 0 || !self.queued.is_empty() {
            return Ok(self.total == 0 && self.queued.is_empty());
        }
        let room = self.buffer.room() * self.sample_len;
        let Some(available) = self.buffer.control().available() else { return Ok(true) };
        if !self.buffer.is_dma() {
            // What waits in the driver's queue.
            return Ok(available == 0);
        }
        let rest = self.total % (room / 2).max(1);
        if rest > 0 {
            self.pad(room / 2 - rest)?;
            return Ok(false);
        }
        // What is free.
        Ok(available >= room)
    }

    /// Fills the driver's last block.
    fn pad(&mut self, len: usize) -> Result<()> {
        let zeros = vec![0; len];
        let Some(file) = self.buffer.is_ready()? else { return Ok(()) };
        match rustix::io::write(file, &zeros) {
            Ok(count) => self.total += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(self.buffer.failed(errno)),
        }
        Ok(())
    }
}

/// A free block of a [`Sink`]. Dropping it gives it back unsent.
#[derive(Debug)]
pub struct Space {
    /// Taken only when it is sent or dropped.
    block: Option<Block>,
    len: usize,
    sample_len: usize,
    shared: Arc<Shared>,
}

impl Space {
    /// Bytes of samples that fit.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes, to fill. They are what they were when the block was sent last.
    ///
    /// # Errors
    ///
    /// As [`Block::write`].
    pub fn write(&mut self) -> Result<Filling<'_>> {
        let len = self.len;
        Ok(Filling { writing: self.held().write()?, len })
    }

    fn held(&mut self) -> &mut Block {
        self.block.as_mut().expect("taken only when it is sent or dropped")
    }

    /// Transmits the first `len` bytes: whole samples, at least one. Does not wait for it.
    ///
    /// # Errors
    ///
    /// Bad input for such a length; kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the
    /// stream has ended.
    pub fn send(mut self, len: usize) -> Result<()> {
        if len == 0 || len > self.len || !len.is_multiple_of(self.sample_len) {
            let allowed = format!("multiples of {} up to {}", self.sample_len, self.len);
            return Err(Error::invalid("the length of samples", len, allowed));
        }
        let Some(block) = self.block.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        shared.push(&mut state, Load::Own(block), len)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.shared.give_back(block);
        }
    }
}

/// The bytes of a [`Space`].
#[derive(Debug)]
pub struct Filling<'a> {
    writing: Writing<'a>,
    len: usize,
}

impl Deref for Filling<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.writing[..self.len]
    }
}

impl DerefMut for Filling<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.writing[..self.len]
    }
}
