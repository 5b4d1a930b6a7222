//! `stream`: the cost of fetching samples from a converter.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `fetch` | `read()` into a buffer | blocks that the converter fills in place |
//! | `sum` | the same, and every value added up | the same, and every value added up |
//! | `memory` | as `sum`, by `read()` | as `sum`, in blocks of each kind of memory |
//! | `network` | `read()` and `write()` to a socket | blocks that are sent without a copy |
//! | `usb-to-host`, `usb-from-host` | `read()` and `write()` between converter and USB function | blocks in place |
//! | `peer` | `iio_readdev` of Debian's libiio | as `fetch` |
//!
//! Each case comes twice: as time, and with `-cpu` as the processor time of the process and of the kernel
//! on its behalf. Patterns: `none`, where the converter leaves the block unchanged and only the transfer
//! is measured, and `counter`, where it writes each sample. Samples of pattern `counter` are also fetched
//! in both ways and verified; this is not measured.

pub mod native;
mod network;
mod usb;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use busbar::block::{Block, Memory};
use busbar::stream::{Interface, Source, StreamSetup};
use busbar::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::clock::{Cost, cases, in_turn, now};
use crate::{Case, Extent, Report, Spread};

/// The converter that is measured.
pub const CONVERTER: &str = "vconv0";

/// Bytes of a block: 4 096 bytes and the 4 096 samples of the published figures, then longer ones.
const SIZES: [usize; 6] = [4 << 10, 32 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
pub(crate) const CHANNELS: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];
/// Bytes of a sample of these.
pub(crate) const SAMPLE: usize = 8;
const DEVICES: &str = "/sys/bus/iio/devices";
/// Bytes of the longest block of `read()` that can always be allocated.
const READ_MAX: usize = 2 << 20;
/// Time limit for starting a driver that is not ready.
const ATTEMPTS: usize = 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

struct Plan {
    rows: usize,
    sizes: &'static [usize],
    usb_sizes: &'static [usize],
    /// Bytes of one run of one way, at least two blocks.
    bytes: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        match extent {
            Extent::Quick => {
                Self { rows: 2, sizes: &SIZES[..3], usb_sizes: &usb::SIZES[1..2], bytes: 1 << 20 }
            }
            Extent::Normal => {
                Self { rows: 5, sizes: &SIZES, usb_sizes: &usb::SIZES, bytes: 16 << 20 }
            }
            Extent::Full => {
                Self { rows: 11, sizes: &SIZES, usb_sizes: &usb::SIZES, bytes: 1 << 30 }
            }
        }
    }

    fn blocks(&self, size: usize) -> usize {
        (self.bytes / size).max(2)
    }
}

/// Runs the benchmark. `progress` is called with the name of each step.
pub fn run(extent: Extent, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let plan = Plan::of(extent);
    let converter = Converter::find(CONVERTER)?;
    converter.set("sampling_frequency", "0")?;
    check(&converter)?;
    let mut cases = Vec::new();
    for &size in plan.sizes {
        for pattern in ["none", "counter"] {
            progress(&format!("blocks of {size} bytes, pattern {pattern}"));
            converter.set("pattern", pattern)?;
            for (name, look) in [("fetch", Look::No), ("sum", Look::Sum)] {
                let name = format!("{name}-{pattern}");
                cases.extend(fetch(&plan, &converter, &name, size, look, None)?);
            }
        }
        converter.set("pattern", "none")?;
        // It asks for blocks of half the size; larger ones fail in it and in the kernel.
        if size <= 2 * READ_MAX {
            cases.extend(peer(&plan, &converter, size)?);
        }
    }
    for &size in plan.sizes.iter().filter(|size| **size >= 64 << 10) {
        progress(&format!("blocks of {size} bytes, by the network"));
        cases.extend(network::run(&plan, &converter, size)?);
    }
    cases.extend(usb::run(&plan, &converter, progress)?);
    let size = plan.sizes[plan.sizes.len() - 1];
    for memory in memories(size) {
        progress(&format!("memory: {memory}"));
        let name = format!("memory-{}", short(&memory));
        cases.extend(fetch(&plan, &converter, &name, size, Look::Sum, Some(memory))?);
    }
    Ok(Report::new("stream", plan.rows, cases))
}

/// There are many small blocks, as a user of such blocks would have: each takes a turn of the converter.
pub(crate) fn blocks(block_len: usize) -> usize {
    ((1 << 20) / block_len).clamp(4, 64)
}

