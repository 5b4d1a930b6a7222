//! Servers of libiio's protocol, ours and its own, and a client that sends what it likes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use rustix::process::Signal;
use serde_json::Value;

use super::{command, port, signal, wait_until};

/// `busbar serve`, which ends with this.
pub struct Server {
    child: Child,
    pub port: u16,
}

/// Our server on this port of the loopback interface.
fn ours(port: u16, arguments: &[&str]) -> Command {
    let mut command = command(&["serve", "--json", "--listen", &format!("127.0.0.1:{port}")]);
    command.args(arguments).stderr(Stdio::inherit());
    command
}

/// libiio's.
fn theirs(port: u16) -> Command {
    let mut command = Command::new("iiod");
    command.args(["-p", &port.to_string()]);
    command
}

impl Server {
    /// Serves on a free port of the loopback interface.
    pub fn start(arguments: &[&str]) -> Self {
        let port = port();
        Self::listening(ours(port, arguments), port)
    }

    /// The same after a command of the shell, such as `ulimit -n 256`.
    pub fn limited(arguments: &[&str], before: &str) -> Self {
        let port = port();
        let server = ours(port, arguments);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before} && exec \"$0\" \"$@\"")]).arg(server.get_program());
        shell.args(server.get_args()).stdin(Stdio::null()).stdout(Stdio::piped());
        Self::listening(shell, port)
    }

    /// Starts it, and waits until it says that it listens.
    fn listening(mut command: Command, port: u16) -> Self {
        let mut child = command.spawn().unwrap();
        let out = child.stdout.as_mut().unwrap();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).unwrap(), 1, "the server ended");
            line.push(byte[0]);
        }
        Self { child, port }
    }

    /// libiio's own server, on all devices of the machine.
    pub fn of_libiio() -> Self {
        let port = port();
        let mut command = theirs(port);
        Self::answering(command.stdout(Stdio::null()), port)
    }

    /// Ours or libiio's. A file takes its messages, in place of this process.
    pub fn with_messages(is_ours: bool, file: Option<&Path>) -> Self {
        let Some(file) = file else {
            return if is_ours { Self::start(&[]) } else { Self::of_libiio() };
        };
        let port = port();
        let mut command = if is_ours { ours(port, &[]) } else { theirs(port) };
        let messages = File::create(file).unwrap();
        Self::answering(command.stderr(messages.try_clone().unwrap()).stdout(messages), port)
    }

    /// Starts it, and waits until it takes connections.
    fn answering(command: &mut Command, port: u16) -> Self {
        let child = command.spawn().expect("the server: package iiod for libiio's");
        wait_until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port }
    }

    pub fn uri(&self) -> String {
        format!("ip:127.0.0.1:{}", self.port)
    }

    pub fn connect(&self) -> Raw {
        Raw::connect(self.port)
    }

    /// Runs one of libiio's programs as a client.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let uri = self.uri();
        let output = Command::new(program).args([&["-u", &uri], arguments].concat()).output();
        let output = output.expect("package libiio-utils");
        let said = super::text(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        output
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Open descriptors of the server.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count()
    }

    /// Bytes of its memfds and DMABUFs.
    pub fn memfds(&self) -> usize {
        use std::os::unix::fs::MetadataExt;
        let folder = format!("/proc/{}/fd", self.id());
        let mut found = std::collections::BTreeMap::new();
        for file in std::fs::read_dir(folder).unwrap().flatten() {
            let is_memory = |to: &std::path::PathBuf| to.to_string_lossy().contains("memfd:");
            if std::fs::read_link(file.path()).is_ok_and(|to| is_memory(&to))
                && let Ok(about) = std::fs::metadata(file.path())
            {
                found.insert(about.ino(), usize::try_from(about.len()).unwrap());
            }
        }
        found.values().sum()
    }

    /// Threads of the server.
    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap().count()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Bytes of memory that it has touched.
    pub fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Ends it with a signal; returns its lines, if this process has them.
    pub fn finish(mut self) -> Vec<Value> {
        signal(&self.child, Signal::TERM);
        let mut out = String::new();
        self.child.stdout.as_mut().map(|it| it.read_to_string(&mut out).unwrap());
        assert!(self.child.wait().unwrap().success());
        out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that sends lines.
pub struct Raw(BufReader<TcpStream>);

impl Raw {
    pub fn connect(port: u16) -> Self {
        Self::connect_from(Ipv4Addr::LOCALHOST, port)
    }

    /// Connects as a machine that has this address, of the loopback interface.
    pub fn connect_from(address: Ipv4Addr, port: u16) -> Self {
        let stream = TcpStream::from(
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap(),
        );
        rustix::net::bind(&stream, &SocketAddrV4::new(address, 0)).unwrap();
        rustix::net::connect(&stream, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Sends what the server may refuse to take.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    pub fn set_write_timeout(&mut self, limit: Duration) {
        self.0.get_mut().set_write_timeout(Some(limit)).unwrap();
    }

    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned()
    }

    pub fn number(&mut self) -> i64 {
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("{line:?}"))
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// A command whose answer is a number.
    pub fn ask(&mut self, line: &str) -> i64 {
        self.send(format!("{line}\r\n").as_bytes());
        self.number()
    }

    /// A command whose answer is a length, so many bytes, and an end of line; or an error.
    pub fn value(&mut self, line: &str) -> Result<Vec<u8>, i64> {
        let len = self.ask(line);
        let len = usize::try_from(len).map_err(|_| len)?;
        let mut bytes = self.bytes(len + 1);
        assert_eq!(bytes.pop(), Some(b'\n'));
        Ok(bytes)
    }

    /// The text of an attribute.
    pub fn attribute(&mut self, what: &str) -> String {
        let value =
            self.value(&format!("READ {what}")).unwrap_or_else(|errno| panic!("{what}: {errno}"));
        String::from_utf8(value).unwrap().trim_end_matches('\0').to_owned()
    }

    pub fn write(&mut self, what: &str, value: &[u8]) -> i64 {
        self.send(format!("WRITE {what} {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.number()
    }

    /// Samples, in one read.
    pub fn read(&mut self, device: &str, len: usize) -> Result<Vec<u8>, i64> {
        self.read_with_mask(device, len).map(|(bytes, _)| bytes)
    }

    /// Samples, in one read, and the mask of their channels, which may be more than the client has opened.
    pub fn read_with_mask(&mut self, device: &str, len: usize) -> Result<(Vec<u8>, u32), i64> {
        self.send(format!("READBUF {device} {len}\r\n").as_bytes());
        let (mut bytes, mut mask) = (Vec::new(), 0);
        while bytes.len() < len {
            let count = self.number();
            let Ok(count) = usize::try_from(count) else { return Err(count) };
            if count == 0 {
                break;
            }
            if bytes.is_empty() {
                mask = u32::from_str_radix(&self.line(), 16).unwrap();
            }
            bytes.extend(self.bytes(count));
        }
        Ok((bytes, mask))
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}

/// A connection that speaks the binary protocol of libiio 1.x.
pub struct Binary(Raw);

/// The numbers of commands.
pub mod op {
    pub const PRINT: u8 = 1;
    pub const TIMEOUT: u8 = 2;
    pub const READ: u8 = 3;
    pub const READ_DEBUG: u8 = 4;
    pub const READ_CHANNEL: u8 = 6;
    pub const READ_EVENTS: u8 = 7;
    pub const READ_CHANNEL_EVENTS: u8 = 8;
    pub const WRITE: u8 = 9;
    pub const GET_TRIGGER: u8 = 15;
    pub const SET_TRIGGER: u8 = 16;
    pub const OPEN: u8 = 17;
    pub const CLOSE: u8 = 18;
    pub const ENABLE: u8 = 19;
    pub const DISABLE: u8 = 20;
    pub const CREATE: u8 = 21;
    pub const FREE: u8 = 22;
    pub const TRANSFER: u8 = 23;
    pub const CYCLIC: u8 = 24;
    pub const RETRY: u8 = 25;
    pub const CREATE_EVENTS: u8 = 26;
    pub const FREE_EVENTS: u8 = 27;
    pub const READ_EVENT: u8 = 28;
    pub const READ_REGISTER: u8 = 29;
    pub const WRITE_REGISTER: u8 = 30;
    pub const FORMAT: u8 = 31;
    pub const NOTHING: u8 = 32;
}

impl Binary {
    pub fn connect(port: u16) -> Self {
        let mut raw = Raw::connect(port);
        assert_eq!(raw.ask("BINARY"), 0);
        Self(raw)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.send(bytes);
    }

    /// Sends a command, and what follows it.
    pub fn command(&mut self, id: u16, op: u8, device: u8, code: i32, more: &[u8]) {
        let head = [&id.to_le_bytes()[..], &[op, device], &code.to_le_bytes()].concat();
        self.send(&[&head, more].concat());
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.0.bytes(len)
    }

    /// To whom the next answer is, and its number.
    pub fn answer(&mut self) -> (u16, i32) {
        let head = self.bytes(8);
        assert_eq!(head[2..4], [0, 0]);
        let id = u16::from_le_bytes(head[..2].try_into().unwrap());
        (id, i32::from_le_bytes(head[4..].try_into().unwrap()))
    }

    /// A command whose answer is a number.
    pub fn ask(&mut self, op: u8, device: u8, code: i32, more: &[u8]) -> i32 {
        self.command(7, op, device, code, more);
        let (id, number) = self.answer();
        assert_eq!(id, 7);
        number
    }

    /// A command whose answer is so many bytes, or an error.
    pub fn value(&mut self, op: u8, device: u8, code: i32, more: &[u8]) -> Result<Vec<u8>, i32> {
        let len = self.ask(op, device, code, more);
        usize::try_from(len).map(|len| self.bytes(len)).map_err(|_| len)
    }

    /// Writes an attribute of a device.
    pub fn write(&mut self, device: u8, number: i32, value: &[u8]) -> i32 {
        let more = [&(value.len() as u64).to_le_bytes()[..], value].concat();
        self.ask(op::WRITE, device, number << 16, &more)
    }

    /// Opens a buffer with these channels, and creates blocks of so many bytes. Each answers to its number and 100.
    pub fn open(&mut self, device: u8, mask: u32, blocks: u16, len: usize) {
        assert_eq!(
            self.value(op::OPEN, device, 0, &mask.to_le_bytes()),
            Ok(mask.to_le_bytes().into())
        );
        (0..blocks).for_each(|block| self.create(device, block, len));
    }

    /// Creates a block of so many bytes.
    pub fn create(&mut self, device: u8, block: u16, len: usize) {
        let more = (len as u64).to_le_bytes();
        self.command(100 + block, op::CREATE, device, i32::from(block) << 16, &more);
        assert_eq!(self.answer(), (100 + block, 0));
    }

    /// Asks for samples, which come later.
    pub fn transfer(&mut self, device: u8, block: u16, len: usize) {
        let more = (len as u64).to_le_bytes();
        self.command(100 + block, op::TRANSFER, device, i32::from(block) << 16, &more);
    }

    /// The samples of a block.
    pub fn samples(&mut self, block: u16) -> Result<Vec<u8>, i32> {
        let (id, len) = self.answer();
        assert_eq!(id, 100 + block, "{len}");
        usize::try_from(len).map(|len| self.bytes(len)).map_err(|_| len)
    }

    /// Closes a buffer. Drops the samples that come before the answer.
    pub fn close(&mut self, device: u8) {
        self.command(7, op::CLOSE, device, 0, &[]);
        loop {
            match self.answer() {
                (7, number) => return assert_eq!(number, 0),
                (_, len) => drop(self.bytes(usize::try_from(len).unwrap_or(0))),
            }
        }
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.0.is_closed()
    }
}
