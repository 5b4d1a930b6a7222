//! A connection to a host.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use busbar_uapi::dmabuf;
use busbar_uapi::functionfs::Requests;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::super::pattern::Pattern;
use super::super::{CHUNK, PACKET, Role, cut, padding, short_end};
use super::guests::Guests;
use super::{Endpoints, broken, too_long};
use crate::block::{self, Block, Bytes, BytesMut};
use crate::poll::{Oldest, Set};
use crate::stream::frame::HEADER_LEN;
use crate::stream::net::Wire;
use crate::stream::samples::Samples;
use crate::stream::setup::Interface;

/// Most requests under way.
const MOST: u16 = 256;
const READ: u64 = 0;
const WRITE: u64 = 1;
/// A read of a packet with the header of a data frame, whose rest is padding, or with that of the end.
const HEADER: u64 = 2;
/// Most blocks that the controller has to fill.
const MOST_LANDING: usize = 32;

#[derive(Debug)]
pub(super) struct GadgetWire {
    // First: Linux before 0029-usb-gadget-f_fs-let-the-fence-of-a-DMABUF-outlive-it.patch hangs if a fence is closed after
    // its endpoint.
    /// Where payloads are received in place.
    landing: Option<Landing>,
    // Second: requests end before the blocks are detached.
    requests: Requests,
    guests: Guests,
    endpoints: Arc<Endpoints>,
    role: Role,
    pattern: Pattern,
    block_len: usize,
    /// Bytes that came, how many, and how many of them were read.
    arrived: VecDeque<(Vec<u8>, usize, usize)>,
    reads: usize,
    writes: usize,
    /// When the host took something last, or had nothing to take.
    moved: Instant,
    /// Why there will be no more transfers.
    dead: Option<Errno>,
    /// Blocks for it that others still use.
    spare: VecDeque<Block>,
    /// What to watch.
    set: Set,
}

/// Blocks that the controller fills, the oldest first.
#[derive(Debug, Default)]
struct Landing {
    blocks: VecDeque<(Block, Arc<OwnedFd>)>,
    oldest: Oldest,
}

impl GadgetWire {
    pub(super) fn new(
        endpoints: Arc<Endpoints>,
        role: Role,
        interface: Option<Interface>,
    ) -> Result<Self, Errno> {
        let requests = Requests::new(MOST)?;
        let guests = Guests::new(Arc::clone(&endpoints), interface);
        let set = Set::new().map_err(|error| error.errno().unwrap_or(Errno::IO))?;
        let added = set.add(&requests, 0, EventFlags::IN);
        added.map_err(|error| error.errno().unwrap_or(Errno::IO))?;
        Ok(Self {
            requests,
            guests,
            endpoints,
            role,
            pattern: Pattern::default(),
            block_len: 0,
            arrived: VecDeque::new(),
            reads: 0,
            writes: 0,
            moved: Instant::now(),
            dead: None,
            landing: None,
            spare: VecDeque::new(),
            set,
        })
    }

    /// Takes back requests that have ended.
    fn reap(&mut self) -> io::Result<()> {
        let Self { requests, arrived, reads, writes, moved, dead, .. } = self;
        requests.reap(|ended| match (ended.tag, ended.result) {
            (WRITE, result) => {
                *writes -= 1;
                *moved = Instant::now();
                *dead = dead.or(result.err());
            }
            (tag, result) => {
                *reads -= 1;
                let most = if tag == HEADER { HEADER_LEN } else { usize::MAX };
                match result {
                    // Nothing sends an empty packet; behind one, headers would be read into blocks.
                    Ok(0) => *dead = dead.or(Some(Errno::PROTO)),
                    // Behind a read that has failed, bytes are missing.
                    Ok(_) if dead.is_some() => {}
                    Ok(len) => arrived.push_back((ended.buffer, len.min(most), 0)),
                    Err(errno) => *dead = dead.or(Some(errno)),
                }
            }
        })?;
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        self.dead.map_or(Ok(()), |errno| Err(broken(errno)))
    }

