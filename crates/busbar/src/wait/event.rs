//! What a wait returns.

use std::fmt;

use busbar_uapi::epoll::{self, EpollEvent};

use super::changes::Failure;
use super::interest::Bits;
use crate::{Error, Result};

/// What has happened on one descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    key: u64,
    bits: u32,
}

impl Event {
    /// The key that the descriptor was added or changed with.
    #[must_use]
    pub const fn key(self) -> u64 {
        self.key
    }

    /// There is something to read, or the end was reached.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        self.bits & epoll::IN != 0
    }

    /// There is room to write.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.bits & epoll::OUT != 0
    }

    /// There is urgent data.
    #[must_use]
    pub const fn is_priority(self) -> bool {
        self.bits & epoll::PRI != 0
    }

    /// The peer has stopped sending.
    #[must_use]
    pub const fn is_read_hangup(self) -> bool {
        self.bits & epoll::RDHUP != 0
    }

    /// Both directions are closed.
    #[must_use]
    pub const fn is_hangup(self) -> bool {
        self.bits & epoll::HUP != 0
    }

    /// The file has an error, or the other end of the pipe is closed.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.bits & epoll::ERR != 0
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({}: {})", self.key, Bits(self.bits))
    }
}

/// Room for the events of a wait; each wait replaces them.
#[derive(Debug)]
pub struct Events {
    pub(super) room: Box<[EpollEvent]>,
    pub(super) count: usize,
    pub(super) failures: Vec<Failure>,
}

impl Events {
    /// Room for `capacity` events, at least 1 and at most `INT_MAX / sizeof(struct epoll_event)`,
    /// 178 956 970 on x86-64. Events that do not fit are returned by the next wait.
    pub fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 || capacity > epoll::EVENTS_MAX {
            let allowed = format!("1 to {}", epoll::EVENTS_MAX);
            return Err(Error::invalid("`capacity` of `Events`", capacity, allowed));
        }
        let room = vec![EpollEvent { events: 0, u64: 0 }; capacity].into();
        Ok(Self { room, count: 0, failures: Vec::new() })
    }

    /// How many events fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.room.len()
    }

    /// How many events there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the last wait ended without an event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The events of the last wait.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Event> + '_ {
        self.room[..self.count].iter().map(|event| Event { key: event.u64, bits: event.events })
    }

    /// The queued changes that failed in the last wait; empty unless it returned an error.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
        self.failures.clear();
    }
}
