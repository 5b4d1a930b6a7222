//! Devices of another machine, which `iiod` or a [`Server`](super::Server) serves.

mod buffer;
mod parse;
mod receive;
mod talk;
mod transmit;

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::PORT;
use super::context::{Channel, Context, Device};
use crate::poll::{self, Deadline, later};
use crate::stream::device::unless_set;
use crate::stream::silence;
use crate::{Error, Result};

pub(in crate::stream) use self::receive::open;
pub(in crate::stream) use self::transmit::{Transmit, transmit};

/// How long connecting to an address, and each part of an answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all that is done by a connection may take, such as opening a device.
pub(super) const WHOLE: Duration = Duration::from_secs(10);
/// The longest line of an answer: a mask needs a digit for four channels.
const LONGEST_LINE: usize = 4096;
/// The longest value of an attribute, and the longest XML.
const LONGEST_VALUE: usize = 1 << 16;
const LONGEST_XML: usize = 4 << 20;

/// The name of a device of another machine: `NAME@ip:HOST[:PORT][?silence=TIME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stream) struct Remote {
    pub device: String,
    /// `HOST:PORT`.
    pub host: String,
    /// As it is in the name, with the option.
    place: String,
}

impl Remote {
    /// `None` if `name`, without `iio:`, is not of this form.
    pub(in crate::stream) fn of(name: &str) -> Option<Self> {
        let (device, place) = name.split_once("@ip:")?;
        let host = place.split_once('?').map_or(place, |(host, _)| host);
        let is_whole = !device.is_empty() && !host.is_empty();
        is_whole.then(|| Self { device: device.into(), host: with_port(host), place: place.into() })
    }

    /// How long the server may be silent, if the name says so.
    pub(in crate::stream) fn silence(&self) -> Result<Option<Duration>> {
        silence::split(&self.place).map(|(_, silence)| silence)
    }

    /// Connects, and finds the device.
    fn connect(&self) -> Result<(Connection, Device)> {
        self.silence()?;
        let mut connection = Connection::open(&self.host)?;
        let mut context = connection.context()?;
        let index = context.find(&self.device).ok_or_else(|| {
            let names =
                context.devices.iter().map(|it| it.name.as_ref().unwrap_or(&it.id).as_str());
            let names: Vec<_> = names.collect();
            Error::new("find", self.label(), Errno::NOENT)
                .help(format!("there are: {}", names.join(", ")))
        })?;
        Ok((connection, context.devices.swap_remove(index)))
    }

    /// The name of the device in errors.
    fn label(&self) -> String {
        format!("IIO device `{}` of {}", self.device, self.host)
    }

    /// Connects, and finds an attribute by its file in Linux: its place, and what it is in errors.
    fn find(&self, attribute: &str) -> Result<(Connection, String, String)> {
        let (connection, device) = self.connect()?;
        let label = format!("`{attribute}` of {}", self.label());
        let place = place(&device, attribute)
            .ok_or_else(|| Error::new("find", label.as_str(), Errno::NOENT))?;
        Ok((connection, place, label))
    }

    /// The value of an attribute.
    pub(in crate::stream) fn get(&self, attribute: &str) -> Result<String> {
        let (mut connection, place, label) = self.find(attribute)?;
        connection.read(&place, &label)
    }

    /// Writes a value to an attribute.
    pub(in crate::stream) fn set(&self, attribute: &str, value: &str) -> Result<()> {
        let (mut connection, place, label) = self.find(attribute)?;
        connection.write(&place, value, &label)
    }
}

/// `HOST:PORT`, with the usual port if there is none.
fn with_port(host: &str) -> String {
    let has_port = match host.rsplit_once(':') {
        // The colons of an address of IPv6 are no port, unless it is in brackets.
        Some((before, port)) => {
            (!before.contains(':') || before.ends_with(']')) && port.parse::<u16>().is_ok()
        }
        None => false,
    };
    if has_port {
        return host.into();
    }
    if host.contains(':') && !host.starts_with('[') {
        return format!("[{host}]:{PORT}");
    }
    format!("{host}:{PORT}")
}

/// An attribute of a device in a command, by its file in Linux.
pub(super) fn place(device: &Device, file: &str) -> Option<String> {
    let of = |channel: &Channel| {
        let (name, _) = channel.attributes.iter().find(|(_, known)| known == file)?;
        let way = if channel.is_output { "OUTPUT" } else { "INPUT" };
        Some(format!("{} {way} {} {name}", device.id, channel.id))
    };
    if device.attributes.iter().any(|known| known == file) {
        return Some(format!("{} {file}", device.id));
    }
    device.channels.iter().find_map(of)
}

/// The value of an attribute as text.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches(['\0', '\n']).to_owned()
}

/// The error that a negative answer is.
fn failure(answer: i64) -> Option<Errno> {
    let number = i32::try_from(answer.saturating_neg()).unwrap_or(Errno::IO.raw_os_error());
    (answer < 0).then(|| Errno::from_raw_os_error(number.clamp(1, 4095)))
}

