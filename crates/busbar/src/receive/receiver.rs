//! Receivers: a block, and the device that fills it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, ipproto, socket_with,
    sockopt,
};

use super::connection::Connection;
use super::listener::Listener;
use super::memory::Memory;
use super::nic::Nic;
use super::{ReceiveSetup, Statistics, Tokens};
use crate::block::Block;
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// Receives into a block; see [the module](super).
#[derive(Debug)]
pub struct Receiver {
    memory: Arc<Memory>,
    nic: Option<Nic>,
}

impl Receiver {
    /// Receives from any device, on any host and without privilege, with one copy into the block.
    ///
    /// # Errors
    ///
    /// Invalid input for a block of less than a page; `EMFILE`.
    pub fn host(block: Block) -> Result<Self> {
        Ok(Self { memory: Arc::new(Memory::new(block)?), nic: None })
    }

    /// Makes queues of the network device `name` receive into the block, which has to be a DMABUF,
    /// preferably of [`Memory::Pages`](crate::block::Memory::Pages).
    ///
    /// # Errors
    ///
    /// `ENODEV`; `EPERM` without `CAP_NET_ADMIN`; `EOPNOTSUPP` if kernel or driver do not support it;
    /// `EBUSY` if queues are bound to other memory; invalid input for queues and tokens that are not
    /// available. All settings are undone then.
    pub fn open(name: &str, block: Block, setup: &ReceiveSetup) -> Result<Self> {
        let nic = Nic::open(name, &block, setup)?;
        Ok(Self { memory: Arc::new(Memory::new(block)?), nic: Some(nic) })
    }

    /// How many queues of the device `name` can be used, as far as that can be known without
    /// changing anything. This needs no privilege.
    ///
    /// # Errors
    ///
    /// The first requirement that is missing.
    pub fn offered(name: &str) -> Result<usize> {
        Nic::offered(name)
    }

    /// Listens on `address`; port 0 chooses a free one.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`; `ENOSPC` if the device has no room for a rule.
    pub fn listen(&self, address: SocketAddr) -> Result<Listener> {
        let failed = |why| Error::new("listen on", address.to_string(), why);
        let socket = TcpListener::bind(address).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let steering = match &self.nic {
            Some(nic) => {
                self.memory.shares.begin(&socket)?;
                let mut local = vec![socket.local_addr().map_err(failed)?];
                let takes_both = address.ip() == Ipv6Addr::UNSPECIFIED
                    && !sockopt::ipv6_v6only(&socket).map_err(|errno| failed(errno.into()))?;
                if takes_both {
                    local.push((Ipv4Addr::UNSPECIFIED, local[0].port()).into());
                }
                Some(nic.steer(&local)?)
            }
            None => None,
        };
        let (memory, binding) = (Arc::clone(&self.memory), self.binding());
        Ok(Listener { socket, memory, binding, steering })
    }

    /// Connects to `address`. Waits for the answer as long as TCP does, some minutes.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`, `ECONNREFUSED`, `EHOSTUNREACH`; `ENOSPC` as [`listen`](Self::listen).
    pub fn connect(&self, address: SocketAddr) -> Result<Connection> {
        self.connect_until(address, Deadline::NEVER)
    }

    /// Connects to `address`. Waits for the answer for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); `ETIMEDOUT` after that time.
    pub fn connect_timeout(&self, address: SocketAddr, timeout: Duration) -> Result<Connection> {
        self.connect_until(address, Deadline::after(timeout))
    }

    fn connect_until(&self, address: SocketAddr, deadline: Deadline) -> Result<Connection> {
        let failed = |errno| Error::new("connect to", address.to_string(), errno);
        let (family, any): (_, SocketAddr) = match address {
            SocketAddr::V4(_) => (AddressFamily::INET, (Ipv4Addr::UNSPECIFIED, 0).into()),
            SocketAddr::V6(_) => (AddressFamily::INET6, (Ipv6Addr::UNSPECIFIED, 0).into()),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(failed)?;
        let steering = match &self.nic {
            Some(nic) => {
                self.memory.shares.begin(&socket)?;
                // The rule has to exist before the answer comes.
                bind(&socket, &any).map_err(failed)?;
                let local = getsockname(&socket).and_then(SocketAddr::try_from).map_err(failed)?;
                Some(nic.steer(&[local])?)
            }
            None => None,
        };
        call(&socket, &address, deadline).map_err(failed)?;
        Connection::new(TcpStream::from(socket), &self.memory, self.binding(), steering)
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.memory.block
    }

    /// The queues that fill the block; none without a device.
    #[must_use]
    pub fn queues(&self) -> &[u32] {
        self.nic.as_ref().map_or(&[], |nic| &nic.queues)
    }

    /// Who records tokens: never [`Tokens::Default`]; `None` without a device.
    #[must_use]
    pub fn tokens(&self) -> Option<Tokens> {
        self.nic.as_ref().map(|nic| nic.tokens)
    }

    /// The counters of all its connections together.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is gone.
    pub fn statistics(&self) -> Result<Statistics> {
        let statistics = self.memory.statistics();
        Ok(match &self.nic {
            Some(nic) => Statistics { shortages: nic.dropped()?, ..statistics },
            None => statistics,
        })
    }

    /// Undoes all settings. Connections continue without the device; views remain valid.
    ///
    /// # Errors
    ///
    /// The first setting that could not be undone. The others are undone.
    pub fn close(self) -> Result<()> {
        self.nic.map_or(Ok(()), Nic::close)
    }

    fn binding(&self) -> Option<u32> {
        self.nic.as_ref().map(|nic| nic.id)
    }
}

fn call(socket: &OwnedFd, address: &SocketAddr, deadline: Deadline) -> Result<(), Errno> {
    match connect(socket, address) {
        Ok(()) => return Ok(()),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    loop {
        let happened = poll::wait(socket, PollFlags::OUT, deadline.remaining())?;
        if !happened.is_empty() {
            return sockopt::socket_error(socket)?;
        }
        if deadline.has_passed() {
            return Err(Errno::TIMEDOUT);
        }
    }
}
