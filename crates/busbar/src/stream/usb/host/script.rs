//! Devices that are made up, for tests and the fuzzer: what they send is a script.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

use nusb::transfer::{Buffer, Completion, TransferError};

use super::super::Role;
use super::wire::{HostWire, Transfers};
use crate::block::{Block, Memory};
use crate::poll::Bell;
use crate::stream::net::{FrameReceiver, FrameSender, Options, Pool, Port, Wire};
use crate::stream::{Format, Lost, Meta, Samples, StreamSetup};
use crate::{Error, Result};

/// What a device does in one connection. Behind the last step it is silent.
pub type Script = Vec<Step>;

/// How a device ends a transfer.
#[derive(Clone, Debug)]
pub enum Step {
    /// With these bytes. Those for which it has no room are in the next one.
    Send(Vec<u8>),
    /// Not yet: the host has a turn.
    Wait,
    /// The transfer fails.
    Fail,
}

/// What the samples of scripts are: 16 bits.
#[must_use]
pub fn format() -> Format {
    Format::of_shorts(&["voltage0"])
}

/// What a host has of its devices.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The blocks that it received.
    pub blocks: Vec<(Meta, Vec<u8>)>,
    /// The transfers that it sent.
    pub sent: Vec<Vec<u8>>,
    /// Why connections have ended.
    pub troubles: Vec<Error>,
    /// How often it looked for news.
    pub turns: usize,
    /// Whether the whole stream was received, or was taken over by the device.
    pub is_finished: bool,
}

/// Receives what devices send, one after the other.
///
/// # Errors
///
/// As [`FrameReceiver`].
pub fn receive(devices: Vec<Script>, options: &Options) -> Result<Outcome> {
    let (port, steps) = Devices::new(devices, Role::Receiver)?;
    let setup = StreamSetup::new().blocks(4);
    let mut receiver = FrameReceiver::through(Box::new(port), "a script".into(), &setup, options)?;
    let mut outcome = Outcome::default();
    while steps.go_on() {
        outcome.turns += 1;
        while let Some(samples) = receiver.try_next()? {
            outcome.blocks.push((*samples.meta(), samples.read()?.bytes().to_vec()));
            steps.note();
        }
        outcome.troubles.extend(receiver.take_trouble());
    }
    outcome.is_finished = receiver.is_finished();
    Ok(outcome)
}

/// Sends blocks of up to `block_len` bytes, as stream 1, to devices, one after the other.
///
/// # Errors
///
/// As [`FrameSender`].
pub fn send(
    blocks: &[&[u8]],
    block_len: usize,
    devices: Vec<Script>,
    options: &Options,
) -> Result<Outcome> {
    let (port, steps) = Devices::new(devices, Role::Sender)?;
    let mut sender =
        FrameSender::through(Box::new(port), "a script".into(), &format(), block_len, options)?;
    sender.name(1);
    for block in blocks {
        sender.push(samples(block)?)?;
    }
    sender.finish(Lost::Samples(0));
    let mut outcome = Outcome::default();
    while steps.go_on() {
        outcome.turns += 1;
        sender.advance()?;
        outcome.troubles.extend(sender.take_trouble());
    }
    outcome.is_finished = sender.is_finished();
    outcome.sent = std::mem::take(&mut steps.done().taken);
    Ok(outcome)
}

fn samples(bytes: &[u8]) -> Result<Samples> {
    let mut block = Block::with(bytes.len(), &Memory::Memfd)?;
    block.write()?.bytes_mut().slice(..bytes.len()).copy_from(bytes);
    let (time, lost) = (SystemTime::UNIX_EPOCH, Lost::Samples(0));
    let meta = Meta { sequence: 0, time, lost, len: bytes.len() };
    Ok(Pool::new(Vec::<Block>::new())?.hand_out(block, meta, 1, 0))
}

/// What devices have done.
#[derive(Clone, Debug, Default)]
struct Steps(Arc<Mutex<Done>>);

#[derive(Debug, Default)]
struct Done {
    /// Turns since one of them has done something.
    idle: usize,
    /// The transfers that they have taken.
    taken: Vec<Vec<u8>>,
}

impl Steps {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self) {
        self.done().idle = 0;
    }

    /// Whether something was done in the last few turns.
    fn go_on(&self) -> bool {
        let mut done = self.done();
        done.idle += 1;
        done.idle <= 4
    }
}

#[derive(Debug)]
struct Devices {
    scripts: VecDeque<Script>,
    role: Role,
    steps: Steps,
    bell: Bell,
}

impl Devices {
    fn new(scripts: Vec<Script>, role: Role) -> Result<(Self, Steps)> {
        let steps = Steps::default();
        let bell = Bell::new()?;
        Ok((Self { scripts: scripts.into(), role, steps: steps.clone(), bell }, steps))
    }
}

impl Port for Devices {
    fn open(&mut self) -> Result<Option<Box<dyn Wire>>> {
        let Some(script) = self.scripts.pop_front() else { return Ok(None) };
        self.steps.note();
        let from =
            Sending { script: script.into(), queue: VecDeque::new(), steps: self.steps.clone() };
        let to = Taking { queue: VecDeque::new(), steps: self.steps.clone() };
        Ok(Some(Box::new(HostWire::new(Box::new(from), Box::new(to), self.role)?)))
    }

    fn waits(&self) -> bool {
        false
    }

    fn hear(&mut self) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The endpoint by which a device sends.
struct Sending {
    script: VecDeque<Step>,
    queue: VecDeque<Buffer>,
    steps: Steps,
}

impl Transfers for Sending {
    fn allocate(&self, len: usize) -> Buffer {
        Buffer::new(len)
    }

    fn submit(&mut self, buffer: Buffer) {
        assert!(buffer.requested_len() > 0 && buffer.requested_len().is_multiple_of(1024));
        self.queue.push_back(buffer);
    }

    fn pending(&self) -> usize {
        self.queue.len()
    }

    fn poll_next_complete(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        assert!(!self.queue.is_empty(), "as nusb");
        let Some(step) = self.script.pop_front() else { return Poll::Pending };
        self.steps.note();
        if let Step::Wait = step {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(mut buffer) = self.queue.pop_front() else { return Poll::Pending };
        let Step::Send(mut bytes) = step else {
            return Poll::Ready(Completion {
                buffer,
                actual_len: 0,
                status: Err(TransferError::Fault),
            });
        };
        let rest = bytes.split_off(bytes.len().min(buffer.requested_len()));
        if !rest.is_empty() {
            self.script.push_front(Step::Send(rest));
        }
        buffer.clear();
        buffer.extend_from_slice(&bytes);
        Poll::Ready(Completion { buffer, actual_len: bytes.len(), status: Ok(()) })
    }
}

/// The endpoint by which a device takes everything.
struct Taking {
    queue: VecDeque<Buffer>,
    steps: Steps,
}

impl Transfers for Taking {
    fn allocate(&self, len: usize) -> Buffer {
        Buffer::new(len)
    }

    fn submit(&mut self, buffer: Buffer) {
        self.queue.push_back(buffer);
    }

    fn pending(&self) -> usize {
        self.queue.len()
    }

    fn poll_next_complete(&mut self, _: &mut Context<'_>) -> Poll<Completion> {
        let buffer = self.queue.pop_front().expect("as nusb");
        let actual_len = buffer.len();
        self.steps.done().taken.push(buffer[..].to_vec());
        Poll::Ready(Completion { buffer, actual_len, status: Ok(()) })
    }
}