/// The devices of another machine, `HOST[:PORT]`, and a connection to it, on which all of this takes `whole` at most.
pub(super) fn list(host: &str, whole: Duration) -> Result<(Connection, Context)> {
    let mut connection = Connection::to(host, whole)?;
    let context = connection.context()?;
    Ok((connection, context))
}

/// A socket that is waited for, but not after a deadline, nor by a thread that is [to quit](crate::quit_when).
#[derive(Debug)]
struct Timed(TcpStream, Instant);

impl Timed {
    fn connect(address: &SocketAddr, until: Instant) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        let timed = Self(socket.into(), until);
        match rustix::net::connect(&timed.0, address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => timed.wait(PollFlags::OUT)?,
            Err(errno) => return Err(errno.into()),
        }
        timed.0.take_error()?.map_or(Ok(()), Err)?;
        timed.0.set_nodelay(true)?;
        Ok(timed)
    }

    /// Waits until there is something to read, or room.
    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let left = self.1.saturating_duration_since(Instant::now()).min(PATIENCE);
        let end = Deadline::after(left);
        while !end.has_passed() {
            if !poll::wait(&self.0, events, end.remaining())?.is_empty() {
                return Ok(());
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.wait(PollFlags::IN)?;
        self.0.read(to)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A connection that waits for each answer.
#[derive(Debug)]
pub(super) struct Connection {
    socket: BufReader<Timed>,
    /// What it is in errors.
    name: String,
    /// Whether something has failed, so that what comes next may belong to an earlier call.
    has_failed: Cell<bool>,
}

impl Connection {
    fn open(host: &str) -> Result<Self> {
        Self::within(host, WHOLE)
    }

    /// Connects to `HOST:PORT`. All that is done by the connection takes `whole` at most, until it is [renewed](Self::renew).
    fn within(host: &str, whole: Duration) -> Result<Self> {
        let until = later(Instant::now(), whole);
        let name = format!("the IIO server {host}");
        let addresses =
            host.to_socket_addrs().map_err(|why| Error::new("find", name.as_str(), why))?;
        let mut failed = io::Error::from(ErrorKind::NotFound);
        for address in addresses {
            match Timed::connect(&address, until) {
                Ok(socket) => return Ok(Self::new(socket, name)),
                Err(why) => failed = why,
            }
        }
        let error = Error::new("connect to", name, failed);
        Err(error.help("does `iiod` or `busbar serve` run there?"))
    }

    /// Connects to `HOST[:PORT]`.
    pub(super) fn to(host: &str, whole: Duration) -> Result<Self> {
        Self::within(&with_port(host), whole)
    }

    /// Begins something else, which takes `whole` at most. `false` if that cannot be: the server has closed the connection, or
    /// has sent what nobody has asked for.
    pub(super) fn renew(&mut self, whole: Duration) -> bool {
        self.socket.get_mut().1 = later(Instant::now(), whole);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let came = rustix::net::recv(&self.socket.get_ref().0, &mut [0_u8], flags);
        self.socket.buffer().is_empty() && came.is_err_and(|errno| errno == Errno::AGAIN)
    }

    fn new(socket: Timed, name: String) -> Self {
        Self { socket: BufReader::new(socket), name, has_failed: Cell::new(false) }
    }

    /// Whether it is of no use any more.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    fn failed(&self, why: io::Error) -> Error {
        self.has_failed.set(true);
        // A timeout of a socket is reported as if there were just nothing.
        let why =
            if why.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { why };
        Error::new("talk to", self.name.as_str(), why)
    }

    fn wrong(&self, what: &str) -> Error {
        let why = io::Error::new(ErrorKind::InvalidData, format!("{what} is not of the protocol"));
        self.failed(why)
    }

    fn send(&mut self, line: &str, after: &[u8]) -> Result<()> {
        let bytes = [line.as_bytes(), b"\r\n", after].concat();
        self.socket.get_mut().write_all(&bytes).map_err(|why| self.failed(why))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let read = (&mut self.socket).take(LONGEST_LINE as u64).read_until(b'\n', &mut line);
        read.map_err(|why| self.failed(why))?;
        if line.pop() != Some(b'\n') {
            return Err(self.wrong("a line without an end"));
        }
        String::from_utf8(line).map_err(|_| self.wrong("a line that is no text"))
    }

    fn number(&mut self) -> Result<i64> {
        let line = self.line()?;
        line.trim().parse().map_err(|_| self.wrong("a line that is no number"))
    }

    /// A command whose answer is a number.
    fn ask(&mut self, line: &str) -> Result<i64> {
        self.send(line, b"")?;
        self.number()
    }

    /// A command whose answer is a value, of `longest` bytes at most, or an error.
    pub(super) fn value(&mut self, line: &str, longest: usize) -> Result<Result<Vec<u8>, Errno>> {
        let len = self.ask(line)?;
        match failure(len) {
            Some(errno) => Ok(Err(errno)),
            None => self.rest(len, longest).map(Ok),
        }
    }

    /// The value of this length that follows, and the end of its line.
    fn rest(&mut self, len: i64, longest: usize) -> Result<Vec<u8>> {
        let len = usize::try_from(len).ok().filter(|len| *len <= longest);
        let len = len.ok_or_else(|| self.wrong("a value of that length"))?;
        let mut value = vec![0; len + 1];
        self.socket.read_exact(&mut value).map_err(|why| self.failed(why))?;
        if value.pop() != Some(b'\n') {
            return Err(self.wrong("a value without an end"));
        }
        Ok(value)
    }

    fn context(&mut self) -> Result<Context> {
        let xml = self.value("PRINT", LONGEST_XML)?;
        let xml = xml.map_err(|errno| self.failed(errno.into()))?;
        let xml = String::from_utf8(xml).map_err(|_| self.wrong("a context that is no text"))?;
        Context::parse(&xml).map_err(|why| self.failed(io::Error::new(ErrorKind::InvalidData, why)))
    }

    /// The value of an attribute at a place of a command; `label` is what it is in errors.
    pub(super) fn read(&mut self, place: &str, label: &str) -> Result<String> {
        let read = self.value(&format!("READ {place}"), LONGEST_VALUE)?;
        read.map(|value| text(&value)).map_err(|errno| Error::new("read", label, errno))
    }

    /// Writes it.
    pub(super) fn write(&mut self, place: &str, value: &str, label: &str) -> Result<()> {
        let line = format!("WRITE {place} {}", value.len() + 1);
        self.send(&line, &[value.as_bytes(), b"\0"].concat())?;
        let written = self.number()?;
        let written = failure(written).map_or(Ok(()), |errno| Err(io::Error::from(errno)));
        unless_set(written, value, || self.attribute(place).ok().flatten())
            .map_err(|why| Error::new(format!("write `{value}` to"), label, why))
    }

    /// The name of the trigger of a device, if it has one.
    pub(super) fn trigger(&mut self, device: &str, label: &str) -> Result<Option<String>> {
        let len = self.ask(&format!("GETTRIG {device}"))?;
        if let Some(errno) = failure(len) {
            return Err(Error::new("read", label, errno));
        }
        // Without one, nothing follows.
        if len == 0 { Ok(None) } else { Ok(Some(text(&self.rest(len, LONGEST_VALUE)?))) }
    }

    /// Sets it.
    pub(super) fn set_trigger(
        &mut self,
        device: &str,
        trigger: Option<&str>,
        label: &str,
    ) -> Result<()> {
        let line = format!("SETTRIG {device} {}", trigger.unwrap_or_default());
        let set = self.ask(line.trim_end())?;
        failure(set).map_or(Ok(()), |errno| Err(Error::new("set", label, errno)))
    }

    /// An attribute of a device as text, if it has one of this name that can be read.
    pub(super) fn attribute(&mut self, place: &str) -> Result<Option<String>> {
        Ok(self.value(&format!("READ {place}"), LONGEST_VALUE)?.ok().map(|value| text(&value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_remote_devices_have_a_host() {
        for (name, host) in [
            ("adc@ip:pluto", "pluto:30431"),
            ("adc@ip:pluto:5000", "pluto:5000"),
            ("adc@ip:pluto?silence=5s", "pluto:30431"),
            ("adc@ip:[fe80::1]:5000?silence=5s", "[fe80::1]:5000"),
            ("adc@ip:192.168.2.1", "192.168.2.1:30431"),
            ("adc@ip:fe80::1", "[fe80::1]:30431"),
            ("adc@ip:[fe80::1]", "[fe80::1]:30431"),
            ("adc@ip:[fe80::1]:5000", "[fe80::1]:5000"),
        ] {
            let found = Remote::of(name).unwrap();
            assert_eq!((found.device.as_str(), found.host.as_str()), ("adc", host), "{name}");
        }
        for name in ["adc", "@ip:host", "adc@ip:", "adc@ip:?silence=5s", "adc@host"] {
            assert_eq!(Remote::of(name), None, "{name}");
        }
    }

    #[test]
    fn a_server_that_sends_byte_by_byte_is_not_waited_for_after_the_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            while client.write_all(b"1").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let socket = Timed(socket, Instant::now() + Duration::from_millis(200));
        let mut connection = Connection::new(socket, "it".into());
        assert_eq!(connection.number().unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_thread_that_is_to_quit_does_not_wait_for_a_silent_server() {
        // The kernel accepts, and nobody answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let quit = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let asked = std::sync::Arc::clone(&quit);
        let waiting = std::thread::spawn(move || {
            crate::quit_when(asked);
            list(&host, Duration::MAX).unwrap_err().kind()
        });
        let (mut peer, _) = listener.accept().unwrap();
        // It has sent its first command, and waits.
        peer.read_exact(&mut [0; 7]).unwrap();
        let begin = Instant::now();
        quit.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(waiting.join().unwrap(), ErrorKind::TimedOut);
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    }

    #[test]
    fn negative_answers_are_errors_of_the_system() {
        assert_eq!(failure(0), None);
        assert_eq!(failure(5), None);
        assert_eq!(failure(-16), Some(Errno::BUSY));
        assert_eq!(failure(i64::MIN), Some(Errno::IO));
        assert_eq!(failure(-100_000), Some(Errno::from_raw_os_error(4095)));
    }
}
