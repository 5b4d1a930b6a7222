//! A control loop of 1 kHz in one thread: an endpoint, and a pipeline beside it.
//!
//! At each tick, the loop sends a message to the coprocessor's `echo`. In between it turns the pipeline, whose samples
//! are made and verified in the same thread. What is measured is the time from the tick until the answer has been
//! compared with the message.
//!
//! | case | what else runs |
//! |---|---|
//! | `loop-idle` | nothing |
//! | `loop-load` | one thread for each processor that never pauses |
//! | `loop-load-fifo` | the same, while the loop, the coprocessors and the kernel's workers are `SCHED_FIFO` |
//!
//! Each comes twice: `-p50` is the median of a run, `-p99` is exceeded by 1 in 100 ticks. While an answer is missing no
//! further message is sent, and a loop that is late by several ticks sends one message for all of them. All ticks count,
//! each with the time until the next answer, since a loop that stalls would otherwise have fewer late ticks than one
//! that does not.

use std::hint::black_box;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use busbar::endpoint::{self, Controller, Implementation, MAX_MESSAGE};
use busbar::pipeline::{Config, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind};
use busbar::wait::{Backend, Clock, Events, Instant, Interest, Poller};
use busbar::{Error, Result};
use busbar_coprocessor::service::data;
use rustix::thread::{
    CpuSet, gettid, sched_getaffinity, sched_setaffinity, set_current_timer_slack,
};

use crate::clock::{in_turn, percentiles};
use crate::report::accelerator;
use crate::{Case, Controllers};

const PERIOD: Duration = Duration::from_millis(1);
const MESSAGE: usize = 16;
/// Ticks without an answer after which there will be none.
const MOST_OPEN: usize = 10_000;
/// A block in 1.024 ms, which takes tens of microseconds. It meets about one tick in 15, so that it counts in `-p99` in
/// each run.
const SOURCE: &str = "synth:counter?rate=500k";
const BLOCK: usize = 4 << 10;
const ENDPOINT: u64 = 1;
const PIPELINE: u64 = 2;
/// In the middle of what `chrt` allows.
const PRIORITY: &str = "50";

