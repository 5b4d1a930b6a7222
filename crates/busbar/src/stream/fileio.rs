//! `read` and `write`: for drivers, kernels and hosts without DMABUFs.
//!
//! Two things to know of drivers that offer DMABUFs as well, which have two blocks of their own for
//! `read` and `write`:
//!
//! - The file is asked before it is read. Linux 6.12 dies of a `read` that does not wait while those
//!   blocks do not exist, and that may be so for a moment after somebody has used DMABUFs.
//! - Linux 6.12 reads on with the block that is next since the last run, but the driver always begins
//!   with the first: after an odd number of blocks, the first two come in the wrong order. So an even
//!   number is read; and where somebody else has not, that is seen if the samples tell, or if the
//!   first block is complete and cannot be read.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use busbar_uapi::iio;
use rustix::event::PollFlags;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::Lost;
use super::device::Control;
use super::driver::{self, Filled, LOOK, Pending, Receiver, Taken, Timer};
use super::iio::offers_dmabufs;
use super::loss::Detector;
use crate::block::Block;
use crate::{Error, Result, poll};

/// How often to start a driver that lets go of DMABUFs, and how long to wait in between.
const ATTEMPTS: u32 = 500;
const LETTING_GO: Duration = Duration::from_millis(2);

/// The file of a buffer.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Nothing once it is closed.
    file: Option<Arc<OwnedFd>>,
    control: Control,
    events: PollFlags,
    looked: Instant,
    /// Samples that the driver has room for.
    room: usize,
    /// Whether the driver has two blocks, each half of the room.
    is_dma: bool,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    poller: Arc<OwnedFd>,
    is_in: bool,
    /// Rings while there is nothing, so that somebody looks.
    look: Timer,
}

impl Buffer {
    pub(super) fn new(file: OwnedFd, control: Control, events: PollFlags) -> Self {
        let is_dma = offers_dmabufs(&file);
        let (file, looked) = (Some(Arc::new(file)), Instant::now());
        Self { file, control, events, looked, room: 0, is_dma, watch: None }
    }

    pub(super) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Whether the driver works on two blocks, and only on full ones.
    pub(super) fn is_dma(&self) -> bool {
        self.is_dma
    }

    /// Samples that the driver has room for.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Starts the device with room for `samples`, or as many as it can get memory for.
    pub(super) fn start(&mut self, samples: usize, at_least: usize) -> Result<()> {
        let mut room = samples;
        loop {
            self.control.set_length(room)?;
            self.control.set_watermark(at_least.min(room / 2).max(1));
            match self.control.enable() {
                Err(error) if error.errno() == Some(Errno::NOMEM) && room > 1024 => room /= 2,
                done => {
                    (self.looked, self.room) = (Instant::now(), room);
                    return done.and_then(|()| self.settle());
                }
            }
        }
    }

