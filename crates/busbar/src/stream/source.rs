//! Receives samples.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::about::About;
use super::driver::{Filled, Opened, Receiver, Taken};
use super::format::{Format, Lost, Meta};
#[cfg(feature = "iiod")]
use super::iiod::remote::{self, Remote};
use super::loss::Detector;
use super::samples::{self, Home, Kin, Samples, Shell};
use super::setup::{Interface, StreamSetup};
use super::shared::Shared;
use super::values::Scale;
use super::{feed, iio, synth};
use crate::block::{Block, Bytes, Memory};
use crate::poll::{self, Deadline};
use crate::{Error, Result};

/// A stream of samples from a converter.
///
/// Dropping it stops the device and restores its settings. [`Samples`] that were handed out stay valid.
///
/// All methods take `&self` and may be used from many threads; each block goes to one of them. A
/// signal does not end a wait: poll the descriptor together with the signal for that.
///
/// The descriptor ([`AsFd`]) is readable while [`next`](Self::next) would return a block or an error at
/// once. It may be readable without either; then [`try_next`](Self::try_next) returns `None`.
pub struct Source {
    shared: Arc<Shared<State>>,
    kin: Kin,
    about: About,
}

#[derive(Debug)]
struct State {
    receiver: Box<dyn Receiver>,
    detector: Detector,
    sequence: u64,
    shells: Vec<Shell>,
    /// The error of a block that was given back.
    trouble: Option<Error>,
    ended: bool,
    /// The receiver is to be watched, and could not be yet. The set is kept readable until then.
    unwatched: bool,
}

/// A block that is complete.
enum Next {
    Block(Block, Meta),
    /// One of another home.
    Whole(Samples),
}

impl Source {
    /// Opens `name`, see [Names](super#names), and starts it.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such device, `EBUSY` if another program uses it, `EACCES`, `EMFILE`; bad input for an
    /// invalid name, channel or number; as [`Block::with`] for its memory. If the setup names an interface,
    /// `EPERM` or `ENOTTY` if the driver does not offer it. As [`Recording::open`](super::sigmf::Recording::open) and
    /// [`FrameReceiver::listen`](super::net::FrameReceiver::listen); `ETIMEDOUT` if no sender connects within 30 s.
    pub fn open(name: &str, setup: &StreamSetup) -> Result<Self> {
        setup.check()?;
        setup.expect_no_rate()?;
        if let Some(synth) = name.strip_prefix("synth:") {
            return Self::start(synth::open(synth, setup)?);
        }
        if let Some(device) = name.strip_prefix("iio:") {
            #[cfg(feature = "iiod")]
            if let Some(remote) = Remote::of(device) {
                return Self::start(remote::open(&remote, setup)?);
            }
            return Self::start(iio::receive(device, setup)?);
        }
        feed::open(name, setup).map_or_else(
            || {
                let allowed =
                    "iio:NAME, iio:NAME@ip:HOST, synth:PATTERN, file:NAME, tcp-listen:[HOST:]PORT";
                Err(Error::invalid("the name of a source", name, allowed))
            },
            |opened| Self::start(opened?),
        )
    }

    /// Starts to hand out blocks.
    fn start(Opened { label, receiver, detector, about }: Opened) -> Result<Self> {
        let state = State {
            receiver,
            detector,
            sequence: 0,
            shells: Vec::with_capacity(about.blocks),
            trouble: None,
            ended: false,
            unwatched: false,
        };
        let shared = Shared::new(label, state)?;
        Ok(Self { shared, kin: Kin::default(), about })
    }

