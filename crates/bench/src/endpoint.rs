//! `endpoint`: the cost of creating an endpoint, and of using one.
//!
//! The baseline is the unmodified in-tree pair, `rpmsg_ctrl` and `rpmsg_char`: an endpoint is a
//! device node. Busbar's side is `rpmsg_eptfd`: an endpoint is a descriptor. Each has a virtual
//! coprocessor of its own in the same kernel, with the same process behind it.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `create` | create ioctl, open the node, destroy, close | create-fd ioctl, destroy, close |
//! | `create-settled` | the same, until `udevd` has processed its events | the same |
//! | `create-floor` | `eventfd`, close | create-fd ioctl, destroy, close |
//! | `round-trip` | write and read on the node, answered by `echo` | the same on the descriptor |
//! | `send` | messages as fast as `sink` takes them, counted and checked there | the same |
//! | `send-many` | the same, one `write` on the descriptor for each message | 16 by one call |
//! | `send-many-cpu` | the processor time of the sender for that | the same |
//! | `recv-many` | one `read` on the descriptor for each of the messages that have come | up to 16 by one call |
//! | `loop-…` | a control loop of 1 kHz with a device node and timer descriptors (`control_loop`) | a descriptor, [`Poller`](busbar::wait::Poller) |
//!
//! `create` is the program of the published figures (docs/measuring.md) with its ten rows for each count.
//! Its clock stops when the loop ends, while `udevd` goes on: before the other side's turn,
//! `udevadm settle` waits for it, so that its work does not count for the other side.

mod control_loop;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use busbar::endpoint::{self, ADDR_ANY, Controller, MAX_MESSAGE, Messages};
use busbar::{Error, Result};
use busbar_coprocessor::service::data;
use busbar_coprocessor::service::sink::{Answer, Query};
use busbar_coprocessor::service::source::Request;
use busbar_uapi::rpmsg::{self, EndpointFdInfo, EndpointInfo, NAME_SIZE};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::clock::{self, Cost, clocked, float, in_turn, micros_each, now};
use crate::{Case, Controllers, Extent, Report};

/// Cases that can be measured without the others. `create` has `create-settled` and `create-floor`, `many` all with this
/// ending.
pub const GROUPS: [&str; 5] = ["create", "round-trip", "send", "many", "loop"];

/// The services that both coprocessors need.
pub const SERVICES: [&str; 3] = ["echo", "sink", "source"];

/// Payloads, in bytes, up to the largest that one message carries.
const SIZES: [u64; 4] = [16, 64, 256, 496];

/// Messages of one call in the cases of many.
const GROUP: usize = 16;

/// Fewer messages than an endpoint keeps unread, which takes memory up to `rx_limit`.
const MOST_UNREAD: u64 = 8_000;

/// Repetitions of each measurement.
struct Plan {
    rows: usize,
    create: &'static [u64],
    round_trips: u64,
    messages: u64,
    ticks: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        match extent {
            Extent::Quick => {
                Self { rows: 3, create: &[100], round_trips: 50, messages: 500, ticks: 200 }
            }
            Extent::Normal => Self {
                rows: 10,
                create: &[1_000, 10_000],
                round_trips: 500,
                messages: 5_000,
                ticks: 1_000,
            },
            Extent::Full => Self {
                rows: 10,
                create: &[1_000, 10_000, 100_000],
                round_trips: 2_000,
                messages: 20_000,
                ticks: 10_000,
            },
        }
    }
}

/// Runs the benchmark: all groups, or `only` one of [`GROUPS`]. `progress` is called with the name of each step.
pub fn run(
    controllers: Controllers<'_>,
    only: Option<&str>,
    extent: Extent,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let plan = Plan::of(extent);
    let usual = Side::open(controllers.in_tree, Means::Node)?;
    let busbar = Side::open(controllers.eptfd, Means::Descriptor)?;
    let mut cases = Vec::new();
    for group in GROUPS.into_iter().filter(|group| only.is_none_or(|only| only == *group)) {
        cases.extend(match group {
            "create" => create(&plan, &usual, &busbar, progress)?,
            "round-trip" => round_trips(&plan, &usual, &busbar, progress)?,
            "send" => sends(&plan, &usual, &busbar, progress)?,
            "many" => many(&plan, &busbar, progress)?,
            _ => control_loop::cases(controllers, plan.rows, plan.ticks, progress)?,
        });
    }
    Ok(Report::new("endpoint", plan.rows, cases))
}

