//! `read` and `write`: for drivers, kernels and hosts without DMABUFs.
//!
//! Drivers that offer DMABUFs as well have two blocks of their own for `read` and `write`. Linux 6.12 has
//! two bugs there:
//!
//! - A non-blocking `read` while those blocks do not exist crashes the kernel. They may be missing for a moment
//!   after a program has used DMABUFs. So the file is polled before it is read.
//! - The kernel goes on with the block after the last one that was read, but the driver always begins with the
//!   first. After an odd number of blocks, the first two come in the wrong order. So a stream reads an
//!   even number. If the program before has not, this shows in the samples, or when the first block is
//!   complete and cannot be read: then the device is restarted.

mod buffer;
mod receive;
mod transmit;

pub(super) use self::buffer::Buffer;
pub(super) use self::receive::Receive;
pub(super) use self::transmit::Transmit;
