//! A link: blocks to and from one service, by any transport.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::buffer::Buffers;
use super::carrier::{Carrier, Wanted};
use super::messages::EndpointMessages;
use super::netlink::{self, Netlink};
use super::packets::Packets;
use super::transfer::Transfer;
use super::tty::Tty;
use crate::block::Memory;
use crate::endpoint::{Controller, Endpoint, Implementation};
use crate::{Error, Result};

/// Bytes that the coprocessor may send ahead through an endpoint: fewer than either driver queues.
const ENDPOINT_WINDOW: u32 = 64 << 10;
/// Bytes that it may send ahead through a TTY, whose driver drops data if its buffer is full.
const TTY_WINDOW: u32 = 16 << 10;

/// How blocks are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Messages through the TTY of the in-tree `rpmsg_tty`.
    Tty,
    /// Parts through `rpmsg_netlink`, which cuts them into messages in the kernel.
    Netlink,
    /// Messages through a device node.
    Node,
    /// Messages through an endpoint that is a descriptor.
    Fd,
    /// A DMABUF that is passed by reference; no bytes are sent.
    Buffer,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Tty, Self::Netlink, Self::Node, Self::Fd, Self::Buffer];
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tty => "tty",
            Self::Netlink => "netlink",
            Self::Node => "node",
            Self::Fd => "fd",
            Self::Buffer => "buffer",
        })
    }
}

impl FromStr for Transport {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|transport| transport.to_string() == text);
        found.ok_or_else(|| {
            Error::invalid("the transport", text, "tty, netlink, node, fd or buffer")
        })
    }
}

/// A link to one service of a coprocessor, which exchanges blocks with it.
///
/// Blocks arrive whole and checked, or there is an error. After an error, the next transfer resets the
/// link. Once the coprocessor is gone, every call fails with an error of kind
/// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe).
pub struct Link {
    carrier: Box<dyn Carrier>,
    transport: Transport,
    /// Bytes of the last block that was sent.
    sent: u32,
}

impl Link {
    /// Opens a link to the coprocessor behind `controller`, to the service that it has announced
    /// for this transport: `bulk`, and for TTY and netlink the channel of their driver.
    ///
    /// # Errors
    ///
    /// [`NotFound`](std::io::ErrorKind::NotFound) where there is no such service or driver, and
    /// those of [`Controller::endpoint`].
    pub fn open(controller: &Controller, transport: Transport) -> Result<Self> {
        match transport {
            Transport::Tty => Self::tty(controller.tty()?),
            Transport::Netlink => Self::netlink(controller),
            Transport::Node => Ok(Self::over(endpoint(controller, Implementation::Node)?)),
            Transport::Fd => Ok(Self::over(endpoint(controller, Implementation::Fd)?)),
            Transport::Buffer => {
                Ok(Self::sharing(endpoint(controller, Implementation::Auto)?, None))
            }
        }
    }

    fn new(carrier: Box<dyn Carrier>, transport: Transport) -> Self {
        Self { carrier, transport, sent: 0 }
    }

    /// A link over an endpoint, a descriptor or a device node.
    #[must_use]
    pub fn over(endpoint: Endpoint) -> Self {
        let transport = match endpoint.implementation() {
            Implementation::Node => Transport::Node,
            Implementation::Fd | Implementation::Auto => Transport::Fd,
        };
        let messages = EndpointMessages::new(endpoint);
        Self::new(Box::new(Packets::new(messages, ENDPOINT_WINDOW)), transport)
    }

    /// A link that passes blocks of `memory` through an endpoint. `None` lets the library choose the
    /// memory.
    #[must_use]
    pub fn sharing(endpoint: Endpoint, memory: Option<Memory>) -> Self {
        let carrier = Box::new(Buffers::new(endpoint, memory));
        Self::new(carrier, Transport::Buffer)
    }

    /// A link over a TTY of `rpmsg_tty`, which no other process can open until the link is dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another process uses it, `ENOTTY` if it is not a TTY.
    pub fn tty(path: impl AsRef<Path>) -> Result<Self> {
        let tty = Tty::open(path.as_ref())?;
        Ok(Self::new(Box::new(Packets::new(tty, TTY_WINDOW)), Transport::Tty))
    }

    /// A link over `rpmsg_netlink`.
    fn netlink(controller: &Controller) -> Result<Self> {
        let carrier = Box::new(Netlink::open(controller)?);
        Ok(Self::new(carrier, Transport::Netlink))
    }

    /// The rpmsg devices that `rpmsg_netlink` serves, by their names in sysfs. This needs no privilege;
    /// a transfer needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// `ENOENT` where the driver is not in the kernel.
    pub fn netlink_channels() -> Result<Vec<String>> {
        netlink::channels()
    }

    /// The transport.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Sends a block, and waits until the coprocessor has received and checked it.
    ///
    /// # Errors
    ///
    /// `EBADMSG` if bytes were changed on the way, `EMSGSIZE` if the block is longer than the coprocessor
    /// accepts.
    pub fn send(&mut self, block: &[u8]) -> Result<()> {
        self.send_with(block, &mut Transfer::new())
    }

    /// Sends a block as [`send`](Self::send), within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`TimedOut`](std::io::ErrorKind::TimedOut) if the coprocessor has not
    /// confirmed the block.
    pub fn send_timeout(&mut self, block: &[u8], timeout: Duration) -> Result<()> {
        self.send_with(block, &mut Transfer::new().timeout(timeout))
    }

    /// Sends a block as [`send`](Self::send), limited and watched as `transfer` says.
    ///
    /// # Errors
    ///
    /// As [`send_timeout`](Self::send_timeout).
    pub fn send_with(&mut self, block: &[u8], transfer: &mut Transfer<'_>) -> Result<()> {
        if block.is_empty() {
            return Err(Error::invalid("a block to send", "0 bytes", "1 byte or more"));
        }
        self.carrier.send(block, transfer)?;
        self.sent = u32::try_from(block.len()).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Receives a block. Waits for it without a time limit.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and `ENODATA` if `wanted` is the last block and there is none. `EMSGSIZE`
    /// if it is longer than the transfer's [limit](Transfer::limit).
    pub fn recv(&mut self, wanted: Wanted) -> Result<Vec<u8>> {
        self.recv_with(wanted, &mut Transfer::new())
    }

    /// Receives a block as [`recv`](Self::recv), within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), and [`TimedOut`](std::io::ErrorKind::TimedOut).
    pub fn recv_timeout(&mut self, wanted: Wanted, timeout: Duration) -> Result<Vec<u8>> {
        self.recv_with(wanted, &mut Transfer::new().timeout(timeout))
    }

    /// Receives a block as [`recv`](Self::recv), limited and watched as `transfer` says.
    ///
    /// # Errors
    ///
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_with(&mut self, wanted: Wanted, transfer: &mut Transfer<'_>) -> Result<Vec<u8>> {
        transfer.allow(wanted.on_the_wire()?.max(self.sent));
        self.carrier.receive(wanted, transfer)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("transport", &self.transport).finish_non_exhaustive()
    }
}

/// The service that endpoints use.
const SERVICE: &str = "bulk";

fn endpoint(controller: &Controller, implementation: Implementation) -> Result<Endpoint> {
    controller.endpoint(SERVICE).implementation(implementation).nonblocking(true).create()
}
