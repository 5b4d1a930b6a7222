//! Ending a wait from another thread.

use std::sync::Arc;

use super::{Interest, Poller};
use crate::poll::Bell;
use crate::{Error, Result};

/// Ends a wait of a [`Poller`] from any thread.
///
/// A clone wakes the same poller. Dropping the last one removes it from the poller, and with it a
/// wake-up that no wait has returned yet.
#[derive(Clone, Debug)]
pub struct Waker {
    bell: Arc<Bell>,
}

impl Waker {
    pub(super) fn new(poller: &Poller, key: u64) -> Result<Self> {
        let bell = Bell::new()?;
        // With edges, the bell need not be cleared.
        poller.add(&bell, key, Interest::READABLE.edge())?;
        Ok(Self { bell: Arc::new(bell) })
    }

    /// Makes one wait return an event with the waker's key: one that sleeps, or else the next.
    ///
    /// Several calls between two waits may become one event. Never sleeps.
    pub fn wake(&self) -> Result<()> {
        self.bell.ring().map_err(|errno| Error::new("wake", "a poller", errno))
    }
}
