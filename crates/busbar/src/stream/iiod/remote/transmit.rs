//! Samples to another machine.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use busbar_uapi::tcp;
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use super::buffer::{Buffer, PATIENCE};
use super::talk::{Talk, says};
use super::{Remote, failure};
use crate::block::Memory;
use crate::stream::about::About;
use crate::stream::device::Direction;
use crate::stream::iiod::hub::LOST;
use crate::stream::net::transmit::{Progress, Queued, ZeroCopy};
use crate::stream::net::watch::Watch;
use crate::stream::samples::Samples;
use crate::stream::setup::{Interface, StreamSetup};
use crate::{Error, Result};

/// Most buffers of the server, as libiio has them by default.
const BUFFERS: u32 = 4;
/// How much later its answer may come.
const GRACE: Duration = Duration::from_secs(5);
/// How long the buffers of a device that tells no rate may take, as it may be slow.
const UNKNOWN: Duration = Duration::from_secs(60);
/// How long such a device is given at the end: most are fast.
const LINGER: Duration = Duration::from_secs(1);
/// What `busbar serve` has transmitted of that when it answers `CLOSE`: a second less than it waits for it.
const CLOSING: Duration = Duration::from_secs(4);
const ZEROS: [u8; 4096] = [0; 4096];

/// Opens a device of another machine to transmit to it.
pub(in crate::stream) fn transmit(
    remote: &Remote,
    setup: &StreamSetup,
) -> Result<(String, About, Transmit)> {
    setup.expect_no_rate()?;
    let mut buffer = Buffer::find(remote, setup, Direction::Transmit)?;
    // An even number: of a buffer that drivers without DMABUFs have, one half is transmitted at a time.
    let count = setup.count().clamp(2, BUFFERS as usize) & !1;
    let time = buffer.block_time();
    let patience = PATIENCE.saturating_add(time.map_or(UNKNOWN, |time| time * BUFFERS));
    let silence = remote.silence()?.unwrap_or(patience.saturating_add(GRACE));
    // A server that does not know the command has as many as libiio asks for.
    let count = if buffer.open(patience, silence, count)? { count } else { BUFFERS as usize };
    let (label, watch) = (buffer.label.clone(), Watch::new()?);
    let about = About {
        format: buffer.format.clone(),
        interface: Interface::Iiod,
        memory: setup.memory.clone().unwrap_or(Memory::Memfd),
        blocks: setup.count(),
        block_len: buffer.block_len(),
        device: None,
    };
    let (id, open) = (buffer.id().to_owned(), buffer.commands(count));
    let half = (!buffer.has(LOST)).then(|| buffer.block_len() * (count / 2));
    let socket = buffer.into_socket(silence)?;
    watch.add(&socket, 0)?;
    let transmit = Transmit {
        label: label.clone(),
        id,
        open,
        half,
        silence,
        linger: time.map_or(LINGER, |time| time * (BUFFERS + 1)),
        zero_copy: ZeroCopy::new(&socket),
        talk: Some(Talk::new(socket)),
        watch,
        state: State::Idle,
        queue: VecDeque::new(),
        sent: 0,
        holds: false,
        begun: 0,
        since: Instant::now(),
        copied: 0,
        returned: 0,
    };
    Ok((label, about, transmit))
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A request for the first of the queue.
    Idle,
    /// The server's leave to send it.
    Asked,
    /// Its bytes.
    Sending,
    /// The server's answer how many it has taken.
    Sent,
    /// The server's answer that the device is closed.
    Closing,
    /// The device is closed until there is more to transmit.
    Closed,
    /// The server's answer how many buffers it has then, whatever it is.
    Setting,
    /// The server's answer that it is open again.
    Opening,
}

#[derive(Debug)]
enum Load {
    /// A block, and whether it is a source's.
    Samples(Queued, bool),
    /// So many bytes.
    Zeros(usize),
}

impl Load {
    fn len(&self) -> usize {
        match self {
            Self::Samples(queued, _) => queued.len(),
            Self::Zeros(len) => *len,
        }
    }
}

