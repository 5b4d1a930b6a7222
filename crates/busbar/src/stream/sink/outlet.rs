//! Sinks without a driver: recordings, the network, and what only verifies or discards samples.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;

use crate::block::Block;
use crate::poll::{self, Set};
use crate::stream::StreamSetup;
#[cfg(feature = "iiod")]
use crate::stream::about::About;
use crate::stream::driver::Pending;
use crate::stream::format::{Format, Lost, Meta};
#[cfg(feature = "iiod")]
use crate::stream::iiod::remote::Transmit;
use crate::stream::net::{FrameSender, Options, Pool};
use crate::stream::samples::Samples;
use crate::stream::sigmf::{Datatype, Recorder};
use crate::stream::verify::Counter;
use crate::{Error, Result};

/// What the names of such sinks are.
pub(super) const NAMES: &str = "file:NAME, tcp:HOST:PORT, verify:, verify:counter, null:";
/// The channels of a sink that takes any.
const CHANNELS: [&str; 2] = ["voltage0_i", "voltage0_q"];
/// How long stopping waits until the receiver knows of the end.
const FAREWELL: Duration = Duration::from_secs(1);
/// No sample is missing.
const NOTHING: Lost = Lost::Samples(0);

/// The samples that a sink without a device takes: of 16 bits, with the names and the rate of the setup.
pub(super) fn format(setup: &StreamSetup) -> Result<Format> {
    let named = if setup.channels.is_empty() {
        CHANNELS.map(String::from).to_vec()
    } else {
        setup.channels.clone()
    };
    let is_twice = |(at, name): (usize, &String)| named[..at].contains(name);
    if named.iter().enumerate().any(is_twice) || named.iter().any(String::is_empty) {
        return Err(Error::invalid("the channels", named.join(","), "names that differ"));
    }
    let shorts = Datatype { complex: false, signed: true, bits: 16, big_endian: false };
    Ok(shorts.format(named.len(), Some(&named), None, setup.rate))
}

/// Takes samples in place of a device.
#[derive(Debug)]
pub(super) struct Outlet {
    to: To,
    /// What tells that there is something to do, if that is not only at a call.
    file: Option<Arc<OwnedFd>>,
    pool: Pool,
    blocks: usize,
    /// The longest block of a source that it can [have](Self::lend), in bytes: 0 if none.
    longest_lent: usize,
    sequence: u64,
    /// Bytes that a recording has copied, once it is complete.
    copied: u64,
}

#[derive(Debug)]
enum To {
    Nowhere,
    Verify(Box<Counter>),
    /// `None` once it was finished.
    Recording(Option<Box<Recorder>>),
    Net(Box<FrameSender>),
    /// A device of another machine.
    #[cfg(feature = "iiod")]
    Remote(Box<Transmit>),
}

impl Outlet {
    pub(super) fn open(
        name: &str,
        format: &Format,
        blocks: usize,
        block_len: usize,
    ) -> Result<Self> {
        let to = match name.split_once(':') {
            Some(("null" | "verify", "")) => To::Nowhere,
            Some(("verify", "counter")) => To::Verify(Box::new(Counter::new(format)?)),
            Some(("file", path)) if !path.is_empty() => {
                To::Recording(Some(Box::new(Recorder::create(path, format, None)?)))
            }
            Some(("tcp", target)) if target.contains(':') => {
                let sender = FrameSender::open(target, format, block_len, &Options::default())?;
                let file = own(&sender, name)?;
                return Self::new(To::Net(Box::new(sender)), Some(file), blocks);
            }
            _ => {
                let allowed = format!("iio:NAME, iio:NAME@ip:HOST, {NAMES}");
                return Err(Error::invalid("the name of a sink", name, allowed));
            }
        };
        Self::new(to, None, blocks)
    }

    /// Transmits to a device of another machine.
    #[cfg(feature = "iiod")]
    pub(super) fn remote(transmit: Transmit, name: &str, about: &About) -> Result<Self> {
        let file = own(&transmit, name)?;
        let outlet = Self::new(To::Remote(Box::new(transmit)), Some(file), about.blocks)?;
        // How long the server may take is known for such blocks.
        Ok(Self { longest_lent: about.block_len, ..outlet })
    }

    fn new(to: To, file: Option<Arc<OwnedFd>>, blocks: usize) -> Result<Self> {
        Ok(Self {
            to,
            file,
            pool: Pool::new(Vec::with_capacity(blocks))?,
            blocks,
            longest_lent: 0,
            sequence: 0,
            copied: 0,
        })
    }

    /// Whether it can [have](Self::lend) a block of a source.
    pub(super) fn borrows(&self, samples: &Samples) -> bool {
        samples.meta().len <= self.longest_lent
    }

    /// Takes a block of a source. [`turn`](Self::turn) tells when it is done with that.
    pub(super) fn lend(&mut self, samples: Samples) {
        match &mut self.to {
            #[cfg(feature = "iiod")]
            To::Remote(transmit) => transmit.push(samples, true),
            // Others are sent copies.
            _ => drop(samples),
        }
    }

    /// Takes the first `len` bytes of a block, which comes back by [`turn`](Self::turn).
    pub(super) fn push(&mut self, block: Block, len: usize) -> Result<()> {
        let meta = Meta { sequence: self.sequence, time: SystemTime::now(), lost: NOTHING, len };
        self.sequence += 1;
        self.take(self.pool.hand_out(block, meta, self.blocks, 0))
    }

