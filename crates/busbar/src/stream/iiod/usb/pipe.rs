//! A pipe: the endpoints of one client.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use busbar_uapi::functionfs::{self, Requests};
use rustix::io::Errno;

use super::super::link::Out;
use crate::block::{self, Bytes, BytesMut};
use crate::stream::net::transmit::Progress;
use crate::stream::usb::gadget::Endpoints;

/// Most bytes of a transfer, a multiple of all lengths of packets: each takes so much of the kernel's memory.
const CHUNK: usize = 64 << 10;
/// Most transfers of each direction under way. Those that have come and are not read count as well.
const DEPTH: usize = 4;
/// Most parts of a transfer; the kernel takes up to 1024.
const MOST_PARTS: usize = 1000;
const READ: u64 = 0;
const WRITE: u64 = 1;

/// A pair of endpoints, whose transfers do not wait.
///
/// A host reads a line by a transfer that is longer, and throws away what else comes in it. Otherwise, and always by the
/// binary protocol, it asks for exactly what it was told: a longer packet is an error, and one of no bytes the end. So each
/// part of an answer ends a transfer of its own. A line is never as long as some whole packets, so a short packet ends it.
///
/// A transfer of the host that has whole packets does not end a read that is longer. So reads are for one packet, or for
/// as much as the host is known to send.
#[derive(Debug)]
pub(in super::super) struct Pipe {
    // First: requests end before the endpoints are closed.
    requests: Requests,
    endpoints: Endpoints,
    /// Bytes of a packet.
    packet: usize,
    /// What has come: bytes, how many there are, and how many of them were taken.
    arrived: VecDeque<(Vec<u8>, usize, usize)>,
    reads: usize,
    /// Bytes that the reads under way have room for.
    room: usize,
    writes: usize,
    /// Why there will be no more transfers.
    dead: Option<Errno>,
}

impl Pipe {
    /// With nothing of the client before.
    pub(super) fn new(endpoints: Endpoints) -> Result<Self, Errno> {
        functionfs::flush(&endpoints.to)?;
        functionfs::flush(&endpoints.from)?;
        let packet @ 1..=1024 = functionfs::packet_len(&endpoints.from)? else {
            return Err(Errno::PROTO);
        };
        let most = u16::try_from(2 * DEPTH).unwrap_or(u16::MAX);
        Ok(Self {
            requests: Requests::new(most)?,
            endpoints,
            packet,
            arrived: VecDeque::new(),
            reads: 0,
            room: 0,
            writes: 0,
            dead: None,
        })
    }

    /// Takes back transfers that have ended.
    fn reap(&mut self) -> Result<(), Errno> {
        let Self { requests, arrived, reads, room, writes, dead, .. } = self;
        requests.reap(|ended| {
            if ended.tag == READ {
                *reads -= 1;
                *room -= ended.buffer.len();
            } else {
                *writes -= 1;
            }
            match ended.result {
                // Behind a read that has failed, bytes are missing.
                Ok(len) if ended.tag == READ && len > 0 && dead.is_none() => {
                    arrived.push_back((ended.buffer, len, 0));
                }
                Ok(_) => {}
                // An endpoint without a host says EAGAIN, which means here that something may come.
                Err(Errno::AGAIN) => *dead = dead.or(Some(Errno::SHUTDOWN)),
                Err(errno) => *dead = dead.or(Some(errno)),
            }
        })
    }

    /// Queues reads. `expected`: bytes that the host is about to send, of those that were not taken.
    ///
    /// A read has no more room than what comes after the reads before it, as long as these are filled. If they are
    /// not, more than that comes. So the host fills or ends each.
    fn queue(&mut self, expected: usize) -> Result<(), Errno> {
        while self.dead.is_none() && self.reads + self.arrived.len() < DEPTH {
            let here: usize = self.arrived.iter().map(|(_, len, taken)| len - taken).sum();
            let len = read_len(expected, here + self.room, self.packet);
            self.requests.read(&self.endpoints.from, vec![0; len], READ)?;
            self.reads += 1;
            self.room += len;
        }
        Ok(())
    }

    /// As [`Link::receive`](super::super::link::Link::receive).
    pub(in super::super) fn receive(
        &mut self,
        input: &mut Vec<u8>,
        expected: usize,
    ) -> Result<(), Errno> {
        self.take(expected, |bytes| {
            input.extend_from_slice(bytes);
            bytes.len()
        })
        .map(drop)
    }