fn create(
    plan: &Plan,
    usual: &Side,
    busbar: &Side,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for &loops in plan.create {
        progress(&format!("create, {loops} loops"));
        let (mut runs, mut settled) = (Vec::new(), Vec::new());
        for _ in 0..plan.rows {
            let (usual, until_settled) = usual.create_and_settle(loops)?;
            let busbar = busbar.create(loops)?;
            runs.push((usual, busbar));
            settled.push((until_settled, busbar));
        }
        let params = [("loops", loops)];
        cases.push(Case::new("create", &params, "us", "device node", &runs));
        cases.push(Case::new("create-settled", &params, "us", "device node", &settled));
    }
    settle()?;
    let loops = plan.create[0];
    progress("create, against eventfd");
    let runs = in_turn(plan.rows, || floor(loops), || busbar.create(loops))?;
    cases.push(Case::new("create-floor", &[("loops", loops)], "us", "eventfd", &runs));
    Ok(cases)
}

fn round_trips(
    plan: &Plan,
    usual: &Side,
    busbar: &Side,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for size in SIZES {
        progress(&format!("round trip, {size} bytes"));
        let (mut a, mut b) = (usual.endpoint("echo")?, busbar.endpoint("echo")?);
        let count = plan.round_trips;
        let runs =
            in_turn(plan.rows, || a.round_trips(count, size), || b.round_trips(count, size))?;
        let params = [("bytes", size), ("messages", count)];
        cases.push(Case::new("round-trip", &params, "us", "device node", &runs));
    }
    Ok(cases)
}

fn sends(
    plan: &Plan,
    usual: &Side,
    busbar: &Side,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for size in SIZES {
        progress(&format!("send, {size} bytes"));
        let (mut a, mut b) = (usual.endpoint("sink")?, busbar.endpoint("sink")?);
        let count = plan.messages;
        let runs = in_turn(plan.rows, || a.send(count, size), || b.send(count, size))?;
        let params = [("bytes", size), ("messages", count)];
        let [send, _] = clock::cases("send", &params, "us", "device node", &runs);
        cases.push(send);
    }
    Ok(cases)
}

fn many(plan: &Plan, busbar: &Side, progress: &mut dyn FnMut(&str)) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for size in SIZES {
        progress(&format!("many by one call, {size} bytes"));
        let (mut a, mut b) = (busbar.endpoint("sink")?, busbar.endpoint("sink")?);
        let count = plan.messages;
        let runs = in_turn(plan.rows, || a.send(count, size), || b.send_many(count, size))?;
        let params = [("bytes", size), ("messages", count)];
        cases.extend(clock::cases("send-many", &params, "us", "write()", &runs));

        let (mut a, mut b) = (busbar.endpoint("source")?, busbar.endpoint("source")?);
        let count = count.min(MOST_UNREAD);
        let params = [("bytes", size), ("messages", count)];
        let runs = in_turn(plan.rows, || a.recv(count, size), || b.recv_many(count, size))?;
        cases.push(Case::new("recv-many", &params, "us", "read()", &runs));
    }
    Ok(cases)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Means {
    Node,
    Descriptor,
}

/// A control device, and how endpoints are created with it.
struct Side {
    path: PathBuf,
    controller: Controller,
    means: Means,
}

impl Side {
    fn open(path: &Path, means: Means) -> Result<Self> {
        Ok(Self { path: path.into(), controller: Controller::open(path)?, means })
    }

    /// Creates, destroys and closes `loops` endpoints without using them; microseconds for each.
    fn create(&self, loops: u64) -> Result<f64> {
        let node = match self.means {
            Means::Node => Some(self.node_name()?),
            Means::Descriptor => None,
        };
        let start = Instant::now();
        for _ in 0..loops {
            let endpoint = match &node {
                Some(node) => self.make_node(ADDR_ANY, node),
                None => self.make_descriptor(ADDR_ANY),
            };
            endpoint
                .and_then(|endpoint| Ok(rpmsg::destroy_ept(endpoint)?))
                .map_err(|why| Error::new("make an endpoint on", self.on(), why))?;
        }
        Ok(micros_each(start, loops))
    }

    /// As [`Self::create`], but microseconds for each until `udevd` has processed all events.
    fn create_and_settle(&self, loops: u64) -> Result<(f64, f64)> {
        let start = Instant::now();
        let created = self.create(loops)?;
        settle()?;
        Ok((created, micros_each(start, loops)))
    }

