//! Ordinary receive into the pages of a block.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::connection::Filled;
use super::memory::Memory;
use super::view::{Piece, View};
use crate::block::Block;
use crate::{Error, Result};

/// Bytes that are received in one call.
const MOST: usize = 64 << 10;

/// Receives from a socket by copying.
#[derive(Debug)]
pub(super) struct Copies {
    memory: Arc<Memory>,
    /// The same memory, to write to: views of other parts are read meanwhile.
    filler: Block,
    /// Becomes readable when data has come or, for who found none, memory is free.
    epoll: OwnedFd,
}

impl Copies {
    pub(super) fn new(socket: &TcpStream, memory: &Arc<Memory>) -> Result<Self> {
        let failed = |errno| Error::new("watch", "a connection", errno);
        let filler = memory.block.try_clone()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&epoll, socket, EventData::new_u64(0), flags).map_err(failed)?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, memory.bell(), EventData::new_u64(1), flags).map_err(failed)?;
        Ok(Self { memory: Arc::clone(memory), filler, epoll })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Receives as much as one call does.
    pub(super) fn fill(
        &mut self,
        socket: &TcpStream,
        pieces: &mut VecDeque<Piece>,
    ) -> Result<Filled> {
        self.forget_events()?;
        let most = (MOST / self.memory.free().0).max(1);
        let Some(claimed) = self.memory.claim(most) else { return Ok(Filled::Nothing) };
        let received = self.filler.write().and_then(|mut bytes| {
            receive(socket, &mut bytes[claimed.clone()])
                .map_err(|errno| Error::new("receive from", "a connection", errno))
        });
        let len = received.as_ref().ok().copied().flatten().unwrap_or(0);
        let kept = self.memory.keep(&claimed, len);
        match received? {
            None => Ok(Filled::Nothing),
            Some(0) => Ok(Filled::End),
            Some(_) => {
                self.memory.counts.bytes.fetch_add(len as u64, Ordering::Relaxed);
                self.memory.counts.copied.fetch_add(len as u64, Ordering::Relaxed);
                pieces.push_back(Piece::View(View::new(&self.memory, kept, None)));
                Ok(Filled::Some)
            }
        }
    }

    /// What has happened until now is looked at now.
    fn forget_events(&self) -> Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(2);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::new("wait for", "a connection", errno)),
        }
    }
}

impl AsFd for Copies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// How many bytes were received, 0 at the end; nothing where none have come.
fn receive(socket: &TcpStream, bytes: &mut [u8]) -> Result<Option<usize>, Errno> {
    loop {
        match recv(socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((len, _)) => return Ok(Some(len)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}