    /// The same into a block. Returns how many bytes.
    pub(in super::super) fn receive_into(
        &mut self,
        mut to: BytesMut<'_>,
        expected: usize,
    ) -> Result<usize, Errno> {
        self.take(expected, |bytes| {
            let count = bytes.len().min(to.len());
            to.slice(..count).copy_from(&bytes[..count]);
            count
        })
    }

    /// Gives the oldest bytes that have come to `each`, which returns how many it has taken. Returns the same.
    fn take(&mut self, expected: usize, each: impl FnOnce(&[u8]) -> usize) -> Result<usize, Errno> {
        if self.arrived.is_empty() {
            self.reap()?;
        }
        let Some((bytes, len, taken)) = self.arrived.front_mut() else {
            self.dead.map_or(Ok(()), Err)?;
            self.queue(expected)?;
            return Err(Errno::AGAIN);
        };
        let count = each(&bytes[*taken..*len]);
        *taken += count;
        if taken == len {
            self.arrived.pop_front();
        }
        // What was taken counts, so a failure is told by the next call. For lack of memory that tries again.
        if let Err(errno) = self.queue(expected.saturating_sub(count))
            && errno != Errno::AGAIN
        {
            self.dead = self.dead.or(Some(errno));
        }
        Ok(count)
    }

    /// Whether something has come.
    pub(in super::super) fn has_input(&mut self) -> Result<bool, Errno> {
        if self.arrived.is_empty() {
            self.reap()?;
            if !self.arrived.is_empty() {
                // Its event was taken.
                self.requests.ring()?;
            }
        }
        self.dead.map_or(Ok(!self.arrived.is_empty()), Err)
    }

    /// As [`Link::send`](super::super::link::Link::send).
    pub(in super::super) fn send(&mut self, out: &mut Out) -> Result<Option<Progress>, Errno> {
        self.reap()?;
        self.dead.map_or(Ok(()), Err)?;
        if self.writes == DEPTH {
            return Ok(None);
        }
        match out {
            Out::Bytes(bytes, at) => {
                let rest = &bytes[*at..];
                let sent = self.put(&[Bytes::from(&rest[..rest.len().min(CHUNK)])])?;
                *at += sent;
                Ok(Some(Progress { sent, copied: 0 }))
            }
            Out::Copy(samples, left) => {
                let parts = samples.parts().map_err(|error| error.errno().unwrap_or(Errno::IO))?;
                let end = left.end.min(left.start + CHUNK);
                let chunk: Vec<_> = parts.within(left.start..end).take(MOST_PARTS).collect();
                let sent = self.put(&chunk)?;
                left.start += sent;
                Ok(Some(Progress { sent, copied: sent as u64 }))
            }
            Out::Samples(..) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Queues a transfer. Returns its length.
    fn put(&mut self, parts: &[Bytes<'_>]) -> Result<usize, Errno> {
        block::request(&mut self.requests, &self.endpoints.to, parts, true, WRITE)?;
        self.writes += 1;
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    /// Whether the host has read everything, or reads nothing any more.
    pub(in super::super) fn is_flushed(&mut self) -> bool {
        self.reap().is_err() || self.dead.is_some() || self.writes == 0
    }
}

/// Readable when a transfer has ended.
impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.requests.as_fd()
    }
}

/// The length of a read: whole packets, of what is expected besides the bytes that the reads before it have room for.
fn read_len(expected: usize, before: usize, packet: usize) -> usize {
    expected.saturating_sub(before).clamp(1, CHUNK).next_multiple_of(packet)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_host_fills_or_ends_each_read(
            announced in 0_usize..300_000,
            lens in proptest::collection::vec(1_usize..100_000, 0..50),
            speed in 0_usize..3,
        ) {
            let packet = [64, 512, 1024][speed];
            let (mut lens, mut reads, mut filled) = (lens.into_iter(), VecDeque::new(), 0);
            // Bytes that the host has not sent, and those that the session has not taken.
            let (mut unsent, mut untaken) = (announced, announced);
            while unsent > 0 {
                let transfer = lens.next().unwrap_or(unsent).min(unsent);
                unsent -= transfer;
                let mut left = transfer;
                while left > 0 {
                    while reads.len() < DEPTH {
                        reads.push_back(read_len(untaken, reads.iter().sum(), packet));
                    }
                    let sent = left.min(packet);
                    left -= sent;
                    filled += sent;
                    prop_assert!(filled <= reads[0]);
                    if sent < packet || filled == reads[0] {
                        untaken -= filled;
                        filled = 0;
                        reads.pop_front();
                    }
                }
            }
            prop_assert_eq!(filled, 0, "the last read goes on");
        }
    }
}
