//! Control devices, and the endpoints made through them.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, EndpointInfo, NAME_SIZE};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::error::failed;
use super::sysfs::{self, ControlDevice};
use super::{Endpoint, Label, NO_OFFSET, node};
use crate::poll::Deadline;
use crate::{Error, Result};

/// Addresses that the virtio bus can give to an endpoint: it counts them in an `int`.
const MAX_SOURCE: u32 = i32::MAX.cast_unsigned();

/// How long a builder waits for a device node unless it is told otherwise.
const NODE_DEADLINE: Duration = Duration::from_secs(5);

/// The control device of one coprocessor.
///
/// Dropping it leaves the endpoints alone that it has made.
#[derive(Debug)]
pub struct Controller {
    fd: OwnedFd,
    label: String,
    sysfs: PathBuf,
    support: OnceLock<Support>,
}

/// What a control device answers to `RPMSG_CREATE_EPT_FD_IOCTL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// It does not know it.
    No,
    /// A descriptor that waits unless `O_NONBLOCK` is set.
    Plain,
    /// A descriptor that can be told by `RWF_NOWAIT` not to wait.
    Nowait,
}

/// A control device and where it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its device node, `/dev/rpmsg_ctrlN`.
    pub path: PathBuf,
    /// The driver that serves it: `rpmsg_ctrl` or `rpmsg_eptfd`.
    pub driver: Option<String>,
    /// The processor behind it, where the remoteproc framework manages it.
    pub remoteproc: Option<Remoteproc>,
    /// The services that the processor has announced.
    pub channels: Vec<ChannelInfo>,
}

/// A processor that the remoteproc framework manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remoteproc {
    /// `remoteprocN`.
    pub device: String,
    /// What its driver calls it.
    pub name: String,
    /// `offline`, `running`, `crashed` and so on.
    pub state: String,
}

/// A service that a coprocessor has announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelInfo {
    /// Name of the service.
    pub name: String,
    /// Local address of the driver that uses it, or [`ADDR_ANY`].
    pub source: u32,
    /// Address of the service.
    pub destination: u32,
    /// The kernel's driver that uses it.
    pub driver: Option<String>,
}

