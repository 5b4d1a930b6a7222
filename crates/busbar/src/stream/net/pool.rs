//! Blocks that are filled here, handed out, and come back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::block::Block;
use crate::stream::{Back, Meta, Samples};
use crate::{Error, Result};

/// A number of blocks; readable (as changes are watched) when one came back.
#[derive(Debug)]
pub(crate) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    event: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Block>,
    returned: Vec<u64>,
}

impl Pool {
    pub(crate) fn new(blocks: Vec<Block>) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| Error::new("make", "a pool of blocks", errno))?;
        let state = Mutex::new(State { free: blocks, returned: Vec::new() });
        Ok(Self(Arc::new(Shared { state, event })))
    }

    /// A block that nobody uses.
    pub(crate) fn take(&self) -> Option<Block> {
        self.0.lock().free.pop()
    }

    /// A block that was taken and not handed out.
    pub(crate) fn put(&self, block: Block) {
        self.0.lock().free.push(block);
    }

    /// Hands one of `total` blocks out; when it comes back, `tag` is among the [`returned`](Self::returned).
    pub(crate) fn hand_out(&self, block: Block, meta: Meta, total: usize, tag: u64) -> Samples {
        let shared = Arc::clone(&self.0);
        let back: Back = Arc::new(move |block| {
            let mut state = shared.lock();
            state.free.push(block);
            state.returned.push(tag);
            drop(state);
            let _ = rustix::io::write(&shared.event, &1u64.to_ne_bytes());
        });
        Samples::pooled(block, meta, total, back)
    }

    /// The tags of the blocks that came back since the last call.
    pub(crate) fn returned(&self) -> Vec<u64> {
        let mut state = self.0.lock();
        if state.returned.is_empty() {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        std::mem::take(&mut state.returned)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
