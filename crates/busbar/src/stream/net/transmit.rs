//! Writes blocks to a socket.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::ops::Range;

use busbar_uapi::signal::Quiet;
use busbar_uapi::zerocopy::{self, ZEROCOPY};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::conn::Conn;
use crate::block::{self, Block, Bytes, Memory};
use crate::stream::frame::HEADER_LEN;
use crate::stream::samples::{Parts, Samples};

/// Most zero-copy sends under way: each takes a few hundred bytes of the socket's memory for control data.
const MOST_IN_FLIGHT: usize = 64;
/// Most parts of one write; the kernel takes up to 1024.
const MOST_PARTS: usize = 256;
/// Bytes of a block up to which a copy is cheaper than two calls: many of them go by one.
const SHORT: usize = 16 << 10;
/// Most short blocks of one write.
const MOST_SHORT: usize = 32;

/// A header and bytes of a block to send.
#[derive(Debug)]
pub(in crate::stream) struct Queued {
    header: Head,
    samples: Samples,
    /// Which bytes of the samples.
    range: Range<usize>,
    way: Way,
    /// Whether some of it was sent, on any connection.
    pub(in crate::stream) was_begun: bool,
}

/// What is sent before the bytes of a block.
#[derive(Debug)]
enum Head {
    /// The header of a frame, without an allocation.
    Frame([u8; HEADER_LEN]),
    Text(Vec<u8>),
}

impl Head {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(header) => header,
            Self::Text(text) => text,
        }
    }
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
    /// By a copy, with those behind it: a short block in memory that needs no preparation to be read.
    Short,
}

/// The bytes of one write.
#[derive(Debug, Default)]
pub(in crate::stream) struct Progress {
    pub(in crate::stream) sent: usize,
    pub(in crate::stream) copied: u64,
}

impl Queued {
    /// A whole block with the header of its frame.
    pub(in crate::stream) fn frame(header: [u8; HEADER_LEN], samples: Samples) -> Self {
        let (way, range) = (Way::of(&samples), 0..samples.meta().len);
        Self { header: Head::Frame(header), samples, range, way, was_begun: false }
    }

    /// Bytes of a block behind a text, by the way that copies least. They must not change until the peer has them.
    pub(in crate::stream) fn new(text: Vec<u8>, samples: Samples, range: Range<usize>) -> Self {
        let way = Way::of(&samples);
        Self { header: Head::Text(text), samples, range, way, was_begun: false }
    }

    pub(in crate::stream) fn samples(&self) -> &Samples {
        &self.samples
    }

    /// As [`new`](Self::new), by a copy: they may change once they were sent.
    pub(in crate::stream) fn copy(text: Vec<u8>, samples: Samples, range: Range<usize>) -> Self {
        Self { header: Head::Text(text), samples, range, way: Way::Copy, was_begun: false }
    }

    /// Bytes of header and samples.
    pub(in crate::stream) fn len(&self) -> usize {
        self.header.bytes().len() + self.range.len()
    }

    /// Sends some of what follows the first `sent` bytes; `None` if there is no room.
    pub(in crate::stream) fn send(
        &mut self,
        socket: &TcpStream,
        sent: usize,
        zero_copy: &mut ZeroCopy,
    ) -> Result<Option<Progress>, Errno> {
        self.was_begun = true;
        if zero_copy.is_off && self.way == Way::Pages {
            self.way = Way::Copy;
        }
        // A call that prepares the memory has failed with a number of the system, or none.
        let no_errno = |error: crate::Error| error.errno().unwrap_or(Errno::IO);
        let header = self.header.bytes();
        let from = self.range.start + sent.saturating_sub(header.len());
        let done = match (self.way, header.get(sent..)) {
            (Way::File | Way::Pages, Some(head)) if !head.is_empty() => {
                let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
                rustix::net::send(socket, head, flags).map(|sent| Progress { sent, copied: 0 })
            }
            (Way::File, _) => self.send_file(socket, from),
            (Way::Pages, _) => {
                let samples = self.samples.read().map_err(no_errno)?;
                zero_copy.send(socket, samples.bytes().slice(from..self.range.end))
            }
            (Way::Copy | Way::Short, head) => {
                let parts = self.samples.parts().map_err(no_errno)?;
                copy(socket, head.unwrap_or_default(), &parts, from..self.range.end)
            }
        };
        match done {
            // The socket cannot refer to the file or the pages.
            Err(Errno::INVAL | Errno::FAULT | Errno::OPNOTSUPP) if self.way != Way::Copy => {
                self.way = Way::Copy;
                Ok(Some(Progress::default()))
            }
            done => outcome(done),
        }
    }

    /// As [`send`](Self::send), by a connection that may not be a socket: that takes a frame as a whole.
    pub(super) fn send_by(
        &mut self,
        conn: &mut Conn,
        sent: usize,
        zero_copy: &mut ZeroCopy,
    ) -> crate::Result<Option<Progress>> {
        if let (Some(wire), Head::Frame(header)) = (conn.wire(), &self.header) {
            self.was_begun = true;
            return match wire.send(header, &self.samples) {
                Ok(copied) => Ok(Some(Progress { sent: self.len(), copied })),
                Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(why) => Err(conn.failed("write to", why)),
            };
        }
        let Some(socket) = conn.socket() else { return Ok(None) };
        self.send(socket, sent, zero_copy).map_err(|errno| conn.failed("write to", errno))
    }

