//! Samples of another machine.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::event::PollFlags;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{Connection, Remote, failure};
use crate::block::{self, Block, Memory, Purpose};
use crate::poll::Set;
use crate::stream::about::About;
use crate::stream::driver::{Filled, Opened, Pending, Receiver, Taken};
use crate::stream::format::Format;
use crate::stream::iiod::context::{Channel, Device};
use crate::stream::iiod::hub::Mask;
use crate::stream::loss::Detector;
use crate::stream::scan;
use crate::stream::setup::{Interface, StreamSetup};
use crate::{Error, Result};

/// How long the server may wait for samples beyond the time that a block takes, in milliseconds.
const PATIENCE: f64 = 2500.0;
/// The longest line of an answer.
const LONGEST_LINE: usize = 4096;

/// Opens a device of another machine to receive from it.
pub(in crate::stream) fn open(remote: &Remote, setup: &StreamSetup) -> Result<Opened> {
    if let Some(asked) = setup.interface.filter(|interface| *interface != Interface::Iiod) {
        return Err(Error::invalid("the interface of a remote device", asked, "iiod"));
    }
    let (mut connection, device) = remote.connect()?;
    let label = remote.label();
    let (mask, chosen) = choose(&device, &setup.channels, &label)?;
    let scans = chosen.iter().filter_map(|channel| channel.scan.as_ref());
    let scans = scans.map(|scan| (scan.index, scan.name.clone(), scan.kind)).collect();
    let (channels, sample_len) = scan::layout(scans).ok_or_else(|| {
        Error::new("use", label.as_str(), std::io::ErrorKind::InvalidData)
            .help("its channels do not fit beside each other in a sample")
    })?;
    let id = &device.id;
    let rate = rate(&mut connection, &device)?;
    let format = Format { channels, sample_len, rate };
    let samples = (setup.block_len / sample_len).max(1);
    let len = samples * sample_len;
    let count = setup.count();
    // An estimate.
    #[allow(clippy::cast_precision_loss)]
    let time = rate.map_or(0.0, |rate| 1000.0 * samples as f64 / rate);
    let says = |found: Option<String>, value: &str| found.is_some_and(|found| found == value);
    let is_counter = says(connection.attribute(&format!("{id} pattern"))?, "counter")
        && !says(connection.attribute(&format!("{id} loopback"))?, "1");
    // Old servers may not know these.
    connection.ask(&format!("TIMEOUT {:.0}", (PATIENCE + time).min(1e9)))?;
    connection.ask(&format!("SET {id} BUFFERS_COUNT {count}"))?;
    let opened = connection.ask(&format!("OPEN {id} {samples} {}", mask.text()))?;
    if let Some(errno) = failure(opened) {
        let error = Error::new("open", label, errno);
        return Err(if errno == Errno::BUSY {
            error.help("another program uses it")
        } else {
            error
        });
    }
    let memory = setup.memory.clone().unwrap_or_else(|| Memory::choose(Purpose::Program));
    let blocks = (0..count).map(|_| Block::with(len, &memory));
    let blocks: VecDeque<_> = blocks.collect::<Result<_>>()?;
    let detector = Detector::new(&format, is_counter);
    let about = About {
        format,
        interface: Interface::Iiod,
        memory,
        blocks: count,
        block_len: len,
        device: None,
    };
    let receiver = Receive {
        label: label.clone(),
        socket: Arc::new(into_socket(connection, &label)?),
        request: format!("READBUF {id} {len}\r\n").into_bytes(),
        mask: mask.text(),
        queued: blocks,
        state: State::Idle,
        line: Vec::new(),
        filled: 0,
        is_first: true,
        len,
        sample_len,
        copied: 0,
    };
    Ok(Opened { label, receiver: Box::new(receiver), detector, about })
}

/// The channels of these names, or all voltages, or all but the time.
fn choose<'a>(
    device: &'a Device,
    names: &[String],
    label: &str,
) -> Result<(Mask, Vec<&'a Channel>)> {
    let scan: Vec<_> = device
        .channels
        .iter()
        .enumerate()
        .filter(|(_, channel)| channel.scan.is_some() && !channel.is_output)
        .collect();
    let is_named = |channel: &Channel, name: &str| {
        channel.id == name || channel.scan.as_ref().is_some_and(|scan| scan.name == name)
    };
    if let Some(name) = names.iter().find(|name| !scan.iter().any(|(_, it)| is_named(it, name))) {
        let known: Vec<_> = scan.iter().map(|(_, channel)| channel.id.as_str()).collect();
        return Err(Error::invalid(format!("a channel of {label}"), name, known.join(", ")));
    }
    let has_voltages = scan.iter().any(|(_, channel)| channel.id.starts_with("voltage"));
    let is_wanted = |channel: &Channel| match names {
        [] if has_voltages => channel.id.starts_with("voltage"),
        [] => channel.id != "timestamp",
        names => names.iter().any(|name| is_named(channel, name)),
    };
    let mut mask = Mask::none(device.channels.len());
    let mut chosen = Vec::new();
    for (index, channel) in scan.into_iter().filter(|(_, channel)| is_wanted(channel)) {
        mask.set(index);
        chosen.push(channel);
    }
    if chosen.is_empty() {
        let error = Error::new("receive from", label, Errno::OPNOTSUPP);
        return Err(error.help("it has no channel that a buffer can have"));
    }
    Ok((mask, chosen))
}

