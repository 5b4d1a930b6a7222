//! `iiod`: samples of a converter for clients on the network, from libiio's own server and from `busbar serve`.
//!
//! | case | client | where |
//! |---|---|---|
//! | `loopback-readdev` | `iio_readdev -B` of Debian's libiio | the loopback interface |
//! | `loopback-source` | Busbar's source `iio:NAME@ip:HOST` | the same |
//! | `veth-readdev`, `veth-source` | the same two | a network namespace, connected by `veth`. The kernel does not tell what such a client has read, so Busbar copies |
//! | `nic-readdev`, `nic-source` | the same two | the same, with GRO: so the device polls as a network card does, and Busbar takes the namespace for another machine |
//!
//! Each case comes twice: as the time for each MiB that arrives at all clients together, and with `-cpu` as the
//! processor time of the server, and of the kernel on its behalf. Both servers serve the same converter, with the
//! pattern `none`, where it leaves the block unchanged. A run starts its clients; once each has had some blocks, it
//! takes the clocks and the number of bytes that the network device has carried, and again some MiB later.
//!
//! Natively, on any host, both are relays: `iiod -u` and `busbar stream … iiod:` serve the samples of a third server, which
//! is `busbar serve` with `synth:counter`. What a relay receives is carried by the same loopback interface, once for all
//! clients, and is not counted. The cases are `relay-readdev` and `relay-source`.
//!
//! Before that, each client fetches samples of the pattern `counter` from each server, which are verified. What the lab's
//! `veth` carries is not copied by the device itself: a network card reads the memory by DMA instead.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::stream::{Source, StreamSetup};
use busbar::{Error, Result};
use busbar_uapi::time::processor_time;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::time::ClockId;

use crate::clock::{Cost, cases, now};
use crate::elsewhere::{self, Elsewhere, Link, join};
use crate::stream::{CHANNELS, CONVERTER, Converter, SAMPLE, compare_counter, per_mebibyte};
use crate::{Case, Extent, Report};

const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Where the servers listen, one after the other.
const PORT: u16 = 30431;
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client may take to get its first blocks, and how often that is tried.
const START: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 10;
/// How often the clocks are looked at.
const TICK: Duration = Duration::from_millis(2);
/// Blocks that a client has had when a run begins. `iio_readdev` reports every ten.
const WARM_UP: usize = 4;
/// Bytes of a run without emulation: some tenths of a second.
const NATIVE: usize = 512 << 20;
/// Blocks that are verified.
const VERIFIED: usize = 4;

struct Plan {
    rows: usize,
    sizes: &'static [usize],
    readdevs: &'static [usize],
    sources: &'static [usize],
    /// Bytes of one run, of all clients together.
    bytes: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        let all = &[1, 2, 4][..];
        match extent {
            // Starting a program takes long under emulation.
            Extent::Quick => Self {
                rows: 2,
                sizes: &SIZES[..1],
                readdevs: &[1],
                sources: &[1, 4],
                bytes: 2 << 20,
            },
            Extent::Normal => {
                Self { rows: 3, sizes: &SIZES, readdevs: all, sources: all, bytes: 8 << 20 }
            }
            Extent::Full => {
                Self { rows: 11, sizes: &SIZES, readdevs: all, sources: all, bytes: 1 << 30 }
            }
        }
    }
}

/// Where the clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Loopback,
    Veth,
    /// As that, but it looks like a network card.
    Nic,
}

impl Place {
    const ALL: [Self; 3] = [Self::Loopback, Self::Veth, Self::Nic];

    fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
            Self::Nic => "nic",
        }
    }

    /// The server's address.
    fn address(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Veth | Self::Nic => elsewhere::HERE,
        }
    }

    /// Moves this thread there.
    fn enter(self) -> Result<()> {
        if self == Self::Loopback { Ok(()) } else { elsewhere::enter() }
    }

    /// Makes the device between the two what it is to be.
    fn prepare(self) -> Result<()> {
        if self != Self::Nic {
            return Ok(());
        }
        // A device polls if it has GRO; but what comes from a peer with TSO passes by that.
        ethtool(Self::Nic, &["-K", elsewhere::PEER, "tso", "off"])?;
        ethtool(Self::Loopback, &["-K", elsewhere::DEVICE, "gro", "on"])
    }

    /// Bytes that the server has sent. On loopback the clients' are among them: requests, and acknowledgements.
    fn sent(self) -> Result<usize> {
        let device = if self == Self::Loopback { "lo" } else { elsewhere::DEVICE };
        let path = format!("/sys/class/net/{device}/statistics/tx_bytes");
        let text = fs::read_to_string(&path).map_err(|why| Error::new("read", &*path, why))?;
        text.trim().parse().map_err(|_| Error::invalid(path, text.trim(), "a number"))
    }
}

/// The kinds of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Readdev,
    Source,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Readdev => "readdev",
            Self::Source => "source",
        }
    }
}

/// Runs the benchmark of relays, on any host. `busbar` is the command that serves.
///
/// # Errors
///
/// Those of a server or a client.
pub fn run_native(busbar: &Path, extent: Extent, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let plan = Plan::of(extent);
    let place = Place::Loopback;
    let _origin = Server::of_synth(busbar)?;
    let mut cases = Vec::new();
    for &size in plan.sizes {
        let servers = [Server::relay_of_libiio()?, Server::relay(busbar, size)?];
        for server in &servers {
            progress(&format!("relay, verified: {}", server.name));
            verify(None, server, place)?;
        }
        for (kind, counts) in [(Kind::Readdev, plan.readdevs), (Kind::Source, plan.sources)] {
            for &clients in counts {
                let name = format!("relay-{}", kind.name());
                progress(&format!("{name}, blocks of {size} bytes, {clients} clients"));
                let bytes = plan.bytes.max(NATIVE);
                let work = Work { place, kind, size, clients, bytes, is_relay: true };
                cases.extend(compare(&plan, None, &servers, &name, &work, progress)?);
            }
        }
    }
    Ok(Report::new("iiod", plan.rows, cases))
}

/// Runs the benchmark. `busbar` is the command that serves; `progress` is called with the name of each step.
///
/// # Errors
///
/// Those of the converter, of a server or a client, and of `ip`.
pub fn run(busbar: &Path, extent: Extent, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let plan = Plan::of(extent);
    let converter = Converter::find(CONVERTER)?;
    converter.set("sampling_frequency", "0")?;
    let _elsewhere = Elsewhere::new(Link::Veth)?;
    let servers = [Server::of_libiio()?, Server::of(busbar)?];
    let mut cases = Vec::new();
    for place in Place::ALL {
        place.prepare()?;
        converter.set("pattern", "counter")?;
        for server in &servers {
            progress(&format!("{}, verified: {}", place.name(), server.name));
            verify(Some(&converter), server, place)?;
        }
        converter.wait_until_idle(PATIENCE)?;
        converter.set("pattern", "none")?;
        for (kind, counts) in [(Kind::Readdev, plan.readdevs), (Kind::Source, plan.sources)] {
            for &size in plan.sizes {
                for &clients in counts {
                    let name = format!("{}-{}", place.name(), kind.name());
                    progress(&format!("{name}, blocks of {size} bytes, {clients} clients"));
                    let bytes = plan.bytes;
                    let work = Work { place, kind, size, clients, bytes, is_relay: false };
                    let converter = Some(&converter);
                    cases.extend(compare(&plan, converter, &servers, &name, &work, progress)?);
                }
            }
        }
        converter.wait_until_idle(PATIENCE)?;
    }
    Ok(Report::new("iiod", plan.rows, cases))
}

/// What is done in one run.
struct Work {
    place: Place,
    kind: Kind,
    /// Bytes of a block.
    size: usize,
    clients: usize,
    /// Bytes of all clients together.
    bytes: usize,
    /// Whether the server receives what it sends, by the same network device.
    is_relay: bool,
}

