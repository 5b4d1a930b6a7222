//! The network protocol of libiio: each of its programs is a client.
//!
//! A [`Server`] does what libiio's own server, `iiod`, does: it tells clients which devices there are, reads and
//! writes their attributes, and streams samples from and to them. It serves the IIO devices of this machine, or
//! any [source](super#names). Clients are all programs that use libiio, such as `iio_info`, GNU Radio or pyadi-iio. It
//! speaks the text protocol of libiio 0.x and the binary protocol of libiio 1.x.
//!
//! ```
//! use std::time::Duration;
//!
//! use busbar::stream::iiod::{Server, ServerSetup};
//!
//! # fn main() -> busbar::Result<()> {
//! let setup = ServerSetup::new().listen("127.0.0.1:0").devices(["adc=synth:counter?rate=1M"]);
//! let mut server = Server::open(&setup)?;
//! assert_eq!(server.devices().collect::<Vec<_>>(), [("iio:device0", Some("adc"))]);
//! // `iio_readdev -u ip:127.0.0.1:PORT adc` is a client.
//! server.turn_timeout(Duration::ZERO)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Samples
//!
//! Samples go from a block to the network [without a copy](super::net). The network may refer to a block after it was
//! sent; so the block goes back to its driver when the client asks for the next one and the kernel says that it has read the
//! block. A client that sends commands before it has read the answers gets copies. So does one that asks for more
//! than two blocks at a time, and one of which the kernel does not say what it has read, as in another network
//! namespace.
//!
//! Clients of one device share its blocks. A new client that wants more channels has the device opened anew, as in
//! iiod; the others then do not know what they have missed. One that wants the same channels or fewer joins
//! without a gap.
//!
//! # Events
//!
//! Clients of libiio 1.x get the events of devices of this machine, each of them all events. Those that a slow client has
//! missed are counted in the attribute `busbar_lost_events` of the device, for its machine.
//!
//! # USB
//!
//! With `ServerSetup::usb` (cargo feature `usb`), programs of a USB host are clients as well, by the interface that `iiod`
//! has. They get copies.
//!
//! # Loss
//!
//! A client has four blocks, or as many as it has asked for (`iio_device_set_kernel_buffers_count`). While it has no
//! free block, the samples of a converter that tells its rate are lost for it, and only for it. A source that can wait,
//! such as a recording, waits, but not for a client that has taken nothing for a second while others do. Each device with
//! a buffer has these attributes:
//!
//! | attribute | value |
//! |---|---|
//! | `busbar_lost` | samples that are missing in the streams from this device to the machine of the client that asks, since the first of them was opened |
//! | `busbar_unknown` | the number of losses whose length is not known |
//! | `busbar_report_loss` | 1: a read of samples fails once with `ENOBUFS` if some are missing before it, for all clients of this machine. 0 at first |
//! | `busbar_lost_events`, of a device with events | events that streams of this machine have missed |
//!
//! # Time
//!
//! A read or write of samples that takes longer than the client's timeout fails with `ETIMEDOUT`: 1 s at first. A client
//! sets it for its machine. For all else there is one limit, [`ServerSetup::silence`]: for what a client owes, such as the
//! rest of a command, and for an attribute of a driver.

mod client;
mod command;
mod context;
mod devices;
#[cfg_attr(not(feature = "dns-sd"), path = "iiod/no_dns_sd.rs")]
mod dns_sd;
mod events;
mod frame;
mod hub;
mod journal;
mod link;
mod peer;
mod receive;
pub(super) mod remote;
mod server;
mod setup;
mod sysfs;
mod transmit;
mod unread;
#[cfg(feature = "usb")]
mod usb;
mod worker;

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

pub use self::devices::{ChannelInfo, DeviceInfo, Devices, Owner, devices};
#[cfg(feature = "dns-sd")]
pub use self::dns_sd::{ServerInfo, servers};
pub use self::hub::Shortage;
pub use self::peer::{Machine, Peer, Refusal};
pub use self::server::{Server, ServerCounters, ServerEvent};
pub use self::setup::ServerSetup;

/// Whether this is the name of a stream from or to a device of another machine.
pub(crate) fn is_remote(name: &str) -> bool {
    name.strip_prefix("iio:").is_some_and(is_remote_device)
}

/// Fails if the name of such a stream has an option that it cannot have.
pub(crate) fn check_name(name: &str) -> crate::Result<()> {
    let remote = name.strip_prefix("iio:").and_then(remote::Remote::of);
    remote.map_or(Ok(()), |remote| remote.silence().map(drop))
}

/// Whether this is the name of a device of another machine, without `iio:`.
pub(crate) fn is_remote_device(name: &str) -> bool {
    remote::Remote::of(name).is_some()
}

/// How long a peer may be silent by default.
const SILENCE: Duration = Duration::from_secs(60);

/// Has the kernel close a connection whose peer does not answer for this time and a sixth of it.
fn keep_alive(socket: &TcpStream, silence: Duration) -> io::Result<()> {
    let part = Duration::from_secs((silence.as_secs() / 6).max(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, part)?;
    sockopt::set_tcp_keepintvl(socket, part)?;
    Ok(sockopt::set_tcp_keepcnt(socket, 6)?)
}

/// The port of `iiod`.
pub const PORT: u16 = 30431;

/// The version of libiio whose protocol this is.
const MAJOR: u32 = 0;
const MINOR: u32 = 24;
/// What stands in place of libiio's commit, in 7 letters.
const GIT_TAG: &str = "busbar";
