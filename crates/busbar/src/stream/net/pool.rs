//! Pools of blocks, which are filled, handed out, and come back.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::block::Block;
use crate::poll::Bell;
use crate::stream::format::Meta;
use crate::stream::samples::{Home, Kin, Origin, Samples, Shell};

/// Room for a number of blocks. An edge-triggered set sees an event when a block comes back.
#[derive(Debug)]
pub(crate) struct Pool<R = Block>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R> {
    state: Mutex<State<R>>,
    kin: Kin,
    bell: Bell,
}

#[derive(Debug)]
struct State<R> {
    free: Vec<R>,
    /// The tags of blocks that came back; while there are some, the bell is rung.
    returned: Vec<u64>,
    shells: Vec<Shell>,
}

impl<R> Pool<R> {
    pub(crate) fn new(free: Vec<R>) -> Result<Self> {
        let bell = Bell::new()?;
        let (returned, shells) = (Vec::with_capacity(free.len()), Vec::with_capacity(free.len()));
        let state = Mutex::new(State { free, returned, shells });
        Ok(Self(Arc::new(Shared { state, kin: Kin::default(), bell })))
    }

    /// Takes free room.
    pub(crate) fn take(&self) -> Option<R> {
        self.0.lock().free.pop()
    }

    /// Puts back room that was taken and not handed out.
    pub(crate) fn put(&self, room: R) {
        self.0.lock().free.push(room);
    }

    /// Calls `each` with the tags of the blocks that came back since the last call. Returns whether there were some.
    pub(crate) fn returned(&self, each: impl FnMut(u64)) -> bool {
        let mut state = self.0.lock();
        if state.returned.is_empty() {
            return false;
        }
        self.0.bell.clear();
        state.returned.drain(..).for_each(each);
        true
    }

    /// A function that takes back room that was handed out, and adds `tag` to [`returned`](Self::returned).
    pub(super) fn back(&self, tag: u64) -> impl Fn(R) + use<R> {
        let shared = Arc::clone(&self.0);
        move |room| shared.take(room, tag, None)
    }
}

impl<R: From<Block> + Send + 'static> Pool<R> {
    /// Hands one of `total` blocks out; when it comes back, `tag` is among the
    /// [`returned`](Self::returned).
    pub(crate) fn hand_out(&self, block: Block, meta: Meta, total: usize, tag: u64) -> Samples {
        let shell = self.0.lock().shells.pop();
        let (home, kin) = (Arc::clone(&self.0), Arc::clone(&self.0.kin));
        Samples::pooled(block, meta, Origin { home, kin, total, tag, shell })
    }
}

impl<R> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, room: R, tag: u64, shell: Option<Shell>) {
        let mut state = self.lock();
        state.free.push(room);
        state.shells.extend(shell);
        state.returned.push(tag);
        // Under the lock, so that whoever clears the bell has seen the tag.
        if state.returned.len() == 1 {
            let _ = self.bell.ring();
        }
    }
}

impl<R: From<Block> + Send> Home for Shared<R> {
    fn take_back(&self, block: Block, tag: u64, shell: Option<Shell>) {
        self.take(block.into(), tag, shell);
    }
}

impl<R> AsFd for Pool<R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}
