//! `busbar serve --usb` while its host is killed, unplugged and disabled, and beside a host that means harm. In the debug
//! kernel, which reports what goes wrong in it.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::cell::RefCell;
use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use converter::{Converter, FRAME, assert_counter};
use fastrand::Rng;
use nusb::MaybeFuture;
use nusb::transfer::{Buffer, Bulk, ControlOut, ControlType, In, Out, Recipient, TransferError};
use support::iiod::{Server, op};
use support::usb::{configured, device, gadgets, load, program, read, serve, unplugged};
use support::{rounds, wait_until};

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);
const RESET: u8 = 0;
const OPEN: u8 = 1;
const CLOSE: u8 = 2;

/// A host program that reads without an end, and has read something.
struct Reader {
    child: Child,
    /// Takes what it reads.
    rest: JoinHandle<()>,
}

impl Reader {
    fn start(device: &str) -> Self {
        let mut reader = program("iio_readdev", &["-T", "0", "-b", "4096", device]);
        let mut child = reader.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut vec![0; 100_000]).unwrap();
        let rest = spawn(move || drop(std::io::copy(&mut out, &mut std::io::sink())));
        Self { child, rest }
    }

    /// It ends by itself; it succeeds whatever has happened.
    fn ends(mut self) {
        self.rest.join().unwrap();
        self.child.wait().unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.ends();
    }
}

