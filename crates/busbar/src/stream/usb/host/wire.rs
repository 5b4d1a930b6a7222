//! A connection of the host, by transfers of its two endpoints.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use nusb::Endpoint;
use nusb::transfer::{Buffer, BulkOrInterrupt, Completion, EndpointDirection, TransferError};

use super::super::pattern::Pattern;
use super::super::{CHUNK, PACKET, Role, padding, short_end};
use super::Ringer;
use crate::Result;
use crate::block::{Block, BytesMut};
use crate::poll::Bell;
use crate::stream::frame::HEADER_LEN;
use crate::stream::net::Wire;
use crate::stream::samples::Samples;

/// Most bytes that wait to be sent; the kernel allows 16 MiB for all programs.
const MOST_QUEUED: usize = 4 << 20;
/// Most packets without bytes that a device may send in a turn.
pub(super) const MOST_EMPTY: usize = 64;
/// Most transfers that wait to be sent.
const MOST_SENDS: usize = 64;

/// The transfers of an endpoint, which end in their order. As [`Endpoint`], which is one.
pub(super) trait Transfers: Send {
    fn allocate(&self, len: usize) -> Buffer;
    fn submit(&mut self, buffer: Buffer);
    fn pending(&self) -> usize;
    fn poll_next_complete(&mut self, context: &mut Context<'_>) -> Poll<Completion>;
}

impl<Kind, Dir> Transfers for Endpoint<Kind, Dir>
where
    Kind: BulkOrInterrupt + Send,
    Dir: EndpointDirection + Send,
{
    fn allocate(&self, len: usize) -> Buffer {
        self.allocate(len)
    }

    fn submit(&mut self, buffer: Buffer) {
        self.submit(buffer);
    }

    fn pending(&self) -> usize {
        self.pending()
    }

    fn poll_next_complete(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        self.poll_next_complete(context)
    }
}

/// A connection.
pub(super) struct HostWire {
    from: Box<dyn Transfers>,
    to: Box<dyn Transfers>,
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
    pub(super) fn new(
        from: Box<dyn Transfers>,
        to: Box<dyn Transfers>,
        role: Role,
    ) -> Result<Self> {
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
        for _ in 0..MOST_EMPTY {
            self.queue();
            let mut context = Context::from_waker(&self.waker);
            let Poll::Ready(done) = self.from.poll_next_complete(&mut context) else {
                // The event may be of what was sent, and nothing else may be written for long.
                self.reap()?;
                return Err(ErrorKind::WouldBlock.into());
            };
            done.status.map_err(failed)?;
            if done.actual_len > 0 {
                self.arrived = Some((done.buffer, 0));
                return Ok(());
            }
            self.free.push(done.buffer);
        }
        // There is more, after others had their turn.
        self.waker.wake_by_ref();
        Err(ErrorKind::WouldBlock.into())
    }

    /// Takes back what was sent.
    fn reap(&mut self) -> io::Result<()> {
        while self.to.pending() > 0 {
            let mut context = Context::from_waker(&self.waker);
            let Poll::Ready(done) = self.to.poll_next_complete(&mut context) else { break };
            self.sends.pop_front();
            self.moved = Instant::now();
            done.status.map_err(failed)?;
            // Those of frames with samples are used again.
            if done.buffer.len() > PACKET && self.free_sends.len() < MOST_SENDS {
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
        let total = PACKET + len + padding(len, self.block_len);
        if !self.has_room(1, total)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let parts = samples.parts()?;
        let mut buffer = self.buffer(total);
        buffer[..HEADER_LEN].copy_from_slice(header);
        let mut filled = PACKET;
        for part in parts.iter() {
            part.copy_to(&mut buffer[filled..filled + part.len()]);
            filled += part.len();
        }
        buffer[filled..].fill(0);
        // One transfer for the whole frame: if the kernel cannot take it, the device has none of it, and notices.
        self.submit(buffer);
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

    fn lingers(&mut self) -> bool {
        self.reap().is_ok() && self.to.pending() > 0
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.bell.0.as_fd()]
    }
}
