//! What a [`Source`](super::Source) and a [`Sink`](super::Sink) need of each interface.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::PollFlags;

use super::about::About;
use super::format::Lost;
use super::loss::Detector;
use super::samples::Samples;
use crate::block::Block;
use crate::poll::Set;
use crate::{Error, Result};

/// How often to check whether a device still exists and is enabled: its file does not always tell.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Fills blocks, in the order in which it gets them.
pub(super) trait Receiver: fmt::Debug + Send {
    /// Takes a block to fill.
    fn queue(&mut self, block: Block) -> Result<()>;

    /// Gives the oldest block back if it is done. Fails once no further block will be done.
    fn take(&mut self) -> Result<Taken>;

    /// What to wait for until [`take`](Self::take) may have a block.
    fn pending(&self) -> Pending;

    /// From now on, `set` is kept readable while there is something to take. If it fails, it can be tried
    /// again.
    fn watch(&mut self, set: &Arc<Set>) -> Result<()>;

    /// Bytes copied so far.
    fn copied(&self) -> u64 {
        0
    }

    /// Stops the driver and drops the blocks that it has.
    fn stop(&mut self) -> Result<()>;
}

/// The state of the oldest block.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is not done yet.
    Nothing,
    Filled(Filled),
    /// A block of another home, with all that is known of it.
    Whole(Samples),
    /// The driver has failed with this block.
    Failed(Block, Error),
}

/// A block as the driver gives it back.
#[derive(Debug)]
pub(super) struct Filled {
    pub block: Block,
    pub time: SystemTime,
    /// Samples in it, as far as the driver tells. The samples themselves may show that there are fewer.
    pub samples: usize,
    /// What the driver tells; `None` if the samples have to be inspected.
    pub lost: Option<Lost>,
}

/// What to wait for.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// One of these events of a file, for [`LOOK`] at most.
    File(Arc<OwnedFd>, PollFlags),
    /// A point in time.
    Until(Instant),
    /// The return of a block.
    Block,
}

/// A receiver that was opened, for a [`Source`](super::Source) to start.
pub(super) struct Opened {
    /// The name of the stream in errors.
    pub label: String,
    pub receiver: Box<dyn Receiver>,
    pub detector: Detector,
    pub about: About,
}

/// Something that holds a block while the driver has it.
pub(super) trait HasBlock {
    fn block(&self) -> &Block;
}

impl HasBlock for Block {
    fn block(&self) -> &Block {
        self
    }
}
