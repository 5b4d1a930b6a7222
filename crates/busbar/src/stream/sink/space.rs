//! Blocks to fill.

use std::sync::Arc;

use super::state::{Load, State};
use crate::block::{Block, Writing};
use crate::stream::shared::Shared;
use crate::{Error, Result};

/// A free block of a [`Sink`](super::Sink). Dropping it gives it back unsent.
#[derive(Debug)]
pub struct Space {
    /// `None` once it was sent or dropped.
    block: Option<Block>,
    len: usize,
    sample_len: usize,
    shared: Arc<Shared<State>>,
}

impl Space {
    pub(super) fn new(
        block: Block,
        len: usize,
        sample_len: usize,
        shared: Arc<Shared<State>>,
    ) -> Self {
        Self { block: Some(block), len, sample_len, shared }
    }

    /// Bytes of samples that fit.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes to fill. Until they are written, they are those that were sent with this block before.
    ///
    /// # Errors
    ///
    /// As [`Block::write`].
    pub fn write(&mut self) -> Result<Writing<'_>> {
        let len = self.len;
        Ok(self.held().write()?.first(len))
    }

    fn held(&mut self) -> &mut Block {
        self.block.as_mut().expect("taken only when it is sent or dropped")
    }

    /// Transmits the first `len` bytes: whole samples, at least one. Returns before they are transmitted.
    ///
    /// # Errors
    ///
    /// Bad input for such a length; kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the
    /// stream has ended.
    pub fn send(mut self, len: usize) -> Result<()> {
        if len == 0 || len > self.len || !len.is_multiple_of(self.sample_len) {
            let allowed = format!("multiples of {} up to {}", self.sample_len, self.len);
            return Err(Error::invalid("the length of samples", len, allowed));
        }
        let Some(block) = self.block.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        shared.push(&mut state, Load::Own(block), len)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.shared.give_back(block);
        }
    }
}