    /// What a sample looks like.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.about.format
    }

    /// How to convert the values of a channel into a unit: the device's attributes `scale` and `offset` as they
    /// are now, if it has them. Setting a gain may change them.
    ///
    /// # Errors
    ///
    /// Bad input for a channel that is not received.
    pub fn scale(&self, channel: &str) -> Result<Scale> {
        self.about.scale(channel)
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

    /// Number of blocks that the source has.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.about.blocks
    }

    /// Bytes of samples that a block holds.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.about.block_len
    }

    /// The next block. Waits for it without a limit.
    ///
    /// While all blocks are handed out, no block comes until one is given back.
    ///
    /// # Errors
    ///
    /// The driver's error if it has failed with a block; the next call takes the next block. `EIO` if the
    /// driver has completed a block without samples. Kind [`BrokenPipe`](std::io::ErrorKind::BrokenPipe) once the
    /// stream has ended: by [`stop`](Self::stop), or because the device was disabled or has gone.
    pub fn next(&self) -> Result<Samples> {
        poll::forever(|deadline| self.next_until(deadline))
    }

    /// The next block, or `None` if none is complete now.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use busbar::stream::{Source, StreamSetup};
    /// use busbar::wait::{Events, Interest, Poller};
    ///
    /// # fn main() -> busbar::Result<()> {
    /// let source = Source::open("synth:sine?rate=1M", &StreamSetup::new().block_len(8000))?;
    /// let (poller, mut events) = (Poller::new()?, Events::new(8)?);
    /// poller.add(&source, 1, Interest::READABLE)?;
    /// let mut blocks = 0;
    /// while blocks < 3 && poller.wait_timeout(&mut events, Duration::from_secs(60))? > 0 {
    ///     while let Some(samples) = source.try_next()? {
    ///         blocks += 1;
    ///         assert_eq!(samples.meta().len, 8000);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn try_next(&self) -> Result<Option<Samples>> {
        self.next_until(Deadline::now())
    }

    /// The next block, or `None` if none was complete within `timeout`.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Samples>> {
        self.next_until(Deadline::after(timeout))
    }

    fn next_until(&self, deadline: Deadline) -> Result<Option<Samples>> {
        let mut state = self.shared.lock();
        loop {
            match self.shared.take(&mut state, self.about.format.sample_len)? {
                Some(Next::Whole(samples)) => return Ok(Some(samples)),
                Some(Next::Block(block, meta)) => {
                    let (shell, total) = (state.shells.pop(), self.about.blocks);
                    let (home, kin) = (Arc::clone(&self.shared), Arc::clone(&self.kin));
                    let from = samples::Origin { home, kin, total, tag: 0, shell };
                    return Ok(Some(Samples::pooled(block, meta, from)));
                }
                None => {}
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            let pending = state.receiver.pending();
            state = self.shared.wait(state, pending, deadline)?;
        }
    }

    /// Bytes that were copied in memory on the way into blocks.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.shared.lock().receiver.copied()
    }

    /// Stops the device and restores its settings. Threads that wait in [`next`](Self::next) get an error.
    ///
    /// # Errors
    ///
    /// The error of a setting that could not be restored.
    pub fn stop(&self) -> Result<()> {
        self.shared.end(&mut self.shared.lock())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shared, kin: _, about } = self;
        f.debug_struct("Source").field("shared", shared).field("about", about).finish()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // No caller is left to handle an error.
        let _ = self.stop();
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.watched(|shared, state| {
            state.unwatched = true;
            if let Err(error) = shared.watch(state) {
                state.trouble = Some(error);
                shared.ring();
            }
        })
    }
}

impl Home for Shared<State> {
    fn take_back(&self, block: Block, _: u64, shell: Option<Shell>) {
        let mut state = self.lock();
        state.shells.extend(shell);
        self.give_back(&mut state, block);
    }
}

impl Shared<State> {
    /// Has the receiver watched, if it is to be and is not yet.
    fn watch(&self, state: &mut State) -> Result<()> {
        if state.ended || !state.unwatched {
            return Ok(());
        }
        state.receiver.watch(self.set())?;
        state.unwatched = false;
        self.bell().clear();
        Ok(())
    }

    /// Keeps the set readable.
    fn ring(&self) {
        // An eventfd that exists can be rung.
        let _ = self.bell().ring();
    }