/// Transmits to a device of another machine: one request at a time, each for a block.
#[derive(Debug)]
pub(in crate::stream) struct Transmit {
    label: String,
    /// The device in commands.
    id: String,
    /// The two commands that open it.
    open: String,
    /// The server does not tell when samples are transmitted, and may transmit so many bytes at a time. `None`: its
    /// answer to `CLOSE` tells, as that of `busbar serve` does.
    half: Option<usize>,
    /// How long an answer, or room to send, may take.
    silence: Duration,
    /// How long the device may take for all that the server has.
    linger: Duration,
    /// `None` once it is closed.
    talk: Option<Talk<TcpStream>>,
    zero_copy: ZeroCopy,
    watch: Watch,
    state: State,
    /// What the server has not taken.
    queue: VecDeque<Load>,
    /// Bytes of the first of these that were sent.
    sent: usize,
    /// Whether the server has taken samples since it has opened the device.
    holds: bool,
    /// Bytes of those in a `half` that is not full.
    begun: usize,
    /// When the last step was.
    since: Instant,
    copied: u64,
    /// Blocks of sources that the server has taken since the last call of [`returned`](Self::returned).
    returned: usize,
}

impl Transmit {
    /// Adds a block to the queue, one of a source or not; [`advance`](Self::advance) sends it.
    pub(in crate::stream) fn push(&mut self, samples: Samples, is_foreign: bool) {
        let len = samples.meta().len;
        let queued = Queued::new(Vec::new(), samples, 0..len);
        self.queue.push_back(Load::Samples(queued, is_foreign));
    }

    /// Does what can be done without waiting. After an error, the stream is over: [`stop`](Self::stop) it, which gives
    /// the blocks back that the server has not taken.
    pub(in crate::stream) fn advance(&mut self) -> Result<()> {
        self.watch.take()?;
        self.steps().map_err(|why| self.ended(why))
    }

    /// The stream is over.
    fn ended(&self, why: String) -> Error {
        Error::new("transmit to", self.label.as_str(), Errno::PIPE).help(why)
    }

    fn steps(&mut self) -> Result<(), String> {
        if let Some(talk) = &self.talk {
            let copied = self.zero_copy.reap(&talk.socket);
            self.copied += copied.map_err(|errno| errno.to_string())?;
        }
        while self.step()? {}
        let is_waiting = !matches!(self.state, State::Idle | State::Closed);
        if is_waiting && self.since.elapsed() > self.silence {
            return Err("the server does not answer".into());
        }
        Ok(())
    }

    /// One step; `false` if there is nothing to do, or the server has to act first.
    fn step(&mut self) -> Result<bool, String> {
        let talk = self.talk.as_mut().ok_or("the connection is closed")?;
        let moved = match (self.state, self.queue.front()) {
            (State::Idle | State::Closed, None) => match talk.line()? {
                Some(_) => return Err("the server answers without a question".into()),
                None => false,
            },
            (State::Idle, Some(load)) => {
                talk.ask(&format!("WRITEBUF {} {}\r\n", self.id, load.len()))?;
                self.state = State::Asked;
                true
            }
            (State::Closed, Some(_)) => {
                talk.ask(&self.open)?;
                self.state = State::Setting;
                true
            }
            (State::Sending, _) => {
                // Not after the last byte: from then on, the server may answer.
                self.expect_nothing()?;
                let sent = self.send();
                if sent.is_err() {
                    // The reason for a connection that is closed.
                    self.expect_nothing()?;
                }
                sent?
            }
            _ => match talk.number()? {
                Some(number) => self.hear(number).map(|()| true)?,
                None => false,
            },
        };
        if moved {
            self.since = Instant::now();
        }
        Ok(moved)
    }

    /// Sends some of the first block.
    fn send(&mut self) -> Result<bool, String> {
        let (Some(talk), Some(load)) = (&self.talk, self.queue.front_mut()) else {
            return Ok(false);
        };
        let progress = match load {
            Load::Samples(queued, _) => queued.send(&talk.socket, self.sent, &mut self.zero_copy),
            Load::Zeros(len) => zeros(&talk.socket, *len - self.sent),
        };
        let Some(progress) = progress.map_err(|errno| errno.to_string())? else {
            return Ok(false);
        };
        self.sent += progress.sent;
        self.copied += progress.copied;
        if self.sent == load.len() {
            (self.sent, self.state) = (0, State::Sent);
        }
        Ok(true)
    }

