//! Ordinary receive into the pages of a block.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::filled::Filled;
use super::memory::Memory;
use super::view::{Piece, View};
use crate::block::{self, Block, BytesMut};
use crate::poll::{self, Deadline, Set};
use crate::{Error, Result};

/// Maximum number of bytes in one call.
const MOST: usize = 256 << 10;

/// Receives from a socket by copying.
#[derive(Debug)]
pub(super) struct Copies {
    memory: Arc<Memory>,
    /// Another handle of the memory, to write to: views of other parts are read meanwhile.
    filler: Block,
    /// Becomes readable when data has come, or when memory is free after a shortage.
    watched: Set,
    /// Whether the last call has received as much as it asked for: then there is likely more.
    has_more: bool,
}

impl Copies {
    pub(super) fn new(socket: &TcpStream, memory: &Arc<Memory>) -> Result<Self> {
        let filler = memory.block.try_clone()?;
        let watched = Set::new()?;
        watched.add(socket, 0, EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)?;
        watched.add(memory.bell(), 1, EventFlags::IN | EventFlags::ET)?;
        Ok(Self { memory: Arc::clone(memory), filler, watched, has_more: false })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Receives, by one call. After [`Filled::Nothing`] the descriptor becomes readable when there is something new.
    pub(super) fn fill(
        &mut self,
        socket: &TcpStream,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<Filled> {
        if self.has_more
            && let Some(filled @ (Filled::Some | Filled::End)) = self.receive(socket, pieces)?
        {
            return Ok(filled);
        }
        // Takes the events until now: what they report is handled now.
        self.watched.ready()?;
        Ok(self.receive(socket, pieces)?.unwrap_or(Filled::Nothing))
    }

    /// The same, but waits until the deadline. The socket alone is cheaper to wait for than the descriptor.
    pub(super) fn fill_until(
        &mut self,
        socket: &TcpStream,
        pieces: &mut VecDeque<Piece>,
        deadline: Deadline,
    ) -> Result<Filled> {
        // An error that is not one of receiving, as in the queue of zero-copy sends, is told again and again.
        let mut is_told_errors = false;
        loop {
            let waited = match self.receive(socket, pieces)? {
                Some(Filled::Nothing) if !is_told_errors => {
                    let events = poll::wait(socket, PollFlags::IN, deadline.remaining());
                    is_told_errors = events.is_ok_and(|it| it == PollFlags::ERR);
                    events
                }
                Some(Filled::Nothing) | None => match self.fill(socket, pieces)? {
                    Filled::Nothing => poll::wait(&*self, PollFlags::IN, deadline.remaining()),
                    filled => return Ok(filled),
                },
                Some(filled) => return Ok(filled),
            };
            waited.map_err(|errno| Error::new("wait for", "a connection", errno))?;
            if deadline.has_passed() {
                return self.fill(socket, pieces);
            }
        }
    }

    /// `None` if no memory is free.
    fn receive(
        &mut self,
        socket: &TcpStream,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<Option<Filled>> {
        self.has_more = false;
        let most = (MOST / self.memory.free().0).max(1);
        let Some(claimed) = self.memory.claim(most) else { return Ok(None) };
        let received = self.filler.write().and_then(|mut filling| {
            receive(socket, &mut filling.bytes_mut().slice(claimed.clone()))
                .map_err(|errno| Error::new("receive from", "a connection", errno))
        });
        let len = received.as_ref().ok().copied().flatten().unwrap_or(0);
        self.has_more = len == claimed.len();
        let kept = self.memory.keep(&claimed, len);
        Ok(Some(match received? {
            None => Filled::Nothing,
            Some(0) => Filled::End,
            Some(_) => {
                self.memory.counts.bytes.fetch_add(len as u64, Ordering::Relaxed);
                self.memory.counts.copied.fetch_add(len as u64, Ordering::Relaxed);
                pieces.push_back(Piece::View(View::new(&self.memory, kept, None)));
                Filled::Some
            }
        }))
    }
}

impl AsFd for Copies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

/// How many bytes were received, 0 at the end; `None` if there are none.
fn receive(socket: &TcpStream, bytes: &mut BytesMut<'_>) -> Result<Option<usize>, Errno> {
    loop {
        match block::receive(socket, bytes.slice(..), RecvFlags::DONTWAIT) {
            Ok(len) => return Ok(Some(len)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}
