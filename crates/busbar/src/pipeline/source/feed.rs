//! Open sources.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::messages::Messages;
use crate::block::{Block, Memory};
use crate::pipeline::config::{SourceConfig, SourceKind};
use crate::pipeline::edge::NOTHING;
use crate::pipeline::retry::options;
use crate::pipeline::shape::Shape;
use crate::receive;
use crate::stream::net::{Count, FrameReceiver, Options};
use crate::stream::sigmf::{Player, Recording};
use crate::stream::{self, Lost, Samples, StreamSetup};
use crate::{Error, Result};

/// Memory of a network device in addition to that of the blocks.
const SLACK: usize = 4 << 20;
/// Least memory of a network device.
const LEAST_MEMORY: usize = 16 << 20;

/// An open source.
#[derive(Debug)]
pub(super) enum Feed {
    Device(stream::Source),
    Net(Box<FrameReceiver>),
    Recording(Box<Player>),
    Endpoint(Box<Messages>),
}

impl Feed {
    /// `count` is the number of blocks of a source whose sender determines how long they are.
    pub(super) fn open(config: &SourceConfig, setup: &StreamSetup, count: Count) -> Result<Self> {
        Ok(match &config.from {
            SourceKind::Device(name) => Self::Device(stream::Source::open(name, setup)?),
            SourceKind::Listen(address) => {
                Self::net(FrameReceiver::listen(address, setup, &listening(config))?, count)
            }
            SourceKind::Receive { device, address } => {
                Self::net(received(device.as_deref(), *address, config, setup)?, count)
            }
            #[cfg(feature = "usb")]
            SourceKind::Usb(address) => {
                Self::net(FrameReceiver::open_usb(address, setup, &listening(config))?, count)
            }
            SourceKind::Recording(path) => {
                Self::Recording(Box::new(Player::new(Recording::open(path)?, setup)?))
            }
            SourceKind::Endpoint { service, datatype, channels } => {
                let format = datatype.format(*channels, None, None, None);
                Self::Endpoint(Box::new(Messages::open(service, format, setup)?))
            }
        })
    }

    fn net(mut receiver: FrameReceiver, count: Count) -> Self {
        receiver.ask_first();
        receiver.set_count(count);
        Self::Net(Box::new(receiver))
    }

    /// The shape of the blocks; `None` until a sender has connected.
    pub(super) fn shape(&self, memory: Option<&Memory>) -> Option<Shape> {
        let (format, block_len, memory) = match self {
            Self::Device(source) => (source.format(), source.block_len(), Some(source.memory())),
            Self::Net(receiver) => (receiver.format()?, receiver.block_len()?, memory),
            Self::Recording(player) => (player.format(), player.block_len(), memory),
            Self::Endpoint(messages) => (&messages.format, messages.block_len, memory),
        };
        let memory = memory.filter(|memory| **memory != Memory::Foreign);
        let memory = memory.cloned().unwrap_or(Memory::Memfd);
        Some(Shape { format: format.clone(), block_len, memory })
    }

    pub(super) fn next(&mut self) -> Result<Option<Samples>> {
        match self {
            Self::Device(source) => source.try_next(),
            Self::Net(receiver) => receiver.try_next(),
            Self::Recording(player) => player.try_next(),
            Self::Endpoint(messages) => messages.next(),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        match self {
            Self::Net(receiver) => receiver.is_finished(),
            Self::Recording(player) => player.is_finished(),
            Self::Device(_) | Self::Endpoint(_) => false,
        }
    }

    /// What was lost after the last block.
    pub(super) fn end(&self) -> Lost {
        match self {
            Self::Net(receiver) if receiver.is_finished() => {
                receiver.end().unwrap_or(Lost::Unknown)
            }
            Self::Recording(player) if player.is_finished() => player.end(),
            // Further samples are not lost but not wanted.
            _ => NOTHING,
        }
    }

    pub(super) fn copied(&self) -> u64 {
        match self {
            Self::Device(source) => source.copied(),
            Self::Net(receiver) => receiver.copied(),
            Self::Recording(player) => player.copied(),
            Self::Endpoint(messages) => messages.copied,
        }
    }

    pub(super) fn connections(&self) -> (u64, u64) {
        match self {
            Self::Net(receiver) => (receiver.reconnects(), receiver.corrupted()),
            _ => (0, 0),
        }
    }

    pub(super) fn take_trouble(&mut self) -> Option<Error> {
        match self {
            Self::Net(receiver) => receiver.take_trouble(),
            _ => None,
        }
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Device(source) => source.as_fd(),
            Self::Net(receiver) => receiver.as_fd(),
            Self::Recording(player) => player.as_fd(),
            Self::Endpoint(messages) => messages.endpoint.as_fd(),
        }
    }
}

/// A receiver of frames, by device-memory TCP or ordinary receive.
fn received(
    device: Option<&str>,
    address: SocketAddr,
    config: &SourceConfig,
    setup: &StreamSetup,
) -> Result<FrameReceiver> {
    // As `stream::net` recommends: the length of the sender's blocks is not known yet.
    let all = setup.count().checked_mul(4).and_then(|count| count.checked_mul(setup.block_len));
    let len = all.and_then(|all| all.checked_add(SLACK)).ok_or_else(|| {
        let blocks = format!("{} of {} bytes", setup.count(), setup.block_len);
        Error::invalid("blocks to receive", blocks, "a quarter of the address space at most")
    })?;
    let len = len.max(LEAST_MEMORY);
    let usual = if device.is_some() { Memory::Pages } else { Memory::Memfd };
    let block = Block::with(len, config.memory.as_ref().unwrap_or(&usual))?;
    let receiver = match device {
        Some(device) => receive::Receiver::open(device, block, &receive::ReceiveSetup::default())?,
        None => receive::Receiver::host(block)?,
    };
    FrameReceiver::over(receiver, address, setup, &listening(config))
}

fn listening(config: &SourceConfig) -> Options {
    let options = options(config.patience);
    let memory_limit = config.memory_limit.unwrap_or(options.memory_limit);
    Options { memory_limit, ..options }
}