fn setup(block_len: usize, interface: Interface, memory: Option<Memory>) -> StreamSetup {
    let channels = CHANNELS.map(String::from).to_vec();
    StreamSetup::new()
        .blocks(blocks(block_len))
        .block_len(block_len)
        .memory(memory)
        .interface(interface)
        .channels(channels)
}

/// Whether the samples are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    No,
    Sum,
}

impl Look {
    fn at(self, bytes: &[u8]) -> u64 {
        match self {
            Self::No => 0,
            Self::Sum => sum(bytes),
        }
    }
}

/// The wrapping sum of all values.
fn sum(bytes: &[u8]) -> u64 {
    let values = bytes.as_chunks::<2>().0.iter();
    values.fold(0, |sum, &value| sum.wrapping_add(i16::from_le_bytes(value).cast_unsigned().into()))
}

/// The clock, and the processor time of this process or thread.
struct Start {
    of: ClockId,
    wall: Duration,
    cpu: Duration,
}

impl Start {
    fn now(of: ClockId) -> Self {
        Self { of, wall: now(ClockId::Monotonic), cpu: now(of) }
    }

    fn cost(&self, bytes: usize) -> Cost {
        let end = Self::now(self.of);
        let each = |from: Duration, to: Duration| per_mebibyte(to.saturating_sub(from), bytes);
        Cost { micros: each(self.wall, end.wall), cpu_micros: each(self.cpu, end.cpu) }
    }
}

/// Microseconds for each MiB.
pub(crate) fn per_mebibyte(time: Duration, bytes: usize) -> f64 {
    // Exact, as the numbers are far below 2^52.
    #[allow(clippy::cast_precision_loss)]
    let mebibytes = bytes as f64 / 1_048_576.0;
    time.as_secs_f64() * 1e6 / mebibytes
}

/// Time and processor time of both ways, in turn.
fn fetch(
    plan: &Plan,
    converter: &Converter,
    name: &str,
    size: usize,
    look: Look,
    memory: Option<Memory>,
) -> Result<[Case; 2]> {
    let blocks = plan.blocks(size);
    let setup = setup(size, Interface::Dmabuf, memory);
    compare(
        plan,
        name,
        "read()",
        size,
        || by_read(converter, size, blocks, look),
        || by_blocks(&setup, blocks, look),
    )
}

fn compare(
    plan: &Plan,
    name: &str,
    against: &str,
    size: usize,
    usual: impl FnMut() -> Result<Cost>,
    busbar: impl FnMut() -> Result<Cost>,
) -> Result<[Case; 2]> {
    let runs = in_turn(plan.rows, usual, busbar)?;
    let params = [("bytes", size as u64), ("blocks", plan.blocks(size) as u64)];
    Ok(cases(name, &params, "us/MiB", against, &runs))
}

/// The usual way.
fn by_read(converter: &Converter, size: usize, blocks: usize, look: Look) -> Result<Cost> {
    let mut reader = converter.start(size)?;
    let mut buffer = vec![0; size];
    let mut total = 0_u64;
    // The first blocks are ready already, or are still being filled.
    reader.fill(&mut buffer)?;
    let start = Start::now(ClockId::ProcessCPUTime);
    for _ in 0..blocks {
        reader.fill(&mut buffer)?;
        total = total.wrapping_add(look.at(&buffer));
    }
    std::hint::black_box(total);
    Ok(start.cost(size * blocks))
}

/// Busbar's.
fn by_blocks(setup: &StreamSetup, blocks: usize, look: Look) -> Result<Cost> {
    let source = Source::open(&format!("iio:{CONVERTER}"), setup)?;
    let mut total = 0_u64;
    next(&source)?;
    let start = Start::now(ClockId::ProcessCPUTime);
    for _ in 0..blocks {
        let samples = next(&source)?;
        if look == Look::Sum {
            let read = samples.read()?;
            // SAFETY: the driver writes to the block only after it was given back, and no one else has it.
            #[allow(unsafe_code)]
            let bytes = unsafe { read.bytes().as_slice() };
            total = total.wrapping_add(sum(bytes));
        }
    }
    std::hint::black_box(total);
    Ok(start.cost(setup.block_len * blocks))
}

fn next(source: &Source) -> Result<busbar::stream::Samples> {
    let late = || Error::new("receive from", CONVERTER, Errno::TIMEDOUT);
    source.next_timeout(PATIENCE)?.ok_or_else(late)
}

