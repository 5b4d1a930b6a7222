//! `stream --native`: streams over the network of this host, by processor time.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `synth` | computed samples by `write()`, and `read()` | `synth:counter` to `tcp:`, and `tcp-listen:` to `null:` |
//! | `file` | `read()` of a file and `write()`, and `read()` | `file:` to `tcp:`, and the same |
//! | `synth` against `ZeroMQ` | computed samples by PUSH, and PULL, over TCP | as `synth` |
//! | `host` | `recv()` into a buffer | `receive::Receiver::host`: pieces of a block |
//! | `synth` against `iperf3 -Z` | `sendfile` and `read()` of its own bytes, plus the computation of the samples | as `synth` |
//!
//! The ends run in two threads, or processes, at the same time. The main figure is the processor time of both together
//! for a gigabyte; `-time` is the time on the clock. `crc` is 1 where each block has a CRC-32C that the receiver
//! verifies. Over `veth`, the receiver is in a network namespace of its own; this needs root.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use busbar::block::{Block, Memory};
use busbar::pipeline::{
    Config, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind, StageConfig, State,
    Work,
};
use busbar::receive::{Piece, Receiver};
use busbar::stream::frame::Header;
use busbar::stream::sigmf::Recorder;
use busbar::stream::verify::Counter;
use busbar::stream::{Lost, Source, StreamSetup};
use busbar::{Error, Result};
use rustix::time::ClockId;

use super::SAMPLE;
use crate::clock::{in_turn, now};
use crate::elsewhere::{Elsewhere, Link, THERE, join};
use crate::{Case, Extent, Report};

const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
const LOOPBACK: &str = "127.0.0.1";
/// A port in the namespace, where nobody else is.
const PORT: u16 = 4950;
/// Ports below those of `net.ipv4.ip_local_port_range`.
const PORTS: Range<u16> = 20_000..32_000;
const TRIES: usize = 100;
/// Bytes of the buffer of `recv()`.
const RECV: usize = 128 << 10;
/// Bytes of the block to receive into.
const HOST: usize = 16 << 20;
/// The longest buffer of iperf3.
const IPERF_MAX: usize = 1 << 20;
const ZMQ: &str = include_str!("zmq.c");

struct Plan {
    rows: usize,
    sizes: &'static [usize],
    links: &'static [Net],
    /// Bytes of one run of one way.
    bytes: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        const NETS: [Net; 2] = [Net::Loopback, Net::Veth];
        match extent {
            Extent::Quick => {
                Self { rows: 2, sizes: &SIZES[1..3], links: &NETS[..1], bytes: 128 << 20 }
            }
            Extent::Normal => Self { rows: 5, sizes: &SIZES, links: &NETS, bytes: 512 << 20 },
            Extent::Full => Self { rows: 11, sizes: &SIZES, links: &NETS, bytes: 1 << 30 },
        }
    }
}

/// Where the receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Net {
    Loopback,
    Veth,
}

impl Net {
    fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
        }
    }

    /// An address there that is free.
    fn address(self) -> Result<String> {
        Ok(match self {
            Self::Loopback => format!("{LOOPBACK}:{}", free_port()?),
            Self::Veth => format!("{THERE}:{PORT}"),
        })
    }

    /// Runs `work` in a thread there; returns when it is ready.
    fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&mpsc::Sender<()>) -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        if self == Self::Veth {
            return Elsewhere::run(work);
        }
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || work(&ready));
        // If it has failed, so does the sender; `join` has the reason.
        let _ = is_ready.recv();
        Ok(thread)
    }
}

/// A port that nobody has, and that the kernel gives to nobody who asks for any.
fn free_port() -> Result<u16> {
    let mut ports = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(TRIES);
    let is_free = |port: &u16| TcpListener::bind((LOOPBACK, *port)).is_ok();
    ports.find(is_free).ok_or_else(|| failed(std::io::ErrorKind::AddrInUse.into()))
}

/// What is sent.
#[derive(Clone, Debug)]
enum Origin {
    Synth,
    /// A recording of the same samples.
    File(PathBuf),
}

/// A stream.
#[derive(Clone, Debug)]
struct Job {
    net: Net,
    from: Origin,
    size: usize,
    bytes: usize,
    crc: bool,
    /// Every sample is verified at the other end.
    verify: bool,
}

