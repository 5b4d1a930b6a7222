//! A descriptor that another thread makes readable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use crate::{Error, Result};

/// An eventfd, readable from [`ring`](Self::ring) to [`clear`](Self::clear).
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|errno| Error::new("make", "an eventfd", errno))
    }

    /// Makes it readable. Each call is a new event for edge-triggered waits. Never sleeps.
    pub(crate) fn ring(&self) -> Result<(), Errno> {
        loop {
            match write(&self.0, &1_u64.to_ne_bytes()) {
                // The counter is full.
                Err(Errno::AGAIN) => self.clear(),
                written => return written.map(drop),
            }
        }
    }

    /// Makes it readable or not; `rings` is whether it is, so that only a change is a call.
    pub(crate) fn set(&self, rings: &mut bool, wanted: bool) -> Result<(), Errno> {
        if wanted && !*rings {
            self.ring()?;
        } else if *rings && !wanted {
            self.clear();
        }
        *rings = wanted;
        Ok(())
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // This fails only if it was not readable.
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
