//! Blocks of any length to and from a coprocessor.
//!
//! A [`Link`] sends a block and waits until the coprocessor has it whole and has found it good, or
//! receives one. How it travels is the choice of a [`Transport`]: in messages of some hundred bytes
//! ([`packet`]) through a TTY, a device node, an endpoint that is a descriptor, or netlink; or not
//! at all, when the block is memory that changes hands ([`Endpoint::give`](crate::endpoint::Endpoint::give)).
//!
//! ```no_run
//! use busbar::bulk::{Link, Transport, Wanted};
//! use busbar::endpoint::Controller;
//!
//! # fn main() -> busbar::Result<()> {
//! let controller = Controller::open("/dev/rpmsg_ctrl0")?;
//! let mut link = Link::open(&controller, Transport::Fd)?;
//! link.send(&[7; 100_000])?;
//! assert_eq!(link.recv(Wanted::Last)?, [7; 100_000]);
//! # Ok(())
//! # }
//! ```

mod buffer;
mod link;
mod messages;
mod netlink;
pub mod packet;
mod packets;
mod share;
mod transfer;
mod tty;

pub use self::link::{Link, Transport, Wanted};
pub use self::share::done;
pub use self::transfer::Transfer;

/// A number that nobody else uses, in all likelihood.
fn unique() -> u32 {
    let mut bytes = [0; 4];
    // Fails only where the kernel has no such call; then a conversation begins with 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}