/// What an endpoint is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Implementation {
    /// A descriptor where the kernel offers it, otherwise a device node.
    #[default]
    Auto,
    /// A descriptor and nothing else, made by one call.
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
    /// Opens a control device, `/dev/rpmsg_ctrlN`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let label = path.display().to_string();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| open_failed(&label, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| failed("open", &label, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
            let allowed = "an rpmsg control device such as /dev/rpmsg_ctrl0";
            return Err(Error::invalid("the controller", label, allowed));
        }
        Ok(Self::new(fd, label, "/sys".into()))
    }

    fn new(fd: OwnedFd, label: String, sysfs: PathBuf) -> Self {
        Self { fd, label, sysfs, support: OnceLock::new() }
    }

    /// All control devices of this machine, by number; none if the kernel has no rpmsg.
    pub fn list() -> Result<Vec<ControllerInfo>> {
        list(Path::new("/sys")).map_err(|error| Error::new("list", "rpmsg control devices", error))
    }

    /// The services that the coprocessor has announced, by name and address.
    ///
    /// # Errors
    ///
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) once the coprocessor has stopped, and those of the
    /// system where sysfs is not to be seen.
    pub fn channels(&self) -> Result<Vec<ChannelInfo>> {
        self.device()?
            .channels()
            .map_err(|error| Error::new("list the services of", &self.label, error))
    }

    /// Whether the channel with this name in sysfs leads to the same coprocessor.
    pub(crate) fn has_channel(&self, device: &str) -> Result<bool> {
        self.device()?
            .has_sibling(device)
            .map_err(|error| Error::new("list the services of", &self.label, error))
    }

    /// The announced service of this name, the one with the lowest address if there are several.
    ///
    /// # Errors
    ///
    /// As [`channels`](Self::channels), and [`NotFound`](io::ErrorKind::NotFound).
    pub fn find(&self, service: &str) -> Result<ChannelInfo> {
        let channels = self.channels()?;
        let announced = channels.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        channels.into_iter().find(|channel| channel.name == service).ok_or_else(|| {
            let help = match announced.as_str() {
                "" => "the coprocessor has announced no service".into(),
                names => format!("the coprocessor has announced {names}"),
            };
            let none = io::Error::new(io::ErrorKind::NotFound, "no such service");
            Error::new("find", format!("service `{service}` on {}", self.label), none).help(help)
        })
    }

    /// The TTY that the kernel's `rpmsg_tty` has made for this coprocessor, `/dev/ttyRPMSGN`.
    ///
    /// # Errors
    ///
    /// As [`channels`](Self::channels), and [`NotFound`](io::ErrorKind::NotFound).
    pub fn tty(&self) -> Result<PathBuf> {
        let failed = |why: io::Error| Error::new("find the TTY of", &self.label, why);
        let name = self.device()?.tty().map_err(failed)?;
        let none = || {
            failed(io::ErrorKind::NotFound.into())
                .help("it needs the module rpmsg_tty, and a service `rpmsg-tty`")
        };
        Ok(Path::new("/dev").join(name.ok_or_else(none)?))
    }

    /// Prepares an endpoint; `name` is what it is called in the kernel, and the service that it
    /// goes to unless [`Builder::destination`] is given.
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

    /// Whether this control device makes endpoints that are descriptors.
    ///
    /// Asks by making one, of which the coprocessor learns nothing, and remembers a clear answer.
    pub fn supports_fd(&self) -> Result<bool> {
        Ok(self.support()? != Support::No)
    }

    fn support(&self) -> Result<Support> {
        if let Some(support) = self.support.get() {
            return Ok(*support);
        }
        match self.probe() {
            Ok(support) => Ok(*self.support.get_or_init(|| support)),
            Err(Errno::NOTTY) => Ok(*self.support.get_or_init(|| Support::No)),
            // So says the in-tree driver to what it does not know, and any to want of memory.
            Err(Errno::INVAL) => Ok(Support::No),
            Err(errno) => Err(failed("make an endpoint on", &self.label, errno)),
        }
    }

    /// Never says [`Support::No`].
    fn probe(&self) -> Result<Support, Errno> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let name = name_bytes("busbar-probe");
        let info =
            EndpointFdInfo { name, src: ADDR_ANY, dst: ADDR_ANY, flags: flags.bits(), fd: -1 };
        let fd = rpmsg::create_ept_fd(self, info)?;
        let mut byte = [0];
        let mut parts = [io::IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(&fd, &mut parts, NO_OFFSET, ReadWriteFlags::NOWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Ok(Support::Nowait),
            Err(Errno::OPNOTSUPP) => Ok(Support::Plain),
            Err(errno) => Err(errno),
        }
    }

    /// This device in sysfs.
    pub(super) fn device(&self) -> Result<ControlDevice> {
        let tried = "find in sysfs";
        let stat = rustix::fs::fstat(self).map_err(|errno| failed(tried, &self.label, errno))?;
        let error = match ControlDevice::by_number(&self.sysfs, stat.st_rdev) {
            Ok(device) => return Ok(device),
            Err(error) => error,
        };
        Err(match error.kind() {
            io::ErrorKind::Unsupported => failed(tried, &self.label, Errno::NOTTY),
            // While a control device is open, no other takes over its number.
            _ if self.sysfs.join("dev/char").exists() => failed(tried, &self.label, Errno::PIPE),
            _ => Error::new(tried, &self.label, error)
                .help("without sysfs, give the destination address and use descriptors only"),
        })
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }
}

fn open_failed(label: &str, errno: Errno) -> Error {
    let error = Error::new("open", label, errno);
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => error.help(
            "start the coprocessor, load rpmsg_eptfd or rpmsg_ctrl; \
             `busbar endpoint list` shows what is there",
        ),
        Errno::ACCESS | Errno::PERM => error.help("ask for access by a udev rule, or run as root"),
        _ => error,
    }
}

fn list(sysfs: &Path) -> io::Result<Vec<ControllerInfo>> {
    Ok(sysfs::controllers(sysfs)?
        .iter()
        .map(|device| ControllerInfo {
            path: Path::new("/dev").join(device.file()),
            driver: device.driver(),
            remoteproc: device.remoteproc(),
            // A controller that goes while it is listed has no channels any more.
            channels: device.channels().unwrap_or_default(),
        })
        .collect())
}

/// For an inherited descriptor of a control device.
///
/// Works in a container without `/dev/rpmsg*` and without sysfs: then endpoints can only be
/// descriptors, and need [`Builder::destination`].
impl From<OwnedFd> for Controller {
    fn from(fd: OwnedFd) -> Self {
        let label = format!("the control device of descriptor {}", fd.as_raw_fd());
        Self::new(fd, label, "/sys".into())
    }
}

impl From<Controller> for OwnedFd {
    fn from(controller: Controller) -> Self {
        controller.fd
    }
}

impl AsFd for Controller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Controller {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
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
    /// The local address: 0 to 0x7fffffff, those below 1024 are for well-known services. Without
    /// it, a free one.
    pub fn source(mut self, address: u32) -> Self {
        self.source = address;
        self
    }

