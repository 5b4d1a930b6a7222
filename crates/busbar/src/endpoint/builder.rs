//! How an endpoint is made, as a descriptor or as a device node.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, NAME_SIZE};
use rustix::fs::OFlags;

use super::controller::{Controller, Support, name_bytes};
use super::error::{address_in_use, failed};
use super::{Endpoint, Label, node};
use crate::poll::Deadline;
use crate::{Error, Result};

/// Highest address that the virtio bus can give to an endpoint: it uses an `int`.
const MAX_SOURCE: u32 = i32::MAX.cast_unsigned();

/// How long a builder waits for a device node by default.
const NODE_DEADLINE: Duration = Duration::from_secs(5);

/// What an endpoint is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// A descriptor if the kernel offers it, otherwise a device node.
    #[default]
    Auto,
    /// Only a descriptor, made by one call.
    Fd,
    /// A device node, made, opened and destroyed.
    Node,
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Fd => "fd",
            Self::Node => "node",
        })
    }
}

impl Controller {
    /// Prepares an endpoint. `name` is its name in the kernel, and the service that it sends to unless
    /// [`Builder::destination`] is given.
    pub fn endpoint<'a>(&'a self, name: &'a str) -> Builder<'a> {
        Builder {
            controller: self,
            name,
            source: ADDR_ANY,
            destination: None,
            nonblocking: false,
            timeout: NODE_DEADLINE,
            implementation: Implementation::Auto,
        }
    }
}

/// An endpoint to be made; see [`Controller::endpoint`].
#[derive(Clone, Debug)]
#[must_use = "`create` makes the endpoint"]
pub struct Builder<'a> {
    controller: &'a Controller,
    name: &'a str,
    source: u32,
    destination: Option<u32>,
    nonblocking: bool,
    timeout: Duration,
    implementation: Implementation,
}

impl Builder<'_> {
    /// The local address: 0 to 0x7fffffff; those below 1024 are for well-known services. By default, a
    /// free one.
    pub fn source(mut self, address: u32) -> Self {
        self.source = address;
        self
    }

    /// The address that messages are sent to, instead of that of the announced service; [`ADDR_ANY`] for
    /// an endpoint that only receives.
    pub fn destination(mut self, address: u32) -> Self {
        self.destination = Some(address);
        self
    }

    /// Puts the file in non-blocking mode, for code that reads and writes the descriptor itself, or
    /// to make each call that must not wait a little cheaper. The mode must not be changed afterwards.
    ///
    /// Whether a method of [`Endpoint`] waits depends on its name, not on the mode. A device
    /// node is always in non-blocking mode: the in-tree driver blocks the whole endpoint while
    /// it waits for a buffer. So is a descriptor that does not support `RWF_NOWAIT`.
    pub fn nonblocking(mut self, nonblocking: bool) -> Self {
        self.nonblocking = nonblocking;
        self
    }

    /// How long to wait until a device node exists and may be opened; by default 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Requires a descriptor or a device node.
    pub fn implementation(mut self, implementation: Implementation) -> Self {
        self.implementation = implementation;
        self
    }

    /// Makes the endpoint.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for a name or source that no endpoint can
    /// have, [`NotFound`](io::ErrorKind::NotFound) if no such service is announced,
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if another endpoint has the source address,
    /// [`Unsupported`](io::ErrorKind::Unsupported) if the controller makes no descriptors and
    /// nothing else is allowed, [`TimedOut`](io::ErrorKind::TimedOut) if the device node has not
    /// appeared within the deadline, [`PermissionDenied`](io::ErrorKind::PermissionDenied) if it
    /// could not be opened within the deadline, [`BrokenPipe`](io::ErrorKind::BrokenPipe) if the
    /// coprocessor is gone. No device node is left, unless the error says so.
    pub fn create(self) -> Result<Endpoint> {
        let info = self.info()?;
        let support = match self.implementation {
            Implementation::Node => Support::No,
            Implementation::Auto | Implementation::Fd => self.controller.support()?,
        };
        match support {
            Support::No if self.implementation == Implementation::Fd => Err(self.unsupported()),
            Support::No => node::create(self.controller, &info, Deadline::after(self.timeout))
                .map(|fd| Endpoint::new(fd, true, OnceLock::from(true), label(&info))),
            Support::Nowait if !self.nonblocking => self.create_fd(&info, OnceLock::new()),
            Support::Plain | Support::Nowait => self.create_fd(&info, OnceLock::from(true)),
        }
    }

    fn info(&self) -> Result<EndpointInfo> {
        check_name(self.name)?;
        if self.source > MAX_SOURCE && self.source != ADDR_ANY {
            let allowed = "0 to 0x7fffffff, or ADDR_ANY for a free one";
            return Err(Error::invalid("source address", format!("{:#x}", self.source), allowed));
        }
        let dst = match self.destination {
            Some(address) => address,
            None => self.controller.find(self.name)?.destination,
        };
        Ok(EndpointInfo { name: name_bytes(self.name), src: self.source, dst })
    }

    /// `mode` is that of [`Endpoint::nonblocking`]: unless each call tells the kernel not to wait, the
    /// file must be in non-blocking mode.
    fn create_fd(&self, info: &EndpointInfo, mode: OnceLock<bool>) -> Result<Endpoint> {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        flags.set(OFlags::NONBLOCK, mode.get().is_some());
        let request = EndpointFdInfo {
            name: info.name,
            src: info.src,
            dst: info.dst,
            flags: flags.bits(),
            fd: -1,
        };
        let fd = rpmsg::create_ept_fd(self.controller, request).map_err(|errno| {
            let on = format!("endpoint `{}` on {}", self.name, self.controller.label());
            failed("make", on, address_in_use(info, errno))
        })?;
        Ok(Endpoint::new(fd, false, mode, label(info)))
    }

    fn unsupported(&self) -> Error {
        let why = io::Error::new(io::ErrorKind::Unsupported, "its driver makes device nodes only");
        Error::new("make an endpoint that is a descriptor on", self.controller.label(), why)
            .help("load the module rpmsg_eptfd, or allow a device node")
    }
}

