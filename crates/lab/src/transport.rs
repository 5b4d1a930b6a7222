//! The guest's streams on the host: sockets that QEMU connects to its ports.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::iter::repeat_n;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use busbar::{Error, Result};
use rustix::termios::{self, OptionalActions, Termios};

use crate::at;
use crate::console::STALLED;
use crate::job::Stdio;

/// Messages of the guest, and events of the streams.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The command starts.
    Up,
    /// It cannot be started.
    Failed(String),
    /// It has ended.
    Exited(u8),
    /// The kernel's taint flags.
    Taint(u64),
    /// A line of kmemleak's report.
    Leak(String),
    /// Everything was reported; the numbers are the bytes written to stdout and stderr.
    Done([u64; 2]),
    /// The first byte came on the console.
    Console,
    /// The kernel said that a timer does not come ([`STALLED`]).
    Stalled,
    /// The console has ended: virtme-ng and QEMU have, too.
    Gone,
    /// The output of the command cannot be passed on: its reader went away (`None`), or why.
    OutputClosed(Option<String>),
    /// The user pressed the key that ends the guest.
    Escape,
}

/// The key that ends a guest from its terminal: Ctrl-].
const ESCAPE: u8 = 0x1d;

/// A line of the control port.
pub(crate) fn parse(line: &str) -> Option<Event> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    Some(match word {
        "up" => Event::Up,
        "fail" => Event::Failed(rest.to_owned()),
        "exit" => Event::Exited(rest.parse().ok()?),
        "taint" => Event::Taint(rest.parse().ok()?),
        "leak" => Event::Leak(rest.to_owned()),
        "done" => {
            let (out, err) = rest.split_once(' ')?;
            Event::Done([out.parse().ok()?, err.parse().ok()?])
        }
        _ => return None,
    })
}

/// A socket for one port. Its name is removed when this is dropped.
struct Port {
    name: &'static str,
    listener: UnixListener,
    path: PathBuf,
}

impl Port {
    fn new(folder: &Path, name: &'static str) -> Result<Self> {
        let path = folder.join(name);
        let listener = UnixListener::bind(&path).map_err(at("make a socket at", &path))?;
        Ok(Self { name, listener, path })
    }

    /// Waits for QEMU; no other process has access.
    fn accept(self) -> io::Result<UnixStream> {
        Ok(self.listener.accept()?.0)
    }

