//! Pieces of a stream.

use std::ops::Range;
use std::sync::Arc;

use super::memory::Memory;
use super::tokens::Tokens;
use crate::Result;
use crate::block::{Block, Reading};

/// A piece of a stream.
#[derive(Debug)]
pub enum Piece {
    /// A part of the block.
    View(View),
    /// Bytes that a device did not write into the block, for example of frames that it received before the
    /// block was bound, or that it could not split.
    Bytes(Vec<u8>),
}

impl Piece {
    /// Number of bytes, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        match self {
            Self::View(view) => view.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Drops many pieces, with as few system calls as possible.
    pub(crate) fn drop_all(pieces: Vec<Self>) {
        let tokens = pieces.iter().find_map(|piece| match piece {
            Self::View(view) => view.owed.tokens(),
            Self::Bytes(_) => None,
        });
        match tokens {
            Some(tokens) => tokens.together(|| drop(pieces)),
            None => drop(pieces),
        }
    }
}

/// The token that has to be returned for a view.
#[derive(Debug)]
enum Owed {
    Nothing,
    Token(Token),
    /// A token that is returned when the last part of the view is dropped.
    Shared(Arc<Token>),
}

impl Owed {
    fn tokens(&self) -> Option<Arc<Tokens>> {
        match self {
            Self::Nothing => None,
            Self::Token(token) => Some(Arc::clone(&token.tokens)),
            Self::Shared(token) => Some(Arc::clone(&token.tokens)),
        }
    }
}

#[derive(Debug)]
struct Token {
    number: u32,
    /// Where it is returned.
    tokens: Arc<Tokens>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.tokens.give(self.number);
    }
}

/// A part of the block that holds received data.
///
/// It remains valid until it is dropped, even without its connection and receiver; then the memory
/// is free for other data.
#[derive(Debug)]
pub struct View {
    memory: Arc<Memory>,
    bytes: Range<usize>,
    /// Dropped after the memory is released: the kernel must not fill it before.
    owed: Owed,
}

impl View {
    /// A view of bytes that are held in `memory` for it.
    pub(super) fn new(
        memory: &Arc<Memory>,
        bytes: Range<usize>,
        token: Option<(u32, Arc<Tokens>)>,
    ) -> Self {
        let owed =
            token.map_or(Owed::Nothing, |(number, tokens)| Owed::Token(Token { number, tokens }));
        Self { memory: Arc::clone(memory), bytes, owed }
    }

    /// The block that it is a part of.
    ///
    /// To read many views with one guard, use [`Block::read`] and [`range`](Self::range).
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.memory.block
    }

    /// Its range in the block.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.bytes.clone()
    }

    /// Number of bytes, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes.
    ///
    /// Where DMA is not coherent, the kernel synchronises the caches for the whole block each time. One guard for many
    /// views does so once: see [`block`](Self::block).
    ///
    /// # Errors
    ///
    /// As [`Block::read`].
    pub fn read(&self) -> Result<Reading<'_>> {
        Ok(self.memory.block.read()?.of(self.range()))
    }

    /// Cuts it in two, without a copy: keeps the first `at` bytes, and returns the others. Memory that a
    /// device has filled as one fragment is free when both are dropped.
    ///
    /// # Panics
    ///
    /// If one of them would have no bytes.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(0 < at && at < self.len(), "cut at {at} of {} bytes", self.len());
        let middle = self.bytes.start + at;
        self.memory.split(middle);
        let memory = Arc::clone(&self.memory);
        let bytes = middle..std::mem::replace(&mut self.bytes.end, middle);
        self.owed = match std::mem::replace(&mut self.owed, Owed::Nothing) {
            Owed::Token(token) => Owed::Shared(Arc::new(token)),
            other => other,
        };
        let owed = match &self.owed {
            Owed::Shared(token) => Owed::Shared(Arc::clone(token)),
            _ => Owed::Nothing,
        };
        Self { memory, bytes, owed }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.memory.release(&self.bytes);
    }
}
