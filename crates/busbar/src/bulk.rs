//! Blocks of any length to and from a coprocessor.
//!
//! A [`Link`] sends a block and waits until the coprocessor has received and checked all of it, or receives
//! one. A [`Transport`] determines how: in messages of some hundred bytes ([`packet`]) through a TTY, a device
//! node, an endpoint that is a descriptor, or netlink; or without copying bytes, as a DMABUF that is passed
//! by reference ([`Endpoint::give`](crate::endpoint::Endpoint::give)).
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
mod carrier;
mod link;
mod messages;
mod netlink;
pub mod packet;
mod packets;
mod share;
mod transfer;
mod tty;

pub use self::carrier::Wanted;
pub use self::link::{Link, Transport};
pub use self::share::done;
pub use self::transfer::Transfer;

/// A random number, which no other user is likely to have.
fn unique() -> u32 {
    let mut bytes = [0; 4];
    // This fails only if the kernel does not have the call; then the number is 0.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}
