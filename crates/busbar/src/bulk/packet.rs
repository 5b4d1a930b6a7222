//! Packets: how blocks of any length travel in messages of a few hundred bytes.
//!
//! This is the wire format of `kernel/uapi/linux/rpmsg_bulk.h`, without any input or output: both
//! ends use it, on whatever carries messages. The sender cuts with a [`Cutter`], the receiver joins
//! with a [`Joiner`] and owes the [`Event::answer`] of what came out:
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
//! Where the format leaves it open:
//!
//! * What is no packet is answered once, with `EPROTO`, and then passed over until a header comes:
//!   a packet that went wrong has one answer, not one for each of its messages.
//! * A packet that contradicts itself but says how long it is (a block whose `value` is not 0, or a
//!   short header with the length 0xabcd) is passed over to its end, then answered.
//! * Answers are never answered, whatever is wrong with them.

mod buffer;
mod control;
mod crc;
mod credit;
mod cut;
mod header;
mod join;
mod open;

pub use busbar_uapi::rpmsg_bulk::{HEADER_SIZE, LONG_HEADER_SIZE, SHORT_MAX};

pub use buffer::{BufferMessage, Direction, Kind};
pub use control::{Control, Encoded, errno, status};
pub use crc::{Crc16, combine, crc16, pattern, pattern_crc};
pub use credit::Window;
pub use cut::{Content, Cutter, Pattern, Piece, Sealed};
pub use header::Form;
pub use join::{Event, Events, Joiner, Progress, Received};
pub use open::Opening;
