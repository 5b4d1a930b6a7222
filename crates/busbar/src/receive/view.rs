//! Pieces of a stream.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::memory::Memory;
use super::tokens::Tokens;
use crate::Result;
use crate::block::{self, Block};

/// What comes next in a stream.
#[derive(Debug)]
pub enum Piece {
    /// A part of the block.
    View(View),
    /// Bytes that a device did not put into the block: of frames that it received before the block
    /// was bound, for example, or that it could not split.
    Bytes(Vec<u8>),
}

impl Piece {
    /// How many bytes it has, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        match self {
            Self::View(view) => view.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// A part of the block that holds received data.
///
/// It stays as it is until it is dropped, also when connection and receiver are gone; then the memory
/// is free for other data.
#[derive(Debug)]
pub struct View {
    memory: Arc<Memory>,
    bytes: Range<usize>,
    /// What the kernel wants back for it, and by whom.
    token: Option<(u32, Arc<Tokens>)>,
}

impl View {
    /// Of bytes that are held in `memory` for it.
    pub(super) fn new(
        memory: &Arc<Memory>,
        bytes: Range<usize>,
        token: Option<(u32, Arc<Tokens>)>,
    ) -> Self {
        Self { memory: Arc::clone(memory), bytes, token }
    }

    /// The block that it is a part of.
    ///
    /// Who reads many views can do so with one guard: [`Block::read`], and [`range`](Self::range).
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.memory.block
    }

    /// Where in the block it is.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.bytes.clone()
    }

    /// How many bytes it has, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes.
    ///
    /// # Errors
    ///
    /// As [`Block::read`].
    pub fn read(&self) -> Result<Reading<'_>> {
        Ok(Reading { block: self.memory.block.read()?, bytes: self.bytes.clone() })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.memory.release(&self.bytes);
        if let Some((token, tokens)) = self.token.take() {
            tokens.give(token);
        }
    }
}

/// The bytes of a [`View`], for reading.
#[derive(Debug)]
pub struct Reading<'a> {
    block: block::Reading<'a>,
    bytes: Range<usize>,
}

impl Deref for Reading<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block[self.bytes.clone()]
    }
}
