//! Blocks as DMABUFs, in either direction.
//!
//! The driver works on blocks in the order in which it gets them, and says that it is done with one
//! by a fence of the DMABUF. How it ended can be asked for only while it has not: so the fence is
//! taken as a file right after the block is queued.
//!
//! A driver that somebody disables ends the blocks that it has, and keeps those that it gets after
//! that without ever ending them. So the device itself is looked at, too, while the oldest block has
//! not ended.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use busbar_uapi::dmabuf::{self, Access, Fence};
use busbar_uapi::iio;
use rustix::event::PollFlags;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::device::{Control, Direction};
use super::driver::{self, Filled, LOOK, Pending, Receiver, Taken, Timer};
use crate::block::Block;
use crate::{Error, Result};

/// How long until another attempt to queue a block that somebody still uses.
const RETRY: Duration = Duration::from_millis(1);
/// Attempts before that: the lock of a DMABUF is held for microseconds by who looks at it.
const ATTEMPTS: u32 = 16;

/// What holds a block while the driver has it.
pub(super) trait Load {
    fn block(&self) -> &Block;
}

impl Load for Block {
    fn block(&self) -> &Block {
        self
    }
}

/// The blocks that a driver has.
#[derive(Debug)]
pub(super) struct Queue<L> {
    /// Nothing once it is closed.
    buffer: Option<OwnedFd>,
    control: Control,
    direction: Direction,
    flight: VecDeque<Flying<L>>,
    /// What somebody still used when it was to be queued, and how much of it.
    waiting: VecDeque<(L, usize)>,
    watch: Option<Watch>,
    /// When the device was looked at last.
    looked: Instant,
    clock: WallClock,
}

#[derive(Debug)]
struct Flying<L> {
    load: L,
    /// The fence; nothing where the process has no descriptor left for it.
    fence: Option<Arc<OwnedFd>>,
    /// When that was taken, on the monotonic clock.
    queued: Duration,
}

#[derive(Debug)]
struct Watch {
    poller: Arc<OwnedFd>,
    /// Rings while blocks wait.
    retry: Timer,
    /// Rings when the device is to be looked at.
    look: Timer,
}

/// How the driver ended its work on a block.
#[derive(Debug)]
pub(super) struct Done<L> {
    pub load: L,
    pub time: SystemTime,
    pub result: Result<(), Errno>,
}

impl<L: Load> Queue<L> {
    pub(super) fn new(buffer: OwnedFd, control: Control, direction: Direction) -> Self {
        let (flight, waiting) = (VecDeque::new(), VecDeque::new());
        let (looked, clock) = (Instant::now(), WallClock::now());
        Self {
            buffer: Some(buffer),
            control,
            direction,
            flight,
            waiting,
            watch: None,
            looked,
            clock,
        }
    }

    pub(super) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Lets the driver use a block.
    pub(super) fn attach(&self, block: &Block) -> Result<(), Errno> {
        let buffer = self.buffer.as_ref().ok_or(Errno::PIPE)?;
        // Its lock is held by others for a moment only.
        persist(|| iio::attach(buffer, block))
    }

    /// Has the driver let go of an attached DMABUF, if it is queued when it is done.
    pub(super) fn detach(&self, dmabuf: &OwnedFd) {
        // A driver that is closed, or whose device has gone, has let go of it.
        let _ = self.buffer.as_ref().map(|buffer| persist(|| iio::detach(buffer, dmabuf)));
    }

    /// How many blocks the driver has or will get.
    pub(super) fn len(&self) -> usize {
        self.flight.len() + self.waiting.len()
    }

    /// Gives the first `len` bytes of an attached block to the driver.
    pub(super) fn push(&mut self, load: L, len: usize) -> Result<()> {
        if !self.waiting.is_empty() {
            self.waiting.push_back((load, len));
            return Ok(());
        }
        self.submit(load, len, 0)
    }

    /// Transmits a block again and again; it stays with the driver.
    pub(super) fn push_cyclic(&mut self, load: L, len: usize) -> Result<()> {
        self.submit(load, len, iio::CYCLIC)
    }

    fn submit(&mut self, load: L, len: usize, flags: u32) -> Result<()> {
        let buffer = self.buffer.as_ref().ok_or_else(|| self.failed(Errno::PIPE))?;
        match persist(|| iio::enqueue(buffer, load.block(), len as u64, flags)) {
            Ok(()) => {}
            Err(Errno::BUSY) => {
                self.waiting.push_back((load, len));
                return self.ring();
            }
            Err(errno) => return Err(self.failed(errno)),
        }
        // Of a receiver only the driver itself writes; a transmitter reads.
        let access = match self.direction {
            Direction::Receive => Access::Read,
            Direction::Transmit => Access::Write,
        };
        let fence = dmabuf::export_sync_file(load.block(), access).ok().map(Arc::new);
        self.flight.push_back(Flying { load, fence, queued: monotonic() });
        if self.flight.len() == 1 {
            self.watch_first()?;
        }
        Ok(())
    }

