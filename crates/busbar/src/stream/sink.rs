//! Transmits samples.

mod outlet;
mod space;
mod state;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

pub use self::space::Space;

use self::outlet::Outlet;
use self::state::{Driver, State};
use super::about::About;
use super::device::Direction;
use super::fileio::Transmit;
use super::format::{Channel, Format};
use super::iio::{Access, Opened};
#[cfg(feature = "iiod")]
use super::iiod::remote::{self, Remote};
use super::samples::Samples;
use super::scan::Type;
use super::setup::{Interface, StreamSetup};
use super::shared::Shared;
use crate::block::{Block, Bytes, Memory};
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// A stream of samples to a converter, or to what takes its place.
///
/// ```no_run
/// use busbar::stream::{Sink, StreamSetup};
///
/// # fn main() -> busbar::Result<()> {
/// let sink = Sink::open("iio:vconv0-tx", &StreamSetup::new().block_len(4096))?;
/// for level in 0..100 {
///     let mut space = sink.space()?;
///     space.write()?.bytes_mut().fill(level);
///     let len = space.len();
///     space.send(len)?;
/// }
/// sink.drain()?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping it stops the device at once and restores its settings. Call [`drain`](Self::drain) before to have
/// everything transmitted, and [`stop`](Self::stop) to have a recording on the disk: dropping it does not wait for that.
///
/// All methods take `&self` and may be used from many threads. The descriptor ([`AsFd`]) is readable while
/// [`space`](Self::space) would return a block or an error at once, and when a forwarded block can go back to its
/// source: call `space` or [`reap`](Self::reap) then.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared<State>>,
    about: About,
}

impl Sink {
    /// Opens `name`, see [Names](super#names). A device starts with the first block, one of another machine at once. A
    /// sink that is none takes values of 16 bits for the channels of the setup, or for `voltage0_i` and `voltage0_q`.
    ///
    /// # Errors
    ///
    /// As [`Source::open`](super::Source::open), [`Recorder::create`](super::sigmf::Recorder::create),
    /// [`FrameSender::open`](super::net::FrameSender::open) and [`Counter::new`](super::verify::Counter::new).
    pub fn open(name: &str, setup: &StreamSetup) -> Result<Self> {
        setup.check()?;
        let Some(device) = name.strip_prefix("iio:") else {
            return Self::without_device(name, outlet::format(setup)?, setup);
        };
        #[cfg(feature = "iiod")]
        if let Some(remote) = Remote::of(device) {
            return Self::remote(&remote, setup);
        }
        setup.expect_no_rate()?;
        let opened = Opened::new(device, setup, Direction::Transmit)?;
        let (label, samples, sample_len) =
            (opened.label.clone(), opened.samples, opened.format.sample_len);
        let (about, access, free) = opened.access(setup)?;
        let driver = match access {
            Access::Dmabuf(queue) => Driver::Dmabuf(queue),
            Access::Fileio(buffer) => Driver::Fileio(Transmit::new(buffer, samples, sample_len)),
        };
        Ok(Self { shared: Shared::new(label, State::new(driver, free))?, about })
    }

    /// A device of another machine.
    #[cfg(feature = "iiod")]
    fn remote(remote: &Remote, setup: &StreamSetup) -> Result<Self> {
        let (label, about, transmit) = remote::transmit(remote, setup)?;
        let free = Block::several(about.blocks, about.block_len, &about.memory)?;
        let outlet = Outlet::remote(transmit, &label, &about)?;
        let state = State::new(Driver::Outlet(Box::new(outlet)), free);
        Ok(Self { shared: Shared::new(label, state)?, about })
    }

    /// A sink that is no device.
    fn without_device(name: &str, format: Format, setup: &StreamSetup) -> Result<Self> {
        setup.expect_interface(Interface::Library)?;
        let block_len = (setup.block_len / format.sample_len).max(1) * format.sample_len;
        let memory = setup.memory.clone().unwrap_or(Memory::Memfd);
        let (count, interface) = (setup.count(), Interface::Library);
        let free = Block::several(count, block_len, &memory)?;
        let outlet = Outlet::open(name, &format, count, block_len)?;
        let about = About { format, interface, memory, blocks: count, block_len, device: None };
        let state = State::new(Driver::Outlet(Box::new(outlet)), free);
        Ok(Self { shared: Shared::new(name.into(), state)?, about })
    }