    /// The next block, if it is complete.
    fn take(&self, state: &mut State, sample_len: usize) -> Result<Option<Next>> {
        if let Some(error) = state.trouble.take() {
            return Err(error);
        }
        if state.ended {
            return Err(self.ended("take samples from"));
        }
        // The error was returned; until it succeeds, the set is readable all the time.
        let _ = self.watch(state);
        match state.receiver.take() {
            Ok(Taken::Nothing) => Ok(None),
            Ok(Taken::Filled(filled)) => {
                let (block, meta) = self.filled(state, filled, sample_len)?;
                Ok(Some(Next::Block(block, meta)))
            }
            Ok(Taken::Whole(samples)) => Ok(Some(Next::Whole(samples))),
            Ok(Taken::Failed(block, error)) => {
                state.sequence += 1;
                self.give_back(state, block);
                Err(error)
            }
            Err(error) => {
                // The first error matters more than one of the end.
                let _ = self.end(state);
                Err(error)
            }
        }
    }

    fn filled(
        &self,
        state: &mut State,
        filled: Filled,
        sample_len: usize,
    ) -> Result<(Block, Meta)> {
        let Filled { block, time, mut samples, lost } = filled;
        let sequence = state.sequence;
        state.sequence += 1;
        let lost = match lost {
            Some(lost) => lost,
            None => match state.look(&block, samples) {
                Ok(found) => {
                    samples = found.0;
                    found.1
                }
                Err(error) => {
                    self.give_back(state, block);
                    return Err(error);
                }
            },
        };
        if samples == 0 {
            self.give_back(state, block);
            return Err(Error::new("take samples from", self.label(), Errno::IO)
                .help("the driver has completed a block without filling it"));
        }
        Ok((block, Meta { sequence, time, lost, len: samples * sample_len }))
    }

    /// Gives a block to the driver again. The next [`Source::next`] returns an error.
    fn give_back(&self, state: &mut State, block: Block) {
        if state.ended {
            return;
        }
        if let Err(error) = state.receiver.queue(block) {
            // Without its blocks, the stream would stop sooner or later.
            let _ = self.end(state);
            state.trouble = Some(error);
        }
        self.notify(state);
    }

    fn end(&self, state: &mut State) -> Result<()> {
        if !state.ended {
            state.ended = true;
            self.ring();
            self.notify(state);
        }
        // Restores again what it could not before.
        state.receiver.stop()
    }
}

impl State {
    /// Inspects the samples of a block: how many there are, and how many are missing before its end.
    fn look(&mut self, block: &Block, samples: usize) -> Result<(usize, Lost)> {
        let found = if self.detector.looks() {
            self.detector.inspect(block.read()?.bytes(), samples)
        } else {
            self.detector.inspect(Bytes::default(), samples)
        };
        Ok((found.samples, found.lost))
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::PollFlags;

    use super::*;
    use crate::poll::Set;
    use crate::stream::driver::Pending;

    /// A receiver without blocks that can be watched from the third attempt on.
    #[derive(Debug)]
    struct Unwatchable(u32);

    impl Receiver for Unwatchable {
        fn queue(&mut self, _: Block) -> Result<()> {
            Ok(())
        }

        fn take(&mut self) -> Result<Taken> {
            Ok(Taken::Nothing)
        }

        fn pending(&self) -> Pending {
            Pending::Block
        }

        fn watch(&mut self, _: &Arc<Set>) -> Result<()> {
            self.0 += 1;
            if self.0 > 2 { Ok(()) } else { Err(Error::new("make", "a timer", Errno::MFILE)) }
        }

        fn stop(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stream_that_cannot_be_watched_is_readable_until_it_can() {
        let format = Format { channels: Vec::new(), sample_len: 1, rate: None };
        let detector = Detector::new(&format, false);
        let (interface, memory) = (Interface::Synth, Memory::Memfd);
        let about = About { format, interface, memory, blocks: 1, block_len: 1, device: None };
        let receiver = Box::new(Unwatchable(0));
        let opened = Opened { label: "a test".into(), receiver, detector, about };
        let source = Source::start(opened).unwrap();
        let is_readable =
            || !poll::wait(&source, PollFlags::IN, Some(Duration::ZERO)).unwrap().is_empty();
        assert!(is_readable());
        assert_eq!(source.try_next().unwrap_err().errno(), Some(Errno::MFILE));
        assert!(is_readable());
        assert!(source.try_next().unwrap().is_none());
        assert!(is_readable());
        assert!(source.try_next().unwrap().is_none());
        assert!(!is_readable());
        source.stop().unwrap();
        assert!(is_readable());
    }
}