    /// The address that messages go to, instead of that of the announced service; [`ADDR_ANY`] for
    /// an endpoint that only receives.
    pub fn destination(mut self, address: u32) -> Self {
        self.destination = Some(address);
        self
    }

    /// Puts the file in non-blocking mode, for code that reads and writes the descriptor itself, or
    /// to save a little with each call that must not wait. Nobody may take it out of it again.
    ///
    /// The methods of [`Endpoint`] wait or do not wait by their names, whatever the mode. A device
    /// node is always in non-blocking mode: the in-tree driver holds up the whole endpoint while
    /// it waits for a buffer. So is a descriptor that does not understand `RWF_NOWAIT`.
    pub fn nonblocking(mut self, nonblocking: bool) -> Self {
        self.nonblocking = nonblocking;
        self
    }

    /// How long to wait until a device node is there and may be opened; 5 s without it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Insists on a descriptor or a device node.
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
    /// coprocessor is gone. Nothing is left behind, unless the error says so.
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

    /// `mode` is that of [`Endpoint::nonblocking`]: where the kernel is not told with each call not
    /// to wait, the file must be in non-blocking mode.
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
            let on = format!("endpoint `{}` on {}", self.name, self.controller.label);
            failed("make", on, address_in_use(info, errno))
        })?;
        Ok(Endpoint::new(fd, false, mode, label(info)))
    }

    fn unsupported(&self) -> Error {
        let why = io::Error::new(io::ErrorKind::Unsupported, "its driver makes no descriptors");
        Error::new("make an endpoint that is a descriptor on", &self.controller.label, why)
            .help("load the module rpmsg_eptfd, or allow a device node")
    }
}

/// The in-tree driver says INVAL if the bus gives out no endpoint of this address.
pub(super) fn address_in_use(info: &EndpointInfo, errno: Errno) -> Errno {
    match errno {
        Errno::INVAL | Errno::BUSY if info.src != ADDR_ANY => Errno::ADDRINUSE,
        errno => errno,
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

/// `name` has been checked; what does not fit is cut.
fn name_bytes(name: &str) -> [u8; NAME_SIZE] {
    let mut bytes = [0; NAME_SIZE];
    for (to, from) in bytes[..NAME_SIZE - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;

    use super::super::sysfs::tests::Fake;
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
    fn a_file_that_is_no_control_device_supports_nothing() {
        assert!(!null().supports_fd().unwrap());
    }

    #[test]
    fn what_is_not_a_character_device_is_refused() {
        let error = Controller::open("/etc").unwrap_err();
        assert!(error.to_string().contains("/etc"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Controller::open(file.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_controller_that_is_not_there_comes_with_advice() {
        let error = Controller::open("/dev/rpmsg_ctrl_none").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("busbar endpoint list"), "{error}");
    }

    #[test]
    fn services_are_found_by_name_among_the_siblings_of_the_control_device() {
        let fake = Fake::new();
        // /dev/null is 1:3.
        let bus = fake.controller_of("rpmsg_ctrl", 0, "1:3");
        fake.channel(&bus, "echo", "0xffffffff", "0x400");
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let controller = Controller::new(null.into(), "fake".into(), fake.0.path().into());
        assert_eq!(controller.find("echo").unwrap().destination, 0x400);
        let error = controller.find("sink").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("has announced echo"), "{error}");
    }

    #[test]
    fn a_control_device_that_left_sysfs_is_a_broken_pipe() {
        let fake = Fake::new();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let controller = Controller::new(null.into(), "fake".into(), fake.0.path().into());
        assert_eq!(controller.channels().unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn without_sysfs_the_error_asks_for_the_address() {
        let empty = tempfile::tempdir().unwrap();
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let controller = Controller::new(null.into(), "fake".into(), empty.path().into());
        let error = controller.endpoint("echo").create().unwrap_err();
        assert!(error.to_string().contains("give the destination address"), "{error}");
    }

    #[test]
    fn the_list_shows_where_each_controller_leads_to() {
        let fake = Fake::new();
        let bus = fake.controller_of("rpmsg_eptfd", 512, "240:0");
        fake.channel(&bus, "echo", "0xffffffff", "0x400");
        let all = list(fake.0.path()).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].path, Path::new("/dev/rpmsg_ctrl512"));
        assert_eq!(all[0].driver.as_deref(), Some("rpmsg_eptfd"));
        assert_eq!(all[0].remoteproc.as_ref().unwrap().state, "running");
        assert_eq!(all[0].channels[0].name, "echo");
    }
}
