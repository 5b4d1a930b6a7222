//! Work on a shared buffer.

use busbar::bulk::packet::{BufferMessage, Content, Crc16, Direction, Pattern, status};
use busbar::{Error, Result};
use busbar_uapi::rpmsg_bulk::{STATUS_FAULT, STATUS_MESSAGE_SIZE, STATUS_NO_BUFFERS};
use rustix::io::Errno;

use super::super::Port;
use super::outgoing::Body;
use super::{Kept, MAX_BLOCK, Treatment};
use crate::buffer::Part;

/// Bytes that are copied and then checked while they are in the cache.
const CHUNK: usize = 16 << 10;

/// State of the work.
pub(super) enum Outcome {
    /// It is not done yet.
    More,
    /// Everything is read or written: the block to keep, and the checksum.
    Done { block: Option<Vec<u8>>, crc: u16 },
    /// It failed, for this reason.
    Failed(u32),
}

/// A part of a shared buffer that Linux has given.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) from: u32,
    pub(super) message: BufferMessage,
    /// Its address was reset: nothing is kept for it.
    pub(super) forgotten: bool,
    work: Option<Work>,
}

#[derive(Debug)]
enum Work {
    Read { part: Part, bytes: Vec<u8>, crc: Crc16 },
    Check { part: Part, pattern: Pattern, at: usize },
    Fill { part: Part, body: Body, at: usize },
}

impl Given {
    pub(super) fn new(from: u32, message: BufferMessage) -> Self {
        Self { from, message, forgotten: false, work: None }
    }

    /// Works on up to `left` bytes, which it takes off. `last` is the last good block.
    pub(super) fn go_on(
        &mut self,
        port: &mut Port<'_>,
        buffers: Treatment,
        last: Option<&Kept>,
        left: &mut usize,
    ) -> Outcome {
        let result = match &mut self.work {
            Some(work) => work.go_on(left),
            None => match Work::new(port, &self.message, buffers, last) {
                Ok(work) => self.work.insert(work).go_on(left),
                Err(status) => return Outcome::Failed(status),
            },
        };
        result.unwrap_or_else(|error| Outcome::Failed(status_of(&error)))
    }
}

fn status_of(error: &Error) -> u32 {
    error.errno().map_or(STATUS_FAULT, status)
}

impl Work {
    fn new(
        port: &mut Port<'_>,
        message: &BufferMessage,
        buffers: Treatment,
        last: Option<&Kept>,
    ) -> Result<Self, u32> {
        let reads = message.direction == Direction::ToRemote;
        if reads && message.length > u64::from(MAX_BLOCK) {
            return Err(STATUS_MESSAGE_SIZE);
        }
        let buffer = port.buffer(message).map_err(|error| status_of(&error))?;
        if !reads {
            return Ok(Self::Fill { body: body(message.length, last)?, part: buffer, at: 0 });
        }
        if buffers == Treatment::Checked {
            // At most MAX_BLOCK.
            let pattern = Pattern(u32::try_from(buffer.len()).unwrap_or(u32::MAX));
            return Ok(Self::Check { part: buffer, pattern, at: 0 });
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(buffer.len()).map_err(|_| STATUS_NO_BUFFERS)?;
        Ok(Self::Read { part: buffer, bytes, crc: Crc16::default() })
    }

    fn go_on(&mut self, left: &mut usize) -> Result<Outcome> {
        loop {
            let (at, part) = match self {
                Self::Read { part, bytes, .. } => (bytes.len(), part),
                Self::Check { part, at, .. } | Self::Fill { part, at, .. } => (*at, part),
            };
            let size = CHUNK.min(part.len() - at);
            if size == 0 {
                return Ok(self.end());
            }
            if *left == 0 {
                return Ok(Outcome::More);
            }
            self.step(size)?;
            *left = left.saturating_sub(size);
        }
    }

    /// Works on the next `size` bytes.
    fn step(&mut self, size: usize) -> Result<()> {
        match self {
            Self::Read { part, bytes, crc } => {
                let from = bytes.len();
                part.append_to(bytes, from, size)?;
                crc.update(&bytes[from..]);
            }
            Self::Check { part, pattern, at } => {
                if !part.is(*at, pattern.bytes(*at as u64, size))? {
                    let part = format!("{size} bytes of a shared buffer from {at}");
                    return Err(Error::new("check", part, Errno::BADMSG));
                }
                *at += size;
            }
            Self::Fill { part, body, at } => {
                part.write(*at, body.bytes(*at as u64, size))?;
                *at += size;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Outcome {
        match self {
            Self::Read { bytes, crc, .. } => {
                Outcome::Done { block: Some(std::mem::take(bytes)), crc: crc.value() }
            }
            Self::Check { pattern, .. } => Outcome::Done { block: None, crc: pattern.crc() },
            Self::Fill { body, .. } => Outcome::Done { block: None, crc: body.crc() },
        }
    }
}

/// The content for a buffer of `length` bytes.
fn body(length: u64, last: Option<&Kept>) -> Result<Body, u32> {
    match last.filter(|kept| kept.length() == length) {
        Some(kept) => Ok(Body::Kept(kept.clone())),
        None => match u32::try_from(length) {
            Ok(length) => Ok(Body::pattern(length)),
            Err(_) => Err(status(Errno::MSGSIZE)),
        },
    }
}
