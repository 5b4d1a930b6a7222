//! Blocks of bytes in rpmsg messages: numbers on the wire (`kernel/uapi/linux/rpmsg_bulk.h`).
//!
//! All fields on the wire are little-endian.

/// The first two bytes of each packet.
pub const PREAMBLE: u16 = 0xabcd;
/// Bytes of `struct rpmsg_bulk_header`.
pub const HEADER_SIZE: usize = 6;
/// Bytes of `struct rpmsg_bulk_long_header`.
pub const LONG_HEADER_SIZE: usize = 16;
/// Longest block with the short header.
pub const SHORT_MAX: u32 = 0xffff - 6;

/// A block follows.
pub const DATA: u16 = 1;
/// The answer to a block.
pub const STATUS: u16 = 2;
/// Linux asks for a block.
pub const RECEIVE: u16 = 3;
/// Linux grants more credit.
pub const CREDIT: u16 = 4;
/// Linux asks the coprocessor to discard everything that came from this address.
pub const RESET: u16 = 5;
/// The answer to a reset.
pub const RESET_DONE: u16 = 6;

/// `EFAULT` on the wire: the shared memory does not exist.
pub const STATUS_FAULT: u32 = 14;
/// `ENODATA` on the wire: there is no block to receive.
pub const STATUS_NO_DATA: u32 = 61;
/// `EPROTO` on the wire: the packet was invalid.
pub const STATUS_PROTOCOL: u32 = 71;
/// `EBADMSG` on the wire: the check sum was wrong.
pub const STATUS_BAD_MESSAGE: u32 = 74;
/// `EMSGSIZE` on the wire: the block was too long.
pub const STATUS_MESSAGE_SIZE: u32 = 90;
/// `ENOBUFS` on the wire: the receiver does not have enough room.
pub const STATUS_NO_BUFFERS: u32 = 105;

/// The first four bytes of a message about a shared buffer: "DBUF".
pub const DMABUF_MAGIC: u32 = 0x4655_4244;
/// Bytes of `struct rpmsg_dmabuf_message`.
pub const DMABUF_MESSAGE_SIZE: usize = 48;
/// Linux gives the part to the coprocessor.
pub const DMABUF_GIVEN: u16 = 1;
/// The coprocessor gives it back.
pub const DMABUF_DONE: u16 = 2;
/// The coprocessor reads it (`RPMSG_DMABUF_TO_REMOTE`).
pub const DMABUF_TO_REMOTE: u16 = 1;
/// The coprocessor fills it (`RPMSG_DMABUF_FROM_REMOTE`).
pub const DMABUF_FROM_REMOTE: u16 = 2;