impl Work {
    /// Bytes that all clients together have got, of those that the device has carried.
    fn got(&self, carried: usize) -> usize {
        if self.is_relay { carried / (self.clients + 1) * self.clients } else { carried }
    }
}

/// Both servers, in turn.
fn compare(
    plan: &Plan,
    converter: Option<&Converter>,
    [usual, ours]: &[Server; 2],
    name: &str,
    work: &Work,
    progress: &mut dyn FnMut(&str),
) -> Result<[Case; 2]> {
    let mut run = |server| once(converter, server, work, progress);
    let runs = (0..plan.rows).map(|_| Ok((run(usual)?, run(ours)?))).collect::<Result<Vec<_>>>()?;
    let params = [("bytes", work.size as u64), ("clients", work.clients as u64)];
    Ok(cases(name, &params, "us/MiB", "iiod", &runs))
}

fn wait_until_idle(converter: Option<&Converter>) -> Result<()> {
    converter.map_or(Ok(()), |converter| converter.wait_until_idle(PATIENCE))
}

/// One run. A driver that still releases the blocks of an earlier one may not start for `iiod`: then again.
fn once(
    converter: Option<&Converter>,
    server: &Server,
    work: &Work,
    progress: &mut dyn FnMut(&str),
) -> Result<Cost> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        wait_until_idle(converter)?;
        match measure(server, work) {
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(error) => progress(&format!("{error}; again")),
            done => return done,
        }
    }
}

fn measure(server: &Server, work: &Work) -> Result<Cost> {
    let clients: Vec<_> =
        (0..work.clients).map(|_| Client::start(work, server.port)).collect::<Result<_>>()?;
    clients.iter().try_for_each(Client::wait)?;
    let start = Moment::now(server, work.place)?;
    loop {
        thread::sleep(TICK);
        let end = Moment::now(server, work.place)?;
        let bytes = work.got(end.sent.saturating_sub(start.sent));
        if bytes >= work.bytes {
            let each = |from: Duration, to: Duration| per_mebibyte(to.saturating_sub(from), bytes);
            let (micros, cpu_micros) = (each(start.wall, end.wall), each(start.cpu, end.cpu));
            return Ok(Cost { micros, cpu_micros });
        }
        if end.wall.saturating_sub(start.wall) > PATIENCE {
            return Err(Error::new("receive from", server.name, Errno::TIMEDOUT));
        }
    }
}

struct Moment {
    wall: Duration,
    cpu: Duration,
    sent: usize,
}

impl Moment {
    fn now(server: &Server, place: Place) -> Result<Self> {
        let cpu = processor_time(server.process())
            .map_err(|errno| Error::new("ask for the processor time of", server.name, errno))?;
        Ok(Self { wall: now(ClockId::Monotonic), cpu, sent: place.sent()? })
    }
}

/// A server, which ends with this.
struct Server {
    name: &'static str,
    child: Child,
    port: u16,
}

impl Server {
    fn of_libiio() -> Result<Self> {
        let mut command = Command::new("iiod");
        command.args(["-p", &PORT.to_string()]);
        Self::start("iiod", &mut command, PORT)
    }

    fn of(busbar: &Path) -> Result<Self> {
        let (mut command, port) = (Command::new(busbar), PORT + 1);
        command.args(["serve", "--memory-limit", "1G"]);
        command.args(["--listen", &port.to_string()]);
        Self::start("busbar serve", &mut command, port)
    }

    /// The one behind the relays.
    fn of_synth(busbar: &Path) -> Result<Self> {
        let (mut command, port) = (Command::new(busbar), PORT + 2);
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
        command.arg(format!("{CONVERTER}=synth:counter"));
        Self::start("busbar serve", &mut command, port)
    }

    fn relay_of_libiio() -> Result<Self> {
        let mut command = Command::new("iiod");
        let origin = format!("ip:127.0.0.1:{}", PORT + 2);
        command.args(["-p", &PORT.to_string(), "-u", &origin]);
        Self::start("iiod -u", &mut command, PORT)
    }

