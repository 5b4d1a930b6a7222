//! The file of a buffer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use busbar_uapi::iio;
use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::block::Block;
use crate::poll::{self, Set, Timer, later};
use crate::stream::device::Control;
use crate::stream::dmabuf;
use crate::stream::driver::{LOOK, Pending};
use crate::{Error, Result};

/// How often to start a driver that still detaches DMABUFs, and how long to wait in between.
const ATTEMPTS: u32 = 500;
const LETTING_GO: Duration = Duration::from_millis(2);

/// The file of a buffer.
#[derive(Debug)]
pub(in crate::stream) struct Buffer {
    /// `None` once it is closed.
    file: Option<Arc<OwnedFd>>,
    control: Control,
    events: PollFlags,
    looked: Instant,
    /// Samples that the driver's own buffer holds.
    room: usize,
    /// Whether the driver has two blocks, each half of the room.
    is_dma: bool,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    set: Arc<Set>,
    is_in: bool,
    /// Expires while the file is wanted and not ready, so that the device is checked.
    look: Timer,
}

impl Buffer {
    pub(in crate::stream) fn new(file: OwnedFd, control: Control, events: PollFlags) -> Self {
        let is_dma = dmabuf::is_offered(&file);
        let (file, looked) = (Some(Arc::new(file)), Instant::now());
        Self { file, control, events, looked, room: 0, is_dma, watch: None }
    }

    pub(in crate::stream) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Whether the driver works on two blocks, and only on full ones.
    pub(in crate::stream) fn is_dma(&self) -> bool {
        self.is_dma
    }

    /// Samples that the driver's own buffer holds.
    pub(in crate::stream) fn room(&self) -> usize {
        self.room
    }

    /// Starts the device with a buffer for `samples`, or for fewer if there is not enough memory.
    pub(in crate::stream) fn start(&mut self, samples: usize, at_least: usize) -> Result<()> {
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

    /// Makes sure that the driver's own blocks exist: it has none while it still detaches the DMABUFs
    /// of a stream before. If they exist, it refuses to attach a DMABUF.
    fn settle(&mut self) -> Result<()> {
        let (true, Some(file)) = (self.is_dma, self.file.clone()) else { return Ok(()) };
        // On a host that has no DMABUFs, no stream before has used them.
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
        Err(self
            .failed(Errno::BUSY)
            .help("its driver does not detach the DMABUFs of an earlier stream"))
    }

    /// The file, if it is ready. Fails once the device was stopped.
    pub(in crate::stream) fn is_ready(&mut self) -> Result<Option<&OwnedFd>> {
        let Some(file) = &self.file else { return Err(self.failed(Errno::PIPE)) };
        let happened = poll::wait(file, self.events, Some(Duration::ZERO));
        let ready = happened.map_err(|errno| self.failed(errno))?.intersects(self.events);
        if ready {
            return Ok(self.file.as_deref());
        }
        self.look()?;
        Ok(None)
    }

    /// Checks the device once in [`LOOK`]: the file does not tell that it was stopped, or has gone.
    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.check()?;
            self.looked = Instant::now();
        }
        self.ring()
    }

    pub(super) fn check(&self) -> Result<()> {
        if !self.control.has_stopped() {
            return Ok(());
        }
        Err(self.failed(Errno::PIPE).help("it was disabled, or has gone"))
    }

    fn ring(&self) -> Result<()> {
        let Some(watch) = self.watch.as_ref().filter(|it| it.is_in) else { return Ok(()) };
        watch.look.set(Some(later(Instant::now(), LOOK)))
    }

    /// Starts the device again; with `skip`, the kernel goes on with the other of the driver's blocks.
    pub(super) fn restart(&mut self, skip: bool) -> Result<()> {
        self.control.disable()?;
        if skip {
            self.skip();
        }
        self.control.enable()
    }

    /// Reads one of the empty blocks of a disabled driver.
    pub(super) fn skip(&self) {
        // If this fails, the wrong order is noticed later.
        let _ = self.file.as_ref().map(|file| rustix::io::read(file, &mut [0; 4096]));
    }

    pub(in crate::stream) fn pending(&self) -> Pending {
        match &self.file {
            Some(file) => Pending::File(Arc::clone(file), self.events),
            None => Pending::Block,
        }
    }

    /// From now on, the device is checked, and the file is in the set while it is wanted.
    pub(in crate::stream) fn watch(&mut self, set: &Arc<Set>, wanted: bool) -> Result<()> {
        let look = Timer::new()?;
        set.add(&look, 0, EventFlags::IN)?;
        self.watch = Some(Watch { set: Arc::clone(set), is_in: false, look });
        let done = self.want(wanted);
        if done.is_err() {
            self.watch = None;
        }
        done
    }

    /// Adds the file to the set, or removes it. Nobody checks the device while the file is not wanted, so the timer
    /// rests as well: it would keep the set readable.
    pub(in crate::stream) fn want(&mut self, wanted: bool) -> Result<()> {
        let (Some(watch), Some(file)) = (&mut self.watch, &self.file) else { return Ok(()) };
        if wanted == watch.is_in {
            return Ok(());
        }
        if wanted {
            let out = self.events.contains(PollFlags::OUT);
            watch.set.add(file, 0, if out { EventFlags::OUT } else { EventFlags::IN })?;
        } else {
            watch.set.remove(file)?;
        }
        watch.is_in = wanted;
        watch.look.set(wanted.then(|| later(Instant::now(), LOOK)))
    }

    pub(in crate::stream) fn stop(&mut self) -> Result<()> {
        // The set keeps the file open if it was duplicated.
        let _ = self.want(false);
        let result = self.control.restore();
        self.file = None;
        result
    }

    pub(in crate::stream) fn failed(&self, errno: Errno) -> Error {
        Error::new("go on with", self.control.device().label(), errno)
    }
}
