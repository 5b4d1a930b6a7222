//! Where samples go to.

use std::os::fd::{AsFd, BorrowedFd};

use busbar::stream::net::Sender;
use busbar::stream::sigmf::Recorder;
use busbar::stream::{Channel, Format, Lost, Samples, Setup, Sink};
use busbar::{Error, Result};

use super::Flags;
use super::ends::{From, To};

pub enum Output {
    Device(Sink),
    Net(Box<Sender>),
    /// Gone once it is finished; the bytes that it had copied stay.
    File(Option<Box<Recorder>>, u64),
    Null,
}

impl Output {
    pub fn open(
        to: &To,
        from: &From,
        format: &Format,
        block_len: usize,
        flags: &Flags,
    ) -> Result<Self> {
        Ok(match to {
            To::Device(name) => Self::Device(transmitter(name, format, block_len, flags)?),
            To::Connect(target) => {
                Self::Net(Box::new(Sender::open(target, format, block_len, &flags.net())?))
            }
            To::File(path) => {
                let hw = match from {
                    From::Device(name) => Some(name.as_str()),
                    _ => None,
                };
                Self::File(Some(Box::new(Recorder::create(path, format, hw)?)), 0)
            }
            To::Null => Self::Null,
        })
    }

    pub fn take(&mut self, samples: Samples) -> Result<()> {
        match self {
            Self::Device(sink) => sink.forward(samples),
            Self::Net(sender) => sender.push(samples),
            Self::File(Some(recorder), _) => recorder.write(&samples),
            Self::File(None, _) | Self::Null => Ok(()),
        }
    }

    /// Does what can be done without waiting.
    pub fn turn(&mut self) -> Result<()> {
        match self {
            Self::Device(sink) => sink.reap(),
            Self::Net(sender) => sender.turn(),
            Self::File(..) | Self::Null => Ok(()),
        }
    }

    /// There is nothing more to come, and `lost` was lost after the last block.
    pub fn finish(&mut self, lost: Lost) -> Result<()> {
        match self {
            Self::Net(sender) => sender.finish(lost),
            Self::File(recorder, copied) => {
                if let Some(recorder) = recorder.take() {
                    *copied = recorder.copied();
                    recorder.finish(lost)?;
                }
            }
            Self::Device(_) | Self::Null => {}
        }
        Ok(())
    }

    /// Whether everything is where it should be.
    pub fn is_finished(&self) -> Result<bool> {
        match self {
            Self::Device(sink) => sink.drain(Some(std::time::Duration::ZERO)),
            Self::Net(sender) => Ok(sender.is_finished()),
            Self::File(recorder, _) => Ok(recorder.is_none()),
            Self::Null => Ok(true),
        }
    }

    pub fn copied(&self) -> u64 {
        match self {
            Self::Device(sink) => sink.copied(),
            Self::Net(sender) => sender.copied(),
            Self::File(recorder, copied) => {
                recorder.as_ref().map_or(*copied, |recorder| recorder.copied())
            }
            Self::Null => 0,
        }
    }

    /// How often the connection was made anew, and blocks that were sent again.
    pub fn connections(&self) -> (u64, u64) {
        match self {
            Self::Net(sender) => (sender.reconnects(), sender.resent()),
            _ => (0, 0),
        }
    }

    pub fn take_trouble(&mut self) -> Option<Error> {
        match self {
            Self::Net(sender) => sender.take_trouble(),
            _ => None,
        }
    }

    /// What tells that a [`turn`](Self::turn) has something to do.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Device(sink) => Some(sink.as_fd()),
            Self::Net(sender) => Some(sender.as_fd()),
            Self::File(..) | Self::Null => None,
        }
    }
}

/// A converter whose samples are those that come.
fn transmitter(name: &str, format: &Format, block_len: usize, flags: &Flags) -> Result<Sink> {
    let channels = format.channels.iter().map(|channel| channel.name.clone()).collect();
    let setup = Setup {
        blocks: flags.blocks,
        block_len,
        memory: flags.memory.clone(),
        interface: flags.interface,
        channels,
    };
    let sink = Sink::open(name, &setup)?;
    let layout = |format: &Format| -> Vec<_> {
        let of = |channel: &Channel| {
            let Channel { bits, storage_bits, shift, big_endian, repeat, offset, .. } = *channel;
            (bits, storage_bits, shift, big_endian, repeat, offset)
        };
        format.channels.iter().map(of).collect()
    };
    let same = layout(sink.format()) == layout(format);
    if same && sink.format().sample_len == format.sample_len {
        return Ok(sink);
    }
    let came = format!("samples of {} bytes", format.sample_len);
    let allowed = format!(
        "samples of {} bytes as {name} has them: types and places of the channels have to be the same",
        sink.format().sample_len
    );
    Err(Error::invalid(format!("for {name}"), came, allowed))
}