    fn relay(busbar: &Path, size: usize) -> Result<Self> {
        let (mut command, port) = (Command::new(busbar), PORT + 1);
        let from = format!("iio:{CONVERTER}@ip:127.0.0.1:{}", PORT + 2);
        let to = format!("iiod:127.0.0.1:{port}");
        command.args(["stream", &from, &to, "--block-len", &size.to_string()]);
        Self::start("busbar stream", &mut command, port)
    }

    fn start(name: &'static str, command: &mut Command, port: u16) -> Result<Self> {
        let failed = |why| Error::new("run", name, why).help("apt-get install iiod libiio-utils");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { name, child: child.spawn().map_err(failed)?, port };
        let begun = Instant::now();
        while let Err(why) = TcpStream::connect(("127.0.0.1", port)) {
            if let Some(status) = server.child.try_wait().map_err(failed)? {
                return Err(failed(std::io::Error::other(status.to_string())));
            }
            if begun.elapsed() > PATIENCE {
                return Err(failed(why));
            }
            thread::sleep(10 * TICK);
        }
        Ok(server)
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Verifies what both kinds of client get.
fn verify(converter: Option<&Converter>, server: &Server, place: Place) -> Result<()> {
    let size = SIZES[0];
    wait_until_idle(converter)?;
    let count = (VERIFIED * size / SAMPLE).to_string();
    let mut command = readdev(server.port, place, size);
    command.args(["-s", &count, CONVERTER]).args(CHANNELS).stdout(Stdio::piped());
    let child = spawn("libiio-utils", command, place)?;
    let output = child.wait_with_output().map_err(|why| Error::new("run", "iio_readdev", why))?;
    check(server, &output.stdout)?;
    wait_until_idle(converter)?;
    let port = server.port;
    let thread = thread::spawn(move || {
        place.enter()?;
        let source = open(port, place, size)?;
        let mut bytes = Vec::new();
        for _ in 0..VERIFIED {
            next(&source, PATIENCE)?.read()?.bytes().append_to(&mut bytes);
        }
        Ok(bytes)
    });
    check(server, &join(thread)?)
}

fn check(server: &Server, bytes: &[u8]) -> Result<()> {
    if bytes.len() != VERIFIED * SIZES[0] {
        let why = format!("{} bytes, not {}", bytes.len(), VERIFIED * SIZES[0]);
        return Err(Error::new("check the samples of", server.name, std::io::Error::other(why)));
    }
    compare_counter(server.name, bytes)
}

/// `iio_readdev`, without its last arguments.
fn readdev(port: u16, place: Place, size: usize) -> Command {
    let mut command = Command::new("iio_readdev");
    let uri = format!("ip:{}:{port}", place.address());
    command.args(["-u", &uri, "-T", "20000", "-b", &(size / SAMPLE).to_string()]);
    command.stdin(Stdio::null());
    command
}

/// Changes a setting of a device there.
fn ethtool(place: Place, arguments: &[&str]) -> Result<()> {
    let failed = |why| Error::new("run", format!("ethtool {}", arguments.join(" ")), why);
    let mut command = Command::new("ethtool");
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = spawn("ethtool", command, place)?.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(|| failed(std::io::Error::other(said)))
}

/// Starts a program of this Debian package there.
fn spawn(package: &'static str, mut command: Command, place: Place) -> Result<Child> {
    join(thread::spawn(move || {
        place.enter()?;
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |why| Error::new("run", name, why).help(format!("apt-get install {package}"));
        command.spawn().map_err(failed)
    }))
}

fn open(port: u16, place: Place, size: usize) -> Result<Source> {
    let name = format!("iio:{CONVERTER}@ip:{}:{port}", place.address());
    Source::open(&name, &StreamSetup::new().blocks(4).block_len(size).channels(CHANNELS))
}

fn next(source: &Source, patience: Duration) -> Result<busbar::stream::Samples> {
    let late = || Error::new("receive from", CONVERTER, Errno::TIMEDOUT);
    source.next_timeout(patience)?.ok_or_else(late)
}

/// A client, which ends with this.
struct Client {
    running: Running,
    is_ready: Receiver<Result<()>>,
}

enum Running {
    Program(Child),
    Thread(Arc<AtomicBool>, Option<JoinHandle<()>>),
}

impl Client {
    fn start(work: &Work, port: u16) -> Result<Self> {
        let (ready, is_ready) = mpsc::channel();
        let (place, size) = (work.place, work.size);
        let running = match work.kind {
            Kind::Readdev => {
                let mut command = readdev(port, place, size);
                command.args(["-B", CONVERTER]).args(CHANNELS);
                command.stdout(Stdio::null()).stderr(Stdio::piped());
                let mut child = spawn("libiio-utils", command, place)?;
                let stderr = child.stderr.take();
                thread::spawn(move || stderr.map(|from| watch(from, &ready)));
                Running::Program(child)
            }
            Kind::Source => {
                let stop = Arc::new(AtomicBool::new(false));
                let is_stopped = Arc::clone(&stop);
                let thread = thread::spawn(move || {
                    let done = receive(port, place, size, &is_stopped, &ready);
                    // Nobody hears it at the end of a run.
                    let _ = done.map_err(|error| ready.send(Err(error)));
                });
                Running::Thread(stop, Some(thread))
            }
        };
        Ok(Self { running, is_ready })
    }

    /// Waits until it has had its first blocks.
    fn wait(&self) -> Result<()> {
        let late = |_| Err(Error::new("receive from", CONVERTER, Errno::TIMEDOUT));
        self.is_ready.recv_timeout(START).unwrap_or_else(late)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        match &mut self.running {
            Running::Program(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Running::Thread(stop, thread) => {
                stop.store(true, Ordering::Relaxed);
                let _ = thread.take().map(JoinHandle::join);
            }
        }
    }
}

/// Reads the reports of `iio_readdev` until it ends; with the first one it is ready.
fn watch(mut from: impl Read, ready: &Sender<Result<()>>) {
    let (mut said, mut buffer) = (String::new(), [0; 256]);
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if said.contains("Throughput: ") {
            continue;
        }
        said.push_str(&String::from_utf8_lossy(&buffer[..len]));
        if said.contains("Throughput: ") {
            let _ = ready.send(Ok(()));
        }
    }
    let why = std::io::Error::other(said.trim().to_owned());
    let _ = ready.send(Err(Error::new("run", "iio_readdev", why)));
}

/// Receives until it is told to stop.
fn receive(
    port: u16,
    place: Place,
    size: usize,
    is_stopped: &AtomicBool,
    ready: &Sender<Result<()>>,
) -> Result<()> {
    place.enter()?;
    let source = open(port, place, size)?;
    for _ in 0..WARM_UP {
        next(&source, START)?;
    }
    let _ = ready.send(Ok(()));
    while !is_stopped.load(Ordering::Relaxed) {
        source.next_timeout(100 * TICK)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_ready_with_its_first_report_and_failed_without_one() {
        let (ready, is_ready) = mpsc::channel();
        watch(
            &b"WARNING: x\n\x1b[2KThroughput: 22 MiB/s\r\x1b[2KThroughput: 18 MiB/s\r"[..],
            &ready,
        );
        assert!(is_ready.recv().unwrap().is_ok());
        watch(&b"Unable to refill buffer"[..], &ready);
        let said: Vec<_> = is_ready.try_iter().filter_map(Result::err).collect();
        assert!(said[1].to_string().contains("Unable to refill buffer"), "{said:?}");
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error() {
        let mut command = Command::new("false");
        let started = Server::start("nothing", &mut command, 1);
        assert!(started.is_err_and(|error| error.to_string().contains("exit status: 1")));
    }
}
