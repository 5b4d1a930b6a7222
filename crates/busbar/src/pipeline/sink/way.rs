//! Open sinks.

use std::os::fd::{AsFd, BorrowedFd};

use super::messages::Messages;
use super::serving::Serving;
use crate::pipeline::bulk::Bulk;
use crate::pipeline::config::{SinkConfig, SinkKind};
use crate::pipeline::edge::Item;
use crate::pipeline::retry::options;
use crate::pipeline::shape::Shape;
use crate::stream::iiod::ServerSetup;
use crate::stream::net::FrameSender;
use crate::stream::sigmf::{Datatype, Recorder};
#[cfg(feature = "usb")]
use crate::stream::usb::{Address, Gadget, RawSender};
use crate::stream::verify::Counter;
use crate::stream::{self, Interface, Lost, StreamSetup};
use crate::{Error, Result};

/// An open sink.
#[derive(Debug)]
pub(super) enum Way {
    Device(stream::Sink),
    Net(Box<FrameSender>),
    Iiod(Box<Serving>),
    Recording(Box<Recorder>),
    Endpoint(Box<Messages>),
    Bulk(Bulk),
    #[cfg(feature = "usb")]
    Raw(Box<RawSender>),
    Null,
    Verify(Option<Counter>),
}

impl Way {
    /// Whether samples of `shape` are such as the sink takes, as far as that is known without opening it.
    pub(super) fn check(config: &SinkConfig, shape: &Shape) -> Result<()> {
        match &config.to {
            SinkKind::Recording(_) => Datatype::of(&shape.format).map(drop),
            SinkKind::Endpoint(_) => Messages::check(shape.format.sample_len),
            SinkKind::Verify { counter: true } => Counter::new(&shape.format).map(drop),
            _ => Ok(()),
        }
    }

    /// Number of blocks of a device.
    pub(super) fn blocks(config: &SinkConfig, shape: &Shape) -> usize {
        config.blocks.unwrap_or_else(|| StreamSetup::enough(shape.block_len))
    }

    pub(super) fn open(config: &SinkConfig, shape: &Shape, from: Option<&str>) -> Result<Self> {
        Ok(match &config.to {
            SinkKind::Device(name) => {
                let setup = StreamSetup {
                    blocks: Some(Self::blocks(config, shape)),
                    block_len: shape.block_len,
                    memory: config.memory.clone(),
                    interface: config.interface,
                    ..StreamSetup::default()
                };
                Self::Device(stream::Sink::open_for(name, &shape.format, &setup)?)
            }
            SinkKind::Connect(target) => {
                let options = options(config.patience);
                let sender = FrameSender::open(target, &shape.format, shape.block_len, &options)?;
                Self::Net(Box::new(sender))
            }
            SinkKind::Iiod(listen) => {
                let setup = ServerSetup::new().listen(listen).announce(config.announce);
                Self::Iiod(Box::new(Serving::open(&setup, &config.name, &shape.format, from)?))
            }
            #[cfg(feature = "usb")]
            SinkKind::Usb(address @ Address::Gadget(Gadget { raw: true, .. })) => {
                Self::Raw(Box::new(RawSender::open(address, config.interface)?))
            }
            #[cfg(feature = "usb")]
            SinkKind::Usb(address) => {
                let options = options(config.patience);
                let (format, len) = (&shape.format, shape.block_len);
                Self::Net(Box::new(FrameSender::open_usb(
                    address,
                    format,
                    len,
                    config.interface,
                    &options,
                )?))
            }
            SinkKind::Recording(path) => {
                Self::Recording(Box::new(Recorder::create(path, &shape.format, from)?))
            }
            SinkKind::Endpoint(service) => {
                Self::Endpoint(Box::new(Messages::open(service, shape.format.sample_len)?))
            }
            SinkKind::Bulk(transport) => Self::Bulk(Bulk::open(*transport)?),
            SinkKind::Null => Self::Null,
            SinkKind::Verify { counter } => {
                Self::Verify(counter.then(|| Counter::new(&shape.format)).transpose()?)
            }
        })
    }

