//! Packets: how blocks of any length travel in messages of a few hundred bytes.
//!
//! This is the wire format of `kernel/uapi/linux/rpmsg_bulk.h`, without any input or output: both
//! ends use it, on any carrier of messages. The sender cuts a block by a [`Cutter`]. The receiver joins
//! the messages by a [`Joiner`], and has to send the [`Event::answer`] of each event:
//!
//! ```
//! use busbar::bulk::packet::{Cutter, Event, Joiner};
//!
//! # fn main() -> busbar::Result<()> {
//! let block = vec![7; 1000];
//! let mut cutter = Cutter::new(&block, 496)?;
//! let mut joiner = Joiner::new(1 << 20);
//! let mut message = Vec::new();
//! while let Some(piece) = cutter.piece() {
//!     piece.write_to(&mut message);
//!     cutter.advance();
//!     for event in joiner.push(&message) {
//!         assert_eq!(event.answer().as_deref(), Some(&1006u16.to_le_bytes()[..]));
//!         let Event::Block(received) = event else { panic!("{event:?}") };
//!         assert_eq!(received.bytes, block);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! This module decides what the format leaves open:
//!
//! * Data that is not a packet is answered once, with `EPROTO`, and then skipped until a header comes:
//!   a broken packet has one answer, not one for each of its messages.
//! * A packet that contradicts itself but has a length (a block whose `value` is not 0, or a
//!   short header with the length 0xabcd) is skipped to its end, then answered.
//! * Answers are never answered, not even invalid ones.

mod buffer;
mod control;
mod crc;
mod credit;
mod cut;
mod header;
mod join;
mod open;
mod pattern;

pub use busbar_uapi::rpmsg_bulk::{HEADER_SIZE, LONG_HEADER_SIZE, SHORT_MAX};

pub use buffer::{BufferMessage, Direction, Kind};
pub use control::{Control, Encoded, errno, status};
pub use crc::{Crc16, combine, crc16, pattern_crc};
pub use credit::Window;
pub use cut::{Content, Cutter, Pattern, Piece, Sealed};
pub use header::Form;
pub use join::{Event, Events, Joiner, Progress, Received};
pub use open::Opening;
pub use pattern::pattern;