    fn make_node(&self, dst: u32, node: &Path) -> io::Result<File> {
        rpmsg::create_ept(&self.controller, EndpointInfo { name: name(), src: ADDR_ANY, dst })?;
        loop {
            match rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Ok(file) => return Ok(file.into()),
                // The node does not exist yet.
                Err(Errno::NOENT | Errno::NXIO | Errno::ACCESS) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }

    fn make_descriptor(&self, dst: u32) -> io::Result<File> {
        let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let info = EndpointFdInfo { name: name(), src: ADDR_ANY, dst, flags, fd: -1 };
        Ok(rpmsg::create_ept_fd(&self.controller, info)?.into())
    }

    /// The name that the next device node will have: the lowest free number, as long as nobody
    /// else creates endpoints.
    fn node_name(&self) -> Result<PathBuf> {
        let failed = |why| Error::new("find the device node of an endpoint on", self.on(), why);
        let control = self.path.file_name().unwrap_or_default();
        let children = Path::new("/sys/class/rpmsg").join(control);
        let info = EndpointInfo { name: name(), src: ADDR_ANY, dst: ADDR_ANY };
        rpmsg::create_ept(&self.controller, info).map_err(|why| failed(why.into()))?;
        let node = std::fs::read_dir(&children)
            .map_err(failed)?
            .flatten()
            .find(|entry| entry.file_name().to_string_lossy().starts_with("rpmsg"))
            .map(|entry| Path::new("/dev").join(entry.file_name()))
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match File::options().read(true).write(true).open(&node) {
                Ok(file) => {
                    rpmsg::destroy_ept(&file).map_err(|why| failed(why.into()))?;
                    return Ok(node);
                }
                Err(why) if Instant::now() > until => return Err(failed(why)),
                Err(_) => sleep(Duration::from_millis(1)),
            }
        }
    }

    /// A blocking endpoint to `service`.
    fn endpoint(&self, service: &str) -> Result<Endpoint> {
        let dst = self.controller.find(service)?.destination;
        let file = match self.means {
            Means::Node => self.make_node(dst, &self.node_name()?),
            Means::Descriptor => self.make_descriptor(dst),
        };
        let file = file.map_err(|why| Error::new("make an endpoint on", self.on(), why))?;
        Ok(Endpoint { file, on: format!("{service} through {}", self.on()) })
    }

    fn on(&self) -> String {
        self.path.display().to_string()
    }
}

/// Read and written like any file, on both sides.
struct Endpoint {
    file: File,
    on: String,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = rpmsg::destroy_ept(&self.file);
    }
}