/// Debian's unmodified `iio_readdev`, by its own figures (`-B`): fetch only.
fn peer(plan: &Plan, converter: &Converter, size: usize) -> Result<Option<Case>> {
    if Command::new("iio_readdev")
        .arg("-h")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        return Ok(None);
    }
    let blocks = plan.blocks(size);
    let setup = setup(size, Interface::Dmabuf, None);
    let [time, _] = compare(
        plan,
        "peer",
        "iio_readdev",
        size,
        || {
            converter.reset()?;
            readdev(size)
        },
        || by_blocks(&setup, blocks, Look::No),
    )?;
    Ok(Some(time))
}

fn readdev(size: usize) -> Result<Cost> {
    let failed = |why| Error::new("run", "iio_readdev", why).help("apt-get install libiio-utils");
    let mut child = Command::new("iio_readdev")
        .args(["-B", "-b", &(size / SAMPLE).to_string(), CONVERTER])
        .args(CHANNELS)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let speeds = child.stderr.take().map(throughputs);
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    let silent = || failed(std::io::Error::other("it did not print its throughput"));
    // The first reports include its start.
    let speed = Spread::of(speeds.as_deref().and_then(|all| all.get(2..)).unwrap_or_default())
        .filter(|speed| speed.median > 0.0)
        .ok_or_else(silent)?;
    Ok(Cost { micros: 1e6 / speed.median, cpu_micros: 0.0 })
}

/// At most ten reports, in MiB per second.
fn throughputs(mut from: impl Read) -> Vec<f64> {
    let (mut said, mut speeds) = (String::new(), Vec::new());
    let mut buffer = [0; 256];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        said.push_str(&String::from_utf8_lossy(&buffer[..len]));
        speeds = said.split("Throughput: ").skip(1).filter_map(throughput).collect();
        if speeds.len() >= 10 {
            break;
        }
    }
    speeds
}

fn throughput(report: &str) -> Option<f64> {
    report.split_once(" MiB/s")?.0.parse().ok()
}

/// The kinds of memory that this host has enough of for blocks of `size` bytes.
fn memories(size: usize) -> Vec<Memory> {
    let wanted = [Memory::Heap("system".into()), Memory::Pages, Memory::HugePages];
    let is_there = |memory: &Memory| {
        let made: Result<Vec<_>> = (0..blocks(size)).map(|_| Block::with(size, memory)).collect();
        made.is_ok()
    };
    wanted.into_iter().filter(is_there).collect()
}

fn short(memory: &Memory) -> String {
    match memory {
        Memory::Heap(name) => format!("heap-{name}"),
        Memory::HugePages => "huge-pages".into(),
        _ => "pages".into(),
    }
}

/// Checks that both ways deliver the counter without a gap.
fn check(converter: &Converter) -> Result<()> {
    const SIZE: usize = 64 << 10;
    converter.set("pattern", "counter")?;
    let mut bytes = vec![0; 4 * SIZE];
    let mut reader = converter.start(SIZE)?;
    for block in bytes.chunks_mut(SIZE) {
        reader.fill(block)?;
    }
    drop(reader);
    compare_counter("read()", &bytes)?;
    let setup = setup(SIZE, Interface::Dmabuf, None);
    let source = Source::open(&format!("iio:{CONVERTER}"), &setup)?;
    bytes.clear();
    for _ in 0..4 {
        next(&source)?.read()?.bytes().append_to(&mut bytes);
    }
    compare_counter("blocks", &bytes)
}

pub(crate) fn compare_counter(way: &str, bytes: &[u8]) -> Result<()> {
    let counts = bytes.as_chunks::<SAMPLE>().0;
    let count = |sample: &[u8; SAMPLE]| u64::from_le_bytes(*sample);
    let gap = counts.windows(2).position(|pair| count(&pair[1]) != count(&pair[0]).wrapping_add(1));
    let Some(gap) = gap else { return Ok(()) };
    let why = format!("sample {} is not its predecessor plus one", gap + 1);
    Err(Error::new("check the samples by", way, std::io::Error::other(why)))
}

/// A converter's device, set up through sysfs.
pub(crate) struct Converter {
    sysfs: PathBuf,
    node: PathBuf,
    is_transmitter: bool,
}