    /// The oldest block if the driver is done with it. Fails once the device was stopped.
    pub(super) fn pop(&mut self) -> Result<Option<Done<L>>> {
        self.push_waiting()?;
        let Some((result, at)) = self.flight.front().and_then(Flying::ended) else {
            self.look()?;
            return Ok(None);
        };
        if result == Err(Errno::INTR) {
            return Err(self.over());
        }
        let time = at.map_or_else(SystemTime::now, |at| self.clock.time_of(at));
        self.unwatch_first();
        let Some(Flying { load, .. }) = self.flight.pop_front() else { return Ok(None) };
        self.watch_first()?;
        Ok(Some(Done { load, time, result }))
    }

    /// Fails if the driver does not work on what it has, as somebody has disabled it. That is asked
    /// now and then only.
    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.ring_for_look()?;
        let works = self.flight.is_empty() || self.control.is_enabled() == Some(true);
        if works { Ok(()) } else { Err(self.over()) }
    }

    fn push_waiting(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        for _ in 0..self.waiting.len() {
            let Some((load, len)) = self.waiting.pop_front() else { break };
            let before = self.waiting.len();
            self.submit(load, len, 0)?;
            if self.waiting.len() > before {
                // It went to the end.
                self.waiting.rotate_right(1);
                break;
            }
        }
        self.ring()
    }

    pub(super) fn pending(&self) -> Pending {
        match self.flight.front() {
            Some(Flying { fence: Some(fence), .. }) => {
                Pending::File(Arc::clone(fence), PollFlags::IN)
            }
            None if self.waiting.is_empty() => Pending::Block,
            _ => Pending::Until(Instant::now() + RETRY),
        }
    }

    pub(super) fn watch(&mut self, poller: &Arc<OwnedFd>) -> Result<()> {
        let timer = || Timer::new().map_err(|errno| Error::new("make", "a timer", errno));
        let (retry, look) = (timer()?, timer()?);
        driver::add(poller, &retry, EventFlags::IN)?;
        driver::add(poller, &look, EventFlags::IN)?;
        self.watch = Some(Watch { poller: Arc::clone(poller), retry, look });
        self.ring()?;
        self.ring_for_look()?;
        self.watch_first()
    }

    fn watch_first(&self) -> Result<()> {
        let (Some(watch), Some(first)) = (&self.watch, self.flight.front()) else { return Ok(()) };
        match &first.fence {
            Some(fence) => driver::add(&watch.poller, fence, EventFlags::IN),
            None => driver::add(&watch.poller, first.load.block(), self.events()),
        }
    }

    /// What happens to a DMABUF when it is done.
    fn events(&self) -> EventFlags {
        match self.direction {
            Direction::Receive => EventFlags::IN,
            Direction::Transmit => EventFlags::OUT,
        }
    }

    fn unwatch_first(&self) {
        let (Some(watch), Some(first)) = (&self.watch, self.flight.front()) else { return };
        // It is there, or was never added for want of memory.
        let _ = match &first.fence {
            Some(fence) => epoll::delete(&watch.poller, fence),
            None => epoll::delete(&watch.poller, first.load.block()),
        };
    }

    fn ring(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let at = (!self.waiting.is_empty()).then(|| Instant::now() + RETRY);
        watch.retry.set(at).map_err(|errno| Error::new("set", "a timer", errno))
    }

    fn ring_for_look(&self) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let at = Some(self.looked + LOOK);
        watch.look.set(at).map_err(|errno| Error::new("set", "a timer", errno))
    }

    /// Stops the device, puts everything back, and lets go of the blocks.
    pub(super) fn stop(&mut self) -> Result<()> {
        // What a disabled driver was given would stay with it until somebody enables it.
        let flushed = if self.flight.is_empty() { Ok(()) } else { self.control.flush() };
        let result = flushed.and(self.control.restore());
        self.unwatch_first();
        self.flight.clear();
        self.waiting.clear();
        self.buffer = None;
        result
    }

    /// Takes everything back from a driver that was disabled.
    pub(super) fn recall(&mut self) -> Vec<L> {
        self.unwatch_first();
        let flight = self.flight.drain(..).map(|one| one.load);
        flight.chain(self.waiting.drain(..).map(|(load, _)| load)).collect()
    }

    pub(super) fn failed(&self, errno: Errno) -> Error {
        Error::new("give a block to", self.control.device().label(), errno)
    }

    fn over(&self) -> Error {
        Error::new("go on with", self.control.device().label(), Errno::PIPE)
            .help("it was disabled, or has gone")
    }
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

