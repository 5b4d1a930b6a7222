//! The host's end.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use nusb::transfer::{Buffer, Bulk, Completion, Direction, In, Out, TransferError};
use nusb::{Endpoint, ErrorKind as UsbKind, MaybeFuture};

use super::address::Device;
use super::pattern::Pattern;
use super::{CHUNK, CLASS, LINGER, PACKET, Role, cut, padding, short_end};
use crate::block::{Block, BytesMut};
use crate::poll::{self, Bell};
use crate::stream::frame::HEADER_LEN;
use crate::stream::net::{Port, Wire};
use crate::stream::samples::Samples;
use crate::{Error, Result};

/// How often to look for the device.
const LOOK: Duration = Duration::from_millis(200);
/// Most bytes that wait to be sent; the kernel allows 16 MiB for all programs.
const MOST_QUEUED: usize = 4 << 20;
/// Most transfers that wait to be sent.
const MOST_SENDS: usize = 64;

/// Finds the device, and opens it again and again.
#[derive(Debug)]
pub(super) struct HostPort {
    device: Device,
    role: Role,
    bell: Arc<Ringer>,
    /// A thread that opens the device: that may take seconds if the device does not answer.
    opening: Option<mpsc::Receiver<Result<Option<Opened>>>>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Ringer(Bell);

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        // An eventfd that exists can be rung.
        let _ = self.0.ring();
    }
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
        Ok(Self { device: device.clone(), role, bell, opening: None, looked: None })
    }
}

impl Port for HostPort {
    fn open(&mut self) -> Result<Option<Box<dyn Wire>>> {
        let Some(opening) = &self.opening else {
            if self.looked.is_some_and(|at| at.elapsed() < LOOK) {
                return Ok(None);
            }
            let (done, opening) = mpsc::channel();
            let (device, bell) = (self.device.clone(), Arc::clone(&self.bell));
            poll::spawn("busbar-usb", move || {
                // Nobody waits for it any more if this fails.
                let _ = done.send(find(&device));
                bell.wake();
            })?;
            (self.opening, self.looked) = (Some(opening), Some(Instant::now()));
            return Ok(None);
        };
        let opened = match opening.try_recv() {
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => Ok(None),
            Ok(opened) => opened,
        };
        self.opening = None;
        let Some(Opened { from, to }) = opened? else { return Ok(None) };
        Ok(Some(Box::new(HostWire::new(from, to, self.role)?)))
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
                error.help("a udev rule gives users access to a device: docs/stream.md has one")
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
    let endpoints =
        interface.descriptor().map(|one| one.endpoints().map(|it| it.address()).collect());
    let endpoints: Vec<u8> = endpoints.unwrap_or_default();
    let of = |direction: Direction| {
        let is_in = direction == Direction::In;
        endpoints.iter().copied().find(|address| (address & 0x80 != 0) == is_in).unwrap_or(0)
    };
    let from = interface.endpoint(of(Direction::In)).map_err(|why| failed("read from", why))?;
    let to = interface.endpoint(of(Direction::Out)).map_err(|why| failed("write to", why))?;
    Ok(Some(Opened { from, to }))
}

/// A connection.
struct HostWire {
    from: Endpoint<Bulk, In>,
    to: Endpoint<Bulk, Out>,
    role: Role,
    bell: Arc<Ringer>,
    waker: Waker,
    pattern: Pattern,
    block_len: usize,
    /// Bytes that came, and how many of them were read.
    arrived: Option<(Buffer, usize)>,
    /// Buffers of transfers that have ended, by their length.
    free: Vec<Buffer>,
    /// The lengths of what waits to be sent.
    sends: VecDeque<usize>,
    free_sends: Vec<Buffer>,
    /// When the peer took something last, or had nothing to take.
    moved: Instant,
}

impl fmt::Debug for HostWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostWire").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

impl HostWire {
    fn new(from: Endpoint<Bulk, In>, to: Endpoint<Bulk, Out>, role: Role) -> Result<Self> {
        let bell = Arc::new(Ringer(Bell::new()?));
        let waker = Waker::from(Arc::clone(&bell));
        Ok(Self {
            from,
            to,
            role,
            bell,
            waker,
            pattern: Pattern::default(),
            block_len: 0,
            arrived: None,
            free: Vec::new(),
            sends: VecDeque::new(),
            free_sends: Vec::new(),
            moved: Instant::now(),
        })
    }

    /// Queues reads.
    fn queue(&mut self) {
        // The first frames of a sender end anywhere: nothing may be queued behind them that data would fill.
        let is_lazy = self.role == Role::Receiver && !self.pattern.has_data();
        let depth = if is_lazy { 1 } else { self.pattern.depth() };
        while self.from.pending() < depth {
            let len = self.pattern.next();
            let is_packet = len == PACKET;
            let fits = |free: &Buffer| (free.capacity() == PACKET) == is_packet;
            let mut buffer = if let Some(index) = self.free.iter().position(fits) {
                self.free.swap_remove(index)
            } else {
                // All payloads are cut in the same way.
                let most = self.block_len.next_multiple_of(PACKET).min(CHUNK);
                self.from.allocate(if is_packet { PACKET } else { most })
            };
            buffer.set_requested_len(len);
            self.from.submit(buffer);
        }
    }

