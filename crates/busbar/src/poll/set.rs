//! A descriptor that is readable while one of several is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::{Error, Result};

/// Maximum number of keys that one call of [`Set::ready`] returns.
const MOST: usize = 16;

/// An epoll set, readable while a descriptor in it has an event.
#[derive(Debug)]
pub(crate) struct Set(OwnedFd);

impl Set {
    pub(crate) fn new() -> Result<Self> {
        epoll::create(CreateFlags::CLOEXEC)
            .map(Self)
            .map_err(|errno| Error::new("make", "an epoll set", errno))
    }

    /// Watches `fd` until it is removed or closed.
    pub(crate) fn add(&self, fd: impl AsFd, key: u64, events: EventFlags) -> Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(key), events)
            .map_err(|errno| Error::new("watch", "a descriptor", errno))
    }

    /// `ENOENT` if `fd` is not in the set.
    pub(crate) fn remove(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, fd)
            .map_err(|errno| Error::new("stop watching", "a descriptor", errno))
    }

    /// The keys of the descriptors that have an event now. Edge-triggered events are returned once.
    pub(crate) fn ready(&self) -> Result<impl Iterator<Item = u64> + use<>> {
        let mut events: Vec<Event> = Vec::with_capacity(MOST);
        match epoll::wait(&self.0, spare_capacity(&mut events), Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => Ok(events.into_iter().map(|event| event.data.u64())),
            Err(errno) => Err(Error::new("wait for", "an epoll set", errno)),
        }
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