    /// QEMU's arguments for it.
    fn device(&self) -> [OsString; 4] {
        let name = self.name;
        let mut socket = OsString::from(format!("socket,id=busbar.{name},path="));
        socket.push(option(&self.path));
        let kind = if name == "terminal" { "virtconsole" } else { "virtserialport" };
        let device = format!("{kind},bus=busbar.0,chardev=busbar.{name},name=busbar.{name}");
        ["-chardev".into(), socket, "-device".into(), device.into()]
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A path in one of QEMU's options, where a comma is written twice.
pub(crate) fn option(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes().iter();
    let doubled = bytes.flat_map(|&byte| repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    OsString::from_vec(doubled.collect())
}

/// What a port is connected to.
enum Peer {
    Control,
    Input(File),
    Output(Sink),
    Terminal(File, File),
}

/// Destination of the bytes of an output port.
#[derive(Clone)]
enum Sink {
    File(Arc<File>),
    Memory(Arc<Mutex<Vec<u8>>>),
}

impl Sink {
    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => (&**file).write_all(bytes),
            Self::Memory(memory) => {
                memory.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
                Ok(())
            }
        }
    }

    fn take(&self) -> Vec<u8> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Memory(memory) => {
                std::mem::take(&mut *memory.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

/// The command's streams, not yet connected.
pub(crate) struct Streams {
    peers: Vec<(Port, Peer)>,
    /// Whether stdin has data.
    pub stdin: bool,
    /// Rows and columns of the terminal, where the command has one.
    pub terminal: Option<(u16, u16)>,
}

impl Streams {
    /// Makes the sockets in `folder`.
    pub fn new(stdio: Stdio, folder: &Path) -> Result<Self> {
        let mut streams = Self { peers: Vec::new(), stdin: false, terminal: None };
        let mut add = |name, peer| -> Result<()> {
            streams.peers.push((Port::new(folder, name)?, peer));
            Ok(())
        };
        add("control", Peer::Control)?;
        match stdio {
            Stdio::Capture => {
                add("stdout", Peer::Output(Sink::Memory(Arc::default())))?;
                add("stderr", Peer::Output(Sink::Memory(Arc::default())))?;
            }
            Stdio::Inherit => {
                let file = |stream| Peer::Output(Sink::File(Arc::new(stream)));
                add("stdout", file(duplicate(io::stdout())?))?;
                add("stderr", file(duplicate(io::stderr())?))?;
                if !is_nothing(&io::stdin()) {
                    add("stdin", Peer::Input(duplicate(io::stdin())?))?;
                    streams.stdin = true;
                }
            }
            Stdio::Terminal => {
                let (input, output) = (duplicate(io::stdin())?, duplicate(io::stdout())?);
                let size = termios::tcgetwinsize(&input).map_err(|error| {
                    Error::new("use", "stdin as a terminal", error)
                        .help("without a terminal: busbar lab run -- sh")
                })?;
                add("terminal", Peer::Terminal(input, output))?;
                streams.terminal = Some((size.ws_row, size.ws_col));
            }
        }
        Ok(streams)
    }

    /// QEMU's arguments for the ports.
    pub fn devices(&self) -> Vec<OsString> {
        let bus = ["-device".into(), "virtio-serial-pci,id=busbar".into()];
        bus.into_iter().chain(self.peers.iter().flat_map(|(port, _)| port.device())).collect()
    }

    /// Connects the streams once QEMU connects; sends events to `events`.
    pub fn connect(self, events: &Sender<Event>) -> Result<Connected> {
        let mut connected = Connected::default();
        for (port, peer) in self.peers {
            connected.sockets.push(port.path.clone());
            let events = events.clone();
            match peer {
                Peer::Control => control(port, events),
                Peer::Input(from) => {
                    connected.has_input = true;
                    input(port, from);
                }
                Peer::Output(sink) => {
                    connected.outputs.push(output(port, sink.clone(), events));
                    connected.sinks.push(sink);
                }
                Peer::Terminal(input, output) => {
                    connected.raw = Some(Raw::new(&input)?);
                    connected.has_input = true;
                    terminal(port, input, output, events);
                }
            }
        }
        Ok(connected)
    }
}

/// The command's streams. Dropping it closes those that QEMU never connected to.
#[derive(Default)]
pub(crate) struct Connected {
    sockets: Vec<PathBuf>,
    outputs: Vec<Arc<Carried>>,
    sinks: Vec<Sink>,
    raw: Option<Raw>,
    has_input: bool,
}

impl Connected {
    /// Bytes received of stdout and stderr.
    pub fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|i| self.outputs.get(i).map_or(0, |output| output.bytes.load(Ordering::Acquire)))
    }

    /// Whether an output waits for its reader on this host.
    pub fn is_writing(&self) -> bool {
        self.outputs.iter().any(|output| output.writing.load(Ordering::Acquire))
    }

    /// Whether bytes of this process's stdin may have been taken.
    pub fn has_input(&self) -> bool {
        self.has_input
    }

    /// The captured stdout and stderr.
    pub fn captured(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|i| self.sinks.get(i).map(Sink::take).unwrap_or_default())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        // Restores the terminal first.
        self.raw = None;
        for path in &self.sockets {
            // This fails if QEMU does not listen any more.
            let _ = UnixStream::connect(path);
        }
    }
}

/// Progress of an output.
#[derive(Default)]
struct Carried {
    bytes: AtomicU64,
    writing: AtomicBool,
}

/// Whether stdin has no data: a terminal, `/dev/null`, or closed.
fn is_nothing(stdin: &io::Stdin) -> bool {
    let null = rustix::fs::stat("/dev/null").map(|stat| stat.st_rdev);
    let (Ok(stat), Ok(null)) = (rustix::fs::fstat(stdin), null) else { return true };
    termios::isatty(stdin) || stat.st_rdev == null
}

/// A duplicate of a stream of this process: unbuffered, closed when dropped.
fn duplicate(stream: impl AsFd) -> Result<File> {
    let copy = stream.as_fd().try_clone_to_owned();
    copy.map(File::from).map_err(|error| Error::new("use", "stdin, stdout and stderr", error))
}

/// A terminal in raw mode, so that every key reaches the guest. Restored when dropped.
struct Raw {
    terminal: File,
    before: Termios,
}

impl Raw {
    fn new(terminal: &File) -> Result<Self> {
        let failed = |error: io::Error| Error::new("set up", "the terminal", error);
        let before = termios::tcgetattr(terminal).map_err(|error| failed(error.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(terminal, OptionalActions::Drain, &raw)
            .map_err(|error| failed(error.into()))?;
        Ok(Self { terminal: terminal.try_clone().map_err(failed)?, before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Reads the control port.
fn control(port: Port, events: Sender<Event>) {
    thread::spawn(move || {
        let Ok(stream) = port.accept() else { return };
        let lines = BufReader::new(stream).split(b'\n').map_while(io::Result::ok);
        for event in lines.filter_map(|line| parse(&String::from_utf8_lossy(&line))) {
            if events.send(event).is_err() {
                break;
            }
        }
    });
}

/// Copies the console to its file.
pub(crate) fn console(mut from: impl Read + Send + 'static, mut to: File, events: Sender<Event>) {
    thread::spawn(move || {
        // Behind the end of what was read before, so that no line is cut.
        let mut buffer = vec![0; 1 << 14];
        let (mut first, mut kept) = (true, 0);
        while let Ok(count @ 1..) = from.read(&mut buffer[kept..]) {
            let end = kept + count;
            // A full disk must not stop the guest; the file then has the first part.
            let _ = to.write_all(&buffer[kept..end]);
            if first {
                let _ = events.send(Event::Console);
            }
            first = false;
            let mut places = buffer[..end].windows(STALLED.len());
            let found = places.rposition(|place| place == STALLED.as_bytes());
            if found.is_some() {
                let _ = events.send(Event::Stalled);
            }
            let rest =
                found.map_or(0, |at| at + STALLED.len()).max(end.saturating_sub(STALLED.len() - 1));
            buffer.copy_within(rest..end, 0);
            kept = end - rest;
        }
        let _ = events.send(Event::Gone);
    });
}

/// Copies an output port to its sink.
fn output(port: Port, sink: Sink, events: Sender<Event>) -> Arc<Carried> {
    let carried = Arc::new(Carried::default());
    let counter = Arc::clone(&carried);
    thread::spawn(move || {
        let Ok(mut stream) = port.accept() else { return };
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            counter.writing.store(true, Ordering::Release);
            if let Err(error) = sink.put(&buffer[..count]) {
                let broken = error.kind() == io::ErrorKind::BrokenPipe;
                let why = (!broken).then(|| error.to_string());
                let _ = events.send(Event::OutputClosed(why));
                return;
            }
            counter.bytes.fetch_add(count as u64, Ordering::Release);
            counter.writing.store(false, Ordering::Release);
        }
    });
    carried
}

/// Copies the host's stdin to its port; its end is the guest's end of file.
fn input(port: Port, from: File) {
    thread::spawn(move || {
        let Ok(mut stream) = port.accept() else { return };
        let _ = io::copy(&mut &from, &mut stream);
        let _ = stream.shutdown(Shutdown::Write);
        // If the socket were closed, QEMU would drop the data that the guest has not read yet.
        let _ = stream.read(&mut [0]);
    });
}

/// Connects the guest's terminal and the host's, until the escape key.
fn terminal(port: Port, input: File, output: File, events: Sender<Event>) {
    thread::spawn(move || {
        let Ok(stream) = port.accept() else { return };
        let Ok(back) = stream.try_clone() else { return };
        thread::spawn(move || io::copy(&mut &back, &mut &output));
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = (&input).read(&mut buffer) {
            if buffer[..count].contains(&ESCAPE) {
                let _ = events.send(Event::Escape);
                return;
            }
            if (&stream).write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn lines_of_the_guest_are_understood() {
        assert_eq!(parse("up"), Some(Event::Up));
        assert_eq!(
            parse("fail cannot share /a b"),
            Some(Event::Failed("cannot share /a b".into()))
        );
        assert_eq!(parse("exit 137"), Some(Event::Exited(137)));
        assert_eq!(parse("taint 4608"), Some(Event::Taint(4608)));
        assert_eq!(parse("leak   hex dump"), Some(Event::Leak("  hex dump".into())));
        assert_eq!(parse("done 10 2"), Some(Event::Done([10, 2])));
        for line in ["", "exit", "exit 256", "exit x", "done 1", "done  ", "other"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_stall_is_seen_wherever_the_console_is_cut() {
        let text = format!("[  1.0] rcu: {STALLED} for 26251 jiffies!\n");
        for cut in 0..text.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("console");
            let (reader, mut writer) = io::pipe().unwrap();
            let (sender, events) = channel();
            console(reader, File::create(&path).unwrap(), sender);
            writer.write_all(&text.as_bytes()[..cut]).unwrap();
            if cut > 0 {
                // What comes now is read by another call.
                assert_eq!(events.recv(), Ok(Event::Console));
            }
            writer.write_all(&text.as_bytes()[cut..]).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
            drop(writer);
            let seen: Vec<Event> = events.iter().collect();
            assert!(seen.contains(&Event::Stalled), "{cut}: {seen:?}");
            assert_eq!(seen.last(), Some(&Event::Gone));
            assert_eq!(fs::read_to_string(&path).unwrap(), text.repeat(2));
        }
    }

    fn connected(dir: &Path) -> (Port, UnixStream) {
        let port = Port::new(dir, "port").unwrap();
        let peer = UnixStream::connect(&port.path).unwrap();
        (port, peer)
    }

    #[test]
    fn output_is_copied_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (port, mut guest) = connected(dir.path());
        let memory = Arc::new(Mutex::new(Vec::new()));
        let (sender, _receiver) = channel();
        let carried = output(port, Sink::Memory(Arc::clone(&memory)), sender);
        let bytes: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0]).collect();
        guest.write_all(&bytes).unwrap();
        let start = Instant::now();
        while carried.bytes.load(Ordering::Acquire) < bytes.len() as u64 {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*memory.lock().unwrap(), bytes);
    }

    #[test]
    fn a_comma_in_a_path_is_written_twice() {
        assert_eq!(option(Path::new("/a,b/,,")), OsString::from("/a,,b/,,,,"));
        assert_eq!(option(Path::new("/a b")), OsString::from("/a b"));
    }

    #[test]
    fn a_reader_that_goes_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (port, mut guest) = connected(dir.path());
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let (sender, receiver) = channel();
        let sink = Sink::File(Arc::new(File::from(std::os::fd::OwnedFd::from(writer))));
        let _carried = output(port, sink, sender);
        guest.write_all(b"x").unwrap();
        let event = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(event, Event::OutputClosed(None));
    }

    #[test]
    fn input_ends_but_the_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (port, mut guest) = connected(dir.path());
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"abc").unwrap();
        drop(writer);
        input(port, File::from(std::os::fd::OwnedFd::from(reader)));
        let mut text = String::new();
        guest.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
        // Were it closed, this would fail.
        guest.write_all(b"y").unwrap();
    }
}
