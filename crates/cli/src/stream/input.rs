//! Where samples come from.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use busbar::block::{Memory, Purpose};
use busbar::stream::net::Receiver;
use busbar::stream::sigmf::{Player, Recording};
use busbar::stream::{Format, Lost, Samples, Setup, Source};
use busbar::{Error, Result};

use super::Flags;
use super::ends::{From, To};
use crate::progress::explain_listen;

pub enum Input {
    Device(Source),
    Net(Box<Receiver>),
    File(Box<Player>),
}

impl Input {
    /// Opens the source. Its blocks are such that the destination can take them as they are.
    pub fn open(from: &From, to: &To, flags: &Flags) -> Result<Self> {
        let setup = Setup {
            blocks: flags.blocks,
            block_len: flags.block_len,
            memory: flags.memory.clone().or_else(|| memory(from, to)),
            interface: flags.interface,
            channels: flags.channels.clone(),
        };
        Ok(match from {
            From::Device(name) => Self::Device(Source::open(name, &setup)?),
            From::Listen(address) => {
                let receiver = Receiver::listen(address, &setup, &flags.net());
                Self::Net(Box::new(receiver.map_err(explain_listen)?))
            }
            From::File(path) => Self::File(Box::new(Player::new(Recording::open(path)?, &setup)?)),
        })
    }

    /// Known at once, but for what comes by the network.
    pub fn format(&self) -> Option<&Format> {
        match self {
            Self::Device(source) => Some(source.format()),
            Self::Net(receiver) => receiver.format(),
            Self::File(player) => Some(player.format()),
        }
    }

    /// Bytes of the longest block.
    pub fn block_len(&self) -> Option<usize> {
        match self {
            Self::Device(source) => Some(source.block_len()),
            Self::Net(receiver) => receiver.block_len(),
            Self::File(player) => Some(player.block_len()),
        }
    }

    /// Looks whether it is known by now what comes.
    pub fn look(&mut self) -> Result<()> {
        match self {
            Self::Net(receiver) => receiver.turn(),
            Self::Device(_) | Self::File(_) => Ok(()),
        }
    }

    /// The next block, if there is one by now.
    pub fn next(&mut self) -> Result<Option<Samples>> {
        match self {
            Self::Device(source) => source.next(Some(Duration::ZERO)),
            Self::Net(receiver) => receiver.next(Some(Duration::ZERO)),
            Self::File(player) => player.next(Some(Duration::ZERO)),
        }
    }

    /// Whether there is nothing more to come.
    pub fn is_finished(&self) -> bool {
        match self {
            Self::Device(_) => false,
            Self::Net(receiver) => receiver.is_finished(),
            Self::File(player) => player.is_finished(),
        }
    }

    /// What was lost after the last block, if there is nothing more to come.
    pub fn end(&self) -> Lost {
        match self {
            Self::Net(receiver) if receiver.is_finished() => {
                receiver.end().unwrap_or(Lost::Unknown)
            }
            Self::File(player) if player.is_finished() => player.end(),
            // What comes later is not lost but not wanted.
            _ => Lost::Samples(0),
        }
    }

    pub fn copied(&self) -> u64 {
        match self {
            Self::Device(source) => source.copied(),
            Self::Net(receiver) => receiver.copied(),
            Self::File(player) => player.copied(),
        }
    }

    /// How often a sender came back, and frames that could not be.
    pub fn connections(&self) -> (u64, u64) {
        match self {
            Self::Net(receiver) => (receiver.reconnects(), receiver.corrupted()),
            _ => (0, 0),
        }
    }

    pub fn take_trouble(&mut self) -> Option<Error> {
        match self {
            Self::Net(receiver) => receiver.take_trouble(),
            _ => None,
        }
    }

    /// Tells who sends that it is in vain, and gives them a moment to hear it.
    pub fn refuse(&mut self, reason: &str) {
        let Self::Net(receiver) = self else { return };
        if receiver.is_finished() || receiver.format().is_none() {
            return;
        }
        receiver.refuse(reason);
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until && receiver.take_trouble().is_none() {
            if receiver.next(Some(Duration::from_millis(20))).is_err() {
                return;
            }
        }
    }

    /// How it is read and where its blocks are, for the summary.
    pub fn about(&self) -> (Option<String>, Option<String>) {
        match self {
            Self::Device(source) => {
                (Some(source.interface().to_string()), Some(source.memory().to_string()))
            }
            _ => (None, None),
        }
    }
}

impl AsFd for Input {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Device(source) => source.as_fd(),
            Self::Net(receiver) => receiver.as_fd(),
            Self::File(player) => player.as_fd(),
        }
    }
}

/// The memory that both ends do best with, where the source alone would choose another.
fn memory(from: &From, to: &To) -> Option<Memory> {
    let is_converter = matches!(from, From::Device(name) if name.starts_with("iio:"));
    match to {
        To::Connect(_) if is_converter => Some(Memory::choose(Purpose::Network)),
        To::Device(_) if !is_converter => Some(Memory::choose(Purpose::Device)),
        _ => None,
    }
}
