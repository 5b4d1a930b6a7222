//! Blocks as DMABUFs, in either direction.
//!
//! The driver works on blocks in the order in which it gets them, and signals a fence of the DMABUF when it
//! is done with one. The result can be read only from a fence that was taken before it was signalled. So
//! the fence is taken as a sync file right after the block is queued, unless the kernel [reports](reports) what has ended.
//!
//! If another program disables the device, the driver ends the blocks that it has, but never those that it gets
//! after that. So the attribute `enable` is checked as well while the oldest block has not ended.

mod reports;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use busbar_uapi::dmabuf::{self, Access, Fence};
use busbar_uapi::iio;
use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use self::reports::Reports;
use super::clock::{WallClock, monotonic};
use super::device::{Control, Direction};
use super::driver::{Filled, HasBlock, LOOK, Pending, Receiver, Taken};
use crate::block::Block;
use crate::poll::{Oldest, Set, Timer, later};
use crate::{Error, Result};

/// How long until the next attempt to queue a block that another device or process still uses.
const RETRY: Duration = Duration::from_millis(1);
/// Attempts before that: others hold the lock of a DMABUF for microseconds.
const ATTEMPTS: u32 = 16;

/// The blocks that a driver has.
#[derive(Debug)]
pub(super) struct Queue<L> {
    /// `None` once it is closed.
    buffer: Option<OwnedFd>,
    control: Control,
    direction: Direction,
    /// `None` on a kernel that does not report blocks.
    reports: Option<Reports>,
    flight: VecDeque<Flying<L>>,
    /// Blocks that others still used when they were to be queued.
    waiting: VecDeque<Job<L>>,
    watch: Option<Watch>,
    /// When the device was checked last.
    looked: Instant,
    clock: WallClock,
}

/// A block for the driver.
#[derive(Debug)]
struct Job<L> {
    load: L,
    /// The bytes to transfer.
    len: usize,
    flags: u32,
}

#[derive(Debug)]
struct Flying<L> {
    load: L,
    end: End,
}

/// How the end of a block becomes known.
#[derive(Debug)]
enum End {
    Report,
    /// By its fence, and when that was taken, on the monotonic clock.
    Fence(Arc<OwnedFd>, Duration),
    /// By the DMABUF itself, since the process had no descriptor left for a fence.
    Unused,
}

/// The result of a transfer, and its time on the monotonic clock if that is known.
type Outcome = (Result<(), Errno>, Option<Duration>);

#[derive(Debug)]
struct Watch {
    set: Arc<Set>,
    oldest: Oldest,
    /// Whether the oldest block is in the set itself, since it has no fence.
    has_block: bool,
    /// Expires while blocks wait.
    retry: Timer,
    /// Expires when the device is to be checked.
    look: Timer,
}

/// How the driver ended its work on a block.
#[derive(Debug)]
pub(super) struct Done<L> {
    pub load: L,
    pub time: SystemTime,
    pub result: Result<(), Errno>,
}

impl<L: HasBlock> Queue<L> {
    pub(super) fn new(buffer: OwnedFd, control: Control, direction: Direction) -> Result<Self> {
        let (flight, waiting) = (VecDeque::new(), VecDeque::new());
        let (looked, clock) = (Instant::now(), WallClock::now());
        let reports = Reports::new(&buffer, direction.events())?;
        Ok(Self {
            buffer: Some(buffer),
            control,
            direction,
            reports,
            flight,
            waiting,
            watch: None,
            looked,
            clock,
        })
    }

    pub(super) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Attaches a block to the driver.
    pub(super) fn attach(&self, block: &Block) -> Result<(), Errno> {
        let buffer = self.buffer.as_ref().ok_or(Errno::PIPE)?;
        persist(|| iio::attach(buffer, block))
    }

    /// Detaches a DMABUF from the driver; a queued one once its transfer has ended.
    pub(super) fn detach(&self, dmabuf: &OwnedFd) {
        // This fails if the buffer is closed or the device has gone: then the driver has detached it.
        let _ = self.buffer.as_ref().map(|buffer| persist(|| iio::detach(buffer, dmabuf)));
    }

    /// How many blocks the driver has or will get.
    pub(super) fn len(&self) -> usize {
        self.flight.len() + self.waiting.len()
    }

