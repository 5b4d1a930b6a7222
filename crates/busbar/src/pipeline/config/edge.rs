//! Edges.

use std::str::FromStr;

use crate::{Error, Result};

/// The edge from one node to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// The source or stage that it begins at.
    pub from: String,
    /// Most blocks that wait or are under way in the sink, 1 to 1024. `None`: as many as have a megabyte together, at
    /// least 4 and at most 64; 4 if they are dropped here or before.
    pub queue: Option<usize>,
    /// What happens when there are as many blocks.
    pub when_full: WhenFull,
}

/// What a full edge does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// Makes the node before it wait.
    #[default]
    Block,
    /// Drops the oldest block that waits.
    DropOldest,
    /// Drops the new block.
    DropNewest,
}

impl Edge {
    /// An edge from a node, which makes that node wait when it is full.
    #[must_use]
    pub fn new(from: impl Into<String>) -> Self {
        Self { from: from.into(), queue: None, when_full: WhenFull::Block }
    }

    /// Sets [`queue`](Self#structfield.queue).
    #[must_use]
    pub fn queue(mut self, queue: impl Into<Option<usize>>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Sets [`when_full`](Self#structfield.when_full).
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }
}

impl FromStr for WhenFull {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "block" => Ok(Self::Block),
            "drop-oldest" => Ok(Self::DropOldest),
            "drop-newest" => Ok(Self::DropNewest),
            _ => {
                let allowed = "block, drop-oldest, drop-newest";
                Err(Error::invalid("what to do when full", text.escape_debug(), allowed))
            }
        }
    }
}
