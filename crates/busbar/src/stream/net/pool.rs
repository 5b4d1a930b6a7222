//! Pools of blocks, which are filled, handed out, and come back.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::block::Block;
use crate::poll::Bell;
use crate::stream::format::Meta;
use crate::stream::samples::{Home, Samples};

/// Room for a number of blocks. An edge-triggered set sees an event when a block comes back.
#[derive(Debug)]
pub(crate) struct Pool<R = Block>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R> {
    state: Mutex<State<R>>,
    home: Home,
    bell: Bell,
}

#[derive(Debug)]
struct State<R> {
    free: Vec<R>,
    returned: Vec<u64>,
}

impl<R> Pool<R> {
    pub(crate) fn new(free: Vec<R>) -> Result<Self> {
        let bell = Bell::new()?;
        let state = Mutex::new(State { free, returned: Vec::new() });
        Ok(Self(Arc::new(Shared { state, home: Home::default(), bell })))
    }

    /// Takes free room.
    pub(crate) fn take(&self) -> Option<R> {
        self.0.lock().free.pop()
    }

    /// Puts back room that was taken and not handed out.
    pub(crate) fn put(&self, room: R) {
        self.0.lock().free.push(room);
    }

    /// The tags of the blocks that came back since the last call.
    pub(crate) fn returned(&self) -> Vec<u64> {
        let mut state = self.0.lock();
        if state.returned.is_empty() {
            return Vec::new();
        }
        self.0.bell.clear();
        std::mem::take(&mut state.returned)
    }

    /// What all blocks of the pool share.
    pub(super) fn home(&self) -> Home {
        Arc::clone(&self.0.home)
    }

    /// A function that takes back room that was handed out, and adds `tag` to [`returned`](Self::returned).
    pub(super) fn back(&self, tag: u64) -> impl Fn(R) + use<R> {
        let shared = Arc::clone(&self.0);
        move |room| {
            let mut state = shared.lock();
            state.free.push(room);
            state.returned.push(tag);
            drop(state);
            let _ = shared.bell.ring();
        }
    }
}

impl Pool {
    /// Hands one of `total` blocks out; when it comes back, `tag` is among the
    /// [`returned`](Self::returned).
    pub(crate) fn hand_out(&self, block: Block, meta: Meta, total: usize, tag: u64) -> Samples {
        Samples::pooled(block, meta, total, self.home(), Arc::new(self.back(tag)))
    }
}

impl<R> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> AsFd for Pool<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}
