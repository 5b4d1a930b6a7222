//! Streams over USB, from a device (a *gadget*) to a host or back.
//!
//! | name | this machine is | the other end |
//! |---|---|---|
//! | `usb:` | a device, whose function is one that `FunctionFS` serves | a host, `usb:VID:PID` |
//! | `usb:VID:PID`, `usb:VID:PID:SERIAL` | a host | a device, `usb:` |
//! | `usb:?raw` | a device that sends samples without frames | any program, such as one that uses libusb |
//!
//! Either end can send. What travels are the [frames](super::frame) of the network, by the same state
//! machines ([`net`](super::net)): so a block that was lost is sent again when the cable comes back, and the
//! receiver knows the format, every loss and the end.
//!
//! # Without a copy
//!
//! A device sends a block that is a DMABUF as it is, if its controller takes scatterlists. It copies
//! otherwise, and blocks that are shorter than [`IN_PLACE`].

mod address;
pub(super) mod gadget;
mod host;
mod pattern;
mod raw;

use std::io;
use std::time::Duration;

pub use self::address::{Address, Device, Gadget};
#[cfg(fuzzing)]
pub use self::host::script;
pub use self::raw::RawSender;

use super::format::Format;
use super::net::{FrameReceiver, FrameSender, Options, Port};
use super::setup::{Interface, StreamSetup};
use busbar_uapi::functionfs;

use crate::block::{Block, Bytes, Memory, Purpose};
use crate::{Error, Result};

/// Blocks of fewer bytes are copied: that costs less than to have the controller take them in place.
pub const IN_PLACE: usize = 8 << 10;

/// The class of the interface: vendor specific, and then `B`.
const CLASS: (u8, u8) = (0xff, 0x42);
/// Bytes of a packet at the highest speed; those of lower speeds divide it.
const PACKET: usize = 1024;
/// Most bytes of a transfer that are copied: each takes so much of the kernel's memory.
const CHUNK: usize = 256 << 10;
/// Most copies of blocks without frames that are under way.
const MOST_RAW: u16 = 64;
/// Most bytes of a block that a host sends: Linux takes a frame at once, and has 16 MiB for the transfers of all programs.
const MOST_SENT: usize = 12 << 20;
/// How long results of transfers that a host has ended may take.
const LINGER: Duration = Duration::from_millis(200);

/// Which way samples go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Sender,
    Receiver,
}

/// Bytes of padding behind a payload of `len` bytes, of blocks with up to `block_len`.
///
/// All data frames have the same length, which packets divide. So each transfer of the receiver is filled to
/// its end, which ends it, and none needs a packet of no bytes.
fn padding(len: usize, block_len: usize) -> usize {
    block_len.next_multiple_of(PACKET).saturating_sub(len)
}

/// Most parts of one transfer; the kernel takes up to 1024.
const MOST_PARTS: usize = 1000;

/// Cuts parts, and zeroes up to `len` bytes, into transfers for `put`, as few as there may be. Only the last one may be
/// short of whole packets.
fn cut(
    parts: &[Bytes<'_>],
    mut len: usize,
    mut put: impl FnMut(&[Bytes<'_>]) -> io::Result<()>,
) -> io::Result<()> {
    const ZEROES: [u8; PACKET] = [0; PACKET];
    let mut parts = parts.iter().copied();
    let mut rest = Bytes::default();
    while len > 0 {
        let (mut chunk, mut room) = (Vec::new(), len.min(CHUNK));
        len -= room;
        while room > 0 {
            if rest.is_empty() {
                rest = parts.next().unwrap_or(Bytes::from(&ZEROES[..]));
            }
            let (head, tail) = rest.split_at(rest.len().min(room));
            room -= head.len();
            rest = tail;
            chunk.push(head);
        }
        if chunk.len() > MOST_PARTS {
            let mut together = Vec::new();
            for part in &chunk {
                part.append_to(&mut together);
            }
            put(&[Bytes::from(&together[..])])?;
        } else {
            put(&chunk)?;
        }
    }
    Ok(())
}

/// Cuts the bytes of frames so that the last part is a short packet, which ends a read of the other end: whole packets would not.
fn short_end(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = bytes.len() - usize::from(bytes.len() > 1 && bytes.len().is_multiple_of(64));
    bytes.split_at(at)
}

fn port(address: &Address, role: Role, interface: Option<Interface>) -> Result<Box<dyn Port>> {
    Ok(match address {
        Address::Gadget(gadget) if gadget.raw => {
            let allowed = "a name without `raw`: samples alone have no frames";
            return Err(Error::invalid("a USB function for frames", address, allowed));
        }
        Address::Gadget(gadget) => Box::new(gadget::GadgetPort::new(gadget, role, interface)?),
        Address::Host(device) => Box::new(host::HostPort::new(device, role)?),
    })
}

/// Whether a controller takes blocks in place: it gets a function for some milliseconds, which hosts ignore.
///
/// # Errors
///
/// As [`FrameSender::open_usb`]: `EBUSY` if the controller has a gadget.
pub fn takes_in_place(udc: &str) -> Result<bool> {
    let gadget = Gadget { udc: Some(udc.into()), ..Gadget::default() };
    let block = Block::with(1, &Memory::choose(Purpose::Device))?;
    let (function, _control) = gadget::Function::open(&gadget, gadget::Shape::SAMPLES)?;
    let endpoints = function.endpoints()?;
    Ok(block.is_dmabuf() && functionfs::attach(&endpoints.to, &block).is_ok())
}

impl FrameSender {
    /// Sends frames over USB, see [`usb`](super::usb). `interface`: [`Interface::Dmabuf`] to fail where a block cannot be
    /// sent in place, [`Interface::Fileio`] to copy each.
    ///
    /// # Errors
    ///
    /// `ENOENT` without a controller, `EBUSY` if it has another function, `EACCES`; bad input for blocks of more than
    /// 12 MiB to a device; as [`open`](Self::open).
    pub fn open_usb(
        address: &Address,
        format: &Format,
        block_len: usize,
        interface: Option<Interface>,
        options: &Options,
    ) -> Result<Self> {
        if matches!(address, Address::Host(_)) && block_len > MOST_SENT {
            let allowed = format!("up to {MOST_SENT} bytes to a USB device");
            return Err(Error::invalid("the length of a block", block_len, allowed));
        }
        let port = port(address, Role::Sender, interface)?;
        Self::through(port, format!("the USB connection {address}"), format, block_len, options)
    }
}

impl FrameReceiver {
    /// Receives frames over USB, see [`usb`](super::usb).
    ///
    /// # Errors
    ///
    /// As [`FrameSender::open_usb`].
    pub fn open_usb(address: &Address, setup: &StreamSetup, options: &Options) -> Result<Self> {
        let port = port(address, Role::Receiver, setup.interface)?;
        let mut setup = setup.clone();
        if matches!(address, Address::Gadget(_)) && setup.memory.is_none() {
            setup.memory = Some(Memory::choose(Purpose::Device));
        }
        let setup = &setup;
        Self::through(port, format!("the USB connection {address}"), setup, options)
    }
}