    /// Queues reads.
    fn queue(&mut self) -> io::Result<()> {
        // The first frames of a sender end anywhere: nothing may be queued behind them that data would fill.
        let is_lazy = self.role == Role::Receiver && !self.pattern.has_data();
        let depth = match &self.landing {
            // Each header is queued with its block.
            Some(_) => 0,
            None if is_lazy => 1,
            None => self.pattern.depth(),
        };
        while self.reads < depth {
            let tag = if self.pattern.is_at_header() { HEADER } else { READ };
            let buffer = vec![0; self.pattern.next()];
            self.requests.read(&self.endpoints.from, buffer, tag).map_err(broken)?;
            self.reads += 1;
        }
        Ok(())
    }

    /// Queues a header and a block, for each block that nobody uses any more.
    fn land(&mut self) -> io::Result<()> {
        let Some(landing) = &mut self.landing else { return Ok(()) };
        let total = self.block_len + padding(self.block_len, self.block_len);
        while let Some(block) = self.spare.pop_front() {
            if !block.try_wait_unused().unwrap_or(true) {
                self.spare.push_front(block);
                break;
            }
            let queued = self.requests.read(&self.endpoints.from, vec![0; PACKET], HEADER);
            let landed = queued.and_then(|()| {
                self.reads += 1;
                self.guests.land(&block, total)
            });
            match landed {
                Ok(fence) => landing.blocks.push_back((block, Arc::new(fence))),
                Err(errno) => {
                    // After a header without a block, nothing fits.
                    self.spare.push_front(block);
                    self.dead = self.dead.or(Some(errno));
                    return Err(broken(errno));
                }
            }
        }
        self.watch_first()
    }

    /// Has the set readable when the oldest block is filled.
    fn watch_first(&mut self) -> io::Result<()> {
        if let Some(Landing { blocks, oldest }) = &mut self.landing
            && let Some((_, fence)) = blocks.front()
        {
            oldest.watch(&self.set, fence)?;
        }
        Ok(())
    }

    /// The same for a block that is not filled yet.
    fn rewatch(&mut self) -> io::Result<()> {
        if let Some(Landing { blocks, oldest }) = &mut self.landing {
            oldest.keep(&self.set, blocks.front().map(|(_, fence)| fence));
        }
        self.watch_first()
    }

