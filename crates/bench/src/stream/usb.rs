//! Between a converter and a USB host. The virtual controller `dummy_hcd` is also the host's, so both are one machine.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `usb-to-host` | `read()` from the converter, `write()` to `FunctionFS` | `iio:vconv0` to `usb:?raw` |
//! | `usb-from-host` | `read()` from `FunctionFS`, `write()` to the converter | `usb:` to `iio:vconv0-tx` |
//!
//! To the host, both ways send samples alone to the same program of the host. From the host, Busbar's way has frames on both
//! sides; the samples are computed in both. Time counts from the first block to the last; with `-cpu` it is the
//! processor time of the thread that is the device.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::pipeline::{
    Config, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind, State,
};
use busbar::stream::{Source, StreamSetup};
use busbar::{Error, Result};
use nusb::transfer::{Buffer, Bulk, Completion, In, Out};
use nusb::{DeviceInfo, Endpoint, MaybeFuture};
use rustix::io::Errno;
use rustix::time::ClockId;
use usb_gadget::function::custom::{self, Custom, EndpointDirection};
use usb_gadget::{Class, Config as Configuration, Id, RegGadget, Strings};

use super::{
    CHANNELS, CONVERTER, Converter, Cost, PATIENCE, Plan, SAMPLE, Start, blocks, compare,
    compare_counter, next, per_mebibyte,
};
use crate::Case;
use crate::clock::now;
use crate::elsewhere::join;

/// Bytes of a block.
pub(super) const SIZES: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Of the device, as Busbar's are: pid.codes has reserved it for tests.
const ID: (u16, u16) = (0x1209, 0x0001);
/// Transfers that the host keeps under way.
const UNDER_WAY: usize = 8;
/// Bytes of a transfer of the host.
const TRANSFER: usize = 256 << 10;
/// `dummy_hcd` does not enumerate a device that comes sooner after another one has left.
const BREAK: Duration = Duration::from_millis(200);
const USUAL: &str = "read(), write()";

fn failed(tried: &str, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(tried, "the USB device", std::io::Error::other(why))
}