    /// Makes sure that the driver's blocks exist: it has none while it still lets go of the DMABUFs
    /// of a stream before. It takes no DMABUF if they do.
    fn settle(&mut self) -> Result<()> {
        let (true, Some(file)) = (self.is_dma, self.file.clone()) else { return Ok(()) };
        // On a host without them, nobody has used DMABUFs.
        let Ok(block) = Block::new(1) else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            if iio::attach(&file, &block).is_err() {
                return Ok(());
            }
            iio::detach(&file, &block).map_err(|errno| self.failed(errno))?;
            self.control.disable()?;
            std::thread::sleep(LETTING_GO);
            self.control.enable()?;
        }
        Err(self.failed(Errno::BUSY).help("its driver keeps DMABUFs that nobody uses"))
    }

    /// Whether to read or write now. Fails once the device was stopped.
    pub(super) fn is_ready(&mut self) -> Result<Option<&OwnedFd>> {
        let Some(file) = &self.file else { return Err(self.failed(Errno::PIPE)) };
        let happened = poll::wait(file, self.events, Some(Duration::ZERO));
        let ready = happened.map_err(|errno| self.failed(errno))?.intersects(self.events);
        if ready {
            return Ok(self.file.as_deref());
        }
        self.look()?;
        Ok(None)
    }

    /// The file does not tell that its device was stopped, or has gone.
    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.check()?;
            self.looked = Instant::now();
        }
        self.ring()
    }

    fn check(&self) -> Result<()> {
        if self.control.is_enabled() == Some(true) {
            return Ok(());
        }
        Err(self.failed(Errno::PIPE).help("it was disabled, or has gone"))
    }

    fn ring(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let at = Some(Instant::now() + LOOK);
        watch.look.set(at).map_err(|errno| Error::new("set", "a timer", errno))
    }

    /// Begins again, with the other of the driver's blocks if one is skipped.
    fn restart(&mut self, skip: bool) -> Result<()> {
        self.control.disable()?;
        if skip {
            self.skip();
        }
        self.control.enable()
    }

    /// Takes one of the blocks that a disabled driver has given up; they are empty.
    fn skip(&self) {
        // Nothing is lost if this fails; then the order is found out.
        let _ = self.file.as_ref().map(|file| rustix::io::read(file, &mut [0; 4096]));
    }

    pub(super) fn pending(&self) -> Pending {
        match &self.file {
            Some(file) => Pending::File(Arc::clone(file), self.events),
            None => Pending::Block,
        }
    }

    pub(super) fn watch(&mut self, poller: &Arc<OwnedFd>) -> Result<()> {
        let look = Timer::new().map_err(|errno| Error::new("make", "a timer", errno))?;
        driver::add(poller, &look, EventFlags::IN)?;
        self.watch = Some(Watch { poller: Arc::clone(poller), is_in: false, look });
        self.ring()
    }

    /// Whether the file's readiness matters at all.
    pub(super) fn want(&mut self, wanted: bool) -> Result<()> {
        let (Some(watch), Some(file)) = (&mut self.watch, &self.file) else { return Ok(()) };
        if wanted == watch.is_in {
            return Ok(());
        }
        if wanted {
            let out = self.events.contains(PollFlags::OUT);
            driver::add(&watch.poller, file, if out { EventFlags::OUT } else { EventFlags::IN })?;
        } else {
            epoll::delete(&watch.poller, file.as_fd())
                .map_err(|errno| Error::new("watch", "a buffer", errno))?;
        }
        watch.is_in = wanted;
        Ok(())
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        // An epoll keeps what is in it open for who has a duplicate.
        let _ = self.want(false);
        let result = self.control.restore();
        self.file = None;
        result
    }

    pub(super) fn failed(&self, errno: Errno) -> Error {
        Error::new("go on with", self.control.device().label(), errno)
    }
}

/// A receive buffer.
#[derive(Debug)]
pub(super) struct Receive {
    buffer: Buffer,
    queued: VecDeque<Block>,
    /// Bytes in the first block.
    filled: usize,
    /// Bytes read since the device was started.
    read: usize,
    /// Looks at the first block.
    order: Option<Detector>,
    len: usize,
    samples: usize,
    copied: u64,
}

impl Receive {
    /// `order` is to look at the first block only.
    pub(super) fn start(
        mut buffer: Buffer,
        blocks: Vec<Block>,
        len: usize,
        samples: usize,
        order: Detector,
    ) -> Result<Self> {
        // The driver's blocks are as large as ours, or there are as many samples in its queue.
        let room = if buffer.is_dma { 2 } else { blocks.len().max(2) };
        buffer.start(samples.saturating_mul(room), samples)?;
        let order = buffer.is_dma.then_some(order);
        let (queued, filled, read, copied) = (blocks.into(), 0, 0, 0);
        Ok(Self { buffer, queued, filled, read, order, len, samples, copied })
    }

