//! Control devices.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use busbar_uapi::rpmsg::{self, ADDR_ANY, EndpointFdInfo, NAME_SIZE};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::NO_OFFSET;
use super::error::failed;
use super::sysfs::{self, ChannelInfo, ControlDevice, Remoteproc};
use crate::{Error, Result};

/// The control device of one coprocessor.
///
/// Dropping it does not affect the endpoints that it has made.
#[derive(Debug)]
pub struct Controller {
    fd: OwnedFd,
    label: String,
    sysfs: PathBuf,
    support: OnceLock<Support>,
}

/// How a control device supports `RPMSG_CREATE_EPT_FD_IOCTL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    /// Not at all.
    No,
    /// Its descriptors wait unless `O_NONBLOCK` is set.
    Plain,
    /// Its descriptors do not wait if `RWF_NOWAIT` says so.
    Nowait,
}

/// A control device and its coprocessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its device node, `/dev/rpmsg_ctrlN`.
    pub path: PathBuf,
    /// The driver that serves it: `rpmsg_ctrl` or `rpmsg_eptfd`.
    pub driver: Option<String>,
    /// The processor behind it, if the remoteproc framework manages it.
    pub remoteproc: Option<Remoteproc>,
    /// The services that the processor has announced.
    pub channels: Vec<ChannelInfo>,
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

    pub(super) fn new(fd: OwnedFd, label: String, sysfs: PathBuf) -> Self {
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
    /// [`BrokenPipe`](io::ErrorKind::BrokenPipe) once the coprocessor has stopped, and errors of the
    /// system if sysfs is not mounted.
    pub fn channels(&self) -> Result<Vec<ChannelInfo>> {
        self.device()?
            .channels()
            .map_err(|error| Error::new("list the services of", &self.label, error))
    }

    /// Whether the channel with this name in sysfs belongs to the same coprocessor.
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
                .help("this needs the module rpmsg_tty and a service `rpmsg-tty`")
        };
        Ok(Path::new("/dev").join(name.ok_or_else(none)?))
    }

    /// Whether this control device makes endpoints that are descriptors.
    ///
    /// Makes one to find out, without the coprocessor noticing, and remembers a definite answer.
    pub fn supports_fd(&self) -> Result<bool> {
        Ok(self.support()? != Support::No)
    }

    pub(super) fn support(&self) -> Result<Support> {
        if let Some(support) = self.support.get() {
            return Ok(*support);
        }
        match self.probe() {
            Ok(support) => Ok(*self.support.get_or_init(|| support)),
            Err(Errno::NOTTY) => Ok(*self.support.get_or_init(|| Support::No)),
            // The in-tree driver's answer to an unknown call, and any driver's if memory is short.
            Err(Errno::INVAL) => Ok(Support::No),
            Err(errno) => Err(failed("make an endpoint on", &self.label, errno)),
        }
    }

    /// Never returns [`Support::No`].
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
            // While a control device is open, no other device gets its number.
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
            // A controller that disappears meanwhile has no channels.
            channels: device.channels().unwrap_or_default(),
        })
        .collect())
}

/// For an inherited descriptor of a control device.
///
/// Works in a container without `/dev/rpmsg*` and without sysfs: then endpoints can only be
/// descriptors, and need [`Builder::destination`](super::Builder::destination).
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

/// `name` has been checked; a longer one is truncated.
pub(super) fn name_bytes(name: &str) -> [u8; NAME_SIZE] {
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
