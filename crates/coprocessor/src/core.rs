//! The core: a process that has opened `/dev/vcoprocN`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use busbar::{Error, Reason, Result};
use busbar_uapi::vcoproc::{self, Event, Info};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::buffer::{Area, Window};
use crate::machine::{Machine, Notify, Shared, Statistics};
use crate::remoteproc::{Coprocessor, NO_MODULE};
use crate::run::{self, Device, Options};
use crate::service::Services;

/// A coprocessor that this process is the core of, as long as it is open.
///
/// If the process ends or closes the device while its core is started, Linux sees a crash.
#[derive(Debug)]
pub struct Core {
    fd: File,
    node: Option<PathBuf>,
    shared: Shared,
}

impl Core {
    /// Opens a device node, such as `/dev/vcoproc0`.
    ///
    /// Fails where there is none, where another process has it, or where this one may not.
    pub fn open(node: impl AsRef<Path>) -> Result<Self> {
        let node = node.as_ref();
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(node, flags, Mode::empty()).map_err(|errno| {
            let error = Error::new("open", node.display().to_string(), errno);
            match errno {
                Errno::NOENT | Errno::NXIO | Errno::NODEV => error.help(NO_MODULE),
                Errno::BUSY => error.help("another process runs this coprocessor, use another one"),
                Errno::ACCESS => error.help("it needs root, or a udev rule"),
                _ => error,
            }
        })?;
        Self::new(fd, Some(node.to_owned()))
    }

    /// Opens the first coprocessor, by number, that no other process has.
    pub fn open_free() -> Result<Self> {
        for free in Coprocessor::all()?.into_iter().filter(|each| !each.attached) {
            match Self::open(&free.node) {
                // Another process was faster.
                Err(error) if error.reason() == Reason::Busy => {}
                result => return result,
            }
        }
        Err(Error::new("find", "a free coprocessor", Errno::BUSY)
            .help("end a process that has one, or load vcoproc with a greater count="))
    }

    /// Takes over an open descriptor, for example an inherited one. It becomes non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let unblock = || fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK);
        unblock().map_err(|errno| Error::new("use", name(None), errno))?;
        Self::new(fd, None)
    }

    fn new(fd: OwnedFd, node: Option<PathBuf>) -> Result<Self> {
        let name = || name(node.as_deref());
        let info = vcoproc::info(&fd).map_err(|errno| {
            let error = Error::new("ask for the memory of", name(), errno);
            if errno == Errno::NOTTY { error.help("is it /dev/vcoprocN?") } else { error }
        })?;
        let fd = File::from(fd);
        let shared =
            map(&fd, &info).map_err(|error| Error::new("map the memory of", name(), error))?;
        Ok(Self { fd, node, shared })
    }

    /// The device node that was opened, nothing for an inherited descriptor.
    #[must_use]
    pub fn node(&self) -> Option<&Path> {
        self.node.as_deref()
    }

    /// Runs `services` until an end is asked for, see [`Options`].
    ///
    /// All services are announced again after each start. Fails where Linux takes the core away
    /// (`NODEV`, or `SHUTDOWN` for a process that did not answer a stop in time). The statistics
    /// are returned in either case.
    pub fn run(
        &self,
        services: &mut Services,
        options: &Options<'_>,
        notify: Notify<'_>,
    ) -> (Statistics, Result<()>) {
        let mut machine = Machine::new(&self.shared, services);
        let result = run::run(self, &mut machine, options, notify);
        (machine.statistics(), result)
    }

    fn failed(&self, tried: &str) -> impl FnOnce(Errno) -> Error {
        move |errno| {
            let error = Error::new(tried, name(self.node()), errno);
            match errno {
                Errno::NODEV => error.help("the coprocessor is gone: was vcoproc unloaded?"),
                Errno::SHUTDOWN => error.help("Linux's stop was not answered in time"),
                _ => error,
            }
        }
    }
}

impl AsFd for Core {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device for Core {
    fn event(&self) -> Result<Option<Event>> {
        match vcoproc::read_event(&self.fd) {
            Ok(event) => Ok(Some(event)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.failed("read from")(errno)),
        }
    }

    fn kick(&self, mask: u32) -> Result<()> {
        match vcoproc::kick(&self.fd, mask) {
            // Linux has just stopped the core, and the event was not read yet.
            Err(Errno::NOTCONN) => Ok(()),
            result => result.map_err(self.failed("kick through")),
        }
    }

    fn stopped(&self) -> Result<()> {
        vcoproc::stopped(&self.fd).map_err(self.failed("acknowledge the stop of"))
    }

    fn crash(&self) -> Result<()> {
        match vcoproc::crash(&self.fd) {
            Err(Errno::NOTCONN) => Ok(()),
            result => result.map_err(self.failed("report a crash of")),
        }
    }
}

fn name(node: Option<&Path>) -> String {
    node.map_or_else(|| "an inherited coprocessor".to_owned(), |node| node.display().to_string())
}

/// Maps the shared memory at its device address, and the resource table.
fn map(fd: &File, info: &Info) -> io::Result<Shared> {
    let memory = map_part(fd, 0, info.memory_size, ProtFlags::READ | ProtFlags::WRITE)?;
    let region = GuestRegionMmap::new(memory, GuestAddress(info.device_address))
        .ok_or_else(|| io::Error::other("its device addresses go beyond 64 bits"))?;
    let memory = GuestMemoryMmap::from_regions(vec![region]).map_err(io::Error::other)?;
    let table = map_part(fd, info.table_offset, info.table_size, ProtFlags::READ)?;
    Ok(Shared::new(memory, table).with_window(SharedBuffers(fd.try_clone()?)))
}

/// The device, as the window to the buffers that Linux shares.
#[derive(Debug)]
struct SharedBuffers(File);

impl Window for SharedBuffers {
    fn map(&self, address: u64, length: usize) -> io::Result<Area> {
        // Below are the rings, which no message may refer to.
        if address < vcoproc::BUFFERS {
            return Err(Errno::FAULT.into());
        }
        Area::new(&self.0, address, length)
    }
}

fn map_part(fd: &File, offset: u64, size: u64, protection: ProtFlags) -> io::Result<MmapRegion> {
    let size = usize::try_from(size).map_err(io::Error::other)?;
    MmapRegionBuilder::new(size)
        .with_file_offset(FileOffset::new(fd.try_clone()?, offset))
        .with_mmap_prot(protection.bits().cast_signed())
        .with_mmap_flags(MapFlags::SHARED.bits().cast_signed())
        .build()
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_coprocessor_is_refused() {
        let error = Core::open("/dev/null").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOTTY));
        let missing = Core::open("/dev/vcoproc-none").unwrap_err().to_string();
        assert!(missing.contains("modprobe vcoproc"), "{missing}");
        let inherited = Core::from_fd(File::open("/dev/null").unwrap().into()).unwrap_err();
        assert!(inherited.to_string().contains("inherited"), "{inherited}");
    }
}