    /// Queues one transfer.
    fn put(&mut self, parts: &[Bytes<'_>]) -> io::Result<()> {
        if self.writes == 0 {
            self.moved = Instant::now();
        }
        let tells = self.role == Role::Receiver;
        let to = &self.endpoints.to;
        block::request(&mut self.requests, to, parts, tells, WRITE).map_err(broken)?;
        self.writes += 1;
        Ok(())
    }

    /// Queues a part of a frame. Fails if the kernel does not take it, which `FunctionFS` tells by a result: another
    /// part would come in its place.
    fn put_part(&mut self, parts: &[Bytes<'_>]) -> io::Result<()> {
        self.put(parts)?;
        self.reap_writes()?;
        self.check()
    }

    /// As [`reap`](Self::reap), where what was read is not looked at.
    fn reap_writes(&mut self) -> io::Result<()> {
        self.reap()?;
        if !self.arrived.is_empty() {
            // Its event was taken.
            self.requests.ring()?;
        }
        Ok(())
    }

    /// Whether there is room for `count` requests, besides reads.
    fn has_room(&mut self, count: usize) -> io::Result<bool> {
        let most = self.most();
        if self.writes + count > most {
            self.reap_writes()?;
        }
        self.check()?;
        Ok(self.writes + count <= most)
    }

    /// Most requests at a time, besides reads.
    fn most(&self) -> usize {
        usize::from(MOST) - self.pattern.depth()
    }
}

impl Wire for GadgetWire {
    fn read(&mut self, mut into: BytesMut<'_>) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.arrived.is_empty() {
            self.reap()?;
        }
        let Some((bytes, len, at)) = self.arrived.front_mut() else {
            self.check()?;
            self.queue()?;
            self.land()?;
            self.rewatch()?;
            return Err(ErrorKind::WouldBlock.into());
        };
        let count = into.len().min(*len - *at);
        into.slice(..count).copy_from(&bytes[*at..*at + count]);
        *at += count;
        if at == len {
            self.arrived.pop_front();
        }
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_room(2)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (most, last) = short_end(bytes);
        self.put(&[Bytes::from(most)])?;
        if !last.is_empty() {
            self.put(&[Bytes::from(last)])?;
        }
        Ok(bytes.len())
    }

    fn send(&mut self, header: &[u8; HEADER_LEN], samples: &Samples) -> io::Result<u64> {
        let len = samples.meta().len;
        let total = len + padding(len, self.block_len);
        // The first transfer of a copy has the header as well.
        let transfers = 2 + total.div_ceil(CHUNK);
        let is_long = transfers > self.most();
        if !self.has_room(if is_long { 2 } else { transfers })? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut header = Some(Bytes::from(&header[..]));
        if let Some(block) = self.guests.attached(samples, total)? {
            self.put_part(header.as_slice())?;
            header = None;
            if self.guests.send(block, total)? {
                return Ok(0);
            }
            if is_long {
                return Err(broken(Errno::AGAIN));
            }
        }
        if is_long {
            return Err(too_long(len, self.most() - 2));
        }
        let parts = samples.parts()?;
        let all: Vec<_> = header.into_iter().chain(parts.iter()).collect();
        cut(&all, total + header.map_or(0, Bytes::len), |chunk| self.put_part(chunk))?;
        Ok(len as u64)
    }

    fn holds(&self, samples: &Samples) -> bool {
        samples.block().is_some_and(|block| !block.try_wait_unused().unwrap_or(true))
    }

    fn settle(&mut self, block_len: usize, like: Option<&Block>) -> io::Result<()> {
        self.block_len = block_len;
        if self.role == Role::Receiver {
            self.pattern = Pattern::of(block_len.next_multiple_of(PACKET));
            let total = block_len + padding(block_len, block_len);
            if let Some(block) = like
                && self.guests.can_land(block, total)?
            {
                self.landing = Some(Landing::default());
            }
        }
        self.queue()
    }

    fn is_in_place(&self) -> bool {
        self.landing.is_some()
    }

    fn wants(&self) -> bool {
        let has_room = |it: &Landing| it.blocks.len() + self.spare.len() < MOST_LANDING;
        self.dead.is_none() && self.landing.as_ref().is_some_and(has_room)
    }

    fn give(&mut self, block: Block) -> io::Result<()> {
        self.spare.push_back(block);
        self.land()
    }

    fn has_given(&self) -> bool {
        self.landing.as_ref().is_some_and(|landing| !landing.blocks.is_empty())
    }

    fn take(&mut self) -> io::Result<Block> {
        let Some(landing) = &mut self.landing else { return Err(ErrorKind::Unsupported.into()) };
        let status = match landing.blocks.front() {
            Some((_, fence)) => dmabuf::sync_file_status(fence)?.1,
            None => None,
        };
        let Some(status) = status else {
            if landing.blocks.is_empty() {
                self.check()?;
            }
            self.rewatch()?;
            return Err(ErrorKind::WouldBlock.into());
        };
        status.map_err(broken)?;
        let (block, _) = landing.blocks.pop_front().ok_or(ErrorKind::WouldBlock)?;
        self.watch_first()?;
        Ok(block)
    }

    fn reclaim(&mut self) -> Vec<Block> {
        let landed = self.landing.take().map(|landing| landing.blocks).unwrap_or_default();
        self.dead = self.dead.or(Some(Errno::SHUTDOWN));
        landed.into_iter().map(|(block, _)| block).chain(self.spare.drain(..)).collect()
    }

    fn padding(&self, payload: usize) -> usize {
        padding(payload, self.block_len)
    }

    fn stalled(&self) -> Option<Instant> {
        (self.writes > 0).then_some(self.moved)
    }

    fn lingers(&mut self) -> bool {
        self.reap().is_ok() && self.writes > 0 && self.dead.is_none()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.set.as_fd()]
    }
}