/// Seconds for each gigabyte.
#[derive(Clone, Copy, Debug)]
struct Cost {
    cpu: f64,
    wall: f64,
}

struct Start {
    cpu: Duration,
    wall: Duration,
}

impl Start {
    fn now() -> Self {
        Self { cpu: now(ClockId::ProcessCPUTime), wall: now(ClockId::Monotonic) }
    }

    fn cost(&self, bytes: usize) -> Cost {
        let end = Self::now();
        let each =
            |from: Duration, to: Duration| per_gb(to.saturating_sub(from).as_secs_f64(), bytes);
        Cost { cpu: each(self.cpu, end.cpu), wall: each(self.wall, end.wall) }
    }
}

#[allow(clippy::cast_precision_loss)] // exact below 2^52
fn per_gb(seconds: f64, bytes: usize) -> f64 {
    seconds * 1e9 / bytes as f64
}

/// Runs the benchmark. `progress` is called with the name of each step.
pub fn run(extent: Extent, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let plan = Plan::of(extent);
    let folder = tempfile::tempdir().map_err(|why| Error::new("make", "a folder", why))?;
    let recording = record(folder.path(), plan.bytes)?;
    let zmq = compile(folder.path());
    let mut cases = Vec::new();
    for &net in plan.links {
        let elsewhere = (net == Net::Veth).then(|| Elsewhere::new(Link::Veth)).transpose();
        let Ok(_elsewhere) = elsewhere else {
            progress("no veth: it needs root");
            continue;
        };
        for &size in plan.sizes {
            for (name, from) in
                [("synth", Origin::Synth), ("file", Origin::File(recording.clone()))]
            {
                for crc in [false, true] {
                    progress(&format!("{name}, blocks of {size} bytes, over {}", net.name()));
                    let job = Job {
                        net,
                        from: from.clone(),
                        size,
                        bytes: plan.bytes,
                        crc,
                        verify: false,
                    };
                    let sample =
                        Job { verify: true, bytes: (4 * size).max(1 << 20), ..job.clone() };
                    by_write(&sample)?;
                    by_pipeline(&sample)?;
                    let usual = || by_write(&job);
                    cases.extend(compare(&plan, name, "read(), write()", &job, usual)?);
                }
            }
            if net == Net::Loopback {
                let job = Job {
                    net,
                    from: Origin::Synth,
                    size,
                    bytes: plan.bytes,
                    crc: false,
                    verify: false,
                };
                progress(&format!("blocks of {size} bytes, by recv()"));
                for way in [by_recv, by_host] {
                    way(&Job { verify: true, bytes: 8 * size, ..job.clone() })?;
                }
                let (usual, busbar) = (|| by_recv(&job), || by_host(&job));
                cases.extend(both(&plan, "host", "recv()", &job, usual, busbar)?);
                progress(&format!("blocks of {size} bytes, by others"));
                if let Some(zmq) = &zmq {
                    let usual = || by_zmq(zmq, &job);
                    cases.extend(compare(&plan, "synth", "ZeroMQ", &job, usual)?);
                }
                if is_there("iperf3") {
                    let usual = || by_iperf(&job);
                    cases.extend(compare(&plan, "synth", "iperf3 -Z", &job, usual)?);
                }
            }
        }
    }
    Ok(Report::new("stream", plan.rows, cases))
}

fn compare(
    plan: &Plan,
    name: &str,
    against: &str,
    job: &Job,
    usual: impl FnMut() -> Result<Cost>,
) -> Result<[Case; 2]> {
    both(plan, name, against, job, usual, || by_pipeline(job))
}

fn both(
    plan: &Plan,
    name: &str,
    against: &str,
    job: &Job,
    usual: impl FnMut() -> Result<Cost>,
    busbar: impl FnMut() -> Result<Cost>,
) -> Result<[Case; 2]> {
    let runs = in_turn(plan.rows, usual, busbar)?;
    let params = [("bytes", job.size as u64), ("crc", job.crc.into())];
    let name = format!("{}-{name}", job.net.name());
    let case = |name: &str, pick: fn(&Cost) -> f64| {
        let runs: Vec<_> = runs.iter().map(|(a, b)| (pick(a), pick(b))).collect();
        Case::new(name, &params, "s/GB", against, &runs)
    };
    Ok([case(&name, |cost| cost.cpu), case(&format!("{name}-time"), |cost| cost.wall)])
}

