//! Blocks that have ended, as a kernel with Busbar's patches of the IIO core reports them: many by one call, and without a
//! fence as a file for each.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use busbar_uapi::iio::{self, Ended};
use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::Result;
use crate::block::Block;
use crate::poll::{Bell, Set};
use crate::stream::driver::Pending;

/// Maximum number of reports that one call takes.
const MOST: usize = 16;

/// The reports of a buffer.
#[derive(Debug)]
pub(super) struct Reports {
    /// Readable while there are reports. It does not keep the buffer open, unlike its own descriptor.
    waiting: Arc<OwnedFd>,
    /// The event of the buffer.
    events: EventFlags,
    taken: VecDeque<Ended>,
    /// Rings while there are reports that were taken, for other threads and for who watches.
    bell: Bell,
    rings: bool,
}

impl Reports {
    /// `None` if the kernel does not report blocks.
    pub(super) fn new(buffer: &OwnedFd, events: EventFlags) -> Result<Option<Self>> {
        if iio::dequeue(buffer, &mut []).is_err() {
            return Ok(None);
        }
        let (set, bell) = (Set::new()?, Bell::new()?);
        set.add(buffer, 0, events)?;
        set.add(&bell, 0, EventFlags::IN)?;
        let (waiting, taken) = (Arc::new(set.into()), VecDeque::with_capacity(MOST));
        Ok(Some(Self { waiting, events, taken, bell, rings: false }))
    }

    /// The oldest report.
    pub(super) fn next(&mut self, buffer: &OwnedFd) -> Result<Option<Report>, Errno> {
        if self.taken.is_empty() {
            let mut ended = [Ended::default(); MOST];
            let count = iio::dequeue(buffer, &mut ended)?;
            self.taken.extend(&ended[..count]);
        }
        let next = self.taken.pop_front();
        self.ring(!self.taken.is_empty());
        Ok(next.map(Report))
    }

    /// Forgets the reports of blocks that were taken back.
    pub(super) fn clear(&mut self, buffer: &OwnedFd) {
        while let Ok(Some(_)) = self.next(buffer) {}
    }

    pub(super) fn pending(&self) -> Pending {
        Pending::File(Arc::clone(&self.waiting), PollFlags::IN)
    }

    /// Keeps `set` readable while there are reports.
    pub(super) fn watch(&self, buffer: &OwnedFd, set: &Set) -> Result<()> {
        set.add(&self.bell, 0, EventFlags::IN)?;
        set.add(buffer, 0, self.events).inspect_err(|_| {
            // It was added.
            let _ = set.remove(&self.bell);
        })
    }

    /// Wakes threads that wait for a report, as the buffer ends.
    pub(super) fn end(&mut self) {
        self.ring(true);
    }

    fn ring(&mut self, wanted: bool) {
        // An eventfd that exists can be rung.
        let _ = self.bell.set(&mut self.rings, wanted);
    }
}

/// A block that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report(Ended);

impl Report {
    pub(super) fn is_of(self, block: &Block) -> bool {
        block.as_fd().as_raw_fd().cast_unsigned() == self.0.fd
    }

    pub(super) fn result(self) -> Result<(), Errno> {
        if self.0.error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(-self.0.error)) }
    }

    /// When it ended, on the monotonic clock.
    pub(super) fn time(self) -> Duration {
        Duration::from_nanos(self.0.timestamp_ns)
    }
}
