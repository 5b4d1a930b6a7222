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

    /// Whether the kernel can bind at all. Linux 7.3 looks at the device first, and tells only of one whose
    /// queues can be bound.
    fn binds(&mut self) -> Result<Option<bool>> {
        match self.binds_to(Device::open("lo")?.index) {
            Ok(None) => {}
            told => return Ok(told.unwrap_or(None)),
        }
        let queues = self.socket.dump(Request::new(command::QUEUE_GET)).unwrap_or_default();
        let mut devices: Vec<_> = queues.iter().filter_map(|one| one.u32(queue::IFINDEX)).collect();
        devices.dedup();
        Ok(devices.iter().find_map(|index| self.binds_to(*index).unwrap_or(None)))
    }

    /// Makes an impossible request. `None`: the device is refused, which says nothing about others.
    fn binds_to(&mut self, index: u32) -> Result<Option<bool>, Errno> {
        match self.socket.ask(bind_request(index, -1, &[0]), Deadline::after(ANSWER)) {
            Err(Errno::BADF) => Ok(Some(true)),
            Err(errno @ (Errno::PERM | Errno::ACCESS)) => Err(errno),
            Err(Errno::NODEV) => Ok(None),
            // It explains why this device cannot be bound; a kernel that cannot bind explains nothing.
            _ if self.socket.explanation().is_some() => Ok(Some(true)),
            _ if self.socket.has_culprit() => Ok(None),
            _ => Ok(Some(false)),
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

#[cfg(test)]
mod tests {
    use busbar_uapi::netlink;
    use netlink_packet_core::Emitable;
    use rustix::net::{SendFlags, send};

    use super::*;

    /// The attributes of an explanation.
    fn attributes(request: &Request<'_>) -> Vec<u8> {
        let mut bytes = vec![0; request.buffer_len()];
        request.emit(&mut bytes);
        bytes
    }

    /// `NLMSG_ERROR` with the header of the request and an explanation.
    fn refusal(sequence: u32, errno: Errno, explanation: &[u8]) -> Vec<u8> {
        let length = u32::try_from(36 + explanation.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(2_u16.to_ne_bytes());
        bytes.extend(netlink::EXPLAINED.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend((-errno.raw_os_error()).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(explanation);
        bytes
    }

    #[test]
    fn a_device_that_cannot_be_bound_is_no_kernel_that_cannot_bind() {
        let (socket, kernel) = Socket::deaf();
        let mut netdev = Netdev { socket };
        let text = attributes(&Request::new(0).bytes(netlink::TEXT, b"no DMA\0"));
        let culprit = attributes(&Request::new(0).u32(netlink::CULPRIT, 20));
        let both = [text.clone(), culprit.clone()].concat();
        let cases = [
            (Errno::BADF, &[][..], Ok(Some(true))),
            (Errno::OPNOTSUPP, &text, Ok(Some(true))),
            (Errno::OPNOTSUPP, &both, Ok(Some(true))),
            (Errno::OPNOTSUPP, &culprit, Ok(None)),
            (Errno::NODEV, &[], Ok(None)),
            (Errno::OPNOTSUPP, &[], Ok(Some(false))),
            (Errno::PERM, &[], Err(Errno::PERM)),
        ];
        for ((errno, explanation, told), sequence) in cases.into_iter().zip(1..) {
            send(&kernel, &refusal(sequence, errno, explanation), SendFlags::empty()).unwrap();
            assert_eq!(netdev.binds_to(1), told, "{errno:?}");
        }
    }
}
