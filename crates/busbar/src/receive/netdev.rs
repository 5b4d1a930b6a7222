//! Queues of a network device, and bindings to them.

use std::os::fd::{AsFd, AsRawFd};

use busbar_uapi::netdev::{self as uapi, command, dmabuf, queue, stats};
use rustix::io::Errno;

use super::Offer;
use super::ethtool::Device;
use crate::netlink::{ANSWER, Attributes, Request, Socket};
use crate::poll::Deadline;
use crate::{Error, Result};

/// A receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) id: u32,
    /// Whether it is bound to memory already.
    pub(super) is_bound: bool,
}

/// The netlink family `netdev`. Closing the socket ends the bindings that were made by it.
#[derive(Debug)]
pub(super) struct Netdev {
    socket: Socket,
}

impl Netdev {
    pub(super) fn open() -> Result<Self> {
        let socket = Socket::open(uapi::FAMILY).map_err(|errno| {
            Error::new("use", "netlink family netdev", errno)
                .help("device memory needs a kernel with CONFIG_NET_DEVMEM")
        })?;
        Ok(Self { socket })
    }

    pub(super) fn offer(&mut self) -> Result<Offer> {
        let has_index_tokens = match self.socket.takes_flag(command::BIND_RX, dmabuf::AUTORELEASE) {
            // It does not have the command.
            Err(Errno::NOENT | Errno::OPNOTSUPP) => {
                return Ok(Offer { binds: Some(false), has_index_tokens: false });
            }
            answer => answer.map_err(|errno| Error::new("ask", "netlink family netdev", errno))?,
        };
        Ok(Offer { binds: self.binds()?, has_index_tokens })
    }

    /// Whether the kernel can bind at all: makes an impossible request.
    fn binds(&mut self) -> Result<Option<bool>> {
        let request = bind_request(Device::open("lo")?.index, -1, &[0]);
        match self.socket.ask(request, Deadline::after(ANSWER)) {
            Err(Errno::BADF) => Ok(Some(true)),
            Err(Errno::PERM | Errno::ACCESS) => Ok(None),
            // It explains why this device cannot be bound; a kernel that cannot bind explains nothing.
            _ => Ok(Some(self.socket.explanation().is_some())),
        }
    }

    /// The receive queues of a device, by number.
    pub(super) fn queues(&mut self, device: &Device) -> Result<Vec<Queue>> {
        let request = Request::new(command::QUEUE_GET).u32(queue::IFINDEX, device.index);
        let found = self
            .socket
            .dump(request)
            .map_err(|errno| device.failed("list the queues of", errno))?;
        let mut queues: Vec<_> = found.iter().filter_map(receiving).collect();
        queues.sort_unstable_by_key(|queue| queue.id);
        Ok(queues)
    }

    /// Binds a DMABUF to queues; returns the number of the binding.
    pub(super) fn bind(
        &mut self,
        device: &Device,
        block: impl AsFd,
        queues: &[u32],
        autorelease: bool,
    ) -> Result<u32> {
        let mut request = bind_request(device.index, block.as_fd().as_raw_fd(), queues);
        if autorelease {
            request = request.bytes(dmabuf::AUTORELEASE, &[]);
        }
        let answer = self.socket.ask(request, Deadline::after(ANSWER));
        let answer = answer.and_then(|answer| answer.ok_or(Errno::TIMEDOUT));
        let tried = format!("bind a block to queues {queues:?} of");
        let answer = answer.map_err(|errno| {
            let error = device.failed(&tried, errno);
            match self.socket.explanation() {
                Some(explanation) => error.help(format!("the kernel says: {explanation}")),
                None => error,
            }
        })?;
        answer.u32(dmabuf::ID).ok_or_else(|| device.failed(&tried, Errno::PROTO))
    }

    /// Frames that these queues have dropped because memory was short, if the driver counts them.
    pub(super) fn dropped(&mut self, device: &Device, queues: &[u32]) -> Result<Option<u64>> {
        let request = Request::new(command::QSTATS_GET)
            .u32(stats::IFINDEX, device.index)
            .u32(stats::SCOPE, stats::QUEUE);
        let found = match self.socket.dump(request) {
            Err(Errno::OPNOTSUPP) => return Ok(None),
            found => found.map_err(|errno| device.failed("read the counters of", errno))?,
        };
        let is_ours = |answer: &&Attributes| {
            let id = answer.u32(stats::QUEUE_ID);
            let receives = answer.u32(stats::QUEUE_TYPE) == Some(queue::RX);
            receives && id.is_some_and(|id| queues.contains(&id))
        };
        let counts: Vec<_> =
            found.iter().filter(is_ours).filter_map(|one| one.uint(stats::RX_ALLOC_FAIL)).collect();
        Ok((!counts.is_empty()).then(|| counts.iter().sum()))
    }
}

fn bind_request(index: u32, block: i32, queues: &[u32]) -> Request<'static> {
    let request = Request::new(command::BIND_RX)
        .u32(dmabuf::IFINDEX, index)
        .u32(dmabuf::FD, block.cast_unsigned());
    queues.iter().fold(request, |request, id| {
        let one = Request::nested().u32(queue::ID, *id).u32(queue::TYPE, queue::RX);
        request.nest(dmabuf::QUEUES, &one)
    })
}

fn receiving(answer: &Attributes) -> Option<Queue> {
    let id = answer.u32(queue::ID).filter(|_| answer.u32(queue::TYPE) == Some(queue::RX))?;
    Some(Queue { id, is_bound: answer.u32(queue::DMABUF).is_some() })
}
