//! Blocks through `rpmsg_netlink` (`kernel/modules/rpmsg_netlink/rpmsg_netlink.yaml`).

use std::io;

use busbar_uapi::rpmsg_netlink::{self as uapi, block, channel, command};
use rustix::io::Errno;

use super::carrier::{Carrier, Wanted, refusal, timed_out};
use super::packet::{crc16, errno};
use super::transfer::Transfer;
use crate::endpoint::Controller;
use crate::netlink::{Attributes, Request, Socket};
use crate::poll::Deadline;
use crate::{Error, Result};

const SEND: &str = "send a block to";
const RECEIVE: &str = "receive a block from";

/// The rpmsg devices that the driver has, by their names in sysfs.
pub(super) fn channels() -> Result<Vec<String>> {
    Ok(list(&mut open()?)?.into_iter().map(|(_, device)| device).collect())
}

fn open() -> Result<Socket> {
    Socket::open(uapi::FAMILY).map_err(|errno| match errno {
        Errno::NOENT => failed(errno).help("this needs the module: modprobe rpmsg_netlink"),
        _ => failed(errno),
    })
}

/// The number and the rpmsg device of each channel.
fn list(socket: &mut Socket) -> Result<Vec<(u32, String)>> {
    let found = socket.dump(Request::new(command::CHANNEL_GET)).map_err(failed)?;
    let channel = |it: &Attributes| Some((it.u32(channel::ID)?, it.text(channel::DEVICE)?));
    Ok(found.iter().filter_map(channel).collect())
}

fn failed(errno: Errno) -> Error {
    Error::new("use", format!("netlink family {}", uapi::FAMILY), errno)
}

/// No deadline in the driver: the caller has one, or none.
const NO_TIMEOUT: u32 = u32::MAX;

/// A client of the driver, on one channel.
pub(super) struct Netlink {
    socket: Socket,
    channel: u32,
    device: String,
    /// A transfer may be under way that was given up here.
    stale: bool,
}

impl Netlink {
    /// A client on the channel of the coprocessor behind `controller`.
    pub(super) fn open(controller: &Controller) -> Result<Self> {
        let mut socket = open()?;
        for (channel, device) in list(&mut socket)? {
            if controller.has_channel(&device)? {
                return Ok(Self { socket, channel, device, stale: false });
            }
        }
        let why = io::Error::new(io::ErrorKind::NotFound, "the coprocessor has not announced one");
        Err(Error::new("find", "a channel of rpmsg_netlink", why)
            .help("the coprocessor needs a service `rpmsg-netlink`"))
    }