    /// Opens `name` for samples of `format` from another source, with the channels of the same names.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); bad input if the channels have other names, types or places here, and for a setup with
    /// channels or a rate, which `format` has.
    pub fn open_for(name: &str, format: &Format, setup: &StreamSetup) -> Result<Self> {
        let allowed = "nothing: the format of the samples tells";
        if !setup.channels.is_empty() {
            return Err(Error::invalid("the channels", setup.channels.join(","), allowed));
        }
        if let Some(rate) = setup.rate {
            return Err(Error::invalid("the rate", rate, allowed));
        }
        if !name.starts_with("iio:") {
            setup.check()?;
            return Self::without_device(name, format.clone(), setup);
        }
        let channels = format.channels.iter().map(|channel| channel.name.clone()).collect();
        let sink = Self::open(name, &StreamSetup { channels, ..setup.clone() })?;
        let found = sink.format();
        if found.channels == format.channels && found.sample_len == format.sample_len {
            return Ok(sink);
        }
        let (came, takes) = (described(format), described(found));
        Err(Error::invalid(format!("samples for {name}"), came, takes))
    }

    /// What a sample looks like.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.about.format
    }

    /// The interface to the driver.
    #[must_use]
    pub fn interface(&self) -> Interface {
        self.about.interface
    }

    /// The memory of the blocks.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.about.memory
    }

    /// Number of blocks that the sink has.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.about.blocks
    }

    /// Bytes of samples that a block holds.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.about.block_len
    }

    /// A block to fill. Waits for it without a limit.
    ///
    /// # Errors
    ///
    /// The driver's error if it has failed with a block. `EBUSY` while a block is repeated. Kind
    /// [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the stream has ended.
    pub fn space(&self) -> Result<Space> {
        poll::forever(|deadline| self.space_until(deadline))
    }

    /// A block to fill, or `None` if none is free now.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn try_space(&self) -> Result<Option<Space>> {
        self.space_until(Deadline::now())
    }

    /// A block to fill, or `None` if none was free within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn space_timeout(&self, timeout: Duration) -> Result<Option<Space>> {
        self.space_until(Deadline::after(timeout))
    }

    fn space_until(&self, deadline: Deadline) -> Result<Option<Space>> {
        let mut state = self.shared.lock();
        loop {
            self.shared.reap(&mut state)?;
            self.shared.refuse_cyclic(&state)?;
            if let Some(block) = self.shared.take_free(&mut state) {
                let shared = Arc::clone(&self.shared);
                let (len, sample_len) = (self.about.block_len, self.about.format.sample_len);
                return Ok(Some(Space::new(block, len, sample_len, shared)));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            state = self.shared.wait_for_driver(state, deadline)?;
        }
    }

    /// Transmits a received block, which then goes back to its source. Waits for room without a limit.
    ///
    /// The block is passed by reference if the sink takes DMABUFs, the block is one, the device can use its
    /// memory, the source has another block to receive into, and the sink does not have this one already. To a device
    /// of another machine, a block that is not longer than one of the sink is sent from where it is, even if the sink
    /// has it already. Otherwise the samples are copied into a block of the sink.
    ///
    /// There is room while the sink has less than half of the source's blocks, or has a free block to copy into.
    /// A transmitted block goes back in the next call of the sink: after the last one, call
    /// [`reap`](Self::reap).
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space); bad input if the length is not a multiple of a sample of this sink, or if the
    /// samples have to be copied and do not fit into a block of the sink.
    pub fn forward(&self, samples: &Samples) -> Result<()> {
        while !self.forward_until(samples, Deadline::NEVER)? {}
        Ok(())
    }

    /// As [`forward`](Self::forward), without waiting: `false` if there is no room now. Try again when the
    /// descriptor is readable.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn try_forward(&self, samples: &Samples) -> Result<bool> {
        self.forward_until(samples, Deadline::now())
    }

    /// As [`try_forward`](Self::try_forward), but waits for room for `timeout` at most: `false` if there was
    /// none.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_timeout(&self, samples: &Samples, timeout: Duration) -> Result<bool> {
        self.forward_until(samples, Deadline::after(timeout))
    }

    fn forward_until(&self, samples: &Samples, deadline: Deadline) -> Result<bool> {
        let len = samples.meta().len;
        self.check_len(len)?;
        let mut state = self.shared.lock();
        loop {
            self.shared.reap(&mut state)?;
            self.shared.refuse_cyclic(&state)?;
            if !state.can_take(samples) {
                break;
            }
            if state.foreign() < samples.total() / 2 {
                self.shared.lend(&mut state, samples.clone())?;
                return Ok(true);
            }
            if deadline.has_passed() {
                return Ok(false);
            }
            // Meanwhile another thread may forward the same block.
            state = self.shared.wait_for_driver(state, deadline)?;
        }
        drop(state);
        if len > self.about.block_len {
            let allowed = format!("up to {}", self.about.block_len);
            return Err(Error::invalid("the length of samples", len, allowed));
        }
        let Some(space) = self.space_until(deadline)? else { return Ok(false) };
        self.fill(space, samples.parts()?.iter())?;
        Ok(true)
    }

    /// Number of blocks that the device has not transmitted yet, as far as is known.
    #[must_use]
    pub fn queued(&self) -> usize {
        let state = self.shared.lock();
        state.foreign() + self.about.blocks.saturating_sub(state.idle())
    }

    /// Takes transmitted blocks back from the driver. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn reap(&self) -> Result<()> {
        self.shared.reap(&mut self.shared.lock())
    }

    /// Copies samples, which fit, into a block and sends it.
    fn fill<'a>(&self, mut space: Space, parts: impl Iterator<Item = Bytes<'a>>) -> Result<()> {
        let mut filling = space.write()?;
        let mut at = 0;
        for part in parts {
            filling.bytes_mut().slice(at..at + part.len()).copy_from_bytes(part);
            at += part.len();
        }
        drop(filling);
        self.shared.lock().count_copied(at);
        space.send(at)
    }

    fn check_len(&self, len: usize) -> Result<()> {
        let sample_len = self.about.format.sample_len;
        if len > 0 && len.is_multiple_of(sample_len) {
            return Ok(());
        }
        Err(Error::invalid("the length of samples", len, format!("multiples of {sample_len}")))
    }

    /// Waits until everything was transmitted.
    ///
    /// With [`Interface::Fileio`], a driver may transmit only full blocks: then the last one is filled up with
    /// zeros.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn drain(&self) -> Result<()> {
        self.drain_until(Deadline::NEVER).map(drop)
    }

    /// Whether everything was transmitted. Fills up the last block as [`drain`](Self::drain) does.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn try_drain(&self) -> Result<bool> {
        self.drain_until(Deadline::now())
    }

    /// Waits until everything was transmitted; `false` if that took longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`space`](Self::space).
    pub fn drain_timeout(&self, timeout: Duration) -> Result<bool> {
        self.drain_until(Deadline::after(timeout))
    }

    fn drain_until(&self, deadline: Deadline) -> Result<bool> {
        let mut state = self.shared.lock();
        loop {
            self.shared.reap(&mut state)?;
            self.shared.refuse_cyclic(&state)?;
            if self.shared.is_drained(&mut state)? {
                return Ok(true);
            }
            if deadline.has_passed() {
                return Ok(false);
            }
            state = self.shared.wait_for_driver(state, deadline)?;
        }
    }

    /// Transmits `samples` again and again, until [`stop`](Self::stop) or the next call of this. Blocks that
    /// were sent before and are not transmitted yet are dropped.
    ///
    /// In Linux 6.12, drivers based on `dmaengine` transmit them once; then [`reap`](Self::reap) returns an error.
    ///
    /// # Errors
    ///
    /// Kind [`Unsupported`](std::io::ErrorKind::Unsupported) with any interface but [`Interface::Dmabuf`]; bad
    /// input if `samples` are not whole samples or do not fit into a block.
    pub fn cyclic(&self, samples: &[u8]) -> Result<()> {
        self.check_len(samples.len())?;
        if samples.len() > self.about.block_len {
            let allowed = format!("up to {} bytes", self.about.block_len);
            return Err(Error::invalid("the length of samples", samples.len(), allowed));
        }
        let mut state = self.shared.lock();
        self.shared.reap(&mut state)?;
        self.shared.cyclic(&mut state, samples)
    }

    /// Bytes that were copied in memory, by the library or by `write`.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.shared.lock().copied()
    }

    /// Stops the device at once and restores its settings. Afterwards a recording is complete and on the disk, and a
    /// receiver to which everything was delivered knows of the end, which is waited for for a second at most.
    ///
    /// # Errors
    ///
    /// The error of a setting that could not be restored; as [`Recorder::finish`](super::sigmf::Recorder::finish).
    pub fn stop(&self) -> Result<()> {
        self.shared.end(&mut self.shared.lock())
    }
}

/// Channels with their types, as Linux writes these, and their places.
fn described(format: &Format) -> String {
    let of = |channel: &Channel| {
        let sign = if channel.signed { 's' } else { 'u' };
        format!("{} {} at {}", channel.name, Type::of(channel).text(sign), channel.offset)
    };
    let channels: Vec<_> = format.channels.iter().map(of).collect();
    format!("{}; {} bytes", channels.join(", "), format.sample_len)
}

impl Drop for Sink {
    fn drop(&mut self) {
        // No caller is left to handle an error, nor to wait.
        let _ = self.shared.leave(&mut self.shared.lock());
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.watched(Shared::watch)
    }
}
