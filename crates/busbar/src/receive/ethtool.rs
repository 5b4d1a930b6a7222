//! Settings of a network device.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use busbar_uapi::ethtool::{self, FlowSpec, RuleTable};
use busbar_uapi::netdev::ethtool as family;
use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::netlink::{ANSWER, Request, Socket};
use crate::poll::Deadline;
use crate::{Error, Result};

/// A network device, which keeps its number when it is renamed.
#[derive(Debug)]
pub(super) struct Device {
    /// Its name when it was opened.
    pub(super) name: String,
    pub(super) index: u32,
    socket: OwnedFd,
}

impl Device {
    pub(super) fn open(name: &str) -> Result<Self> {
        let failed = |errno| {
            Error::new("find the network device", name, errno)
                .help("`ip link` lists those of this network namespace")
        };
        CString::new(name).map_err(|_| failed(Errno::NODEV))?;
        let socket =
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let index = name_to_index(&socket, name).map_err(failed)?;
        Ok(Self { name: name.into(), index, socket })
    }

    /// The error of a call on this device.
    pub(super) fn failed(&self, tried: &str, errno: Errno) -> Error {
        let error = Error::new(tried, self.name.clone(), errno);
        match errno {
            Errno::PERM | Errno::ACCESS => error
                .help("this needs CAP_NET_ADMIN; ordinary receive into a block needs no privilege"),
            Errno::OPNOTSUPP => error.help(
                "its driver does not support that, so it cannot receive into device memory; `vnic` can",
            ),
            _ => error,
        }
    }

    pub(super) fn flags(&self) -> Result<u32, Errno> {
        ethtool::flags(&self.socket, &self.current_name()?)
    }

    pub(super) fn set_flags(&self, flags: u32) -> Result<(), Errno> {
        ethtool::set_flags(&self.socket, &self.current_name()?, flags)
    }

    pub(super) fn indirection(&self) -> Result<Vec<u32>, Errno> {
        ethtool::indirection(&self.socket, &self.current_name()?)
    }

    pub(super) fn set_indirection(&self, table: &[u32]) -> Result<(), Errno> {
        ethtool::set_indirection(&self.socket, &self.current_name()?, table)
    }

    pub(super) fn rule_table(&self) -> Result<RuleTable, Errno> {
        ethtool::rule_table(&self.socket, &self.current_name()?)
    }

    /// The existing rules.
    pub(super) fn rules(&self) -> Result<Vec<FlowSpec>, Errno> {
        let name = self.current_name()?;
        let locations = loop {
            let count = ethtool::rule_table(&self.socket, &name)?.used;
            match ethtool::locations(&self.socket, &name, count) {
                // More were added meanwhile.
                Err(Errno::MSGSIZE) => {}
                locations => break locations?,
            }
        };
        let rules = locations.into_iter().map(|at| ethtool::rule(&self.socket, &name, at));
        // A rule that was removed meanwhile is skipped.
        rules.filter(|rule| *rule != Err(Errno::NOENT)).collect()
    }

    pub(super) fn insert_rule(&self, spec: FlowSpec) -> Result<u32, Errno> {
        ethtool::insert_rule(&self.socket, &self.current_name()?, spec)
    }

    pub(super) fn delete_rule(&self, location: u32) -> Result<(), Errno> {
        ethtool::delete_rule(&self.socket, &self.current_name()?, location)
    }

    fn current_name(&self) -> Result<String, Errno> {
        index_to_name(&self.socket, self.index)
    }
}

/// The setting of header split of a device.
#[derive(Debug)]
pub(super) struct Split {
    socket: Socket,
    index: u32,
}

impl Split {
    pub(super) fn open(device: &Device) -> Result<Self> {
        let socket = Socket::open(family::FAMILY)
            .map_err(|errno| Error::new("use", "netlink family ethtool", errno))?;
        Ok(Self { socket, index: device.index })
    }

    /// The kernel's number of the setting; 0 if the driver does not report it.
    pub(super) fn get(&mut self) -> Result<u8, Errno> {
        let request = self.request(family::RINGS_GET);
        let answer = self.socket.ask(request, Deadline::after(ANSWER))?.ok_or(Errno::TIMEDOUT)?;
        let found = answer.bytes(family::TCP_DATA_SPLIT);
        Ok(found.and_then(|value| value.first()).copied().unwrap_or(0))
    }

    pub(super) fn set(&mut self, value: u8) -> Result<(), Errno> {
        let request = self.request(family::RINGS_SET).u8(family::TCP_DATA_SPLIT, value);
        let done = self.socket.acknowledged(request, Deadline::after(ANSWER))?;
        if done { Ok(()) } else { Err(Errno::TIMEDOUT) }
    }

    /// The kernel's explanation of the last refusal.
    pub(super) fn explanation(&self) -> Option<&str> {
        self.socket.explanation()
    }

    fn request(&self, command: u8) -> Request<'static> {
        let header = Request::nested().u32(family::DEV_INDEX, self.index);
        Request::new(command).nest(family::RINGS_HEADER, &header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_answer_holds_nobody_up() {
        let (socket, _other) = Socket::deaf();
        let mut split = Split { socket, index: 1 };
        assert_eq!(split.get(), Err(Errno::TIMEDOUT));
        assert_eq!(split.set(1), Err(Errno::TIMEDOUT));
    }
}