fn setup(size: usize) -> StreamSetup {
    StreamSetup::new().block_len(size)
}

fn counter() -> SourceKind {
    SourceKind::Device("synth:counter".into())
}

/// Makes a recording of so many bytes, which stays in the page cache.
fn record(folder: &Path, bytes: usize) -> Result<PathBuf> {
    let name = folder.join("counter");
    let source = Source::open("synth:counter", &setup(1 << 20))?;
    let mut recorder = Recorder::create(&name, source.format(), None)?;
    for _ in 0..bytes.div_ceil(1 << 20) {
        recorder.write(&source.next()?)?;
    }
    recorder.finish(Lost::Samples(0))?;
    Ok(name)
}

/// Busbar's.
fn by_pipeline(job: &Job) -> Result<Cost> {
    let edge = |from: &str| Edge::new(from);
    let (address, verify) = (job.net.address()?, job.verify);
    let there = address.clone();
    let receiver = job.net.run(move |ready| {
        let from = SourceConfig::new("net", SourceKind::Listen(there));
        let to = if verify { SinkKind::Verify { counter: true } } else { SinkKind::Null };
        let config = Config::new().fail_fast(true).source(from.memory_limit(1 << 30));
        let mut pipeline = Pipeline::open(config.sink(SinkConfig::new("to", edge("net"), to)))?;
        let _ = ready.send(());
        finish(&mut pipeline)
    })?;
    let from = match &job.from {
        Origin::Synth => counter(),
        Origin::File(path) => SourceKind::Recording(path.clone()),
    };
    let samples = (job.bytes / SAMPLE) as u64;
    let source = SourceConfig::new("from", from).block_len(job.size).count(samples);
    let mut config = Config::new().fail_fast(true).source(source);
    let mut last = "from";
    if job.crc {
        config = config.stage(StageConfig::new("sum", edge("from"), Work::Checksum));
        last = "sum";
    }
    let config = config.sink(SinkConfig::new("net", edge(last), SinkKind::Connect(address)));
    let start = Start::now();
    let sent = Pipeline::open(config).and_then(|mut pipeline| finish(&mut pipeline));
    let taken = join(receiver)?;
    let cost = start.cost(job.bytes);
    same("samples", sent?, taken)?;
    same("samples", taken, samples.next_multiple_of((job.size / SAMPLE) as u64))?;
    Ok(cost)
}

/// Turns a pipeline until its end; returns the samples that its sink has taken.
fn finish(pipeline: &mut Pipeline) -> Result<u64> {
    while pipeline.turn()? != State::Finished {}
    Ok(pipeline.counters().sinks[0].samples)
}

fn same(what: &str, found: u64, wanted: u64) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let why = std::io::Error::other(format!("{found} instead of {wanted}"));
    Err(Error::new("send all", what.to_owned(), why))
}

fn failed(why: std::io::Error) -> Error {
    Error::new("send to", "the other end", why)
}

/// The usual way.
fn by_write(job: &Job) -> Result<Cost> {
    let Job { net, size, bytes, crc, verify, .. } = *job;
    let address = net.address()?;
    let there = address.clone();
    let receiver = net.run(move |ready| {
        let listener = TcpListener::bind(there).map_err(failed)?;
        let _ = ready.send(());
        let (mut socket, _) = listener.accept().map_err(failed)?;
        let mut buffer = vec![0; size];
        let format = Source::open("synth:counter", &setup(SAMPLE))?.format().clone();
        let mut counter = Counter::new(&format)?;
        for _ in 0..bytes.div_ceil(size) {
            socket.read_exact(&mut buffer).map_err(failed)?;
            if crc {
                let mut check = [0; 4];
                socket.read_exact(&mut check).map_err(failed)?;
                same("check sums", sum(&buffer)?.into(), u32::from_le_bytes(check).into())?;
            }
            if verify {
                counter.verify_bytes(&buffer, Lost::Samples(0))?;
            }
        }
        socket.write_all(&[1]).map_err(failed)
    })?;
    let start = Start::now();
    let sent = send(job, &address);
    join(receiver)?;
    sent?;
    Ok(start.cost(bytes))
}

