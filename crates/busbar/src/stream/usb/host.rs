//! The host's end.

#[cfg(any(test, fuzzing))]
pub mod script;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::task::Wake;
use std::time::{Duration, Instant};

use nusb::descriptors::{EndpointDescriptor, TransferType};
use nusb::transfer::{Bulk, Direction, In, Out};
use nusb::{Endpoint, ErrorKind as UsbKind, MaybeFuture};

use self::wire::HostWire;
use super::address::Device;
use super::{CLASS, PACKET, Role};
use crate::poll::{self, Bell};
use crate::stream::net::{Port, Wire};
use crate::{Error, Result};

/// How often to look for the device.
const LOOK: Duration = Duration::from_millis(200);

/// Finds the device, and opens it again and again.
#[derive(Debug)]
pub(super) struct HostPort {
    role: Role,
    bell: Arc<Ringer>,
    /// Has a thread look for the device and open it: that may take seconds if the device does not answer.
    look: mpsc::Sender<()>,
    found: mpsc::Receiver<Result<Option<Opened>>>,
    is_looking: bool,
    looked: Option<Instant>,
}

struct Opened {
    from: Endpoint<Bulk, In>,
    to: Endpoint<Bulk, Out>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

impl HostPort {
    pub(super) fn new(device: &Device, role: Role) -> Result<Self> {
        let bell = Arc::new(Ringer(Bell::new()?));
        let ((look, asked), (done, found)) = (mpsc::channel(), mpsc::channel());
        let (device, waker) = (device.clone(), Arc::clone(&bell));
        poll::spawn("busbar-usb", move || {
            // Until nobody asks, or waits for an answer, any more.
            while asked.recv().is_ok() && done.send(find(&device)).is_ok() {
                waker.wake_by_ref();
            }
        })?;
        Ok(Self { role, bell, look, found, is_looking: false, looked: None })
    }
}

impl Port for HostPort {
    fn open(&mut self) -> Result<Option<Box<dyn Wire>>> {
        if !self.is_looking {
            if self.looked.is_none_or(|at| at.elapsed() >= LOOK) {
                // The thread is there as long as this is.
                self.is_looking = self.look.send(()).is_ok();
                self.looked = Some(Instant::now());
            }
            return Ok(None);
        }
        let Ok(found) = self.found.try_recv() else { return Ok(None) };
        self.is_looking = false;
        let Some(Opened { from, to }) = found? else { return Ok(None) };
        Ok(Some(Box::new(HostWire::new(Box::new(from), Box::new(to), self.role)?)))
    }

    fn waits(&self) -> bool {
        false
    }

    fn hear(&mut self) {
        self.bell.0.clear();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }
}

/// The address of an endpoint if it can be used.
fn usable(endpoint: &EndpointDescriptor<'_>, direction: Direction) -> Option<u8> {
    let is_wanted =
        endpoint.transfer_type() == TransferType::Bulk && endpoint.direction() == direction;
    (is_wanted && fits(endpoint.max_packet_size())).then(|| endpoint.address())
}

/// Whether transfers of whole [packets](PACKET) are of whole packets of this length.
fn fits(packet: usize) -> bool {
    packet > 0 && PACKET.is_multiple_of(packet)
}

/// Makes a descriptor readable when a future is to be polled.
#[derive(Debug)]
struct Ringer(Bell);

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // An eventfd that exists can be rung.
        let _ = self.0.ring();
    }
}

fn find(device: &Device) -> Result<Option<Opened>> {
    let name = format!("USB device {:04x}:{:04x}", device.vendor, device.product);
    let failed = |tried: &str, why: nusb::Error| {
        let kind = match why.kind() {
            UsbKind::Busy => ErrorKind::ResourceBusy,
            UsbKind::PermissionDenied => ErrorKind::PermissionDenied,
            UsbKind::NotFound | UsbKind::Disconnected => ErrorKind::NotFound,
            UsbKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        };
        let error = Error::new(tried, name.clone(), io::Error::new(kind, why));
        match kind {
            ErrorKind::PermissionDenied => {
                error.help("a udev rule gives users access to a device: docs/usb.md has one")
            }
            ErrorKind::ResourceBusy => error.help("another program uses it"),
            _ => error,
        }
    };
    let mut devices = match nusb::list_devices().wait() {
        Ok(devices) => devices,
        // A kernel without USB, or without a device yet.
        Err(why) => return Err(failed("look for", why)),
    };
    let found = devices.find(|found| {
        let is_same = (found.vendor_id(), found.product_id()) == (device.vendor, device.product);
        is_same && device.serial.as_deref().is_none_or(|it| found.serial_number() == Some(it))
    });
    let Some(found) = found else { return Ok(None) };
    let opened = found.open().wait().map_err(|why| failed("open", why))?;
    // It is being configured.
    let Ok(configuration) = opened.active_configuration() else { return Ok(None) };
    let number = configuration.interface_alt_settings().find_map(|one| {
        let class = ((one.class(), one.subclass()), one.protocol());
        (class == (CLASS, 1)).then(|| one.interface_number())
    });
    let Some(number) = number else {
        let why = io::Error::new(ErrorKind::NotFound, "it has no interface for frames");
        return Err(Error::new("use", name, why).help("does `busbar stream … usb:` run there?"));
    };
    let interface = opened.claim_interface(number).wait().map_err(|why| failed("claim", why))?;
    // A new connection for both sides: what was queued is gone.
    interface.set_alt_setting(0).wait().map_err(|why| failed("reset", why))?;
    let endpoints = interface.descriptor().map(|one| one.endpoints().collect());
    let endpoints: Vec<_> = endpoints.unwrap_or_default();
    let of = |direction| {
        let address = endpoints.iter().find_map(|one| usable(one, direction));
        let wrong = || {
            let why = "it has no bulk endpoint for frames, with packets that divide 1024 bytes";
            Error::new("use", name.clone(), io::Error::new(ErrorKind::InvalidData, why))
        };
        address.ok_or_else(wrong)
    };
    let from = interface.endpoint(of(Direction::In)?).map_err(|why| failed("read from", why))?;
    let to = interface.endpoint(of(Direction::Out)?).map_err(|why| failed("write to", why))?;
    Ok(Some(Opened { from, to }))
}
