//! Listeners.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use super::connection::Connection;
use super::memory::Memory;
use super::rule::Steering;
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// Accepts connections whose data goes into the block of its [`Receiver`](super::Receiver).
///
/// It is readable when a connection can be accepted.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) memory: Arc<Memory>,
    /// Number of the binding, if there is a device.
    pub(super) binding: Option<u32>,
    pub(super) steering: Option<Arc<Steering>>,
}

impl Listener {
    /// Waits for a connection, without a time limit.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENOMEM`.
    pub fn accept(&self) -> Result<Connection> {
        poll::forever(|deadline| self.accept_until(deadline))
    }

    /// A connection, if one can be accepted now.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn try_accept(&self) -> Result<Option<Connection>> {
        self.accept_until(Deadline::now())
    }

    /// Waits for a connection; `None` if none came within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<Connection>> {
        self.accept_until(Deadline::after(timeout))
    }

    fn accept_until(&self, deadline: Deadline) -> Result<Option<Connection>> {
        let failed = |why| Error::new("accept", "a connection", why);
        loop {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    let steering = self.steering.clone();
                    return Connection::new(socket, &self.memory, self.binding, steering).map(Some);
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    if deadline.has_passed() {
                        return Ok(None);
                    }
                    poll::wait(&self.socket, PollFlags::IN, deadline.remaining())
                        .map_err(|errno| failed(errno.into()))?;
                }
                // The peer has disappeared already.
                Err(why) if why.kind() == ErrorKind::ConnectionAborted => {}
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(failed(why)),
            }
        }
    }

    /// The address on which it listens.
    ///
    /// # Errors
    ///
    /// None are known.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(|why| Error::new("find the address of", "a listener", why))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
