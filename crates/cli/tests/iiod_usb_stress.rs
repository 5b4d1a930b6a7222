//! `busbar serve --usb` while its host is killed, unplugged and disabled, and beside a host that means harm. In the debug
//! kernel, which reports what goes wrong in it.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use converter::{Converter, FRAME, assert_counter};
use fastrand::Rng;
use nusb::MaybeFuture;
use nusb::transfer::{Buffer, Bulk, ControlOut, ControlType, In, Out, Recipient, TransferError};
use support::iiod::Server;
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
        match random.u8(0..8) {
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