    /// While a block is under way, an answer can only be an error.
    fn expect_nothing(&mut self) -> Result<(), String> {
        let talk = self.talk.as_mut().ok_or("the connection is closed")?;
        let Some(number) = talk.number()? else { return Ok(()) };
        Err(failure(number).map_or_else(early, says))
    }

    /// Handles an answer.
    fn hear(&mut self, number: i64) -> Result<(), String> {
        if self.state == State::Setting {
            self.state = State::Opening;
            return Ok(());
        }
        if let Some(errno) = failure(number) {
            return Err(says(errno));
        }
        let len = match (self.state, self.queue.front()) {
            (State::Sent, Some(load)) => load.len(),
            _ => 0,
        };
        if usize::try_from(number) != Ok(len) {
            return Err(format!("the server answers {number} instead of {len}"));
        }
        // With its answer, a server acknowledges all that it has read. The socket must not refer to a block that goes
        // back.
        let is_read = |talk: &Talk<_>| tcp::unacknowledged(&talk.socket) == Ok(0);
        if len > 0 && !self.talk.as_ref().is_some_and(is_read) {
            return Err(early());
        }
        self.state = match self.state {
            State::Asked => State::Sending,
            State::Closing => State::Closed,
            _ => State::Idle,
        };
        if self.state == State::Closed {
            (self.holds, self.begun) = (false, 0);
        }
        if len > 0 {
            self.holds = true;
            self.begun = self.half.map_or(0, |half| (self.begun + len) % half);
            let load = self.queue.pop_front();
            self.returned += usize::from(matches!(load, Some(Load::Samples(_, true))));
        }
        Ok(())
    }

    /// Whether everything was transmitted, as far as the server tells.
    pub(in crate::stream) fn is_drained(&mut self) -> Result<bool> {
        if !self.queue.is_empty() || !matches!(self.state, State::Idle | State::Closed) {
            return Ok(false);
        }
        if !self.holds {
            return Ok(true);
        }
        let Some(half) = self.half else {
            if self.since.elapsed() >= self.linger.saturating_sub(CLOSING) {
                self.close()?;
            }
            return Ok(false);
        };
        if self.begun > 0 {
            self.queue.push_back(Load::Zeros(half - self.begun));
            self.advance()?;
            return Ok(false);
        }
        Ok(self.since.elapsed() >= self.linger)
    }

    /// Has the server transmit all that it has, and close the device.
    fn close(&mut self) -> Result<()> {
        let Some(talk) = &self.talk else { return Ok(()) };
        talk.ask(&format!("CLOSE {}\r\n", self.id)).map_err(|why| self.ended(why))?;
        (self.state, self.since) = (State::Closing, Instant::now());
        Ok(())
    }

    /// Blocks of sources that the server has taken since the last call.
    pub(in crate::stream) fn returned(&mut self) -> usize {
        std::mem::take(&mut self.returned)
    }

    /// Bytes that were copied to be sent.
    pub(in crate::stream) fn copied(&self) -> u64 {
        self.copied
    }

    /// Closes the connection; the server then stops the device at once.
    pub(in crate::stream) fn stop(&mut self) {
        if let Some(talk) = self.talk.take()
            && !self.queue.is_empty()
        {
            // Before the queue is dropped: the socket must not refer to a block that goes back to its driver.
            let _ = sockopt::set_socket_linger(&talk.socket, Some(Duration::ZERO));
        }
        self.queue.clear();
    }
}

fn early() -> String {
    "the server answers before it has the samples".into()
}

/// Sends up to `len` zeros; `None` if there is no room.
fn zeros(socket: &TcpStream, len: usize) -> Result<Option<Progress>, Errno> {
    let zeros = &ZEROS[..len.min(ZEROS.len())];
    match rustix::net::send(socket, zeros, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(Some(Progress { sent, copied: 0 })),
        Err(Errno::AGAIN) => Ok(None),
        Err(Errno::INTR) => Ok(Some(Progress::default())),
        Err(errno) => Err(errno),
    }
}

/// Readable when [`advance`](Transmit::advance) has something to do.
impl AsFd for Transmit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Drop for Transmit {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