    /// The blocks that the driver has or will get.
    pub(super) fn loads(&self) -> impl Iterator<Item = &L> {
        let flight = self.flight.iter().map(|one| &one.load);
        flight.chain(self.waiting.iter().map(|job| &job.load))
    }

    /// Gives the first `len` bytes of an attached block to the driver.
    pub(super) fn push(&mut self, load: L, len: usize) -> Result<()> {
        let job = Job { load, len, flags: 0 };
        if !self.waiting.is_empty() {
            self.waiting.push_back(job);
            return Ok(());
        }
        self.submit(job)
    }

    /// Has the driver transmit a block again and again, until it is disabled. Returns a block that the driver
    /// does not take, and why.
    pub(super) fn push_cyclic(&mut self, load: L, len: usize) -> Result<Option<(L, Errno)>> {
        self.try_submit(Job { load, len, flags: iio::CYCLIC })
    }

    fn submit(&mut self, job: Job<L>) -> Result<()> {
        let refused = self.try_submit(job)?;
        refused.map_or(Ok(()), |(_, errno)| Err(self.failed(errno)))
    }

    /// Gives a block to the driver, or has it wait. Returns a block that the driver does not take, and why.
    fn try_submit(&mut self, job: Job<L>) -> Result<Option<(L, Errno)>> {
        let Some(buffer) = &self.buffer else { return Ok(Some((job.load, Errno::PIPE))) };
        let flags = job.flags | if self.reports.is_some() { iio::REPORT } else { 0 };
        match persist(|| iio::enqueue(buffer, job.load.block(), job.len as u64, flags)) {
            Ok(()) => {}
            // Others use it, or it has ended only after it was taken back.
            Err(Errno::BUSY | Errno::ALREADY) => {
                self.waiting.push_back(job);
                return self.ring().map(|()| None);
            }
            Err(errno) => return Ok(Some((job.load, errno))),
        }
        let end = if self.reports.is_some() { End::Report } else { self.fence_of(&job.load) };
        self.flight.push_back(Flying { load: job.load, end });
        self.watch_first()?;
        Ok(None)
    }

    fn fence_of(&self, load: &L) -> End {
        // Waiting before a read waits for writers: the receiving driver. Waiting before a write waits for
        // readers as well: the transmitting driver.
        let access = match self.direction {
            Direction::Receive => Access::Read,
            Direction::Transmit => Access::Write,
        };
        let fence = dmabuf::export_sync_file(load.block(), access);
        fence.map_or(End::Unused, |fence| End::Fence(Arc::new(fence), monotonic()))
    }

    /// The oldest block if the driver is done with it. Fails once the device was stopped.
    pub(super) fn pop(&mut self) -> Result<Option<Done<L>>> {
        self.push_waiting()?;
        let Some((index, (result, at))) = self.ended()? else {
            self.rewatch()?;
            self.look()?;
            return Ok(None);
        };
        if result == Err(Errno::INTR) {
            return Err(self.over());
        }
        let time = at.map_or_else(SystemTime::now, |at| self.clock.time_of(at));
        self.unwatch_block();
        let Some(Flying { load, .. }) = self.flight.remove(index) else { return Ok(None) };
        self.watch_first()?;
        Ok(Some(Done { load, time, result }))
    }

    /// Which block has ended, and how.
    fn ended(&mut self) -> Result<Option<(usize, Outcome)>> {
        loop {
            let Some((reports, buffer)) = self.reports.as_mut().zip(self.buffer.as_ref()) else {
                return Ok(self.flight.front().and_then(Flying::ended).map(|outcome| (0, outcome)));
            };
            let report = match reports.next(buffer) {
                Ok(Some(report)) => report,
                Ok(None) => return Ok(None),
                Err(errno) => {
                    return Err(Error::new("wait for", self.control.device().label(), errno));
                }
            };
            let of = self.flight.iter().position(|one| report.is_of(one.load.block()));
            // Others were taken back before they had ended.
            if let Some(index) = of {
                return Ok(Some((index, (report.result(), Some(report.time())))));
            }
        }
    }