    /// Bytes in one of the driver's blocks.
    fn driver_block(&self) -> usize {
        (self.buffer.room / 2 * (self.len / self.samples)).max(1)
    }

    /// Whether the driver's blocks come in the wrong order; asked of the first block of ours.
    fn is_swapped(&mut self) -> Result<bool> {
        let Some(mut order) = self.order.take().filter(Detector::looks) else { return Ok(false) };
        let Some(block) = self.queued.front() else { return Ok(false) };
        let found = order.inspect(&block.read()?, self.samples);
        Ok(found.lost == Lost::Samples(self.buffer.room as u64 / 2))
    }

    /// Begins again, in the right order.
    fn restart(&mut self) -> Result<()> {
        self.buffer.check()?;
        let is_even = (self.read / self.driver_block()).is_multiple_of(2);
        (self.filled, self.read, self.order) = (0, 0, None);
        self.buffer.restart(is_even)
    }

    /// Reads into the first block; whether it is full.
    fn read(&mut self) -> Result<Option<Result<bool, Errno>>> {
        let Some(block) = self.queued.front_mut() else { return Ok(None) };
        let Some(file) = self.buffer.is_ready()? else { return Ok(None) };
        let mut bytes = block.write()?;
        let read = loop {
            match rustix::io::read(file, &mut bytes[self.filled..self.len]) {
                Err(Errno::INTR) => {}
                done => break done,
            }
        };
        drop(bytes);
        Ok(match read {
            Ok(0) | Err(Errno::AGAIN) => {
                if self.read == 0 && self.order.is_some() {
                    self.restart()?;
                }
                None
            }
            Ok(count) => {
                (self.filled, self.read) = (self.filled + count, self.read + count);
                self.copied += count as u64;
                Some(Ok(self.filled >= self.len))
            }
            Err(errno) => Some(Err(errno)),
        })
    }

    fn pop(&mut self) -> Result<Option<Block>> {
        self.filled = 0;
        let block = self.queued.pop_front();
        self.buffer.want(!self.queued.is_empty())?;
        Ok(block)
    }
}

impl Receiver for Receive {
    fn queue(&mut self, block: Block) -> Result<()> {
        self.queued.push_back(block);
        self.buffer.want(true)
    }

    fn take(&mut self) -> Result<Taken> {
        loop {
            let failed = match self.read()? {
                None => return Ok(Taken::Nothing),
                Some(Ok(false)) => continue,
                Some(Ok(true)) => None,
                Some(Err(errno)) => Some(self.buffer.failed(errno)),
            };
            if failed.is_none() && self.is_swapped()? {
                self.restart()?;
                return Ok(Taken::Nothing);
            }
            let Some(block) = self.pop()? else { return Ok(Taken::Nothing) };
            return Ok(match failed {
                // The device has gone.
                Some(error) if error.errno() == Some(Errno::NODEV) => {
                    return Err(self.buffer.failed(Errno::PIPE).help("it has gone"));
                }
                Some(error) => Taken::Failed(block, error),
                None => {
                    let (time, samples) = (SystemTime::now(), self.samples);
                    Taken::Filled(Filled { block, time, samples, lost: None })
                }
            });
        }
    }

    fn pending(&self) -> Pending {
        if self.queued.is_empty() { Pending::Block } else { self.buffer.pending() }
    }

    fn watch(&mut self, poller: &Arc<OwnedFd>) -> Result<()> {
        self.buffer.watch(poller)?;
        self.buffer.want(!self.queued.is_empty())
    }

    fn copied(&self) -> u64 {
        self.copied
    }

    fn stop(&mut self) -> Result<()> {
        self.queued.clear();
        let stopped = self.buffer.control.disable();
        let (blocks, rest) = (self.read / self.driver_block(), self.read % self.driver_block());
        if self.buffer.is_dma && rest == 0 && blocks % 2 == 1 {
            self.buffer.skip();
        }
        stopped.and(self.buffer.stop())
    }
}
