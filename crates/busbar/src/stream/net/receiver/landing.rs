//! The listener, and the memory for blocks.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

use super::super::conn::Inflow;
use super::super::pieces::Pieces;
use super::super::wire::Port;
use crate::block::{Block, Memory};
use crate::receive;
use crate::stream::setup::StreamSetup;
use crate::{Error, Result};

/// Accepts connections.
#[derive(Debug)]
pub(super) enum Landing {
    /// Bytes are copied from the socket's memory into blocks.
    Blocks(TcpListener),
    /// Bytes stay where the receiver has put them.
    Memory { listener: receive::Listener, receiver: Box<receive::Receiver> },
    /// Bytes are copied from the memory of a connection that is not a socket.
    #[cfg_attr(not(feature = "usb"), allow(dead_code))]
    Port(Box<dyn Port>),
}

/// Room for a block.
#[derive(Debug)]
pub(super) enum Room {
    Block(Block),
    /// The block stays where it was received.
    Apart,
}

impl From<Block> for Room {
    fn from(block: Block) -> Self {
        Self::Block(block)
    }
}

impl Landing {
    /// The next connection, if one waits.
    pub(super) fn accept(&mut self) -> Result<Option<Inflow>> {
        let listener = match self {
            Self::Blocks(listener) => listener,
            Self::Memory { listener, .. } => {
                let connection = listener.try_accept()?;
                return Ok(
                    connection.map(|connection| Inflow::Pieces(Box::new(Pieces::new(connection))))
                );
            }
            Self::Port(port) => return Ok(port.open()?.map(Inflow::Wire)),
        };
        loop {
            match listener.accept() {
                Ok((socket, _)) if socket.set_nonblocking(true).is_err() => {}
                Ok((socket, _)) => return Ok(Some(Inflow::Socket(socket))),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(why) => return Err(Error::new("accept", "a connection", why)),
            }
        }
    }

    pub(super) fn local_addr(&self) -> Result<SocketAddr> {
        match self {
            Self::Blocks(listener) => listener
                .local_addr()
                .map_err(|why| Error::new("find the address of", "a listener", why)),
            Self::Memory { listener, .. } => listener.local_addr(),
            Self::Port(_) => Err(Error::new(
                "find the address of",
                "a USB connection",
                std::io::Error::from(ErrorKind::Unsupported),
            )),
        }
    }

    /// Room for `blocks` blocks of a stream, each of up to `len` bytes and `limit` in all.
    pub(super) fn rooms(
        &self,
        blocks: usize,
        len: usize,
        setup: &StreamSetup,
        limit: usize,
    ) -> Result<Vec<Room>> {
        if !self.fits(blocks, len, setup, limit) {
            let came = format!("{blocks} of {len} bytes");
            let allowed = format!("up to {limit} bytes in all: the memory limit");
            return Err(Error::invalid("the blocks for a sender", came, allowed));
        }
        match self {
            Self::Blocks(_) | Self::Port(_) => {
                let memory = memory(setup);
                (0..blocks).map(|_| Block::with(len, memory).map(Room::Block)).collect()
            }
            Self::Memory { receiver, .. } => {
                let most = receiver.block().len();
                if len > most {
                    let allowed = format!("at most {most} bytes: all of the memory");
                    return Err(Error::invalid("the length of a sender's blocks", len, allowed));
                }
                Ok((0..blocks).map(|_| Room::Apart).collect())
            }
        }
    }

    /// Why there is no room for blocks of `len` bytes, for the sender.
    pub(super) fn refusal(
        &self,
        blocks: usize,
        len: usize,
        setup: &StreamSetup,
        limit: usize,
    ) -> String {
        match self {
            _ if !self.fits(blocks, len, setup, limit) => {
                format!(
                    "{blocks} blocks of {len} bytes are more than the {limit} bytes allowed here"
                )
            }
            Self::Blocks(_) | Self::Port(_) => {
                format!("there is no memory for blocks of {len} bytes")
            }
            Self::Memory { receiver, .. } => {
                let most = receiver.block().len();
                format!("blocks of {len} bytes are too long for the memory here, of {most} bytes")
            }
        }
    }

    /// Whether `blocks` blocks of `len` bytes are within a limit.
    pub(super) fn fits(
        &self,
        blocks: usize,
        len: usize,
        setup: &StreamSetup,
        limit: usize,
    ) -> bool {
        let all = match self {
            Self::Blocks(_) | Self::Port(_) => memory(setup).size_of(blocks, len),
            // When little memory is left, each of them is copied out of it.
            Self::Memory { .. } => len.checked_mul(blocks),
        };
        all.is_some_and(|all| all <= limit)
    }
}

fn memory(setup: &StreamSetup) -> &Memory {
    setup.memory.as_ref().unwrap_or(&Memory::Memfd)
}

impl AsFd for Landing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Blocks(listener) => listener.as_fd(),
            Self::Memory { listener, .. } => listener.as_fd(),
            Self::Port(port) => port.descriptor(),
        }
    }
}