    fn take(&mut self, samples: Samples) -> Result<()> {
        match &mut self.to {
            To::Verify(counter) => counter.verify(&samples, NOTHING),
            To::Recording(Some(recorder)) => recorder.write(&samples),
            // A sink that was stopped takes nothing.
            To::Nowhere | To::Recording(None) => Ok(()),
            To::Net(sender) => {
                sender.push(samples)?;
                sender.advance()
            }
            #[cfg(feature = "iiod")]
            To::Remote(transmit) => {
                transmit.push(samples, false);
                Ok(())
            }
        }
    }

    /// Does what can be done without waiting. Returns the blocks that are free again, and how many blocks of sources
    /// it is done with. After an error too, these are those that were taken before.
    pub(super) fn turn(&mut self) -> (Vec<Block>, usize, Result<()>) {
        let (returned, turned) = match &mut self.to {
            To::Net(sender) => (0, sender.advance()),
            #[cfg(feature = "iiod")]
            To::Remote(transmit) => {
                let turned = transmit.advance();
                (transmit.returned(), turned)
            }
            To::Nowhere | To::Verify(_) | To::Recording(_) => (0, Ok(())),
        };
        self.pool.returned(|_| {});
        (std::iter::from_fn(|| self.pool.take()).collect(), returned, turned)
    }

    /// Whether everything was taken over, or transmitted.
    #[cfg_attr(not(feature = "iiod"), allow(clippy::unnecessary_wraps))]
    pub(super) fn is_drained(&mut self) -> Result<bool> {
        match &mut self.to {
            To::Net(sender) => Ok(sender.unacknowledged() == 0),
            #[cfg(feature = "iiod")]
            To::Remote(transmit) => transmit.is_drained(),
            To::Nowhere | To::Verify(_) | To::Recording(_) => Ok(true),
        }
    }

    /// Bytes that were copied.
    pub(super) fn copied(&self) -> u64 {
        match &self.to {
            To::Net(sender) => sender.copied(),
            #[cfg(feature = "iiod")]
            To::Remote(transmit) => transmit.copied(),
            To::Recording(Some(recorder)) => recorder.copied(),
            To::Recording(None) | To::Nowhere | To::Verify(_) => self.copied,
        }
    }

    pub(super) fn pending(&self) -> Pending {
        match &self.file {
            Some(file) => Pending::File(Arc::clone(file), PollFlags::IN),
            // Nothing is under way.
            None => Pending::Block,
        }
    }

    pub(super) fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| set.add(&**file, 1, EventFlags::IN))
    }

    /// Ends the stream without waiting: a recording is complete later, and a thread waits until a receiver that has everything
    /// knows of the end.
    pub(super) fn leave(&mut self) -> Result<()> {
        self.copied = self.copied();
        match std::mem::replace(&mut self.to, To::Nowhere) {
            To::Recording(Some(recorder)) => recorder.finish_later(),
            To::Net(mut sender) if !sender.is_finished() && sender.unacknowledged() == 0 => {
                sender.finish(NOTHING);
                // Sent here: the program may end before a thread has its turn.
                if sender.try_wait()? {
                    return Ok(());
                }
                poll::spawn("busbar-farewell", move || drop(sender.wait_timeout(FAREWELL)))
            }
            #[cfg(feature = "iiod")]
            To::Remote(mut transmit) => {
                transmit.stop();
                Ok(())
            }
            To::Recording(None) | To::Net(_) | To::Nowhere | To::Verify(_) => Ok(()),
        }
    }

    /// Ends the stream: a recording is complete and on the disk, and a receiver that has everything learns of the end.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.copied = self.copied();
        match &mut self.to {
            To::Recording(recorder) => recorder.take().map_or(Ok(()), |it| it.finish(NOTHING)),
            To::Net(sender) if !sender.is_finished() => {
                sender.finish(NOTHING);
                let patience = if sender.unacknowledged() == 0 { FAREWELL } else { Duration::ZERO };
                sender.wait_timeout(patience).map(drop)
            }
            #[cfg(feature = "iiod")]
            To::Remote(transmit) => {
                transmit.stop();
                Ok(())
            }
            To::Net(_) | To::Nowhere | To::Verify(_) => Ok(()),
        }
    }
}

/// Another descriptor of the same file.
fn own(fd: &impl AsFd, name: &str) -> Result<Arc<OwnedFd>> {
    let file = fd.as_fd().try_clone_to_owned().map(Arc::new);
    file.map_err(|why| Error::new("use", name, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Memory;
    use crate::stream::net::FrameReceiver;

    #[test]
    fn a_receiver_that_has_everything_is_told_of_the_end_before_the_program_may_end() {
        let setup = StreamSetup::new().blocks(4).block_len(16);
        let mut receiver =
            FrameReceiver::listen("127.0.0.1:0", &setup, &Options::default()).unwrap();
        let name = format!("tcp:{}", receiver.local_addr().unwrap());
        let mut outlet = Outlet::open(&name, &format(&setup).unwrap(), 4, 64).unwrap();
        outlet.push(Block::with(64, &Memory::Memfd).unwrap(), 64).unwrap();
        let mut came = 0;
        while came == 0 || !outlet.is_drained().unwrap() {
            came += usize::from(receiver.try_next().unwrap().is_some());
            outlet.turn().2.unwrap();
        }
        outlet.leave().unwrap();
        // No thread has to have had its turn.
        let end = receiver.try_next();
        assert_eq!(receiver.end(), Some(NOTHING), "{end:?}");
    }
}
