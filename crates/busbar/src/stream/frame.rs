//! Frames: the format of a stream on a connection. This module does no input or output.
//!
//! Each frame is a header of [`HEADER_LEN`] bytes and a payload, little endian throughout:
//!
//! | at | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 4 | `magic` | the bytes `BBst` |
//! | 4 | 1 | `version` | 1 |
//! | 5 | 1 | `kind` | see [`Kind`] |
//! | 6 | 2 | `header length` | 56 |
//! | 8 | 4 | `flags` | bit 0: `payload check` is valid; the others are 0 |
//! | 12 | 4 | `payload length` | bytes after the header, bounded for each kind |
//! | 16 | 8 | `stream` | a random number that the sender has chosen for the stream |
//! | 24 | 8 | `sequence` | see [`Kind`] |
//! | 32 | 8 | `time` | when the block was complete, in nanoseconds since 1970, signed |
//! | 40 | 8 | `lost` | samples missing between the end of the block before and the end of this one; all ones: unknown |
//! | 48 | 4 | `payload check` | CRC-32C of the payload, or 0 |
//! | 52 | 4 | `header check` | CRC-32C of the 52 bytes before |
//!
//! Fields that a kind does not use are 0. A reader refuses anything else with an error that names the field.
//!
//! ```
//! use busbar::stream::frame::{Header, Kind};
//! use busbar::stream::Lost;
//!
//! # fn main() -> busbar::Result<()> {
//! let payload = [7; 4096];
//! let header = Header::data(0x5eed, 3, payload.len())?.checked(&payload);
//! let header = Header { lost: Lost::Samples(12), ..header };
//! let read = Header::decode(&header.encode())?;
//! assert_eq!((read, read.kind), (header, Kind::Data));
//! read.check(&payload)?;
//! assert!(read.check(&payload[1..]).is_err());
//! # Ok(())
//! # }
//! ```

mod field;
mod header;
mod hello;

pub use self::header::{HEADER_LEN, Header, Kind, MAX_DATA, MAX_HELLO, MAX_REFUSAL, MAX_SEQUENCE};
pub use self::hello::Hello;

pub(super) use self::field::{bad, require};

#[cfg(test)]
mod tests;