/// The cases, with `rows` runs of `ticks` ticks. `progress` is called with the name of each.
pub(super) fn cases(
    controllers: Controllers<'_>,
    rows: usize,
    ticks: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Case>> {
    let timerfd = Poller::with_backend(Backend::Timerfd)?;
    let mut usual = Loop::open(controllers.in_tree, Implementation::Node, timerfd)?;
    let mut busbar = Loop::open(controllers.eptfd, Implementation::Fd, Poller::new()?)?;
    let mut both = |name: &str| -> Result<[Case; 2]> {
        progress(name);
        let runs = in_turn(rows, || usual.run(ticks), || busbar.run(ticks))?;
        Ok([("p50", 0), ("p99", 1)].map(|(part, index)| {
            let runs: Vec<_> = runs.iter().map(|(a, b)| (a[index], b[index])).collect();
            let params = [("ticks", ticks as u64)];
            Case::new(&format!("{name}-{part}"), &params, "us", "device node, timerfd", &runs)
        }))
    };
    let mut cases = Vec::from(both("loop-idle")?);
    if accelerator() == "tcg" {
        // They would tell what the host's processors did.
        progress("loop-load is left out: this machine is emulated in time");
        return Ok(cases);
    }
    let _load = Load::start()?;
    cases.extend(both("loop-load")?);
    // Threads that were started later would be raised as well.
    let _raised = Raised::new()?;
    cases.extend(both("loop-load-fifo")?);
    Ok(cases)
}

/// The endpoint, and how the loop waits for it.
struct Loop {
    endpoint: endpoint::Endpoint,
    poller: Poller,
    events: Events,
}

impl Loop {
    fn open(controller: &Path, implementation: Implementation, poller: Poller) -> Result<Self> {
        let controller = Controller::open(controller)?;
        let endpoint = controller.endpoint("echo").implementation(implementation);
        let endpoint = endpoint.nonblocking(true).create()?;
        poller.add(&endpoint, ENDPOINT, Interest::READABLE)?;
        Ok(Self { endpoint, poller, events: Events::new(4)? })
    }

    /// Microseconds that half and 99 % of the ticks do not exceed.
    fn run(&mut self, ticks: usize) -> Result<[f64; 2]> {
        // As long as the thread is not SCHED_FIFO, which has none.
        set_current_timer_slack(NonZeroU64::new(1))
            .map_err(|errno| Error::new("set", "the timer slack", errno))?;
        let mut pipeline = pipeline()?;
        self.poller.add(&pipeline, PIPELINE, Interest::READABLE)?;
        let took = self.ticks(&mut pipeline, ticks)?;
        if pipeline.counters().sinks[0].verified > 0 {
            return Ok(percentiles(took));
        }
        let why = io::Error::new(io::ErrorKind::InvalidData, "there were none");
        Err(Error::new("verify", "the samples beside a control loop", why))
    }

    /// Nanoseconds from each tick until its answer was handled.
    fn ticks(&mut self, pipeline: &mut Pipeline, ticks: usize) -> Result<Vec<u64>> {
        let mut took = Vec::with_capacity(ticks);
        // Ticks that wait for the answer that is missing.
        let mut open: Vec<Instant> = Vec::new();
        let mut message = [0; MESSAGE];
        let mut next = Clock::Monotonic.now() + PERIOD;
        for number in 0.. {
            self.poller.wait_timeout(&mut self.events, next)?;
            let came = |key| self.events.iter().any(|event| event.key() == key);
            let (answer, samples) = (came(ENDPOINT), came(PIPELINE));
            if answer && self.receive(&message)? {
                let now = Clock::Monotonic.now();
                took.extend(open.drain(..).map(|tick| nanos(tick, now)));
                if took.len() >= ticks {
                    break;
                }
            }
            // One look at the clock for both: whenever a tick waits, a message is on its way.
            let now = Clock::Monotonic.now().since_zero();
            if next.since_zero() <= now && open.is_empty() {
                data::fill(number, &mut message)?;
                self.endpoint.send(&message)?;
            }
            while next.since_zero() <= now {
                open.push(next);
                next = next + PERIOD;
            }
            if open.len() > MOST_OPEN {
                return Err(Error::new("wait for", "an answer of `echo`", io::ErrorKind::TimedOut));
            }
            if samples {
                pipeline.try_turn()?;
            }
        }
        Ok(took)
    }

    /// Takes the answer to `message`; false if there is none.
    fn receive(&self, message: &[u8]) -> Result<bool> {
        let mut answer = [0; MAX_MESSAGE];
        match self.endpoint.try_recv(&mut answer)? {
            None => Ok(false),
            Some(length) if answer[..length] == *message => Ok(true),
            Some(_) => {
                let why = io::Error::new(io::ErrorKind::InvalidData, "it is not the message");
                Err(Error::new("trust", "an answer of `echo`", why))
            }
        }
    }
}

fn pipeline() -> Result<Pipeline> {
    let source = SourceConfig::new("samples", SourceKind::Device(SOURCE.into())).block_len(BLOCK);
    let verify = SinkKind::Verify { counter: true };
    let sink = SinkConfig::new("verify", Edge::new("samples"), verify);
    let mut pipeline = Pipeline::open(Config::new().source(source).sink(sink))?;
    // From the first turn on it is readable when it has something to do.
    pipeline.try_turn()?;
    Ok(pipeline)
}

fn nanos(from: Instant, to: Instant) -> u64 {
    let took = to.since_zero().saturating_sub(from.since_zero());
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

/// Keeps every processor busy until it is dropped.
struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start() -> Result<Self> {
        let failed = |errno| Error::new("ask for", "the processors", errno);
        let all = sched_getaffinity(None).map_err(failed)?;
        let mut load = Self { over: Arc::default(), threads: Vec::new() };
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)) {
            let over = Arc::clone(&load.over);
            load.threads.push(thread::spawn(move || {
                let mut one = CpuSet::new();
                one.set(cpu);
                // A processor that was taken away meanwhile needs no load.
                let _ = sched_setaffinity(None, &one);
                let mut number = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    number = black_box(number.wrapping_add(1));
                }
            }));
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// This thread, the processes of coprocessors and the kernel's workers that carry their interrupts are `SCHED_FIFO`
/// until this is dropped.
///
/// On a board, interrupts of a coprocessor come without a worker, and there is no process.
struct Raised(Vec<String>);

impl Raised {
    fn new() -> Result<Self> {
        let mut raised = Self(Vec::new());
        let this = gettid().as_raw_nonzero().to_string();
        raised.raise(&[], this)?;
        for task in tasks()? {
            raised.raise(&["--all-tasks"], task)?;
        }
        Ok(raised)
    }

    fn raise(&mut self, whose: &[&str], task: String) -> Result<()> {
        let done = chrt(whose, &["--fifo", "--pid", PRIORITY], &task);
        // A worker of the kernel ends when it is not needed.
        if Path::new("/proc").join(&task).exists() {
            done?;
            self.0.push(task);
        }
        Ok(())
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        for task in &self.0 {
            let whose: &[&str] = if task == &self.0[0] { &[] } else { &["--all-tasks"] };
            let _ = chrt(whose, &["--other", "--pid", "0"], task);
        }
    }
}

fn chrt(whose: &[&str], policy: &[&str], task: &str) -> Result<()> {
    let failed = |why| Error::new("run", format!("chrt {} {task}", policy.join(" ")), why);
    let output = Command::new("chrt").args(whose).args(policy).arg(task).output();
    let output = output.map_err(|why| failed(why).help("apt-get install util-linux"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(io::Error::other(said)).help("as root"))
}

/// The coprocessors' processes, and the workers of queues with a high priority, as `vcoproc` has one.
fn tasks() -> Result<Vec<String>> {
    let failed = |why| Error::new("read", "/proc", why);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.parse::<u32>().is_err() {
            continue;
        }
        // What has ended meanwhile is neither.
        let read = |file| std::fs::read(entry.path().join(file)).unwrap_or_default();
        if is_coprocessor(&read("cmdline")) || is_worker(&read("comm")) {
            found.push(name);
        }
    }
    Ok(found)
}

/// `busbar coprocessor run …`, with NUL behind each argument.
fn is_coprocessor(cmdline: &[u8]) -> bool {
    let mut arguments = cmdline.split(|byte| *byte == 0).skip(1);
    arguments.next() == Some(b"coprocessor") && arguments.next() == Some(b"run")
}

/// `kworker/1:0H`, perhaps with `-` and what it works on.
fn is_worker(comm: &[u8]) -> bool {
    let name = comm.split(|byte| matches!(byte, b'-' | b'+' | b'\n')).next().unwrap_or_default();
    name.starts_with(b"kworker/") && name.ends_with(b"H")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coprocessors_and_their_workers_are_told_from_others() {
        assert!(is_coprocessor(b"/tmp/busbar\0coprocessor\0run\0--device\0/dev/vcoproc0\0"));
        assert!(!is_coprocessor(b"vi\0coprocessor\0"));
        assert!(!is_coprocessor(b""));
        assert!(is_worker(b"kworker/0:1H-vcoproc.0\n"));
        assert!(is_worker(b"kworker/1:0H\n"));
        assert!(!is_worker(b"kworker/1:0-events\n"));
        assert!(!is_worker(b"kworker/u4:2-H\n"));
        assert!(!is_worker(b"H\n"));
    }

    #[test]
    fn a_pipeline_in_the_loop_passes_samples() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::new(4).unwrap());
        let mut pipeline = pipeline().unwrap();
        poller.add(&pipeline, PIPELINE, Interest::READABLE).unwrap();
        let until = Clock::Monotonic.now() + Duration::from_secs(10);
        while pipeline.counters().sinks[0].verified == 0 {
            assert_eq!(poller.wait_timeout(&mut events, until).unwrap(), 1);
            pipeline.try_turn().unwrap();
        }
    }

    #[test]
    fn load_ends_when_it_is_dropped() {
        let load = Load::start().unwrap();
        assert!(!load.threads.is_empty());
        let over = Arc::clone(&load.over);
        drop(load);
        // No thread has it any more.
        assert_eq!(Arc::strong_count(&over), 1);
    }
}