fn send(job: &Job, address: &str) -> Result<()> {
    let mut socket = TcpStream::connect(address).map_err(failed)?;
    let mut put = |block: &[u8]| -> Result<()> {
        socket.write_all(block).map_err(failed)?;
        if job.crc {
            socket.write_all(&sum(block)?.to_le_bytes()).map_err(failed)?;
        }
        Ok(())
    };
    let blocks = job.bytes.div_ceil(job.size);
    match &job.from {
        Origin::Synth => {
            let source = Source::open("synth:counter", &setup(job.size))?;
            for _ in 0..blocks {
                let samples = source.next()?;
                let read = samples.read()?;
                // SAFETY: the source writes to the block only after it was given back, and no one else has it.
                #[allow(unsafe_code)]
                put(unsafe { read.bytes().as_slice() })?;
            }
        }
        Origin::File(path) => {
            let mut file = File::open(path.with_extension("sigmf-data")).map_err(failed)?;
            let mut buffer = vec![0; job.size];
            for _ in 0..blocks {
                file.read_exact(&mut buffer).map_err(failed)?;
                put(&buffer)?;
            }
        }
    }
    socket.read_exact(&mut [0]).map_err(failed)
}

/// The CRC-32C of a block.
fn sum(block: &[u8]) -> Result<u32> {
    Ok(Header::data(0, 0, block.len())?.checked(block).check.unwrap_or_default())
}

/// Sends so many bytes of the counter pattern by writes of a block.
fn write_counter(address: &str, job: &Job) -> Result<JoinHandle<Result<()>>> {
    let mut socket = TcpStream::connect(address).map_err(failed)?;
    let Job { size, bytes, .. } = *job;
    Ok(thread::spawn(move || {
        let block: Vec<u8> = (0..(size / SAMPLE) as u64).flat_map(u64::to_le_bytes).collect();
        for _ in 0..bytes / size {
            socket.write_all(&block).map_err(failed)?;
        }
        Ok(())
    }))
}

/// Checks bytes that have arrived: `at` have before them.
fn check_counter(job: &Job, at: usize, bytes: impl Iterator<Item = u8>) -> Result<()> {
    for (byte, at) in bytes.zip(at % job.size..) {
        let at = at % job.size;
        let wanted = ((at / SAMPLE) as u64).to_le_bytes()[at % SAMPLE];
        same("bytes", byte.into(), wanted.into())?;
    }
    Ok(())
}