impl Converter {
    pub(crate) fn find(name: &str) -> Result<Self> {
        let entries = fs::read_dir(DEVICES).map_err(|why| Error::new("list", DEVICES, why))?;
        let is_it = |path: &PathBuf| {
            fs::read_to_string(path.join("name")).is_ok_and(|found| found.trim() == name)
        };
        let sysfs = entries.flatten().map(|entry| entry.path()).find(is_it).ok_or_else(|| {
            Error::new("find the converter", name, Errno::NOENT).help("modprobe vconv")
        })?;
        let node = Path::new("/dev").join(sysfs.file_name().unwrap_or_default());
        Ok(Self { sysfs, node, is_transmitter: name.ends_with("-tx") })
    }

    pub(crate) fn set(&self, attribute: &str, value: &str) -> Result<()> {
        let path = self.sysfs.join(attribute);
        fs::write(&path, value)
            .map_err(|why| Error::new(format!("write {value} to"), path.display().to_string(), why))
    }

    /// Starts the converter for `read()` or `write()`, with two blocks of `size` bytes: the driver divides
    /// its length by two. Its blocks have at most 4 MiB.
    pub(crate) fn start(&self, size: usize) -> Result<Running<'_>> {
        self.reset()?;
        let direction = if self.is_transmitter { "out" } else { "in" };
        for channel in CHANNELS {
            self.set(&format!("scan_elements/{direction}_{channel}_en"), "1")?;
        }
        self.set("buffer0/length", &(2 * size.min(READ_MAX) / SAMPLE).to_string())?;
        let file = File::options()
            .read(!self.is_transmitter)
            .write(self.is_transmitter)
            .open(&self.node)
            .map_err(|why| Error::new("open", self.node.display().to_string(), why))?;
        let running = Running { converter: self, file };
        // While a driver still releases the DMABUFs of an earlier stream, it does not start for `read()`.
        for _ in 0..ATTEMPTS {
            self.set("buffer0/enable", "1")?;
            if running.is_ready()? {
                return Ok(running);
            }
            self.set("buffer0/enable", "0")?;
        }
        Err(Error::new("start for read() or write()", CONVERTER, Errno::BUSY))
    }

    /// Waits until no program uses the converter's buffer.
    pub(crate) fn wait_until_idle(&self, patience: Duration) -> Result<()> {
        let path = self.sysfs.join("buffer0/enable");
        let begun = Instant::now();
        loop {
            let failed = |why| Error::new("read", path.display().to_string(), why);
            if fs::read_to_string(&path).map_err(failed)?.trim() == "0" {
                return Ok(());
            }
            if begun.elapsed() > patience {
                let error = Error::new("wait for", CONVERTER, Errno::BUSY);
                return Err(error.help("another program uses it"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the converter, and disables all channels.
    fn reset(&self) -> Result<()> {
        self.set("buffer0/enable", "0")?;
        let path = self.sysfs.join("scan_elements");
        let entries = fs::read_dir(&path)
            .map_err(|why| Error::new("list", path.display().to_string(), why))?;
        for entry in entries.flatten() {
            if let Some(name) = entry.file_name().to_str().filter(|name| name.ends_with("_en")) {
                self.set(&format!("scan_elements/{name}"), "0")?;
            }
        }
        Ok(())
    }
}

/// A converter that was started.
pub(crate) struct Running<'a> {
    converter: &'a Converter,
    file: File,
}

impl Running<'_> {
    /// Waits at most a second.
    fn is_ready(&self) -> Result<bool> {
        let wanted = if self.converter.is_transmitter { PollFlags::OUT } else { PollFlags::IN };
        let mut fds = [PollFd::new(&self.file, wanted)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut fds, Some(&second))
            .map(|count| count > 0)
            .map_err(|errno| Error::new("wait for", CONVERTER, errno))
    }

    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.file.read_exact(buffer).map_err(|why| Error::new("read from", CONVERTER, why))
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|why| Error::new("write to", CONVERTER, why))
    }
}

impl AsFd for Running<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.converter.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_the_peer_are_read_as_they_come() {
        let text =
            b"WARNING: x\n\x1b[2KThroughput: 227 MiB/s\r\x1b[2KThroughput: 185 MiB/s\rThrough";
        assert_eq!(throughputs(&text[..]), [227.0, 185.0]);
        assert!(throughputs(&b"nothing"[..]).is_empty());
    }

    #[test]
    fn a_gap_in_the_counter_is_found() {
        let bytes: Vec<u8> = [7_u64, 8, 9, 11].into_iter().flat_map(u64::to_le_bytes).collect();
        assert!(compare_counter("", &bytes[..24]).is_ok());
        let said = compare_counter("", &bytes).unwrap_err().to_string();
        assert!(said.contains("sample 3"), "{said}");
    }
}