impl Endpoint {
    /// Sends and waits for the answer, `count` times; microseconds for each.
    fn round_trips(&mut self, count: u64, size: u64) -> Result<f64> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let mut message = vec![0; size];
        let mut answer = vec![0; size + 1];
        let start = Instant::now();
        for sequence in 0..count {
            data::fill(u32::try_from(sequence).unwrap_or(u32::MAX), &mut message)?;
            self.write(&message)?;
            let len = self.read(&mut answer)?;
            if answer[..len] != message {
                return Err(self.wrong(format!("the reply of round trip {sequence} differs")));
            }
        }
        Ok(micros_each(start, count))
    }

    /// Sends `count` messages as fast as possible, until `sink` has counted all; microseconds for
    /// each, and the sender's processor time. The messages are prepared beforehand.
    fn send(&mut self, count: u64, size: u64) -> Result<Cost> {
        self.send_by(count, size, |endpoint, messages| {
            messages.iter().try_for_each(|message| endpoint.write(message))
        })
    }

    /// As [`Self::send`], but [`GROUP`] messages by one call.
    fn send_many(&mut self, count: u64, size: u64) -> Result<Cost> {
        let many = self.library()?;
        self.send_by(count, size, |endpoint, messages| {
            messages.chunks(GROUP).try_for_each(|group| match many.send_many(group)? {
                sent if sent == group.len() => Ok(()),
                sent => Err(endpoint.wrong(format!("{sent} messages of a group were sent"))),
            })
        })
    }

    fn send_by(
        &mut self,
        count: u64,
        size: u64,
        send: impl FnOnce(&mut Self, &[Vec<u8>]) -> Result<()>,
    ) -> Result<Cost> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let messages = (0..count)
            .map(|sequence| {
                let mut message = vec![0; size];
                data::fill(u32::try_from(sequence).unwrap_or(u32::MAX), &mut message)?;
                Ok(message)
            })
            .collect::<Result<Vec<_>>>()?;
        self.ask(0)?;

        let (start, cpu) = (Instant::now(), now(ClockId::ThreadCPUTime));
        send(self, &messages)?;
        let cpu = now(ClockId::ThreadCPUTime).saturating_sub(cpu);
        let counts = self.ask(1)?.counts;
        let micros = micros_each(start, count);
        if counts.is_complete(count) {
            Ok(Cost { micros, cpu_micros: cpu.as_secs_f64() * 1e6 / float(count) })
        } else {
            Err(self.wrong(format!("of {count} messages, the sink counted {counts:?}")))
        }
    }

    /// Takes `count` messages that are there already; microseconds for each.
    fn recv(&mut self, count: u64, size: u64) -> Result<f64> {
        let mut buffer = [0; MAX_MESSAGE];
        self.recv_by(count, size, |endpoint| endpoint.read(&mut buffer).map(|len| (1, len)))
    }

    /// As [`Self::recv`], but up to [`GROUP`] messages by one call.
    fn recv_many(&mut self, count: u64, size: u64) -> Result<f64> {
        let many = self.library()?;
        let mut messages = Messages::new(GROUP)?;
        self.recv_by(count, size, |_| {
            let received = many.recv_many(&mut messages)?;
            Ok((received as u64, messages.iter().map(<[u8]>::len).sum()))
        })
    }

    fn recv_by(
        &mut self,
        count: u64,
        size: u64,
        mut receive: impl FnMut(&mut Self) -> Result<(u64, usize)>,
    ) -> Result<f64> {
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let (token, rate) = (1, 0);
        let request = Request { token, count: narrow(count), size: narrow(size), rate };
        self.write(&request.encode())?;
        // All of them, and the summary behind them.
        let until = Instant::now() + Duration::from_secs(60);
        while self.queued()? <= count {
            if Instant::now() > until {
                return Err(self.wrong(format!("fewer than {count} messages have come")));
            }
            sleep(Duration::from_millis(1));
        }

        let (mut left, mut bytes) = (count, 0);
        let start = Instant::now();
        while left > 0 {
            let (messages, length) = receive(self)?;
            left = left.saturating_sub(messages);
            bytes += length as u64;
        }
        let each = micros_each(start, count);
        if self.queued()? == 1 {
            bytes += self.read(&mut [0; MAX_MESSAGE])? as u64;
        }
        if (count * size..count * size + MAX_MESSAGE as u64).contains(&bytes) {
            Ok(each)
        } else {
            Err(self.wrong(format!("{bytes} bytes came in {count} messages")))
        }
    }

    /// Messages that nobody has read yet.
    fn queued(&self) -> Result<u64> {
        let path = format!("/proc/self/fdinfo/{}", self.file.as_raw_fd());
        let info = std::fs::read_to_string(&path).map_err(|why| Error::new("read", path, why))?;
        let queued = info.lines().find_map(|line| line.strip_prefix("rpmsg-queued:"));
        queued
            .and_then(|number| number.trim().parse().ok())
            .ok_or_else(|| self.wrong(format!("no number of messages in `{info}`")))
    }

    /// The same endpoint, by the library.
    fn library(&self) -> Result<endpoint::Endpoint> {
        let copy = self.file.as_fd().try_clone_to_owned();
        copy.map(endpoint::Endpoint::from).map_err(|why| Error::new("copy", &*self.on, why))
    }

    /// The counts of the sink, which are then reset.
    fn ask(&mut self, token: u32) -> Result<Answer> {
        self.write(&Query { token, reset: true }.encode())?;
        let mut answer = [0; MAX_MESSAGE];
        let len = self.read(&mut answer)?;
        let answer = Answer::decode(&answer[..len])?;
        if answer.token == token {
            Ok(answer)
        } else {
            Err(self.wrong(format!("the sink answered question {}", answer.token)))
        }
    }

    fn write(&mut self, message: &[u8]) -> Result<()> {
        let sent = self.file.write(message);
        sent.map(drop).map_err(|why| Error::new("send to", &*self.on, why))
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.file.read(buffer).map_err(|why| Error::new("receive from", &*self.on, why))
    }

    fn wrong(&self, what: String) -> Error {
        Error::new("trust", &*self.on, io::Error::new(io::ErrorKind::InvalidData, what))
    }
}

/// The lowest cost of a new descriptor: `eventfd` and close; microseconds for each.
fn floor(loops: u64) -> Result<f64> {
    clocked(loops, || {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.map(drop).map_err(|why| Error::new("make", "an eventfd", why))
    })
}

/// Waits until `udevd` has processed all events.
fn settle() -> Result<()> {
    let done = Command::new("udevadm").args(["settle", "--timeout=300"]).status();
    match done.map_err(|why| Error::new("run", "udevadm", why).help("apt-get install udev"))? {
        status if status.success() => Ok(()),
        status => Err(Error::new("wait for", "udevd", io::Error::other(status.to_string()))),
    }
}

fn name() -> [u8; NAME_SIZE] {
    let mut name = [0; NAME_SIZE];
    name[..3].copy_from_slice(b"epx");
    name
}