/// The sampling rate, if the device or one of its channels has one.
fn rate(connection: &mut Connection, device: &Device) -> Result<Option<f64>> {
    let Some((place, _)) = device.rate_place() else { return Ok(None) };
    let rate = connection.attribute(&place)?.and_then(|text| text.trim().parse::<f64>().ok());
    Ok(rate.filter(|rate| rate.is_finite() && *rate > 0.0))
}

/// The socket of a connection that has no answer left, non-blocking.
fn into_socket(connection: Connection, label: &str) -> Result<OwnedFd> {
    if !connection.socket.buffer().is_empty() {
        return Err(connection.wrong("an answer without a question"));
    }
    let socket: TcpStream = connection.socket.into_inner();
    socket.set_nonblocking(true).map_err(|why| Error::new("use", label, why))?;
    Ok(socket.into())
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
    socket: Arc<OwnedFd>,
    request: Vec<u8>,
    mask: String,
    queued: VecDeque<Block>,
    state: State,
    line: Vec<u8>,
    /// Bytes of the first block.
    filled: usize,
    /// Whether the mask of this request has not come yet.
    is_first: bool,
    len: usize,
    sample_len: usize,
    copied: u64,
}

impl Receive {
    /// Asks for a block, if there is one to fill and nothing was asked for.
    fn ask(&mut self) -> Result<()> {
        if self.state != State::Idle || self.queued.is_empty() {
            return Ok(());
        }
        // There is room: all before it was answered.
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::send(&*self.socket, &self.request, SendFlags::NOSIGNAL)
        });
        match sent {
            Ok(count) if count == self.request.len() => {
                (self.state, self.is_first) = (State::Count, true);
                Ok(())
            }
            Ok(_) => Err(self.ended("it takes no requests")),
            Err(errno) => Err(self.ended(&errno.to_string())),
        }
    }

    /// The stream is over: it can be opened again.
    fn ended(&mut self, why: &str) -> Error {
        self.state = State::Ended;
        Error::new("receive from", self.label.as_str(), Errno::PIPE).help(why)
    }

    /// The next line; `None` if it has not come yet.
    fn next_line(&mut self) -> Result<Option<String>> {
        loop {
            let mut byte = [0];
            let received = rustix::net::recv(&*self.socket, &mut byte, RecvFlags::empty());
            match received.map(|(_, count)| count) {
                Ok(0) => return Err(self.ended("the server has closed the connection")),
                Ok(_) if byte[0] == b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
                }
                Ok(_) if self.line.len() >= LONGEST_LINE => {
                    return Err(self.ended("the server's answer is not of the protocol"));
                }
                Ok(_) => self.line.push(byte[0]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(self.ended(&errno.to_string())),
            }
        }
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
                let Some(line) = self.next_line()? else { return Ok(false) };
                match line.parse::<i64>() {
                    // The last part of a shorter answer.
                    Ok(0) => self.state = State::Idle,
                    Ok(count) if count > 0 => {
                        let left = self.len - self.filled;
                        let count = usize::try_from(count).ok().filter(|count| *count <= left);
                        let Some(count) = count else {
                            return Err(self.ended("the server sends more than was asked for"));
                        };
                        self.state =
                            if self.is_first { State::Mask(count) } else { State::Samples(count) };
                    }
                    Ok(errno) if failure(errno) == Some(Errno::TIMEDOUT) => {
                        self.state = State::Idle;
                    }
                    Ok(errno) => {
                        let errno = failure(errno).unwrap_or(Errno::IO);
                        return Err(self.ended(&format!("the server says: {errno}")));
                    }
                    Err(_) => return Err(self.ended("the server's answer is not of the protocol")),
                }
                Ok(true)
            }
            State::Mask(count) => {
                let Some(mask) = self.next_line()? else { return Ok(false) };
                if !mask.eq_ignore_ascii_case(&self.mask) {
                    return Err(self.ended("another client has switched further channels on"));
                }
                (self.state, self.is_first) = (State::Samples(count), false);
                Ok(true)
            }
            State::Samples(left) => self.receive(left),
        }
    }

    fn receive(&mut self, left: usize) -> Result<bool> {
        let Some(block) = self.queued.front_mut() else { return Ok(false) };
        let mut filling = block.write()?;
        let to = filling.bytes_mut().into_slice(self.filled..self.filled + left);
        let received = block::read(&*self.socket, &mut [to]);
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
        loop {
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
                return Ok(Taken::Nothing);
            }
        }
    }

    fn pending(&self) -> Pending {
        if self.queued.is_empty() {
            Pending::Block
        } else {
            Pending::File(Arc::clone(&self.socket), PollFlags::IN)
        }
    }

    fn watch(&mut self, set: &Arc<Set>) -> Result<()> {
        self.ask()?;
        set.add(&*self.socket, 1, EventFlags::IN)
    }

    fn copied(&self) -> u64 {
        self.copied
    }

    fn stop(&mut self) -> Result<()> {
        self.state = State::Ended;
        self.queued.clear();
        // The server closes the device then. One that is gone has done so.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
        Ok(())
    }
}
