//! A descriptor that is readable while one of several is.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
    pub(crate) fn ready(&self) -> Result<Keys> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; MOST];
        match epoll::wait(&self.0, &mut events, Some(&Timespec::default())) {
            Ok((events, _)) => {
                let mut keys = Keys { keys: [0; MOST], len: events.len() };
                for (key, event) in keys.keys.iter_mut().zip(events) {
                    *key = event.data.u64();
                }
                Ok(keys)
            }
            Err(Errno::INTR) => Ok(Keys { keys: [0; MOST], len: 0 }),
            Err(errno) => Err(Error::new("wait for", "an epoll set", errno)),
        }
    }
}

/// Keys of descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    keys: [u64; MOST],
    len: usize,
}

impl Keys {
    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.keys[..self.len]
    }
}

impl From<Set> for OwnedFd {
    fn from(set: Set) -> Self {
        set.0
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