/// Another one reads samples, of which none is missing.
fn all_samples_come(device: &str) {
    let arguments = ["-T", "0", "-b", "1024", "-s", "10240", device];
    let read =
        read(&[&arguments[..], &["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]].concat());
    assert_eq!(read.len(), 10_240 * FRAME);
    // Others may have opened the device before.
    let first = u64::from_le_bytes(read[..8].try_into().unwrap());
    assert_counter(&read, first);
}

#[test]
#[ignore = "needs the lab"]
fn a_program_that_is_killed_is_followed_by_another() {
    load();
    let server = serve(&["adc=synth:counter"]);
    let before = server.descriptors();
    for _ in 0..rounds(10, 3) {
        Reader::start("adc").kill();
        // `dummy_hcd` cannot flush up to 64 bytes that it has taken for an endpoint.
        Host::claim().interface.set_alt_setting(0).wait().unwrap();
        all_samples_come("adc");
    }
    wait_until("all pipes are closed", || server.descriptors() == before);
    // The server ends before its client.
    let last = Reader::start("adc");
    server.finish();
    last.ends();
    assert!(gadgets().is_empty());
    unplugged();
}

#[test]
#[ignore = "needs the lab"]
fn a_host_that_goes_leaves_nothing_enabled_and_may_come_back() {
    load();
    let converter = Converter::named("usb-gone");
    let server = serve(&[]);
    let before = server.descriptors();
    let is_enabled = || converter.rx.get("buffer/enable") == "1";
    for round in 0..rounds(10, 4) {
        let reader = Reader::start("usb-gone");
        assert!(is_enabled());
        let udc = gadgets()[0].join("UDC");
        let controller = fs::read_to_string(&udc).unwrap();
        let authorized = device().unwrap().join("authorized");
        // The function is disabled, or the host forgets the device.
        if round % 2 == 0 {
            fs::write(&udc, "\n").unwrap();
        } else {
            fs::write(&authorized, "0").unwrap();
        }
        wait_until("the buffer is disabled", || !is_enabled());
        wait_until("all pipes are closed", || server.descriptors() == before);
        reader.ends();
        assert_eq!(server.connect().ask("TIMEOUT 0"), 0);
        if round % 2 == 0 {
            unplugged();
            fs::write(&udc, controller).unwrap();
        } else {
            fs::write(&authorized, "1").unwrap();
        }
        configured();
        all_samples_come("usb-gone");
    }
    drop(server);
    unplugged();
}

/// A host that sends what it likes.
struct Host {
    interface: nusb::Interface,
    /// The addresses of the endpoints of each pipe: to the host, and from it.
    pipes: Vec<(u8, u8)>,
}

impl Host {
    fn claim() -> Self {
        let find = nusb::list_devices().wait().unwrap().find(|it| it.vendor_id() == 0x1209);
        let device = find.unwrap().open().wait().unwrap();
        let interface = device.claim_interface(0).wait().unwrap();
        let descriptor = interface.descriptor().unwrap();
        let endpoints: Vec<_> = descriptor.endpoints().map(|it| it.address()).collect();
        let pipes = endpoints.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        Self { interface, pipes }
    }

    fn control(
        &self,
        recipient: Recipient,
        request: u8,
        value: u16,
        data: &[u8],
    ) -> Result<(), TransferError> {
        let index = if recipient == Recipient::Endpoint { self.pipes[0].0.into() } else { 0 };
        let control_type = ControlType::Vendor;
        let control = ControlOut { control_type, recipient, request, value, index, data };
        self.interface.control_out(control, LONG).wait()
    }

    fn ask(&self, request: u8, value: u16) -> Result<(), TransferError> {
        self.control(Recipient::Interface, request, value, &[])
    }

    fn send(&self, pipe: usize, bytes: &[u8], timeout: Duration) -> Result<(), TransferError> {
        let mut endpoint = self.interface.endpoint::<Bulk, Out>(self.pipes[pipe].1).unwrap();
        endpoint.transfer_blocking(bytes.to_vec().into(), timeout).into_result().map(drop)
    }

    fn read(&self, pipe: usize, len: usize, timeout: Duration) -> Result<Vec<u8>, TransferError> {
        let mut endpoint = self.interface.endpoint::<Bulk, In>(self.pipes[pipe].0).unwrap();
        let done = endpoint.transfer_blocking(Buffer::new(len), timeout);
        done.into_result().map(|buffer| buffer.to_vec())
    }
}

#[test]
#[ignore = "needs the lab"]
fn each_part_of_an_answer_is_a_transfer_and_wrong_requests_are_refused() {
    load();
    let server = serve(&["adc=synth:counter", "--usb-pipes", "2"]);
    let host = Host::claim();
    assert_eq!(host.pipes.len(), 2);
    for (request, value) in
        [(OPEN, 2), (OPEN, 0x100), (OPEN, 0xffff), (CLOSE, 2), (3, 0), (0xff, 0)]
    {
        assert_eq!(host.ask(request, value), Err(TransferError::Stall), "{request} {value}");
    }
    assert_eq!(host.control(Recipient::Interface, OPEN, 0, b"data"), Err(TransferError::Stall));
    assert_eq!(host.control(Recipient::Endpoint, RESET, 0, &[]), Err(TransferError::Stall));
    assert_eq!(host.ask(CLOSE, 1), Ok(()));
    assert_eq!(host.ask(OPEN, 1), Ok(()));
    host.send(1, b"VERSION\r\n", LONG).unwrap();
    assert!(host.read(1, 1024, LONG).unwrap().starts_with(b"0.24."));
    host.send(1, b"OPEN adc 4096 0000000f\r\n", LONG).unwrap();
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"0\n");
    host.send(1, b"READBUF adc 32768\r\n", LONG).unwrap();
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"32768\n");
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"0000000f\n");
    assert_counter(&host.read(1, 32768, LONG).unwrap(), 0);
    // A command in parts, of which one is a whole packet, and several in one transfer.
    let long = [&[b'\n'; 1020][..], b"VERSION\r\n"].concat();
    host.send(1, &long[..1024], LONG).unwrap();
    host.send(1, &long[1024..], LONG).unwrap();
    assert!(host.read(1, 1024, LONG).unwrap().starts_with(b"0.24."));
    host.send(1, b"NONSENSE\r\nTIMEOUT 0\r\n", LONG).unwrap();
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"-22\n");
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"0\n");
    // A pipe that is opened again is a new session, and what was not read is gone. `dummy_hcd` keeps up to 64 bytes.
    host.send(1, b"PRINT\r\n", LONG).unwrap();
    host.read(1, 1024, LONG).unwrap();
    assert_eq!(host.ask(OPEN, 1), Ok(()));
    host.send(1, b"CLOSE adc\r\n", LONG).unwrap();
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"-6\n");
    // An answer comes although the session ends with it.
    host.send(1, &[b'x'; 5000], LONG).unwrap();
    assert_eq!(host.read(1, 1024, LONG).unwrap(), b"-22\n");
    drop(host);
    drop(server);
    unplugged();
}

