//! Opens IIO devices, with the best interface that driver and host offer.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use busbar_uapi::iio;
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::device::{Control, Device, Direction};
use super::loss::Detector;
use super::source::{About, Source};
use super::{Format, Interface, StreamSetup, dmabuf, fileio};
use crate::block::{Block, Memory, Purpose};
use crate::{Error, Result};

pub(super) fn receive(name: &str, setup: &StreamSetup) -> Result<Source> {
    let opened = Opened::new(name, setup, Direction::Receive)?;
    let is_counter = opened.is_counter;
    let detector = Detector::new(&opened.format, is_counter);
    let (label, samples, len) = (opened.label.clone(), opened.samples, opened.len());
    let (about, access, blocks) = opened.access(setup)?;
    match access {
        Access::Dmabuf(queue) => {
            let driver = dmabuf::Receive::start(queue, blocks, len, samples)?;
            Source::start(label, Box::new(driver), detector, about)
        }
        Access::Fileio(buffer) => {
            let order = Detector::new(&about.format, is_counter);
            let driver = fileio::Receive::start(buffer, blocks, len, samples, order)?;
            Source::start(label, Box::new(driver), detector, about)
        }
    }
}

/// The interface that a device's driver offers; the device is not started.
pub(super) fn offered(name: &str) -> Result<Interface> {
    let device = Device::find(Path::new("/sys"), name)?;
    let buffer = open_buffer(&device)?;
    Ok(if offers_dmabufs(&buffer) { Interface::Dmabuf } else { Interface::Fileio })
}

/// How the driver gets blocks.
pub(super) enum Access<L> {
    Dmabuf(dmabuf::Queue<L>),
    Fileio(fileio::Buffer),
}

/// A device whose buffer is ours, with its channels chosen.
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

    /// Takes the interface that was asked for, or the best one, and its blocks.
    pub(super) fn access<L: dmabuf::Load>(
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
            Some(Interface::Synth) => {
                let allowed = "dmabuf, fileio";
                return Err(Error::invalid("the interface of a device", "synth", allowed));
            }
        };
        let device = (self.control.device().clone(), self.direction);
        let about = |format, interface, memory| About {
            format,
            interface,
            memory,
            blocks: setup.blocks,
            block_len: len,
            device: Some(Box::new(device)),
        };
        if let Some((memory, blocks)) = dmabufs {
            let about = about(self.format, Interface::Dmabuf, memory);
            let queue = dmabuf::Queue::new(self.buffer, self.control, self.direction);
            return Ok((about, Access::Dmabuf(queue), blocks));
        }
        let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Program));
        let blocks = make(setup.blocks, len, &memory)?;
        let about = about(self.format, Interface::Fileio, memory);
        let events = match self.direction {
            Direction::Receive => PollFlags::IN,
            Direction::Transmit => PollFlags::OUT,
        };
        let buffer = fileio::Buffer::new(self.buffer, self.control, events);
        Ok((about, Access::Fileio(buffer), blocks))
    }

    /// Blocks that the driver can use.
    fn attached(&self, setup: &StreamSetup) -> Result<(Memory, Vec<Block>)> {
        if setup.interface.is_none() && !offers_dmabufs(&self.buffer) {
            return Err(self.not_attached(Errno::PERM));
        }
        let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Device));
        if memory == Memory::Memfd {
            return Err(self
                .not_attached(Errno::OPNOTSUPP)
                .help("a device needs DMABUFs: /dev/dma_heap/system or /dev/udmabuf"));
        }
        let blocks = make(setup.blocks, self.len(), &memory)?;
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
            Errno::INVAL | Errno::NOTTY => error.help("the kernel has no such call: Linux 6.11"),
            _ => error,
        }
    }
}

/// Whether the samples are known to be numbers that count them.
fn is_counter(device: &Device) -> bool {
    let says = |name, value: &str| device.attribute(name).is_some_and(|found| found == value);
    // What is looped back is not of the converter's making.
    says("pattern", "counter") && !says("loopback", "1")
}

/// Whether a driver offers blocks as DMABUFs: it is asked to take what is none.
pub(super) fn offers_dmabufs(buffer: &impl AsFd) -> bool {
    let buffer = buffer.as_fd();
    // EPERM from who offers nothing. Kernels before 6.11 say EINVAL, as those that do; they say it
    // again for a DMABUF.
    iio::attach(buffer, buffer) == Err(Errno::INVAL)
}

fn is_not_offered(error: &Error) -> bool {
    let not = [Errno::PERM, Errno::INVAL, Errno::NOTTY, Errno::NODEV, Errno::OPNOTSUPP];
    error.errno().is_some_and(|errno| not.contains(&errno))
}

fn make(count: usize, len: usize, memory: &Memory) -> Result<Vec<Block>> {
    (0..count).map(|_| Block::with(len, memory)).collect()
}

/// The file of the device's first buffer. Nobody else has it meanwhile.
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
        // Before Linux 5.13 the device is its only buffer.
        Err(Errno::NOTTY | Errno::INVAL) => Ok(file.into()),
        Err(errno) => Err(failed(device, "use", errno.into())),
    }
}

fn failed(device: &Device, tried: &str, why: std::io::Error) -> Error {
    let error = Error::new(tried, device.label(), why);
    match error.errno() {
        Some(Errno::BUSY) => error.help("somebody else uses it"),
        Some(Errno::NODEV) => error.help("it has no buffer"),
        Some(Errno::NOENT) => error.help(format!("there is no /dev/{}", device.id)),
        _ => error,
    }
}