    fn request(&self, command: u8) -> Request<'static> {
        Request::new(command).u32(block::CHANNEL, self.channel)
    }

    /// Makes a request and waits for its notification.
    fn ask(
        &mut self,
        request: Request<'_>,
        tried: &str,
        deadline: Deadline,
    ) -> Result<Notification> {
        let done = self.socket.ask(request.u32(block::TIMEOUT, NO_TIMEOUT), deadline);
        let attributes = match done {
            Ok(Some(attributes)) => attributes,
            Ok(None) => return Err(timed_out(tried, self.label())),
            Err(errno) => return Err(self.failed(tried, errno)),
        };
        let status = attributes.u32(block::STATUS).unwrap_or(0);
        match errno(status) {
            None => Ok(Notification(attributes)),
            Some(errno) => Err(self.failed(tried, errno)),
        }
    }

    /// Ends a transfer that is still under way after an error.
    fn refresh(&mut self, deadline: Deadline) -> Result<()> {
        if !self.stale {
            return Ok(());
        }
        let reset = self.request(command::RESET);
        match self.socket.acknowledged(reset, deadline) {
            Ok(true) => self.stale = false,
            Ok(false) => return Err(timed_out("reset", self.label())),
            Err(errno) => return Err(self.failed("reset", errno)),
        }
        Ok(())
    }

    fn within<T>(
        &mut self,
        deadline: Deadline,
        exchange: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.refresh(deadline)?;
        self.stale = true;
        let done = exchange(self)?;
        self.stale = false;
        Ok(done)
    }

    fn send_parts(
        &mut self,
        bytes: &[u8],
        transfer: &mut Transfer<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let length =
            u32::try_from(bytes.len()).map_err(|_| refusal(SEND, self.label(), Errno::MSGSIZE))?;
        let mut offset = 0;
        for part in bytes.chunks(uapi::PART_MAX) {
            let mut request =
                self.request(command::SEND).u32(block::LENGTH, length).u32(block::OFFSET, offset);
            // The kernel computes the check sum of a block of one part.
            if offset == 0 && part.len() < bytes.len() {
                request = request.u16(block::CRC, crc16(bytes));
            }
            let told = self.ask(request.bytes(block::DATA, part), SEND, deadline)?;
            offset += u32::try_from(part.len()).unwrap_or(u32::MAX);
            let done = told.0.command == command::SEND_DONE_NTF;
            if done != (offset == length) {
                return Err(self.failed(SEND, Errno::PROTO));
            }
            transfer.tell(offset.into(), length.into());
        }
        Ok(())
    }

    fn receive_parts(
        &mut self,
        wanted: u32,
        transfer: &mut Transfer<'_>,
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut request = self.request(command::RECEIVE).u32(block::LENGTH, wanted);
        loop {
            let part = self.ask(request, RECEIVE, deadline)?.0;
            let (length, offset) = (part.u32(block::LENGTH), part.u32(block::OFFSET));
            let (Some(length), Some(offset)) = (length, offset) else {
                return Err(self.failed(RECEIVE, Errno::PROTO));
            };
            let data = part.bytes(block::DATA).unwrap_or_default();
            if length > transfer.longest() {
                return Err(self.failed(RECEIVE, Errno::MSGSIZE));
            }
            let (end, length) = (u64::from(offset) + data.len() as u64, u64::from(length));
            if u64::from(offset) != bytes.len() as u64 || end > length || data.is_empty() {
                return Err(self.failed(RECEIVE, Errno::PROTO));
            }
            bytes.extend(data);
            transfer.tell(end, length);
            if end == length {
                return Ok(bytes);
            }
            request = self.request(command::FETCH);
        }
    }

    fn label(&self) -> String {
        format!("channel {}", self.device)
    }

    fn failed(&self, tried: &str, errno: Errno) -> Error {
        match errno {
            Errno::NODEV | Errno::NOENT | Errno::PIPE | Errno::SHUTDOWN | Errno::NXIO => {
                Error::new(tried, self.label(), Errno::PIPE)
                    .help("the coprocessor stopped or crashed")
            }
            Errno::PERM => Error::new(tried, self.label(), errno).help("this needs CAP_NET_ADMIN"),
            Errno::OPNOTSUPP => Error::new(tried, self.label(), errno)
                .help("the firmware is that of the STM32MP1 example, which receives blocks and sends none"),
            Errno::BUSY => Error::new(tried, self.label(), errno)
                .help("the firmware receives one block at a time, and another client is sending one"),
            errno => refusal(tried, self.label(), errno),
        }
    }
}

/// The notification of a request that was not refused.
struct Notification(Attributes);

impl Carrier for Netlink {
    fn send(&mut self, block: &[u8], transfer: &mut Transfer<'_>) -> Result<()> {
        let deadline = transfer.deadline();
        self.within(deadline, |netlink| netlink.send_parts(block, transfer, deadline))
    }

    fn receive(&mut self, wanted: Wanted, transfer: &mut Transfer<'_>) -> Result<Vec<u8>> {
        let deadline = transfer.deadline();
        let wanted = wanted.on_the_wire()?;
        self.within(deadline, |netlink| netlink.receive_parts(wanted, transfer, deadline))
    }
}