/// The head of a command of the binary protocol.
fn head(id: u16, op: u8, device: u8, code: i32) -> Vec<u8> {
    [&id.to_le_bytes()[..], &[op, device], &code.to_le_bytes()].concat()
}

/// A pipe by which a host speaks the binary protocol. It sends and reads each part by a transfer of its own, and sends by a
/// thread of its own, as libiio does it.
struct Binary {
    input: RefCell<nusb::Endpoint<Bulk, In>>,
    /// `None` at the end.
    output: Option<Sender<Vec<u8>>>,
    sender: Option<JoinHandle<()>>,
}

impl Binary {
    fn open(host: &Host, pipe: u8) -> Self {
        host.ask(OPEN, pipe.into()).unwrap();
        let (input, output) = host.pipes[usize::from(pipe)];
        let mut to = host.interface.endpoint::<Bulk, Out>(output).unwrap();
        let (output, parts) = channel::<Vec<u8>>();
        let sender = spawn(move || {
            for part in parts {
                to.transfer_blocking(part.into(), LONG).into_result().unwrap();
            }
        });
        let input = RefCell::new(host.interface.endpoint(input).unwrap());
        let binary = Self { input, output: Some(output), sender: Some(sender) };
        binary.send(b"BINARY\r\n");
        assert_eq!(binary.read(1024), b"0\n");
        binary
    }

    fn send(&self, bytes: &[u8]) {
        self.output.as_ref().unwrap().send(bytes.to_vec()).unwrap();
    }

    /// Reads what one transfer has. One of whole packets has to be of this length.
    fn read(&self, len: usize) -> Vec<u8> {
        let buffer = Buffer::new(len.next_multiple_of(1024));
        let done = self.input.borrow_mut().transfer_blocking(buffer, LONG);
        done.into_result().unwrap().to_vec()
    }

    fn answer(&self) -> (u16, i32) {
        let head = self.read(8);
        assert_eq!(head.len(), 8);
        let id = u16::from_le_bytes([head[0], head[1]]);
        (id, i32::from_le_bytes(head[4..].try_into().unwrap()))
    }

    fn ask(&self, op: u8, device: u8, code: i32, more: &[&[u8]]) -> i32 {
        self.send(&head(7, op, device, code));
        for part in more {
            self.send(part);
        }
        let (id, number) = self.answer();
        assert_eq!(id, 7);
        number
    }

    /// The bytes that follow an answer.
    fn bytes(&self, len: i32) -> Vec<u8> {
        let len = usize::try_from(len).unwrap();
        let bytes = self.read(len);
        assert_eq!(bytes.len(), len);
        bytes
    }

    /// Opens a buffer with blocks of these numbers, which are the ids to which their answers are.
    fn open_buffer(&self, device: u8, blocks: std::ops::Range<u16>, len: usize) {
        let mask = [15, 0, 0, 0];
        assert_eq!(self.ask(op::OPEN, device, 0, &[&mask]), 4);
        assert_eq!(self.bytes(4), mask);
        for block in blocks {
            self.send(&head(block, op::CREATE, device, i32::from(block) << 16));
            self.send(&(len as u64).to_le_bytes());
            assert_eq!(self.answer(), (block, 0));
        }
    }