    /// Fails if the driver has blocks and another program has disabled it. This is checked once in
    /// [`LOOK`].
    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.ring_for_look()?;
        let over = !self.flight.is_empty() && self.control.has_stopped();
        if over { Err(self.over()) } else { Ok(()) }
    }

    fn push_waiting(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        for _ in 0..self.waiting.len() {
            let Some(job) = self.waiting.pop_front() else { break };
            let before = self.waiting.len();
            self.submit(job)?;
            if self.waiting.len() > before {
                // It is still used, and went to the end.
                self.waiting.rotate_right(1);
                break;
            }
        }
        self.ring()
    }

    pub(super) fn pending(&self) -> Pending {
        match (self.flight.front().map(|first| &first.end), &self.reports) {
            (Some(End::Fence(fence, _)), _) => Pending::File(Arc::clone(fence), PollFlags::IN),
            (Some(End::Report), Some(reports)) => reports.pending(),
            (None, _) if self.waiting.is_empty() => Pending::Block,
            _ => Pending::Until(later(Instant::now(), RETRY)),
        }
    }

    pub(super) fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        let (retry, look) = (Timer::new()?, Timer::new()?);
        set.add(&retry, 0, EventFlags::IN)?;
        set.add(&look, 0, EventFlags::IN)?;
        self.watch = Some(Watch {
            set: Arc::clone(set),
            oldest: Oldest::default(),
            has_block: false,
            retry,
            look,
        });
        let done = self
            .ring()
            .and_then(|()| self.ring_for_look())
            .and_then(|()| self.watch_first())
            .and_then(|()| self.watch_reports());
        if done.is_err() {
            self.watch = None;
        }
        done
    }

    fn watch_reports(&mut self) -> Result<()> {
        let (Some(watch), Some(buffer)) = (&self.watch, &self.buffer) else { return Ok(()) };
        self.reports.as_ref().map_or(Ok(()), |reports| reports.watch(buffer, &watch.set))
    }

    /// Watches the oldest block, unless one before it is.
    fn watch_first(&mut self) -> Result<()> {
        let events = self.direction.events();
        let (Some(watch), Some(first)) = (&mut self.watch, self.flight.front()) else {
            return Ok(());
        };
        match &first.end {
            End::Fence(fence, _) => watch.oldest.watch(&watch.set, fence)?,
            End::Unused if !watch.has_block => {
                watch.set.add(first.load.block(), 0, events)?;
                watch.has_block = true;
            }
            End::Report | End::Unused => {}
        }
        Ok(())
    }

    /// Watches the oldest block, which has not ended.
    fn rewatch(&mut self) -> Result<()> {
        if let Some(watch) = &mut self.watch {
            let fence = self.flight.front().and_then(Flying::fence);
            watch.oldest.keep(&watch.set, fence);
        }
        self.watch_first()
    }

    fn unwatch(&mut self) {
        self.unwatch_block();
        if let Some(watch) = &mut self.watch {
            watch.oldest.clear(&watch.set);
        }
    }

    /// Forgets a block before it goes: unlike a fence, it will be used again.
    fn unwatch_block(&mut self) {
        let (Some(watch), Some(first)) = (&mut self.watch, self.flight.front()) else { return };
        if std::mem::take(&mut watch.has_block) {
            // It was added.
            let _ = watch.set.remove(first.load.block());
        }
    }

    fn ring(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let at = (!self.waiting.is_empty()).then(|| later(Instant::now(), RETRY));
        watch.retry.set(at)
    }

    fn ring_for_look(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        watch.look.set(Some(later(self.looked, LOOK)))
    }

    /// Stops the device, restores its settings, and drops the blocks.
    pub(super) fn stop(&mut self) -> Result<()> {
        let flushed = self.flush();
        let result = flushed.and(self.control.restore());
        self.unwatch();
        self.flight.clear();
        self.waiting.clear();
        if let Some(reports) = &mut self.reports {
            reports.end();
        }
        self.buffer = None;
        result
    }

    /// Has the driver end all blocks that it has.
    pub(super) fn end_all(&mut self) -> Result<()> {
        self.flush()?;
        self.control.disable()
    }

    /// A disabled driver would keep blocks that it got after that until it is enabled again.
    fn flush(&mut self) -> Result<()> {
        if self.flight.is_empty() { Ok(()) } else { self.control.flush() }
    }

    /// Takes all blocks back from a driver that was disabled.
    pub(super) fn recall(&mut self) -> Vec<L> {
        self.unwatch();
        if let Some((reports, buffer)) = self.reports.as_mut().zip(self.buffer.as_ref()) {
            reports.clear(buffer);
        }
        let flight = self.flight.drain(..).map(|one| one.load);
        flight.chain(self.waiting.drain(..).map(|job| job.load)).collect()
    }

    pub(super) fn failed(&self, errno: Errno) -> Error {
        Error::new("give a block to", self.control.device().label(), errno)
    }

    fn over(&self) -> Error {
        Error::new("go on with", self.control.device().label(), Errno::PIPE)
            .help("it was disabled, or has gone")
    }
}

