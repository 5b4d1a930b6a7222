//! Opens IIO devices with the best interface that driver and host offer.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use busbar_uapi::iio;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::about::About;
use super::device::{Control, Device, Direction};
use super::driver::{self, HasBlock, Receiver};
use super::format::Format;
use super::loss::Detector;
use super::setup::{Interface, StreamSetup};
use super::{dmabuf, fileio};
use crate::block::{Block, Memory, Purpose};
use crate::{Error, Result};

pub(super) fn receive(name: &str, setup: &StreamSetup) -> Result<driver::Opened> {
    let opened = Opened::new(name, setup, Direction::Receive)?;
    let is_counter = opened.is_counter;
    let detector = Detector::new(&opened.format, is_counter);
    let (label, samples, len) = (opened.label.clone(), opened.samples, opened.len());
    let (about, access, blocks) = opened.access(setup)?;
    let receiver: Box<dyn Receiver> = match access {
        Access::Dmabuf(queue) => Box::new(dmabuf::Receive::start(queue, blocks, len, samples)?),
        Access::Fileio(buffer) => {
            let order = Detector::new(&about.format, is_counter);
            Box::new(fileio::Receive::start(buffer, blocks, len, samples, order)?)
        }
    };
    Ok(driver::Opened { label, receiver, detector, about })
}

impl Interface {
    /// The interface that the driver of a device, `NAME` or `deviceN`, offers. The device is not started.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such device, `ENODEV` if it has no buffer, `EBUSY` while another program
    /// uses it.
    pub fn offered(device: &str) -> Result<Self> {
        let device = Device::find(Path::new("/sys"), device)?;
        let buffer = open_buffer(&device)?;
        Ok(if dmabuf::is_offered(&buffer) { Self::Dmabuf } else { Self::Fileio })
    }
}

/// How the driver gets blocks.
pub(super) enum Access<L> {
    Dmabuf(dmabuf::Queue<L>),
    Fileio(fileio::Buffer),
}

/// A device whose buffer was taken over and whose channels are selected.
pub(super) struct Opened {
    pub label: String,
    pub format: Format,
    /// Samples in a block.
    pub samples: usize,
    is_counter: bool,
    direction: Direction,
    buffer: OwnedFd,
    control: Control,
}

impl Opened {
    pub(super) fn new(name: &str, setup: &StreamSetup, direction: Direction) -> Result<Self> {
        let device = Device::find(Path::new("/sys"), name)?;
        let (label, is_counter) = (device.label(), is_counter(&device));
        let buffer = open_buffer(&device)?;
        let mut control = Control::new(device)?;
        let format = control.select(direction, &setup.channels)?;
        let samples = (setup.block_len / format.sample_len).max(1);
        Ok(Self { label, format, samples, is_counter, direction, buffer, control })
    }

    /// Bytes of samples in a block.
    pub(super) fn len(&self) -> usize {
        self.samples * self.format.sample_len
    }

    /// Makes the blocks, for the interface that the setup names or else the best one.
    pub(super) fn access<L: HasBlock>(
        self,
        setup: &StreamSetup,
    ) -> Result<(About, Access<L>, Vec<Block>)> {
        let len = self.len();
        let dmabufs = match setup.interface {
            Some(Interface::Fileio) => None,
            Some(Interface::Dmabuf) => Some(self.attached(setup)?),
            None => match self.attached(setup) {
                Err(error) if is_not_offered(&error) => None,
                done => Some(done?),
            },
            Some(other @ (Interface::Synth | Interface::Iiod | Interface::Library)) => {
                let allowed = "dmabuf, fileio";
                return Err(Error::invalid("the interface of a device", other, allowed));
            }
        };
        let device = (self.control.device().clone(), self.direction);
        let about = |format, interface, memory| About {
            format,
            interface,
            memory,
            blocks: setup.count(),
            block_len: len,
            device: Some(Box::new(device)),
        };
        if let Some((memory, blocks)) = dmabufs {
            let about = about(self.format, Interface::Dmabuf, memory);
            let queue = dmabuf::Queue::new(self.buffer, self.control, self.direction)?;
            return Ok((about, Access::Dmabuf(queue), blocks));
        }
        let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Program));
        let blocks = Block::several(setup.count(), len, &memory)?;
        let about = about(self.format, Interface::Fileio, memory);
        let events = match self.direction {
            Direction::Receive => PollFlags::IN,
            Direction::Transmit => PollFlags::OUT,
        };
        let buffer = fileio::Buffer::new(self.buffer, self.control, events);
        Ok((about, Access::Fileio(buffer), blocks))
    }

    /// Makes blocks that the driver can use, and attaches them.
    fn attached(&self, setup: &StreamSetup) -> Result<(Memory, Vec<Block>)> {
        if setup.interface.is_none() && !dmabuf::is_offered(&self.buffer) {
            return Err(self.not_attached(Errno::PERM));
        }
        let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Device));
        if memory == Memory::Memfd {
            return Err(self
                .not_attached(Errno::OPNOTSUPP)
                .help("a device needs DMABUFs: /dev/dma_heap/system or /dev/udmabuf"));
        }
        let blocks: Vec<_> = Block::several(setup.count(), self.len(), &memory)?;
        for block in &blocks {
            dmabuf::persist(|| iio::attach(&self.buffer, block))
                .map_err(|errno| self.not_attached(errno))?;
        }
        Ok((memory, blocks))
    }

    fn not_attached(&self, errno: Errno) -> Error {
        let error = Error::new("attach blocks to", &self.label, errno);
        match errno {
            Errno::PERM => error.help("its driver has no DMABUF interface"),
            Errno::INVAL | Errno::NOTTY => {
                error.help("the kernel has no such call before Linux 6.11")
            }
            _ => error,
        }
    }
}

/// Whether the samples are known to be the counter pattern.
fn is_counter(device: &Device) -> bool {
    let says = |name, value: &str| device.attribute(name).is_some_and(|found| found == value);
    // Samples that are looped back are not the converter's.
    says("pattern", "counter") && !says("loopback", "1")
}

fn is_not_offered(error: &Error) -> bool {
    let not = [Errno::PERM, Errno::INVAL, Errno::NOTTY, Errno::NODEV, Errno::OPNOTSUPP];
    error.errno().is_some_and(|errno| not.contains(&errno))
}

/// Opens the device's first buffer. No other program can use it meanwhile.
fn open_buffer(device: &Device) -> Result<OwnedFd> {
    let path = format!("/dev/{}", device.id);
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(nonblock).open(&path);
    let file = file.map_err(|why| failed(device, "open", why))?;
    match iio::buffer_fd(&file, 0) {
        Ok(buffer) => {
            let set = rustix::fs::fcntl_getfl(&buffer)
                .and_then(|flags| rustix::fs::fcntl_setfl(&buffer, flags | OFlags::NONBLOCK));
            set.map_err(|errno| failed(device, "use", errno.into()))?;
            Ok(buffer)
        }
        // Before Linux 5.13, the file of the device is that of its only buffer.
        Err(Errno::NOTTY | Errno::INVAL) => Ok(file.into()),
        Err(errno) => Err(failed(device, "use", errno.into())),
    }
}

fn failed(device: &Device, tried: &str, why: std::io::Error) -> Error {
    let error = Error::new(tried, device.label(), why);
    match error.errno() {
        Some(Errno::BUSY) => error.help("another program uses it"),
        Some(Errno::NODEV) => error.help("it has no buffer"),
        Some(Errno::NOENT) => error.help(format!("there is no /dev/{}", device.id)),
        _ => error,
    }
}