    fn transfer(&self, device: u8, block: u16, len: usize) {
        self.send(&head(block, op::TRANSFER, device, i32::from(block) << 16));
        self.send(&(len as u64).to_le_bytes());
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        self.output = None;
        if let Some(sender) = self.sender.take()
            && !std::thread::panicking()
        {
            sender.join().unwrap();
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn streams_by_the_binary_protocol_share_a_pipe() {
    load();
    let server = serve(&["one=synth:counter", "two=synth:counter"]);
    let host = Host::claim();
    let pipe = Binary::open(&host, 1);
    let xml = pipe.bytes(pipe.ask(op::PRINT, 0, 0, &[]));
    assert!(xml.starts_with(b"<?xml") && xml.ends_with(b"</context>"));
    // Values of whole packets, and one that is shorter.
    for len in [2_usize, 1024, 4096, 1025] {
        let mut value = vec![0; len];
        value[0] = b'1';
        let written = pipe.ask(op::WRITE, 0, 1 << 16, &[&(len as u64).to_le_bytes(), &value]);
        assert_eq!(usize::try_from(written), Ok(len));
    }
    assert_eq!(pipe.bytes(pipe.ask(op::READ, 0, 1 << 16, &[])), b"1\0");
    assert_eq!(pipe.ask(op::WRITE, 0, 1 << 16, &[&1_u64.to_le_bytes(), b"0"]), 1);
    // Blocks of whole packets, and others. Ids that look like an end of line are none.
    let lens = [32_768, 1000 * FRAME];
    let blocks = [10..14, 100..104];
    for device in [0, 1] {
        pipe.open_buffer(device, blocks[usize::from(device)].clone(), lens[usize::from(device)]);
        for block in blocks[usize::from(device)].clone() {
            pipe.transfer(device, block, lens[usize::from(device)]);
        }
    }
    // Several commands in one transfer.
    pipe.send(&[head(7, op::ENABLE, 0, 0), head(8, op::ENABLE, 1, 0)].concat());
    let (mut next, mut awaited) = ([0, 0], 10);
    while awaited > 0 {
        let (id, len) = pipe.answer();
        awaited -= 1;
        if id < 10 {
            assert_eq!(len, 0);
            continue;
        }
        let device = u8::from(id >= 100);
        let at = usize::from(device);
        assert_eq!(usize::try_from(len), Ok(lens[at]), "{id}");
        let bytes = pipe.bytes(len);
        assert_counter(&bytes, next[at]);
        next[at] += (bytes.len() / FRAME) as u64;
        if next[at] < 50_000 {
            pipe.transfer(device, id, lens[at]);
            awaited += 1;
        }
    }
    assert!(next.iter().all(|next| *next >= 50_000));
    // What a program has opened is freed by its other connection, as libiio does it.
    let other = Binary::open(&host, 0);
    assert_eq!(other.ask(op::CLOSE, 0, 0, &[]), 0);
    host.ask(CLOSE, 1).unwrap();
    assert_eq!(other.ask(op::CLOSE, 0, 0, &[]), -9);
    drop((pipe, other, host));
    drop(server);
    unplugged();
}

#[test]
#[ignore = "needs the lab"]
fn one_pipe_transmits_and_receives_by_the_binary_protocol() {
    load();
    let converter = Converter::named("usb-binary");
    converter.rx.set("loopback", 1);
    let server = serve(&["iio:usb-binary", "iio:usb-binary-tx"]);
    let host = Host::claim();
    let pipe = Binary::open(&host, 2);
    let ids = [&converter.rx, &converter.tx].map(|device| device.folder.file_name().unwrap());
    assert_eq!(pipe.ask(op::TIMEOUT, 0, -1, &[]), 0);
    let (rx, tx) = if ids[0] < ids[1] { (0, 1) } else { (1, 0) };
    // Blocks of whole packets, and of a part of one at the end.
    let sent = [8 << 10, 1000 * FRAME, 8 << 10, 64, 8 << 10];
    let len = sent.iter().sum::<usize>() / 4;
    pipe.open_buffer(rx, 20..24, len);
    pipe.open_buffer(tx, 30..35, 8 << 10);
    for block in 20..24 {
        pipe.transfer(rx, block, len);
    }
    assert_eq!(pipe.ask(op::ENABLE, rx, 0, &[]), 0);
    assert_eq!(pipe.ask(op::ENABLE, tx, 0, &[]), 0);
    let mut bytes = vec![0; sent.iter().sum()];
    Rng::with_seed(7).fill(&mut bytes);
    let (mut came, mut done) = (Vec::new(), 0);
    let mut left = &bytes[..];
    for (block, len) in (30..).zip(sent) {
        let samples;
        (samples, left) = left.split_at(len);
        pipe.transfer(tx, block, len);
        pipe.send(samples);
    }
    while done < sent.len() || came.len() < bytes.len() {
        match pipe.answer() {
            (30..35, 0) => done += 1,
            (id, count) => {
                assert_eq!(usize::from(id - 20), came.len() / len);
                came.extend(pipe.bytes(count));
            }
        }
    }
    assert!(came == bytes, "what was transmitted is received");
    drop((pipe, host));
    drop(server);
    unplugged();
}

/// The memory of a process, in KiB.
fn memory(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn a_host_that_means_harm_hurts_nobody_else() {
    load();
    let server = serve(&["adc=synth:counter"]);
    let before = (server.descriptors(), memory(&server));
    let mut honest = server.connect();
    assert_eq!(honest.ask("OPEN adc 1000 0000000f"), 0);
    let mut next = 0;
    let mut honest_reads = || {
        let bytes = honest.read("adc", 1000 * FRAME).unwrap();
        assert_counter(&bytes, next);
        next += 1000;
    };
    let host = Host::claim();
    // It floods, and reads nothing.
    for pipe in 0..3 {
        host.ask(OPEN, pipe).unwrap();
    }
    let line =
        b"PRINT\r\nREADBUF adc 1000000000\r\nOPEN adc 65536 0000000f\r\nREADBUF adc 1000000000\r\n";
    let flood = line.repeat(1000);
    for pipe in 0..3 {
        let _ = host.send(pipe, &flood, Duration::from_secs(1));
    }
    honest_reads();
    let grown = memory(&server).saturating_sub(before.1);
    assert!(grown < 32 << 10, "{grown} KiB more");
    // It announces samples and values, and sends other amounts.
    host.ask(RESET, 0).unwrap();
    let mut random = Rng::with_seed(5);
    for _ in 0..rounds(1000, 100) {
        let pipe = random.usize(0..3);
        match random.u8(0..10) {
            0 => drop(host.ask(random.u8(0..4), random.u16(0..4))),
            1 | 2 => drop(host.ask(OPEN, u16::try_from(pipe).unwrap())),
            3 => {
                let mut bytes = vec![0; random.usize(0..5000)];
                random.fill(&mut bytes);
                let _ = host.send(pipe, &bytes, SOON);
            }
            4 => drop(host.send(pipe, b"WRITE adc busbar_report_loss 60000\r\n", SOON)),
            5 => drop(host.send(pipe, b"OPEN adc 4096 0000000f\r\nREADBUF adc 999999\r\n", SOON)),
            6 => drop(host.read(pipe, 1024 * random.usize(1..9), SOON)),
            7 => drop(host.send(pipe, b"BINARY\r\n", SOON)),
            8 => {
                let codes = [0, 1 << 16, 3 << 16, -1];
                // Some are no commands.
                let op = random.u8(0..=op::NOTHING + 8);
                let mut bytes = head(random.u16(0..3), op, 0, codes[random.usize(0..4)]);
                bytes.extend([random.u8(..), random.u8(0..80), 0, 0, 0, 0, 0, 0]);
                let _ = host.send(pipe, &bytes, SOON);
            }
            _ => drop(host.interface.set_alt_setting(0).wait()),
        }
    }
    honest_reads();
    // As above.
    host.interface.set_alt_setting(0).wait().unwrap();
    drop(host);
    // A program that knows the protocol is served, and nothing is left.
    all_samples_come("adc");
    drop(honest);
    wait_until("all pipes are closed", || server.descriptors() == before.0);
    server.finish();
    unplugged();
}
