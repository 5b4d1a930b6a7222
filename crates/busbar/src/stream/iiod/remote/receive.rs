//! Samples of another machine.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::buffer::{Buffer, PATIENCE};
use super::talk::{Talk, says};
use super::{Remote, failure};
use crate::block::{self, Block, Memory, Purpose};
use crate::poll::{Set, Timer, later};
use crate::stream::about::About;
use crate::stream::device::Direction;
use crate::stream::driver::{Filled, Opened, Pending, Receiver, Taken};
use crate::stream::loss::Detector;
use crate::stream::net::awaited::Awaited;
use crate::stream::setup::{Interface, StreamSetup};
use crate::{Error, Result};

/// The least time that a server may be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// Most steps in one turn: lines of the server, and pieces of samples.
const MOST_STEPS: usize = 256;

/// Opens a device of another machine to receive from it.
pub(in crate::stream) fn open(remote: &Remote, setup: &StreamSetup) -> Result<Opened> {
    let mut buffer = Buffer::find(remote, setup, Direction::Receive)?;
    let is_counter = buffer.says("pattern", "counter")? && !buffer.says("loopback", "1")?;
    let (count, len) = (setup.count(), buffer.block_len());
    let time = buffer.block_time().unwrap_or_default();
    let silence = remote
        .silence()?
        .unwrap_or_else(|| SILENCE.max(PATIENCE.saturating_add(time.saturating_mul(3))));
    buffer.open(PATIENCE.saturating_add(time), silence, count)?;
    let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Program));
    let blocks: VecDeque<_> = Block::several(count, len, &memory)?;
    let detector = Detector::new(&buffer.format, is_counter);
    let about = About {
        format: buffer.format.clone(),
        interface: Interface::Iiod,
        memory,
        blocks: count,
        block_len: len,
        device: None,
    };
    let label = buffer.label.clone();
    let receiver = Receive {
        label: label.clone(),
        request: format!("READBUF {} {len}\r\n", buffer.id()),
        mask: buffer.mask.text(),
        talk: Talk::new(Arc::new(buffer.into_socket(silence)?.into())),
        queued: blocks,
        state: State::Idle,
        awaited: Awaited::any(),
        filled: 0,
        is_first: true,
        len,
        sample_len: about.format.sample_len,
        copied: 0,
        silence,
        heard: Instant::now(),
        timer: None,
    };
    Ok(Opened { label, receiver: Box::new(receiver), detector, about })
}

/// What the server is to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was asked for.
    Idle,
    /// How many bytes follow, or an error.
    Count,
    /// The channels that these bytes have, before so many bytes.
    Mask(usize),
    /// So many bytes.
    Samples(usize),
    /// The connection is closed.
    Ended,
}

/// Receives from a device of another machine: one request at a time, each for a block.
#[derive(Debug)]
struct Receive {
    label: String,
    talk: Talk<Arc<OwnedFd>>,
    request: String,
    mask: String,
    queued: VecDeque<Block>,
    state: State,
    awaited: Awaited,
    /// Bytes of the first block.
    filled: usize,
    /// Whether the mask of this request has not come yet.
    is_first: bool,
    len: usize,
    sample_len: usize,
    copied: u64,
    /// How long the server may send nothing that it was asked for.
    silence: Duration,
    /// When it was asked, or has sent something.
    heard: Instant,
    /// Expires when it has been silent for that long, or before; and when that is.
    timer: Option<(Timer, Instant)>,
}

impl Receive {
    /// Asks for a block, if there is one to fill and nothing was asked for.
    fn ask(&mut self) -> Result<()> {
        if self.state != State::Idle || self.queued.is_empty() {
            return Ok(());
        }
        self.talk.ask(&self.request).map_err(|why| self.ended(&why))?;
        (self.state, self.is_first) = (State::Count, true);
        self.heard = Instant::now();
        Ok(())
    }

    /// The stream is over: it can be opened again.
    fn ended(&mut self, why: &str) -> Error {
        self.state = State::Ended;
        Error::new("receive from", self.label.as_str(), Errno::PIPE).help(why)
    }

