//! The device's end.

mod function;
mod guests;
mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use busbar_uapi::functionfs::{EVENT_LEN, Endpoint, Event};
use rustix::io::Errno;

pub(in crate::stream) use self::function::{Function, Shape};
pub(super) use self::guests::Guests;
use self::wire::GadgetWire;
use super::address::Gadget;
use super::{CHUNK, Role};
use crate::stream::net::{Port, Wire};
use crate::stream::setup::Interface;
use crate::{Error, Result};

/// The endpoints of a function.
///
/// Closing them cancels transfers and detaches DMABUFs. `FUNCTIONFS_DMABUF_DETACH` does that, too, but crashes Linux 6.12
/// without patch 0030 if the function is unbound meanwhile. So each connection has files of its own.
#[derive(Debug)]
pub(in crate::stream) struct Endpoints {
    /// To the host.
    pub(in crate::stream) to: Endpoint,
    /// From the host.
    pub(in crate::stream) from: Endpoint,
}

/// A function of a gadget, whose host comes and goes.
#[derive(Debug)]
pub(super) struct GadgetPort {
    events: Events,
    role: Role,
    interface: Option<Interface>,
    // Last: the gadget can be removed once the files are closed.
    function: Function,
}

impl GadgetPort {
    pub(super) fn new(gadget: &Gadget, role: Role, interface: Option<Interface>) -> Result<Self> {
        let (function, control) = Function::open(gadget, Shape::FRAMES)?;
        let events = Events::new(control);
        Ok(Self { events, role, interface, function })
    }

    fn connect(&self) -> Result<GadgetWire> {
        let endpoints = Arc::new(self.function.endpoints()?);
        let wire = GadgetWire::new(endpoints, self.role, self.interface);
        wire.map_err(|why| Error::new("use", "the endpoints of a USB function", why))
    }
}

impl Port for GadgetPort {
    fn open(&mut self) -> Result<Option<Box<dyn Wire>>> {
        if !self.events.take_fresh() {
            return Ok(None);
        }
        let wire = self.connect();
        if wire.is_err() {
            // There is no other event until the host begins anew.
            self.events.put_fresh();
        }
        Ok(Some(Box::new(wire?)))
    }

    fn waits(&self) -> bool {
        true
    }

    fn hear(&mut self) {
        self.events.hear();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// Endpoint 0.
#[derive(Debug)]
pub(super) struct Events {
    control: Endpoint,
    /// Whether the host has enabled the endpoints, and no connection was made since.
    is_fresh: bool,
    is_on: bool,
}

impl Events {
    pub(super) fn new(control: Endpoint) -> Self {
        Self { control, is_fresh: false, is_on: false }
    }

    /// Whether the host has enabled the endpoints since the last call, and has not left.
    pub(super) fn take_fresh(&mut self) -> bool {
        self.hear();
        std::mem::take(&mut self.is_fresh)
    }

    /// Whether the next [`take_fresh`](Self::take_fresh) is true, as far as events were taken.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// After a failure: the next [`take_fresh`](Self::take_fresh) is the same, unless the host has left.
    pub(super) fn put_fresh(&mut self) {
        self.is_fresh = self.is_on;
    }

    /// Whether the host has left, or has begun anew, since [`take_fresh`](Self::take_fresh).
    pub(super) fn is_over(&mut self) -> bool {
        self.hear();
        self.is_fresh || !self.is_on
    }

    /// Takes all events.
    fn hear(&mut self) {
        let mut bytes = [0; EVENT_LEN];
        loop {
            match rustix::io::read(&self.control, &mut bytes) {
                Ok(EVENT_LEN) => self.take(&bytes),
                // A request of the host was withdrawn.
                Err(Errno::INTR | Errno::IDRM) => {}
                // There is no further event, or the function was unbound for good.
                _ => return,
            }
        }
    }

    fn take(&mut self, bytes: &[u8; EVENT_LEN]) {
        match Event::decode(bytes) {
            Some(Event::Enable) => (self.is_fresh, self.is_on) = (true, true),
            Some(Event::Disable | Event::Unbind) => (self.is_fresh, self.is_on) = (false, false),
            Some(Event::Setup(setup)) => refuse(&self.control, setup[0]),
            _ => {}
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

/// Stalls endpoint 0, for a request that the function does not know. A call in the wrong direction does that.
pub(in crate::stream) fn refuse(control: &Endpoint, request_type: u8) {
    let _ = if request_type & 0x80 == 0 {
        rustix::io::write(control, &[0])
    } else {
        rustix::io::read(control, &mut [0_u8])
    };
}

/// The error for a block that needs more copies than there are requests.
pub(super) fn too_long(len: usize, most: usize) -> io::Error {
    let why = format!("a block of {len} bytes has to be copied: up to {} bytes", most * CHUNK);
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// An error of a transfer: the host is gone, or has begun anew.
pub(super) fn broken(errno: Errno) -> io::Error {
    match errno {
        Errno::SHUTDOWN | Errno::AGAIN | Errno::NODEV | Errno::CONNRESET => {
            io::Error::new(io::ErrorKind::ConnectionReset, "the host has left, or has begun anew")
        }
        errno => errno.into(),
    }
}
