//! What blocks look like.

use crate::block::Memory;
use crate::stream::Format;
use crate::{Error, Result};

/// The format of samples, and the length of blocks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub format: Format,
    pub block_len: usize,
    /// The memory for blocks that a stage makes.
    pub memory: Memory,
}

impl Shape {
    /// Takes what so many blocks take from `room`, in bytes.
    ///
    /// # Errors
    ///
    /// Bad input if there is less room.
    pub(super) fn take(&self, blocks: usize, room: &mut usize) -> Result<()> {
        let left =
            self.memory.size_of(blocks, self.block_len).and_then(|all| room.checked_sub(all));
        *room = left.ok_or_else(|| {
            let came = format!("{blocks} of {} bytes", self.block_len);
            let allowed = format!("what is left of the memory limit: {room} bytes");
            Error::invalid("further blocks for a sender", came, allowed)
        })?;
        Ok(())
    }
}