impl<L: Load> Flying<L> {
    /// How it ended and when, on the monotonic clock, if that is known; nothing if it has not.
    fn ended(&self) -> Option<(Result<(), Errno>, Option<Duration>)> {
        let Some(fence) = &self.fence else {
            // How it ended cannot be known.
            let unused = self.load.block().try_wait_unused().unwrap_or(true);
            return unused.then_some((Ok(()), None));
        };
        let mut fences = [Fence::default(); 4];
        let count = dmabuf::sync_file_fences(&**fence, &mut fences).unwrap_or(0);
        let fences = &fences[..count];
        if fences.is_empty() {
            // Users that this is not about.
            let status = dmabuf::sync_file_status(&**fence).ok()?.1?;
            return Some((status, Some(self.queued)));
        }
        if fences.iter().any(|fence| fence.status == 0) {
            return None;
        }
        let error = fences.iter().find(|fence| fence.status < 0);
        let result = error.map_or(Ok(()), |fence| Err(Errno::from_raw_os_error(-fence.status)));
        // One that was over already is replaced by a fence of nobody: it was over by then.
        let of_iio = fences.iter().filter(|fence| fence.driver_name.starts_with(b"iio\0"));
        let at = of_iio.map(|fence| Duration::from_nanos(fence.timestamp_ns)).max();
        Some((result, at.or(Some(self.queued))))
    }
}

/// Times of the monotonic clock on the wall.
///
/// From one look at both clocks, for as long as that holds: two looks differ by what happens between
/// the readings, and the times of blocks would not go forward.
#[derive(Debug)]
struct WallClock {
    wall: SystemTime,
    monotonic: Duration,
}

impl WallClock {
    /// How far the clocks may drift apart until another look.
    const TOLERANCE: Duration = Duration::from_millis(1);

    /// The wall clock, between two readings of the monotonic one.
    fn look() -> (Duration, SystemTime, Duration) {
        (monotonic(), SystemTime::now(), monotonic())
    }

    /// The closest of five looks.
    fn now() -> Self {
        let (first, others) = (Self::look(), (0..4).map(|_| Self::look()));
        let width = |look: &(Duration, SystemTime, Duration)| look.2.saturating_sub(look.0);
        let closest = others.fold(first, |a, b| if width(&b) < width(&a) { b } else { a });
        // Rather a moment too early: no block was complete after it was handed out.
        Self { wall: closest.1, monotonic: closest.2 }
    }

    fn time_of(&mut self, at: Duration) -> SystemTime {
        let (before, wall, after) = Self::look();
        let (earliest, latest) = (self.at(before), self.at(after));
        let is_set = earliest.duration_since(wall).is_ok_and(|ahead| ahead > Self::TOLERANCE)
            || wall.duration_since(latest).is_ok_and(|behind| behind > Self::TOLERANCE);
        if is_set {
            *self = Self::now();
        }
        self.at(at)
    }

    fn at(&self, monotonic: Duration) -> SystemTime {
        let time = match monotonic.checked_sub(self.monotonic) {
            Some(later) => self.wall.checked_add(later),
            None => self.wall.checked_sub(self.monotonic.saturating_sub(monotonic)),
        };
        time.unwrap_or(self.wall)
    }
}

fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
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

    fn watch(&mut self, poller: &Arc<OwnedFd>) -> Result<()> {
        self.queue.watch(poller)
    }

    fn stop(&mut self) -> Result<()> {
        self.queue.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_the_wall_keep_their_distance_until_the_clock_is_set() {
        let mut clock = WallClock::now();
        let now = monotonic();
        let times = [now, now + Duration::from_nanos(1), now + Duration::from_secs(1)];
        let walls = times.map(|at| clock.time_of(at));
        assert_eq!(walls[1].duration_since(walls[0]).unwrap(), Duration::from_nanos(1));
        assert_eq!(walls[2].duration_since(walls[0]).unwrap(), Duration::from_secs(1));
        let hour = Duration::from_secs(3600);
        let mut set = WallClock { wall: clock.wall + hour, ..clock };
        let wall = set.time_of(monotonic());
        assert!(SystemTime::now().duration_since(wall).unwrap() < hour / 2);
    }
}
