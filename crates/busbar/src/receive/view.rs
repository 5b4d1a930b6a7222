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

    /// Drops many, with as few calls of the kernel as it takes.
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

/// What the kernel wants back for a view.
#[derive(Debug)]
enum Owed {
    Nothing,
    Token(Token),
    /// When the last part of the view is gone.
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
    /// By whom.
    tokens: Arc<Tokens>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.tokens.give(self.number);
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
    /// After the memory was released: the kernel is not to fill it before.
    owed: Owed,
}

impl View {
    /// Of bytes that are held in `memory` for it.
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

    /// Cuts it in two, without a copy: keeps the first `at` bytes, and returns the others. Memory that a
    /// device has filled at once is free when both are dropped.
    ///
    /// # Panics
    ///
    /// If one of them had no bytes.
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