/// The usual way to receive.
fn by_recv(job: &Job) -> Result<Cost> {
    let listener = TcpListener::bind((LOOPBACK, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?.to_string();
    let sender = write_counter(&address, job)?;
    let (mut socket, _) = listener.accept().map_err(failed)?;
    let (mut buffer, mut got) = (vec![0; RECV], 0);
    let start = Start::now();
    while got < job.bytes {
        let count = socket.read(&mut buffer).map_err(failed)?;
        same("an end", u64::from(count == 0), 0)?;
        if job.verify {
            check_counter(job, got, buffer[..count].iter().copied())?;
        }
        got += count;
    }
    join(sender)?;
    Ok(start.cost(job.bytes))
}

/// Busbar's.
fn by_host(job: &Job) -> Result<Cost> {
    let receiver = Receiver::host(Block::with(HOST, &Memory::Memfd)?)?;
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = receiver.listen(any)?;
    let sender = write_counter(&listener.local_addr()?.to_string(), job)?;
    let mut connection = listener.accept()?;
    let mut got = 0;
    let start = Start::now();
    while got < job.bytes {
        let Some(piece) = connection.next()? else { break };
        let count = match &piece {
            Piece::View(view) => {
                if job.verify {
                    check_counter(job, got, view.read()?.bytes().to_vec().into_iter())?;
                }
                view.len()
            }
            Piece::Bytes(bytes) => bytes.len(),
        };
        got += count;
    }
    same("bytes", got as u64, job.bytes as u64)?;
    join(sender)?;
    Ok(start.cost(job.bytes))
}

/// Whether a program can be run.
fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// The program that uses `ZeroMQ`, if this host has its library and a compiler.
fn compile(folder: &Path) -> Option<PathBuf> {
    let (source, program) = (folder.join("zmq.c"), folder.join("zmq"));
    std::fs::write(&source, ZMQ).ok()?;
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-o"]).arg(&program).arg(&source).args(["-lzmq", "-lpthread"]);
    let done = cc.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
    done.success().then_some(program)
}

fn by_zmq(program: &Path, job: &Job) -> Result<Cost> {
    let [size, bytes] = [job.size, job.bytes].map(|number| number.to_string());
    let said = says(Command::new(program).args([size, bytes, free_port()?.to_string()]))?;
    let mut seconds = said.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    match (seconds.next(), seconds.next()) {
        (Some(wall), Some(cpu)) => {
            Ok(Cost { cpu: per_gb(cpu, job.bytes), wall: per_gb(wall, job.bytes) })
        }
        _ => Err(Error::invalid("output of the program for ZeroMQ", said, "two numbers")),
    }
}

/// iperf3 by its own figures, and the computation of as many samples.
fn by_iperf(job: &Job) -> Result<Cost> {
    let start = Start::now();
    let source = Source::open("synth:counter", &setup(job.size))?;
    for _ in 0..job.bytes.div_ceil(job.size) {
        drop(source.next()?);
    }
    let made = start.cost(job.bytes);
    let port = free_port()?.to_string();
    let _server = Server::start(&port)?;
    let (size, bytes) = (job.size.min(IPERF_MAX).to_string(), job.bytes.to_string());
    let mut client = Command::new("iperf3");
    client.args(["-c", LOOPBACK, "-p", &port, "-Z", "-J", "-l", &size, "-n", &bytes]);
    let said = says(&mut client)?;
    let all: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
    let number = |path: &str| {
        let wrong = || Error::invalid("output of iperf3", path, "a number");
        all.pointer(path).and_then(serde_json::Value::as_f64).ok_or_else(wrong)
    };
    let wall = number("/end/sum_sent/seconds")?;
    let percent = number("/end/cpu_utilization_percent/host_total")?
        + number("/end/cpu_utilization_percent/remote_total")?;
    let cost = |seconds: f64| per_gb(seconds, job.bytes);
    Ok(Cost { cpu: made.cpu + cost(wall * percent / 100.0), wall: made.wall.max(cost(wall)) })
}

/// A server of iperf3, which ends with its client.
struct Server(Child);

impl Server {
    fn start(port: &str) -> Result<Self> {
        let mut server = Command::new("iperf3");
        server.args(["-s", "-1", "-p", port]).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(server.spawn().map_err(|why| Error::new("run", "iperf3", why))?);
        // It has no other sign of being ready.
        for _ in 0..200 {
            if TcpListener::bind(format!("{LOOPBACK}:{port}")).is_err() {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let why = std::io::Error::from(std::io::ErrorKind::TimedOut);
        Err(Error::new("wait for", "iperf3", why))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn says(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|why| Error::new("run", name.clone(), why))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(Error::new("run", name, std::io::Error::other(said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_carries_every_sample() {
        let folder = tempfile::tempdir().unwrap();
        let recording = record(folder.path(), 2 << 20).unwrap();
        for (from, crc) in [(Origin::Synth, true), (Origin::File(recording), false)] {
            let (size, bytes) = (64 << 10, 1 << 20);
            let job = Job { net: Net::Loopback, from, size, bytes, crc, verify: true };
            for way in [by_write, by_pipeline, by_recv, by_host] {
                let cost = way(&job).unwrap();
                assert!(cost.cpu > 0.0 && cost.wall > 0.0, "{cost:?}");
            }
        }
    }

    #[test]
    fn a_sample_that_is_wrong_is_a_failure() {
        let job = Job {
            net: Net::Loopback,
            from: Origin::Synth,
            size: 16,
            bytes: 32,
            crc: false,
            verify: true,
        };
        let bytes = [0, 1, 0, 1_u64].map(u64::to_le_bytes).concat();
        check_counter(&job, 0, bytes.iter().copied()).unwrap();
        check_counter(&job, 8, bytes[8..].iter().copied()).unwrap();
        check_counter(&job, 8, bytes.iter().copied()).unwrap_err();
    }
}