fn label(info: &EndpointInfo) -> Label {
    Label { name: info.name, destination: info.dst }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() >= NAME_SIZE || name.contains('\0') {
        let allowed = "1 to 31 bytes, none of them NUL";
        return Err(Error::invalid("endpoint name", name.escape_debug(), allowed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;

    use super::*;

    fn null() -> Controller {
        Controller::open("/dev/null").unwrap()
    }

    #[test]
    fn names_that_no_endpoint_can_have_are_refused_before_any_call() {
        let controller = null();
        for name in ["", "a\0b", "12345678901234567890123456789012"] {
            let error = controller.endpoint(name).destination(1).create().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
            assert!(error.to_string().contains("endpoint name"), "{error}");
            assert!(error.to_string().contains("allowed: 1 to 31 bytes"), "{error}");
        }
    }

    #[test]
    fn the_longest_name_reaches_the_call() {
        let controller = null();
        let name = "1234567890123456789012345678901";
        let fd = Implementation::Fd;
        let error =
            controller.endpoint(name).destination(1).implementation(fd).create().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(name_bytes(name)[..31], *name.as_bytes());
        assert_eq!(name_bytes(name)[31], 0);
    }

    #[test]
    fn source_addresses_that_the_bus_cannot_count_are_refused() {
        let controller = null();
        for source in [0x8000_0000, ADDR_ANY - 1] {
            let error = controller.endpoint("x").source(source).destination(1).create();
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("source address"), "{error}");
            assert!(error.to_string().contains("0 to 0x7fffffff"), "{error}");
        }
    }

    #[test]
    fn without_sysfs_the_error_asks_for_the_address() {
        let empty = tempfile::tempdir().unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let controller = Controller::new(null.into(), "fake".into(), empty.path().into());
        let error = controller.endpoint("echo").create().unwrap_err();
        assert!(error.to_string().contains("give the destination address"), "{error}");
    }
}
