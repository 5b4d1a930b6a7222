//! Sources that no device fills: recordings and the network. Their blocks have a home of their own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::about::About;
use super::driver::{Opened, Pending, Receiver, Taken};
use super::format::Format;
use super::loss::Detector;
use super::net::{FrameReceiver, Options};
use super::samples::Samples;
use super::setup::{Interface, StreamSetup};
use super::sigmf::{Player, Recording};
use crate::block::{Block, Memory};
use crate::poll::{self, Bell, Deadline, Set};
use crate::{Error, Result};

/// How long to wait for the first sender, which tells what a sample is.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens `name`, if it is one of a recording or of the network.
pub(super) fn open(name: &str, setup: &StreamSetup) -> Option<Result<Opened>> {
    let (kind, rest) = name.split_once(':')?;
    match kind {
        "file" if !rest.is_empty() => Some(recording(name, rest, setup)),
        "tcp-listen" if !rest.is_empty() => Some(listen(name, rest, setup)),
        _ => None,
    }
}

fn recording(name: &str, path: &str, setup: &StreamSetup) -> Result<Opened> {
    setup.expect_interface(Interface::Library)?;
    let player = Player::new(Recording::open(path)?, setup)?;
    let (format, len) = (player.format().clone(), player.block_len());
    opened(name, From::Recording(Box::new(player)), format, (setup.count(), len), setup)
}

fn listen(name: &str, address: &str, setup: &StreamSetup) -> Result<Opened> {
    setup.expect_interface(Interface::Library)?;
    if !setup.channels.is_empty() {
        let allowed = "nothing: the sender chooses them";
        return Err(Error::invalid("the channels", setup.channels.join(","), allowed));
    }
    let mut receiver = FrameReceiver::listen(address, setup, &Options::default())?;
    let deadline = Deadline::after(PATIENCE);
    loop {
        receiver.advance()?;
        // The number of blocks follows from the length that the sender has chosen.
        if let (Some(format), Some(count), Some(len)) =
            (receiver.format(), receiver.blocks(), receiver.block_len())
        {
            let format = format.clone();
            return opened(name, From::Net(Box::new(receiver)), format, (count, len), setup);
        }
        if deadline.has_passed() {
            return Err(Error::new("wait for a sender to", name, Errno::TIMEDOUT));
        }
        poll::wait(&receiver, PollFlags::IN, deadline.remaining())
            .map_err(|errno| Error::new("wait for a sender to", name, errno))?;
    }
}

fn opened(
    name: &str,
    from: From,
    format: Format,
    (blocks, block_len): (usize, usize),
    setup: &StreamSetup,
) -> Result<Opened> {
    let failed = |why| Error::new("use", name, why);
    let file = Arc::new(from.as_fd().try_clone_to_owned().map_err(failed)?);
    let bell = Bell::new()?;
    // There may be a block already.
    let _ = bell.ring();
    let receiver = Feed { label: name.into(), from: Some(from), file, bell, copied: 0 };
    let detector = Detector::new(&format, false);
    let memory = setup.memory.clone().unwrap_or(Memory::Memfd);
    let interface = Interface::Library;
    let about = About { format, interface, memory, blocks, block_len, device: None };
    Ok(Opened { label: name.into(), receiver: Box::new(receiver), detector, about })
}

#[derive(Debug)]
enum From {
    Recording(Box<Player>),
    Net(Box<FrameReceiver>),
}

impl From {
    /// The next block, if there is one now.
    fn next(&mut self) -> Result<Option<Samples>> {
        match self {
            Self::Recording(player) => player.try_next(),
            Self::Net(receiver) => receiver.try_next(),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Recording(player) => player.is_finished(),
            Self::Net(receiver) => receiver.is_finished(),
        }
    }

    fn copied(&self) -> u64 {
        match self {
            Self::Recording(player) => player.copied(),
            Self::Net(receiver) => receiver.copied(),
        }
    }
}

impl AsFd for From {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Recording(player) => player.as_fd(),
            Self::Net(receiver) => receiver.as_fd(),
        }
    }
}

#[derive(Debug)]
struct Feed {
    label: String,
    /// `None` once it was stopped.
    from: Option<From>,
    /// Its descriptor.
    file: Arc<OwnedFd>,
    /// Rings until it was found that there is no block.
    bell: Bell,
    /// Bytes copied before it was stopped.
    copied: u64,
}

impl Feed {
    fn ended(&self) -> Error {
        Error::new("take samples from", self.label.as_str(), Errno::PIPE)
            .help("all samples were taken")
    }
}

impl Receiver for Feed {
    fn queue(&mut self, block: Block) -> Result<()> {
        // It hands out none of a source.
        drop(block);
        Ok(())
    }

    fn take(&mut self) -> Result<Taken> {
        let Some(from) = &mut self.from else { return Err(self.ended()) };
        match from.next()? {
            Some(samples) => {
                let _ = self.bell.ring();
                Ok(Taken::Whole(samples))
            }
            None if from.is_finished() => Err(self.ended()),
            None => {
                self.bell.clear();
                Ok(Taken::Nothing)
            }
        }
    }

    fn pending(&self) -> Pending {
        Pending::File(Arc::clone(&self.file), PollFlags::IN)
    }

    fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        set.add(&self.bell, 0, EventFlags::IN)?;
        set.add(&*self.file, 1, EventFlags::IN)
    }

    fn copied(&self) -> u64 {
        self.from.as_ref().map_or(self.copied, From::copied)
    }

    fn stop(&mut self) -> Result<()> {
        self.copied = self.copied();
        self.from = None;
        Ok(())
    }
}