/// Whether a driver has the DMABUF interface: it is asked to attach a file that is not a DMABUF.
pub(super) fn is_offered(buffer: &impl AsFd) -> bool {
    let buffer = buffer.as_fd();
    // EPERM from a driver without the interface. Kernels before 6.11 return EINVAL, as drivers with it
    // do; but such a kernel returns it for a DMABUF, too.
    iio::attach(buffer, buffer) == Err(Errno::INVAL)
}

/// Tries again while a call says `EBUSY`.
pub(super) fn persist(call: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(Errno::BUSY) => std::thread::yield_now(),
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
    call()
}

impl<L: HasBlock> Flying<L> {
    fn fence(&self) -> Option<&Arc<OwnedFd>> {
        if let End::Fence(fence, _) = &self.end { Some(fence) } else { None }
    }

    /// `None` if it has not ended, as far as can be seen without a report.
    fn ended(&self) -> Option<Outcome> {
        let (fence, queued) = match &self.end {
            End::Fence(fence, queued) => (fence, *queued),
            End::Report => return None,
            End::Unused => {
                // Without a fence, the result is not known.
                let unused = self.load.block().try_wait_unused().unwrap_or(true);
                return unused.then_some((Ok(()), None));
            }
        };
        let mut fences = [Fence::default(); 4];
        let count = dmabuf::sync_file_fences(&**fence, &mut fences).unwrap_or(0);
        let fences = &fences[..count];
        if fences.is_empty() {
            // Only other users' fences.
            let status = dmabuf::sync_file_status(&**fence).ok()?.1?;
            return Some((status, Some(queued)));
        }
        if fences.iter().any(|fence| fence.status == 0) {
            return None;
        }
        let error = fences.iter().find(|fence| fence.status < 0);
        let result = error.map_or(Ok(()), |fence| Err(Errno::from_raw_os_error(-fence.status)));
        // If the transfer had ended already, the kernel gives a signalled stub fence instead of the driver's.
        let of_iio = fences.iter().filter(|fence| fence.driver_name.starts_with(b"iio\0"));
        let at = of_iio.map(|fence| Duration::from_nanos(fence.timestamp_ns)).max();
        Some((result, at.or(Some(queued))))
    }
}

/// A receive buffer.
#[derive(Debug)]
pub(super) struct Receive {
    queue: Queue<Block>,
    len: usize,
    samples: usize,
}

impl Receive {
    /// Attaches and queues the blocks, then starts the device.
    pub(super) fn start(
        queue: Queue<Block>,
        blocks: Vec<Block>,
        len: usize,
        samples: usize,
    ) -> Result<Self> {
        let mut receive = Self { queue, len, samples };
        for block in blocks {
            receive.queue.push(block, len)?;
        }
        receive.queue.control().enable()?;
        Ok(receive)
    }
}

impl Receiver for Receive {
    fn queue(&mut self, block: Block) -> Result<()> {
        self.queue.push(block, self.len)
    }

    fn take(&mut self) -> Result<Taken> {
        let Some(Done { load, time, result }) = self.queue.pop()? else {
            return Ok(Taken::Nothing);
        };
        Ok(match result {
            Ok(()) => {
                Taken::Filled(Filled { block: load, time, samples: self.samples, lost: None })
            }
            Err(errno) => Taken::Failed(
                load,
                Error::new("fill a block from", self.queue.control().device().label(), errno),
            ),
        })
    }

    fn pending(&self) -> Pending {
        self.queue.pending()
    }

    fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        self.queue.watch(set)
    }

    fn stop(&mut self) -> Result<()> {
        self.queue.stop()
    }
}
