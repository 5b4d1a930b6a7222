//! Ending a wait from another thread.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use super::{Interest, Poller};
use crate::{Error, Result};

/// Ends a wait of a [`Poller`] from any thread.
///
/// A clone wakes the same poller. The last one to be dropped takes the key out of it, and with it a
/// wake-up that no wait has returned yet.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    pub(super) fn new(poller: &Poller, key: u64) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::new("make", "a waker", errno))?;
        // Of an edge, nobody has to read the counter.
        poller.add(&event, key, Interest::READABLE.edge())?;
        Ok(Self { event: Arc::new(event) })
    }

    /// Makes one wait return an event with the waker's key: one that sleeps, or else the next.
    ///
    /// Calls between two waits may end up as one event. Never sleeps.
    pub fn wake(&self) -> Result<()> {
        let failed = |errno| Error::new("wake", "a poller", errno);
        loop {
            match write(self.event.as_fd(), &1_u64.to_ne_bytes()) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The counter is full.
                Err(Errno::AGAIN) => match read(self.event.as_fd(), &mut [0; 8]) {
                    Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(errno) => return Err(failed(errno)),
                },
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}
