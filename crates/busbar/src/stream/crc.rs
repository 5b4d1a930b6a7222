//! The check sum of blocks.

use crate::block::Bytes;

/// The CRC-32C of bytes whose CRC-32C is `check`, followed by `part`.
pub(super) fn crc32c(mut check: u32, part: Bytes<'_>) -> u32 {
    part.for_each_chunk(|chunk| check = crc32c::crc32c_append(check, chunk));
    check
}
