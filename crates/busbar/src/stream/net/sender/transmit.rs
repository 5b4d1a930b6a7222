//! Writes blocks to a socket.

use std::collections::VecDeque;
use std::net::TcpStream;

use busbar_uapi::zerocopy::{self, ZEROCOPY};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::super::conn::Conn;
use crate::Result;
use crate::block::{self, Block, Bytes, Memory};
use crate::stream::frame::{HEADER_LEN, Header};
use crate::stream::samples::{Parts, Samples};

/// Most zero-copy sends under way: each takes a few hundred bytes of the socket's memory for control data.
const MOST_IN_FLIGHT: usize = 64;
/// Most parts of one write; the kernel takes up to 1024.
const MOST_PARTS: usize = 256;

/// A block that the receiver has not taken over.
#[derive(Debug)]
pub(super) struct Queued {
    header: [u8; HEADER_LEN],
    samples: Samples,
    way: Way,
    /// Whether some of it was sent, on any connection.
    pub(super) was_begun: bool,
}

/// How the bytes of a block are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By `sendfile`.
    File,
    /// By `MSG_ZEROCOPY`.
    Pages,
    /// By a copy.
    Copy,
}

/// The bytes of one write.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) sent: usize,
    pub(super) copied: u64,
}

impl Queued {
    pub(super) fn new(header: &Header, samples: Samples) -> Self {
        let way = match samples.block() {
            Some(block) if block.memory_file().is_none() => Way::Copy,
            None => Way::Copy,
            // The kernel does not support `sendfile` from huge pages.
            Some(block) if *block.memory() == Memory::HugePages => Way::Pages,
            Some(_) => Way::File,
        };
        Self { header: header.encode(), samples, way, was_begun: false }
    }

    /// Bytes of the whole frame.
    pub(super) fn len(&self) -> usize {
        HEADER_LEN + self.samples.meta().len
    }

    /// Sends some of what follows the first `sent` bytes; `None` if there is no room.
    pub(super) fn send(
        &mut self,
        conn: &Conn,
        sent: usize,
        zero_copy: &mut ZeroCopy,
    ) -> Result<Option<Progress>> {
        self.was_begun = true;
        if zero_copy.is_off && self.way == Way::Pages {
            self.way = Way::Copy;
        }
        let done = match (self.way, self.header.get(sent..)) {
            (Way::File | Way::Pages, Some(head)) if !head.is_empty() => {
                let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
                rustix::net::send(conn.socket(), head, flags)
                    .map(|sent| Progress { sent, copied: 0 })
            }
            (Way::File, _) => self.send_file(conn.socket(), sent - HEADER_LEN),
            (Way::Pages, _) => {
                let samples = self.samples.read()?;
                zero_copy.send(conn.socket(), samples.bytes().slice(sent - HEADER_LEN..))
            }
            (Way::Copy, head) => {
                let parts = self.samples.parts()?;
                copy(conn.socket(), head.unwrap_or_default(), &parts, sent)
            }
        };
        match done {
            Ok(progress) => Ok(Some(progress)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => Ok(Some(Progress::default())),
            // The socket cannot refer to the file or the pages.
            Err(Errno::INVAL | Errno::FAULT | Errno::OPNOTSUPP) if self.way != Way::Copy => {
                self.way = Way::Copy;
                Ok(Some(Progress::default()))
            }
            Err(errno) => Err(conn.failed("write to", errno)),
        }
    }

    fn send_file(&self, socket: &TcpStream, from: usize) -> Result<Progress, Errno> {
        let file = self.samples.block().and_then(Block::memory_file).ok_or(Errno::INVAL)?;
        let mut offset = from as u64;
        let count = self.samples.meta().len - from;
        let sent = rustix::fs::sendfile(socket, file, Some(&mut offset), count)?;
        // Another process has truncated the memfd.
        if sent == 0 { Err(Errno::INVAL) } else { Ok(Progress { sent, copied: 0 }) }
    }
}

/// Copies the rest of the header and of the block to the socket; `sent` bytes of the frame were sent.
fn copy(
    socket: &TcpStream,
    head: &[u8],
    parts: &Parts<'_>,
    sent: usize,
) -> Result<Progress, Errno> {
    let mut skip = sent.saturating_sub(HEADER_LEN);
    let rest = parts.iter().map(|part| {
        let (gone, rest) = part.split_at(skip.min(part.len()));
        skip -= gone.len();
        rest
    });
    let all = std::iter::once(Bytes::from(head)).chain(rest).filter(|part| !part.is_empty());
    write(socket, head.len(), &all.take(MOST_PARTS).collect::<Vec<_>>())
}

/// Writes parts; the first `head` bytes are a header and do not count as copied.
fn write(socket: &TcpStream, head: usize, parts: &[Bytes<'_>]) -> Result<Progress, Errno> {
    let sent = block::send(socket, parts, SendFlags::NOSIGNAL)?;
    Ok(Progress { sent, copied: sent.saturating_sub(head) as u64 })
}

/// The zero-copy sends of a socket.
#[derive(Debug, Default)]
pub(super) struct ZeroCopy {
    is_off: bool,
    next: u32,
    /// The numbers of the sends that are not completed, and their bytes.
    pending: VecDeque<(u32, usize)>,
}

impl ZeroCopy {
    pub(super) fn new(socket: &TcpStream) -> Self {
        Self { is_off: zerocopy::enable(socket).is_err(), ..Self::default() }
    }

    fn send(&mut self, socket: &TcpStream, bytes: Bytes<'_>) -> Result<Progress, Errno> {
        // A completion wakes the sender.
        if self.pending.len() >= MOST_IN_FLIGHT {
            return Err(Errno::AGAIN);
        }
        let sent = match block::send(socket, &[bytes], ZEROCOPY | SendFlags::NOSIGNAL) {
            Err(Errno::NOBUFS) if self.pending.is_empty() => {
                return write(socket, 0, &[bytes]);
            }
            Err(Errno::NOBUFS) => return Err(Errno::AGAIN),
            done => done?,
        };
        self.pending.push_back((self.next, sent));
        self.next = self.next.wrapping_add(1);
        Ok(Progress { sent, copied: 0 })
    }

    /// Handles completions; returns the bytes that the kernel has copied after all.
    pub(super) fn reap(&mut self, conn: &Conn) -> Result<u64> {
        let mut copied = 0;
        while !self.pending.is_empty() {
            let next = zerocopy::completion(conn.socket());
            let Some(done) = next.map_err(|errno| conn.failed("write to", errno))? else { break };
            let range = done.last.wrapping_sub(done.first);
            self.pending.retain(|(number, len)| {
                let is_done = number.wrapping_sub(done.first) <= range;
                copied += if is_done && done.copied { *len as u64 } else { 0 };
                !is_done
            });
        }
        Ok(copied)
    }
}