/// The cases of all sizes; none without the virtual controller.
pub(super) fn run(
    plan: &Plan,
    converter: &Converter,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>> {
    // It is a module of the lab's kernel; others may not have it.
    let quietly = Command::new("modprobe")
        .args(["dummy_hcd", "is_super_speed=1"])
        .stderr(Stdio::null())
        .status();
    if !quietly.is_ok_and(|status| status.success()) {
        progress("no USB: modprobe dummy_hcd failed");
        return Ok(Vec::new());
    }
    let transmitter = Converter::find(&format!("{CONVERTER}-tx"))?;
    transmitter.set("sampling_frequency", "0")?;
    let mut cases = Vec::new();
    for &size in plan.usb_sizes {
        progress(&format!("blocks of {size} bytes, over USB"));
        cases.extend(to_host(plan, converter, size)?);
        cases.extend(from_host(plan, &transmitter, size)?);
    }
    Ok(cases)
}

fn to_host(plan: &Plan, converter: &Converter, size: usize) -> Result<[Case; 2]> {
    let count = plan.blocks(size);
    converter.set("pattern", "counter")?;
    for way in [write_to_host, send_to_host] {
        let (_, bytes) = way(converter, size, 4, true)?;
        compare_counter("USB", &bytes)?;
    }
    converter.set("pattern", "none")?;
    let cost = |way: ToHost| move || way(converter, size, count, false).map(|(cost, _)| cost);
    compare(plan, "usb-to-host", USUAL, size, cost(write_to_host), cost(send_to_host))
}

fn from_host(plan: &Plan, transmitter: &Converter, size: usize) -> Result<[Case; 2]> {
    let count = plan.blocks(size);
    for way in [read_from_host, take_from_host] {
        way(transmitter, size, 4, true)?;
    }
    let cost = |way: FromHost| move || way(transmitter, size, count, false);
    compare(plan, "usb-from-host", USUAL, size, cost(read_from_host), cost(take_from_host))
}

/// Sends blocks to the host; returns what it has received, if it is to keep that.
type ToHost = fn(&Converter, usize, usize, bool) -> Result<(Cost, Vec<u8>)>;
/// Takes blocks from the host, and verifies them if asked to.
type FromHost = fn(&Converter, usize, usize, bool) -> Result<Cost>;

/// The usual way.
fn write_to_host(
    converter: &Converter,
    size: usize,
    count: usize,
    keep: bool,
) -> Result<(Cost, Vec<u8>)> {
    let device = UsualDevice::new()?;
    let host = Host::receive(size * count, size, keep);
    let mut endpoint = device.endpoint("ep1")?;
    let mut reader = converter.start(size)?;
    let mut buffer = vec![0; size];
    let mut start = None;
    for _ in 0..count {
        reader.fill(&mut buffer)?;
        start.get_or_insert_with(|| Start::now(ClockId::ThreadCPUTime));
        endpoint.write_all(&buffer).map_err(|why| failed("write to", why))?;
    }
    let cpu = elapsed(start, size * (count - 1))?;
    host.end(cpu, size * count, size)
}

/// Busbar's.
fn send_to_host(_: &Converter, size: usize, count: usize, keep: bool) -> Result<(Cost, Vec<u8>)> {
    unplugged()?;
    let source = SourceConfig::new("from", SourceKind::Device(format!("iio:{CONVERTER}")))
        .blocks(blocks(size))
        .block_len(size)
        .channels(CHANNELS)
        .count((size / SAMPLE * count) as u64);
    let sink = SinkConfig::new("to", Edge::new("from"), SinkKind::Usb("?raw".parse()?));
    let mut pipeline = Pipeline::open(Config::new().fail_fast(true).source(source).sink(sink))?;
    let host = Host::receive(size * count, size, keep);
    let mut start = None;
    while pipeline.turn()? != State::Finished {
        if start.is_none() && pipeline.counters().sources[0].blocks > 0 {
            start = Some(Start::now(ClockId::ThreadCPUTime));
        }
    }
    let cpu = elapsed(start, size * (count - 1))?;
    host.end(cpu, size * count, size)
}

/// The usual way.
fn read_from_host(
    transmitter: &Converter,
    size: usize,
    count: usize,
    verify: bool,
) -> Result<Cost> {
    let device = UsualDevice::new()?;
    let host = thread::spawn(move || send(size, count));
    let mut endpoint = device.endpoint("ep2")?;
    let mut writer = transmitter.start(size)?;
    let (mut buffer, mut kept) = (vec![0; size], Vec::new());
    let mut start = None;
    for _ in 0..count {
        endpoint.read_exact(&mut buffer).map_err(|why| failed("read from", why))?;
        start.get_or_insert_with(|| Start::now(ClockId::ThreadCPUTime));
        if verify {
            kept.extend_from_slice(&buffer);
        }
        writer.put(&buffer)?;
    }
    let cost = elapsed(start, size * (count - 1))?;
    join(host)?;
    compare_counter("read() and write()", &kept)?;
    Ok(cost)
}

/// Busbar's.
fn take_from_host(_: &Converter, size: usize, count: usize, verify: bool) -> Result<Cost> {
    unplugged()?;
    let source = SourceConfig::new("from", SourceKind::Usb("".parse()?));
    let to = SinkKind::Device(format!("iio:{CONVERTER}-tx"));
    let sink = SinkConfig::new("to", Edge::new("from"), to).blocks(blocks(size));
    let mut config = Config::new().fail_fast(true).source(source).sink(sink);
    if verify {
        let kind = SinkKind::Verify { counter: true };
        config = config.sink(SinkConfig::new("verify", Edge::new("from"), kind));
    }
    let mut pipeline = Pipeline::open(config)?;
    let host = thread::spawn(move || {
        let from = SourceConfig::new("from", SourceKind::Device("synth:counter".into()))
            .block_len(size)
            .channels(CHANNELS)
            .count((size / SAMPLE * count) as u64);
        let to = SinkKind::Usb(format!("{:04x}:{:04x}", ID.0, ID.1).parse()?);
        let sink = SinkConfig::new("to", Edge::new("from"), to);
        let mut pipeline = Pipeline::open(Config::new().fail_fast(true).source(from).sink(sink))?;
        while pipeline.turn()? != State::Finished {}
        Ok(())
    });
    let (mut start, mut cost) = (None, None);
    while pipeline.turn()? != State::Finished {
        let counters = pipeline.counters();
        if start.is_none() && counters.sources[0].blocks > 0 {
            start = Some(Start::now(ClockId::ThreadCPUTime));
        }
        if cost.is_none() && counters.sinks[0].blocks == count as u64 {
            cost = Some(elapsed(start.take(), size * (count - 1))?);
        }
    }
    join(host)?;
    cost.ok_or_else(|| failed("receive all blocks from the host of", Errno::NODATA))
}

fn elapsed(start: Option<Start>, bytes: usize) -> Result<Cost> {
    let nothing = || failed("measure", "no block came");
    Ok(start.ok_or_else(nothing)?.cost(bytes))
}

/// A device of a program that knows `read()` and `write()` alone. Dropping it removes the gadget.
struct UsualDevice {
    directory: PathBuf,
    // Endpoint 0, which is closed before the gadget is removed.
    _function: Custom,
    _gadget: RegGadget,
}

impl UsualDevice {
    fn new() -> Result<Self> {
        unplugged()?;
        let endpoint = |direction| {
            let mut endpoint = custom::Endpoint::bulk(direction);
            endpoint.max_burst_ss = 15;
            endpoint
        };
        let interface = custom::Interface::new(Class::vendor_specific(0, 0), "Busbar bench")
            .with_endpoint(endpoint(EndpointDirection::device_to_host().1))
            .with_endpoint(endpoint(EndpointDirection::host_to_device().1));
        let (mut function, handle) = Custom::builder().with_interface(interface).build();
        let made = usb_gadget::Gadget::new(
            Class::INTERFACE_SPECIFIC,
            Id::new(ID.0, ID.1),
            Strings::new("Busbar", "Busbar bench", "usual"),
        )
        .with_config(Configuration::new("usual").with_function(handle));
        let controller =
            usb_gadget::default_udc().map_err(|why| failed("find a controller for", why))?;
        let gadget = made.bind(&controller).map_err(|why| failed("make", why))?;
        let directory = function.ffs_dir().map_err(|why| failed("find the endpoints of", why))?;
        Ok(Self { directory, _function: function, _gadget: gadget })
    }

    /// One of its files. Calls wait until the host has enabled it.
    fn endpoint(&self, name: &str) -> Result<File> {
        let path = self.directory.join(name);
        let opened = File::options().read(true).write(true).open(&path);
        opened.map_err(|why| Error::new("open", path.display().to_string(), why))
    }
}

/// A program of the host that reads what a device sends.
struct Host(JoinHandle<Result<Received>>);

struct Received {
    /// Between the end of the first transfer and that of the last.
    time: Duration,
    bytes: Vec<u8>,
}

impl Host {
    /// Waits for the device, and reads `len` bytes from it, which it returns with `keep`.
    fn receive(len: usize, size: usize, keep: bool) -> Self {
        Self(thread::spawn(move || {
            let (mut from, _) = open()?;
            let (mut asked, mut came, mut bytes) = (0, 0, Vec::new());
            let (mut free, mut first) = (Vec::new(), None);
            while came < len {
                while asked < len && from.pending() < UNDER_WAY {
                    from.submit(free.pop().unwrap_or_else(|| from.allocate(size.min(TRANSFER))));
                    asked += size.min(TRANSFER);
                }
                let ended = done(from.wait_next_complete(PATIENCE))?;
                came += ended.len();
                first.get_or_insert_with(|| now(ClockId::Monotonic));
                if keep {
                    bytes.extend_from_slice(&ended);
                }
                free.push(ended);
            }
            let time = now(ClockId::Monotonic).saturating_sub(first.unwrap_or_default());
            Ok(Received { time, bytes })
        }))
    }

    /// The cost of `len` bytes in blocks of `size`, with the processor time of the device, and what was kept.
    fn end(self, device: Cost, len: usize, size: usize) -> Result<(Cost, Vec<u8>)> {
        let Received { time, bytes } = join(self.0)?;
        let micros = per_mebibyte(time, len - size.min(TRANSFER));
        Ok((Cost { micros, ..device }, bytes))
    }
}

/// A program of the host that computes samples and writes them to a device.
fn send(size: usize, count: usize) -> Result<()> {
    let (_, mut to) = open()?;
    let setup = StreamSetup::new().block_len(size).channels(CHANNELS.map(String::from).to_vec());
    let source = Source::open("synth:counter", &setup)?;
    let (mut free, chunk) = (Vec::new(), size.min(TRANSFER));
    for _ in 0..count {
        let samples = next(&source)?;
        let read = samples.read()?;
        for at in (0..size).step_by(chunk) {
            if to.pending() == UNDER_WAY {
                free.push(done(to.wait_next_complete(PATIENCE))?);
            }
            let mut buffer = free.pop().unwrap_or_else(|| to.allocate(chunk));
            buffer.clear();
            read.bytes().slice(at..at + chunk).copy_to(buffer.extend_fill(chunk, 0));
            to.submit(buffer);
        }
    }
    while to.pending() > 0 {
        done(to.wait_next_complete(PATIENCE))?;
    }
    Ok(())
}

fn done(ended: Option<Completion>) -> Result<Buffer> {
    let ended = ended.ok_or_else(|| failed("wait for", "it has not answered"))?;
    ended.status.map_err(|why| failed("use", why))?;
    Ok(ended.buffer)
}

/// Waits for the device, and opens its endpoints.
fn open() -> Result<(Endpoint<Bulk, In>, Endpoint<Bulk, Out>)> {
    let until = Instant::now() + PATIENCE;
    let found = loop {
        let device = found()?;
        // It is being configured at first.
        let opened = device.map(|device| device.open().wait()).and_then(std::result::Result::ok);
        if let Some(opened) = opened.filter(|opened| opened.active_configuration().is_ok()) {
            break opened;
        }
        if Instant::now() > until {
            return Err(failed("find", Errno::TIMEDOUT));
        }
        thread::sleep(BREAK / 20);
    };
    let failed = |why| failed("open", why);
    let interface = found.claim_interface(0).wait().map_err(failed)?;
    let from = interface.endpoint(0x81).map_err(failed)?;
    let to = interface.endpoint(0x02).or_else(|_| interface.endpoint(0x01)).map_err(failed)?;
    Ok((from, to))
}

fn found() -> Result<Option<DeviceInfo>> {
    let mut devices = nusb::list_devices().wait().map_err(|why| failed("look for", why))?;
    Ok(devices.find(|found| (found.vendor_id(), found.product_id()) == ID))
}

/// Waits until the host knows that the device before has gone.
fn unplugged() -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while found()?.is_some() {
        if Instant::now() > until {
            return Err(failed("remove", Errno::TIMEDOUT));
        }
        thread::sleep(BREAK / 20);
    }
    thread::sleep(BREAK);
    Ok(())
}