    /// Takes a block; `false` if there is no room.
    pub(super) fn take(&mut self, item: &Item) -> Result<bool> {
        match self {
            Self::Device(sink) => sink.try_forward(&item.samples),
            Self::Net(sender) => {
                sender.push_as(item.samples.clone(), item.lost, item.check).map(|()| true)
            }
            Self::Iiod(serving) => Ok(serving.take(&item.samples, item.lost)),
            #[cfg(feature = "usb")]
            Self::Raw(sender) => sender.push(item.samples.clone()).map(|()| true),
            Self::Recording(recorder) => recorder.write_as(&item.samples, item.lost).map(|()| true),
            Self::Endpoint(messages) => Ok(messages.take(item)),
            Self::Bulk(bulk) => bulk.take(item),
            Self::Null => Ok(true),
            Self::Verify(counter) => {
                check(item)?;
                if let Some(counter) = counter {
                    counter.verify(&item.samples, item.lost)?;
                }
                Ok(true)
            }
        }
    }

    /// Does what can be done without waiting. Returns how many of `under_way` blocks are not delivered yet.
    pub(super) fn turn(&mut self, under_way: usize) -> Result<usize> {
        match self {
            Self::Device(sink) => {
                sink.reap()?;
                Ok(sink.queued().min(under_way))
            }
            Self::Net(sender) => {
                sender.advance()?;
                Ok(sender.unacknowledged())
            }
            Self::Iiod(serving) => serving.turn().map(|()| 0),
            #[cfg(feature = "usb")]
            Self::Raw(sender) => {
                sender.advance()?;
                Ok(sender.unsent())
            }
            Self::Endpoint(messages) => messages.turn(),
            Self::Bulk(bulk) => bulk.turn(),
            Self::Recording(_) | Self::Null | Self::Verify(_) => Ok(0),
        }
    }

    /// How many of `under_way` blocks are not delivered yet, once it has failed.
    pub(super) fn left(&self, under_way: usize) -> usize {
        match self {
            Self::Device(sink) if sink.interface() == Interface::Iiod => {
                sink.queued().min(under_way)
            }
            _ => under_way,
        }
    }

    /// No more blocks come. Returns whether everything was delivered.
    pub(super) fn finish(&mut self, lost: Lost) -> Result<bool> {
        match self {
            Self::Device(sink) => sink.try_drain(),
            Self::Net(sender) => {
                sender.finish(lost);
                sender.advance()?;
                Ok(sender.is_finished())
            }
            Self::Iiod(serving) => serving.finish(),
            #[cfg(feature = "usb")]
            Self::Raw(sender) => {
                sender.advance()?;
                Ok(sender.unsent() == 0)
            }
            Self::Endpoint(_)
            | Self::Bulk(_)
            | Self::Recording(_)
            | Self::Null
            | Self::Verify(_) => Ok(true),
        }
    }

    pub(super) fn close(self, lost: Lost) -> Result<()> {
        match self {
            Self::Recording(recorder) => recorder.finish(lost),
            _ => Ok(()),
        }
    }

    pub(super) fn copied(&self) -> u64 {
        match self {
            Self::Device(sink) => sink.copied(),
            Self::Net(sender) => sender.copied(),
            Self::Iiod(serving) => serving.copied(),
            #[cfg(feature = "usb")]
            Self::Raw(sender) => sender.copied(),
            Self::Recording(recorder) => recorder.copied(),
            Self::Endpoint(messages) => messages.copied,
            Self::Bulk(bulk) => bulk.copied(),
            Self::Null | Self::Verify(_) => 0,
        }
    }

    pub(super) fn connections(&self) -> (u64, u64) {
        match self {
            Self::Net(sender) => (sender.reconnects(), sender.resent()),
            _ => (0, 0),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Device(sink) => Some(sink.as_fd()),
            Self::Net(sender) => Some(sender.as_fd()),
            Self::Iiod(serving) => Some(serving.as_fd()),
            #[cfg(feature = "usb")]
            Self::Raw(sender) => Some(sender.as_fd()),
            Self::Endpoint(messages) => Some(messages.endpoint.as_fd()),
            Self::Bulk(bulk) => Some(bulk.as_fd()),
            Self::Recording(_) | Self::Null | Self::Verify(_) => None,
        }
    }
}

/// Verifies the check sum that a stage has computed.
fn check(item: &Item) -> Result<()> {
    let Some(check) = item.check else { return Ok(()) };
    let found = item.samples.parts()?.crc32c();
    if found == check {
        return Ok(());
    }
    let sequence = item.samples.meta().sequence;
    let why =
        format!("the check sum of block {sequence} is {found:#010x} instead of {check:#010x}");
    let why = std::io::Error::new(std::io::ErrorKind::InvalidData, why);
    Err(Error::new("verify", "samples", why))
}