    /// Takes the next bytes that came; `WouldBlock` if there are none.
    fn arrive(&mut self) -> io::Result<()> {
        loop {
            if self.from.pending() > 0 {
                let mut context = Context::from_waker(&self.waker);
                if let Poll::Ready(done) = self.from.poll_next_complete(&mut context) {
                    let Completion { buffer, actual_len, status } = done;
                    status.map_err(failed)?;
                    if actual_len > 0 {
                        self.arrived = Some((buffer, 0));
                        return Ok(());
                    }
                    self.free.push(buffer);
                    continue;
                }
            }
            self.queue();
            let mut context = Context::from_waker(&self.waker);
            // It may have ended before the waker was known.
            match self.from.poll_next_complete(&mut context) {
                Poll::Pending => return Err(ErrorKind::WouldBlock.into()),
                Poll::Ready(Completion { buffer, actual_len, status }) => {
                    status.map_err(failed)?;
                    if actual_len > 0 {
                        self.arrived = Some((buffer, 0));
                        return Ok(());
                    }
                    self.free.push(buffer);
                }
            }
        }
    }

    /// Takes back what was sent.
    fn reap(&mut self) -> io::Result<()> {
        while self.to.pending() > 0 {
            let mut context = Context::from_waker(&self.waker);
            let Poll::Ready(done) = self.to.poll_next_complete(&mut context) else { break };
            self.sends.pop_front();
            self.moved = Instant::now();
            done.status.map_err(failed)?;
            if done.buffer.is_zero_copy() {
                self.free_sends.push(done.buffer);
            }
        }
        Ok(())
    }

    /// A buffer of this length to fill.
    fn buffer(&mut self, len: usize) -> Buffer {
        if let Some(index) = self.free_sends.iter().position(|free| free.len() == len) {
            return self.free_sends.swap_remove(index);
        }
        let mut buffer = self.to.allocate(len);
        buffer.clear();
        buffer.extend_fill(len, 0);
        buffer
    }

    fn submit(&mut self, buffer: Buffer) {
        if self.sends.is_empty() {
            self.moved = Instant::now();
        }
        self.sends.push_back(buffer.len());
        self.to.submit(buffer);
    }

    /// Room for `count` transfers of `len` bytes in all; always if nothing waits.
    fn has_room(&mut self, count: usize, len: usize) -> io::Result<bool> {
        self.reap()?;
        let queued: usize = self.sends.iter().sum();
        let fits = queued + len <= MOST_QUEUED && self.sends.len() + count <= MOST_SENDS;
        Ok(fits || self.sends.is_empty())
    }
}

fn failed(why: TransferError) -> io::Error {
    let kind = match why {
        TransferError::Disconnected => ErrorKind::NotConnected,
        TransferError::Cancelled => ErrorKind::ConnectionAborted,
        TransferError::Stall | TransferError::Fault => ErrorKind::ConnectionReset,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, why)
}

impl Wire for HostWire {
    fn read(&mut self, mut into: BytesMut<'_>) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.arrived.is_none() {
            self.arrive()?;
        }
        let Some((buffer, at)) = &mut self.arrived else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let count = into.len().min(buffer.len() - *at);
        into.slice(..count).copy_from(&buffer[*at..*at + count]);
        *at += count;
        if *at == buffer.len()
            && let Some((buffer, _)) = self.arrived.take()
        {
            self.free.push(buffer);
            if self.pattern.has_data() {
                self.queue();
            }
        }
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_room(2, bytes.len())? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (most, last) = short_end(bytes);
        self.submit(Buffer::from(most));
        if !last.is_empty() {
            self.submit(Buffer::from(last));
        }
        Ok(bytes.len())
    }

    fn send(&mut self, header: &[u8; HEADER_LEN], samples: &Samples) -> io::Result<u64> {
        let len = samples.meta().len;
        let total = len + padding(len, self.block_len);
        if !self.has_room(1 + total.div_ceil(CHUNK), total)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let parts = samples.parts()?;
        self.submit(Buffer::from(*header));
        let parts: Vec<_> = parts.iter().collect();
        cut(&parts, total, |chunk| {
            let mut buffer = self.buffer(chunk.iter().map(|part| part.len()).sum());
            let mut filled = 0;
            for part in chunk {
                part.copy_to(&mut buffer[filled..filled + part.len()]);
                filled += part.len();
            }
            self.submit(buffer);
            Ok(())
        })?;
        Ok(len as u64)
    }

    fn settle(&mut self, block_len: usize, _: Option<&Block>) -> io::Result<()> {
        self.block_len = block_len;
        if self.role == Role::Receiver {
            self.pattern = Pattern::of(block_len.next_multiple_of(PACKET));
            self.queue();
        }
        Ok(())
    }

    fn padding(&self, payload: usize) -> usize {
        padding(payload, self.block_len)
    }

    fn stalled(&self) -> Option<Instant> {
        (!self.sends.is_empty()).then_some(self.moved)
    }

    fn linger(&mut self) {
        let until = Instant::now() + LINGER;
        while !self.sends.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.to.pending() == 0 {
                return;
            }
            if self.to.wait_next_complete(left).is_some() {
                self.sends.pop_front();
            }
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bell.0.as_fd()]
    }
}