    pub(super) fn is_short(&self) -> bool {
        self.way == Way::Short
    }

    fn send_file(&self, socket: &TcpStream, from: usize) -> Result<Progress, Errno> {
        let file = self.samples.block().and_then(Block::memory_file).ok_or(Errno::INVAL)?;
        let mut offset = from as u64;
        let count = self.range.end - from;
        // The call knows no `MSG_NOSIGNAL`.
        let quiet = Quiet::new();
        let sent = rustix::fs::sendfile(socket, file, Some(&mut offset), count);
        drop(quiet);
        let sent = sent?;
        // Another process has truncated the memfd.
        if sent == 0 { Err(Errno::INVAL) } else { Ok(Progress { sent, copied: 0 }) }
    }
}

impl Way {
    /// The way that copies least, for a block of which more follow.
    fn of(samples: &Samples) -> Self {
        match samples.block() {
            Some(block) if block.memory_file().is_none() => Self::Copy,
            None => Self::Copy,
            Some(block) if *block.memory() == Memory::Memfd && samples.meta().len <= SHORT => {
                Self::Short
            }
            // The kernel does not support `sendfile` from huge pages.
            Some(block) if *block.memory() == Memory::HugePages => Self::Pages,
            Some(_) => Self::File,
        }
    }
}

/// `None` if there is no room.
fn outcome(done: Result<Progress, Errno>) -> Result<Option<Progress>, Errno> {
    match done {
        Ok(progress) => Ok(Some(progress)),
        Err(Errno::AGAIN) => Ok(None),
        Err(Errno::INTR) => Ok(Some(Progress::default())),
        Err(errno) => Err(errno),
    }
}

/// Copies short blocks to the socket, as many as there are in the queue from `cursor` on, and as one write takes;
/// `sent` bytes of the first frame were sent. `None` if there is no room.
pub(super) fn send_short(
    conn: &Conn,
    queue: &mut VecDeque<Queued>,
    cursor: usize,
    sent: usize,
) -> crate::Result<Option<Progress>> {
    let is_short = |queued: &&mut Queued| queued.is_short();
    let frames = queue.iter_mut().skip(cursor).take_while(is_short).take(MOST_SHORT);
    let count = frames.map(|queued| queued.was_begun = true).count();
    let mut readings = [const { None }; MOST_SHORT];
    for (reading, queued) in readings.iter_mut().zip(queue.range(cursor..cursor + count)) {
        *reading = Some(queued.samples.parts()?);
    }
    // A header and a block in turn.
    let mut parts = [Bytes::default(); 2 * MOST_SHORT];
    let frames = queue.range(cursor..cursor + count).zip(readings.iter().flatten());
    for (pair, (queued, reading)) in parts.chunks_exact_mut(2).zip(frames) {
        pair[0] = Bytes::from(queued.header.bytes());
        pair[1] = reading.iter().next().unwrap_or_default();
    }
    let head = sent.min(HEADER_LEN);
    parts[0] = parts[0].slice(head..);
    parts[1] = parts[1].slice(sent - head..);
    let parts = &parts[..2 * count];
    let Some(socket) = conn.socket() else { return Ok(None) };
    let done = block::send(socket, parts, SendFlags::NOSIGNAL).map(|sent| {
        let (mut left, mut copied) = (sent, 0);
        for pair in parts.chunks_exact(2) {
            left -= left.min(pair[0].len());
            let of_block = left.min(pair[1].len());
            (left, copied) = (left - of_block, copied + of_block as u64);
        }
        Progress { sent, copied }
    });
    outcome(done).map_err(|errno| conn.failed("write to", errno))
}

/// Copies the rest of the header, and these bytes of the block, to the socket.
fn copy(
    socket: &TcpStream,
    head: &[u8],
    parts: &Parts<'_>,
    range: Range<usize>,
) -> Result<Progress, Errno> {
    let head_part = Some(Bytes::from(head)).filter(|head| !head.is_empty());
    let all = head_part.into_iter().chain(parts.within(range));
    write(socket, head.len(), &all.take(MOST_PARTS).collect::<Vec<_>>())
}

/// Writes parts; the first `head` bytes are a header and do not count as copied.
fn write(socket: &TcpStream, head: usize, parts: &[Bytes<'_>]) -> Result<Progress, Errno> {
    let sent = block::send(socket, parts, SendFlags::NOSIGNAL)?;
    Ok(Progress { sent, copied: sent.saturating_sub(head) as u64 })
}

/// The zero-copy sends of a socket.
#[derive(Debug, Default)]
pub(in crate::stream) struct ZeroCopy {
    is_off: bool,
    next: u32,
    /// The numbers of the sends that are not completed, and their bytes.
    pending: VecDeque<(u32, usize)>,
}

impl ZeroCopy {
    pub(in crate::stream) fn new(socket: &TcpStream) -> Self {
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
    pub(in crate::stream) fn reap(&mut self, socket: &TcpStream) -> Result<u64, Errno> {
        let mut copied = 0;
        while !self.pending.is_empty() {
            let Some(done) = zerocopy::completion(socket)? else { break };
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