    /// Fails if the server has been silent for too long.
    fn check_silence(&mut self) -> Result<()> {
        let until = later(self.heard, self.silence);
        if Instant::now() >= until {
            let silence = self.silence.as_secs_f32();
            return Err(self.ended(&format!("the server has been silent for {silence} s")));
        }
        if let Some((timer, at)) = &mut self.timer
            && Instant::now() >= *at
        {
            *at = until;
            timer.set(Some(until))?;
        }
        Ok(())
    }

    /// One step; `false` if the server has to send more for the next.
    fn step(&mut self) -> Result<bool> {
        match self.state {
            State::Idle => {
                self.ask()?;
                Ok(self.state != State::Idle)
            }
            State::Ended => Err(self.ended("the connection is closed")),
            State::Count => {
                let count = self.talk.number().map_err(|why| self.ended(&why))?;
                let Some(count) = count else { return Ok(false) };
                match count {
                    // The last part of a shorter answer.
                    0 => self.state = State::Idle,
                    count if count > 0 => {
                        let left = self.len - self.filled;
                        let count = usize::try_from(count).ok().filter(|count| *count <= left);
                        let Some(count) = count else {
                            return Err(self.ended("the server sends more than was asked for"));
                        };
                        self.state =
                            if self.is_first { State::Mask(count) } else { State::Samples(count) };
                    }
                    errno if failure(errno) == Some(Errno::TIMEDOUT) => {
                        self.state = State::Idle;
                    }
                    errno => {
                        let errno = failure(errno).unwrap_or(Errno::IO);
                        return Err(self.ended(&says(errno)));
                    }
                }
                Ok(true)
            }
            State::Mask(count) => {
                let mask = self.talk.line().map_err(|why| self.ended(&why))?;
                let Some(mask) = mask else { return Ok(false) };
                if !mask.eq_ignore_ascii_case(&self.mask) {
                    return Err(self.ended("another client has switched further channels on"));
                }
                (self.state, self.is_first) = (State::Samples(count), false);
                Ok(true)
            }
            State::Samples(left) => self.receive(left),
        }
    }

    /// Has the socket become readable for the next step: more of a block, or a line.
    fn await_next(&mut self) {
        let left = if let State::Samples(left) = self.state { left } else { 1 };
        self.awaited.set(&*self.talk.socket, left);
    }

    fn receive(&mut self, left: usize) -> Result<bool> {
        let Some(block) = self.queued.front_mut() else { return Ok(false) };
        let mut filling = block.write()?;
        let to = filling.bytes_mut().into_slice(self.filled..self.filled + left);
        let received = block::read(&*self.talk.socket, &mut [to]);
        drop(filling);
        match received {
            Ok(0) => Err(self.ended("the server has closed the connection")),
            Ok(count) => {
                self.filled += count;
                self.copied += count as u64;
                let is_full = self.filled == self.len;
                self.state = match left - count {
                    0 if is_full => State::Idle,
                    0 => State::Count,
                    left => State::Samples(left),
                };
                if !matches!(self.state, State::Samples(_)) {
                    self.await_next();
                }
                Ok(true)
            }
            Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(self.ended(&errno.to_string())),
        }
    }
}

impl Receiver for Receive {
    fn queue(&mut self, block: Block) -> Result<()> {
        self.queued.push_back(block);
        self.ask()
    }

    fn take(&mut self) -> Result<Taken> {
        for _ in 0..MOST_STEPS {
            // A shorter answer is a shorter block, if it has a sample.
            let is_over = self.state == State::Idle && self.filled >= self.sample_len;
            if is_over && let Some(block) = self.queued.pop_front() {
                let samples = self.filled / self.sample_len;
                self.filled = 0;
                self.ask()?;
                let time = SystemTime::now();
                return Ok(Taken::Filled(Filled { block, time, samples, lost: None }));
            }
            if !self.step()? {
                self.await_next();
                if !matches!(self.state, State::Idle) {
                    self.check_silence()?;
                }
                return Ok(Taken::Nothing);
            }
            self.heard = Instant::now();
        }
        // A server that answers without a sample, again and again, holds up nobody else.
        self.await_next();
        Ok(Taken::Nothing)
    }

    fn pending(&self) -> Pending {
        if self.queued.is_empty() {
            Pending::Block
        } else {
            Pending::File(Arc::clone(&self.talk.socket), PollFlags::IN)
        }
    }

    fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        self.ask()?;
        let (timer, at) = (Timer::new()?, later(Instant::now(), self.silence));
        timer.set(Some(at))?;
        set.add(&timer, 2, EventFlags::IN)?;
        set.add(&*self.talk.socket, 1, EventFlags::IN)?;
        self.timer = Some((timer, at));
        Ok(())
    }

    fn copied(&self) -> u64 {
        self.copied
    }

    fn stop(&mut self) -> Result<()> {
        self.state = State::Ended;
        self.queued.clear();
        // The server closes the device then. One that is gone has done so.
        let _ = rustix::net::shutdown(&*self.talk.socket, rustix::net::Shutdown::Both);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::poll;

    const LEN: usize = 1 << 20;

    /// A receiver of blocks, and the server's end of its connection.
    fn receive() -> (Receive, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let receive = Receive {
            label: "adc".into(),
            talk: Talk::new(Arc::new(socket.into())),
            request: "READBUF adc 1048576\r\n".into(),
            mask: "00000001".into(),
            queued: Block::several(3, LEN, &Memory::Memfd).unwrap(),
            state: State::Idle,
            awaited: Awaited::any(),
            filled: 0,
            is_first: true,
            len: LEN,
            sample_len: 8,
            copied: 0,
            silence: Duration::from_secs(60),
            heard: Instant::now(),
            timer: None,
        };
        (receive, listener.accept().unwrap().0)
    }

    #[test]
    fn it_is_readable_for_the_answer_after_a_long_block() {
        let (mut receive, mut server) = receive();
        assert!(matches!(receive.take(), Ok(Taken::Nothing)));
        server.read_exact(&mut [0; 21]).unwrap();
        server.write_all(b"1048576\n00000001\n").unwrap();
        server.write_all(&vec![0; LEN / 4]).unwrap();
        let socket = Arc::clone(&receive.talk.socket);
        let wait = |time| poll::wait(&*socket, PollFlags::IN, Some(time)).unwrap();
        while receive.filled < LEN / 4 {
            wait(Duration::from_secs(60));
            assert!(matches!(receive.take(), Ok(Taken::Nothing)));
        }
        // Not for a part of what is missing.
        server.write_all(&vec![0; LEN / 4]).unwrap();
        assert!(wait(Duration::from_millis(20)).is_empty());
        server.write_all(&vec![0; LEN / 2]).unwrap();
        while matches!(receive.take(), Ok(Taken::Nothing)) {
            assert!(!wait(Duration::from_secs(60)).is_empty());
        }
        // The next one was asked for, and nothing more is taken before there is something.
        server.read_exact(&mut [0; 21]).unwrap();
        server.write_all(b"-32\n").unwrap();
        assert!(!wait(Duration::from_secs(60)).is_empty());
        assert!(receive.take().is_err());
    }

    #[test]
    fn answers_without_a_sample_hold_up_nobody_else() {
        let (mut receive, mut server) = receive();
        server.write_all(&b"0\n".repeat(4 * MOST_STEPS)).unwrap();
        for _ in 0..2 {
            assert!(matches!(receive.take(), Ok(Taken::Nothing)));
            let socket = Arc::clone(&receive.talk.socket);
            let more = poll::wait(&*socket, PollFlags::IN, Some(Duration::ZERO)).unwrap();
            assert!(!more.is_empty(), "it has taken all of them at a time");
        }
    }

    #[test]
    fn a_server_that_falls_silent_is_an_error_and_wakes_who_watches() {
        let (mut receive, _server) = receive();
        receive.silence = Duration::from_millis(50);
        let set = Arc::new(Set::new().unwrap());
        receive.watch(&set).unwrap();
        let error = loop {
            match receive.take() {
                Ok(_) => assert!(!poll::wait(&*set, PollFlags::IN, None).unwrap().is_empty()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Some(Errno::PIPE));
        assert!(error.to_string().contains("has been silent for 0.05 s"), "{error}");
    }

    #[test]
    fn a_server_that_says_it_has_nothing_is_not_silent() {
        let (mut receive, mut server) = receive();
        receive.silence = Duration::MAX / 1024;
        assert!(matches!(receive.take(), Ok(Taken::Nothing)));
        let before = receive.heard;
        server.write_all(b"-110\n").unwrap();
        while receive.heard == before {
            assert!(matches!(receive.take(), Ok(Taken::Nothing)));
        }
    }
}
