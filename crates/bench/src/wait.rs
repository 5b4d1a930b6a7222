//! `wait`: the cost of changing an epoll set, and of waiting.
//!
//! | case | usual | Busbar |
//! |---|---|---|
//! | `add`, `mod`, `del` | `epoll_ctl` for each descriptor | one `epoll_ctl_batch` |
//! | `contended` | 48 `epoll_ctl` while another thread takes 200 ready descriptors | one `epoll_ctl_batch` |
//! | `turn-p50`, `turn-p99` | `ppoll`, or `epoll_wait` with milliseconds | `epoll_pwait1` |
//! | `overshoot` | `epoll_wait`, `epoll_pwait2`, `ppoll`, `timerfd` | `epoll_pwait1` |
//! | `fallback` | `epoll_ctl`, `epoll_pwait2` | [`Poller`] as on a kernel without the calls |
//! | `server`, `server-churn`, `server-rearm` | a server with mio, polling or libuv | the same with [`Poller`] ([`server`]) |
//!
//! A `turn` is that of the event loop of the published figures (docs/measuring.md): with a deadline in
//! microseconds, one descriptor of many becomes ready, and the time from then until the wait returns is
//! measured. Both ends are on one processor. All descriptors are `eventfd`s.
//!
//! On a kernel without the calls, `epoll_pwait2` is Busbar's side of `turn` and `overshoot`, and
//! `add`, `mod`, `del` and `contended` are left out.

pub mod server;

use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use busbar::wait::{Backend, Events, Interest, Poller};
use busbar::{Error, Result};
use busbar_uapi::epoll::{self, EpollCtlCmd, EpollEvent, Syscalls};
use rustix::event::epoll::{CreateFlags, create};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
    timerfd_settime,
};

use crate::clock::{clocked, float, in_turn, micros_each, percentiles};
use crate::{Case, Extent, Report};

/// Descriptors in one batch.
const BATCHES: [u64; 6] = [1, 2, 4, 16, 64, 256];
/// Descriptors of the event loop in the published figures, and many more.
const LOOPS: [u64; 4] = [16, 85, 200, 2_000];
/// Lengths of waits, in microseconds.
const WAITS: [u64; 3] = [10, 100, 1_000];
/// Changes made at once while another thread waits on `CROWD` ready descriptors.
const CHANGES: u64 = 48;
const CROWD: u64 = 200;

/// Repetitions of each measurement.
struct Plan {
    rows: usize,
    /// Total of the descriptors of each `add`, `mod` and `del` of a row.
    changes: u64,
    turns: u64,
    waits: u64,
    contended: u64,
    /// Requests of a run of a server, and of how many numbers of clients there are runs.
    requests: u64,
    servers: usize,
}

impl Plan {
    fn of(extent: Extent) -> Self {
        let normal = Self {
            rows: 10,
            changes: 4_096,
            turns: 300,
            waits: 50,
            contended: 50,
            requests: 20_000,
            servers: 3,
        };
        let quick = Self {
            rows: 3,
            changes: 512,
            turns: 50,
            waits: 10,
            contended: 5,
            requests: 2_000,
            servers: 1,
        };
        match extent {
            Extent::Quick => quick,
            Extent::Normal => normal,
            Extent::Full => Self {
                changes: 65_536,
                turns: 20_000,
                waits: 1_000,
                contended: 1_000,
                requests: 1_000_000,
                ..normal
            },
        }
    }
}

/// Runs the benchmark. `server` is the command that calls [`server::serve`] with its further arguments; `progress` is
/// called with the name of each step.
pub fn run(server: &[PathBuf], extent: Extent, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    allow_descriptors()?;
    let plan = Plan::of(extent);
    let calls = Syscalls::probe(set()?).map_err(failed("ask for", "the calls"))?;
    let mut cases = Vec::new();
    if let Some(calls) = calls {
        for count in BATCHES {
            progress(&format!("changes of {count} descriptors"));
            cases.extend(changes(&plan, calls, count)?);
        }
        progress("changes while another thread waits");
        cases.push(contended(&plan, calls)?);
    }
    progress("the library without the calls");
    cases.extend(fallback(&plan)?);
    let ours = calls.map_or(Way::Pwait2, Way::Pwait1);
    for count in LOOPS {
        progress(&format!("an event loop with {count} descriptors"));
        cases.extend(turns(&plan, ours, count)?);
    }
    for micros in WAITS {
        progress(&format!("waits of {micros} us"));
        cases.extend(overshoots(&plan, ours, micros)?);
    }
    cases.extend(server::run(&plan, server, progress)?);
    let summary = summary(&cases, ours);
    Ok(Report { summary, ..Report::new("wait", plan.rows, cases) })
}

fn failed(tried: &'static str, on: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::new(tried, on, errno)
}

/// The longest event loop and its helpers.
fn allow_descriptors() -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < 4_096) {
        let current = maximum.map_or(4_096, |maximum| maximum.min(4_096));
        setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })
            .map_err(failed("raise", "the number of descriptors"))?;
    }
    Ok(())
}

fn set() -> Result<OwnedFd> {
    create(CreateFlags::CLOEXEC).map_err(failed("make", "an epoll set"))
}

fn event(ready: bool) -> Result<OwnedFd> {
    eventfd(u32::from(ready), EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(failed("make", "an eventfd"))
}

fn events(count: u64, ready: bool) -> Result<Vec<OwnedFd>> {
    (0..count).map(|_| event(ready)).collect()
}

fn add(set: &OwnedFd, files: &[OwnedFd]) -> Result<()> {
    for (number, file) in (0..).zip(files) {
        epoll::ctl(set, epoll::CTL_ADD, file.as_raw_fd(), epoll::IN, number)
            .map_err(failed("add to", "an epoll set"))?;
    }
    Ok(())
}

// -- Changes

/// As many sets of the same files as a measurable change needs.
struct Pool {
    sets: Vec<OwnedFd>,
    files: Vec<OwnedFd>,
    commands: Vec<EpollCtlCmd>,
}

impl Pool {
    fn new(files: u64, changes: u64) -> Result<Self> {
        let sets = (0..(changes / files).clamp(1, 1_024)).map(|_| set()).collect::<Result<_>>()?;
        Ok(Self::of(sets, events(files, false)?))
    }

    fn of(sets: Vec<OwnedFd>, files: Vec<OwnedFd>) -> Self {
        let commands = vec![EpollCtlCmd::default(); files.len()];
        Self { sets, files, commands }
    }

    fn changes(&self) -> u64 {
        (self.sets.len() * self.files.len()) as u64
    }

    /// Nanoseconds for each descriptor.
    fn one_by_one(&self, op: i32) -> Result<f64> {
        let start = Instant::now();
        for set in &self.sets {
            for (number, file) in (0..).zip(&self.files) {
                epoll::ctl(set, op, file.as_raw_fd(), epoll::IN, number)
                    .map_err(failed("change", "an epoll set"))?;
            }
        }
        Ok(micros_each(start, self.changes()) * 1e3)
    }

    /// The same, with the commands also written again for each set.
    fn in_batches(&mut self, calls: Syscalls, op: i32) -> Result<f64> {
        let start = Instant::now();
        for set in &self.sets {
            for ((number, file), command) in (0..).zip(&self.files).zip(&mut self.commands) {
                let (fd, events) = (file.as_raw_fd(), epoll::IN);
                *command = EpollCtlCmd { op, fd, events, data: number, ..EpollCtlCmd::default() };
            }
            batch(calls, set, &mut self.commands)?;
        }
        Ok(micros_each(start, self.changes()) * 1e3)
    }
}

fn batch(calls: Syscalls, set: &OwnedFd, commands: &mut [EpollCtlCmd]) -> Result<()> {
    match calls.ctl_batch(set, 0, commands) {
        Ok(done) if done == commands.len() => Ok(()),
        Ok(done) => Err(Error::new(
            "change",
            "an epoll set in a batch",
            Errno::from_raw_os_error(-commands[done].result),
        )),
        Err(errno) => Err(failed("change", "an epoll set in a batch")(errno)),
    }
}

fn changes(plan: &Plan, calls: Syscalls, count: u64) -> Result<Vec<Case>> {
    let ops = [("add", epoll::CTL_ADD), ("mod", epoll::CTL_MOD), ("del", epoll::CTL_DEL)];
    let mut sets = Pool::new(count, plan.changes)?;
    let mut runs = [const { Vec::new() }; 3];
    for row in 0..=plan.rows {
        let usual = ops.map(|(_, op)| sets.one_by_one(op));
        let busbar = ops.map(|(_, op)| sets.in_batches(calls, op));
        for ((runs, usual), busbar) in runs.iter_mut().zip(usual).zip(busbar) {
            let run = (usual?, busbar?);
            // The first one only warms up.
            if row > 0 {
                runs.push(run);
            }
        }
    }
    let params = [("descriptors", count)];
    let case = |((name, _), runs): (&(&str, i32), &Vec<_>)| {
        Case::new(name, &params, "ns", "epoll_ctl", runs)
    };
    Ok(ops.iter().zip(&runs).map(case).collect())
}

/// Ends the thread that waits on ready descriptors without pause, when it is dropped.
struct Crowd<'a> {
    over: &'a AtomicBool,
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn contended(plan: &Plan, calls: Syscalls) -> Result<Case> {
    let set = set()?;
    let crowd = events(CROWD, true)?;
    add(&set, &crowd)?;
    let quiet = events(CHANGES, false)?;
    add(&set, &quiet)?;
    let mut sets = Pool::of(vec![set], quiet);
    let (over, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let waited = sets.sets[0].try_clone().map_err(|why| Error::new("copy", "an epoll set", why))?;
    let runs = thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = vec![EpollEvent { events: 0, u64: 0 }; 256];
            while !over.load(Ordering::Relaxed) {
                let ready = epoll::pwait(&waited, &mut events, 0, None).unwrap_or(0);
                taken.fetch_add(ready as u64, Ordering::Relaxed);
            }
        });
        let _until_then = Crowd { over: &over };
        while taken.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let mut row = || {
            let (mut usual, mut busbar) = (0.0, 0.0);
            for _ in 0..plan.contended {
                usual += sets.one_by_one(epoll::CTL_MOD)?;
                busbar += sets.in_batches(calls, epoll::CTL_MOD)?;
            }
            let (all, micros) = (float(plan.contended), float(CHANGES) / 1e3);
            Ok((usual / all * micros, busbar / all * micros))
        };
        (0..plan.rows).map(|_| row()).collect::<Result<Vec<_>>>()
    })?;
    let params = [("changes", CHANGES), ("ready", CROWD)];
    Ok(Case::new("contended", &params, "us", "epoll_ctl", &runs))
}

// -- Ways to wait

#[derive(Clone, Copy, Debug)]
enum Way {
    Ppoll,
    /// `epoll_wait`, in milliseconds, rounded up.
    Millis,
    Pwait2,
    Timerfd,
    Pwait1(Syscalls),
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Ppoll => "ppoll",
            Self::Millis => "epoll_wait",
            Self::Pwait2 => "epoll_pwait2",
            Self::Timerfd => "timerfd",
            Self::Pwait1(_) => "epoll_pwait1",
        }
    }
}

/// Some files, and everything that the ways need to wait for them.
struct Waiter<'a> {
    set: OwnedFd,
    polled: Vec<PollFd<'a>>,
    events: Vec<EpollEvent>,
    timer: OwnedFd,
    /// `set` and `timer`.
    either: OwnedFd,
}

impl<'a> Waiter<'a> {
    fn new(files: &'a [OwnedFd]) -> Result<Self> {
        let (set, either) = (set()?, set()?);
        add(&set, files)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)
            .map_err(failed("make", "a timerfd"))?;
        for file in [&set, &timer] {
            epoll::ctl(&either, epoll::CTL_ADD, file.as_raw_fd(), epoll::IN, 0)
                .map_err(failed("add to", "an epoll set"))?;
        }
        let polled = files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
        Ok(Self { set, polled, events: vec![EpollEvent { events: 0, u64: 0 }; 16], timer, either })
    }

    fn wait(&mut self, way: Way, timeout: Duration) -> Result<()> {
        let until = Timespec::try_from(timeout).unwrap_or_default();
        let waited = match way {
            Way::Ppoll => poll(&mut self.polled, Some(&until)),
            Way::Millis => {
                let millis = timeout.as_nanos().div_ceil(1_000_000);
                let millis = i32::try_from(millis).unwrap_or(i32::MAX);
                epoll::pwait(&self.set, &mut self.events, millis, None)
            }
            Way::Pwait2 => epoll::pwait2(&self.set, &mut self.events, Some(&until), None),
            Way::Timerfd => self.wait_for_timer(until),
            Way::Pwait1(calls) => {
                let (clock, events) = (ClockId::Monotonic, &mut self.events);
                calls.pwait1(&self.set, 0, events, clock, Some(&until), None)
            }
        };
        waited.map(drop).map_err(failed("wait", way.name()))
    }

    /// As programs with a need for microseconds do it: arm the timer, wait for both.
    fn wait_for_timer(&mut self, until: Timespec) -> Result<usize, Errno> {
        let once = Itimerspec { it_interval: Timespec::default(), it_value: until };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        epoll::pwait(&self.either, &mut self.events, -1, None)
    }
}

// -- Event loops

/// The files of an event loop, one of which becomes ready in each turn.
struct Loop {
    files: Vec<OwnedFd>,
    /// Asks the other end for the next turn.
    next: OwnedFd,
    over: AtomicBool,
    /// When the other end has made a file ready, and which.
    begun: AtomicU64,
    ready: AtomicUsize,
}

impl Loop {
    /// The other end: waits until it is asked, and makes the next file ready.
    fn serve(&self, clock: Instant) -> Result<()> {
        let mut turn = 0;
        loop {
            wait_readable(&self.next)?;
            take(&self.next)?;
            if self.over.load(Ordering::Acquire) {
                return Ok(());
            }
            // From one end of the set to the other: a linear search finds it at any position.
            turn += 7;
            let ready = turn % self.files.len();
            self.ready.store(ready, Ordering::Release);
            self.begun.store(now(clock), Ordering::Release);
            give(&self.files[ready])?;
        }
    }

    /// Nanoseconds from when a file was made ready until the wait has returned.
    fn latencies(&self, way: Way, turns: u64, clock: Instant) -> Result<Vec<u64>> {
        let mut waiter = Waiter::new(&self.files)?;
        let mut turn = || {
            give(&self.next)?;
            waiter.wait(way, Duration::from_micros(500_300))?;
            let latency = now(clock) - self.begun.load(Ordering::Acquire);
            take(&self.files[self.ready.load(Ordering::Acquire)])?;
            Ok(latency)
        };
        (0..turns).map(|_| turn()).collect()
    }
}

fn now(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn give(file: &OwnedFd) -> Result<()> {
    rustix::io::write(file, &1u64.to_ne_bytes()).map(drop).map_err(failed("write", "an eventfd"))
}

fn take(file: &OwnedFd) -> Result<()> {
    rustix::io::read(file, &mut [0; 8]).map(drop).map_err(failed("read", "an eventfd"))
}

fn wait_readable(file: &OwnedFd) -> Result<()> {
    poll(&mut [PollFd::new(file, PollFlags::IN)], None)
        .map(drop)
        .map_err(failed("wait for", "a turn"))
}

/// Binds this thread, and those that it starts, to one processor until this is dropped.
struct Pinned(CpuSet);

impl Pinned {
    fn new() -> Result<Self> {
        let before = sched_getaffinity(None).map_err(failed("ask for", "the processors"))?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap_or(0);
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).map_err(failed("stay on", "a processor"))?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

fn turns(plan: &Plan, ours: Way, count: u64) -> Result<Vec<Case>> {
    let _pinned = Pinned::new()?;
    let turned = Loop {
        files: events(count, false)?,
        next: event(false)?,
        over: AtomicBool::new(false),
        begun: AtomicU64::new(0),
        ready: AtomicUsize::new(0),
    };
    let clock = Instant::now();
    let ways = [Way::Ppoll, Way::Millis, ours];
    let rows = thread::scope(|scope| {
        let server = scope.spawn(|| turned.serve(clock));
        let row = || -> Result<[[f64; 2]; 3]> {
            let mut row = [[0.0; 2]; 3];
            for (cell, way) in row.iter_mut().zip(ways) {
                *cell = percentiles(turned.latencies(way, plan.turns, clock)?);
            }
            Ok(row)
        };
        let rows = row().and_then(|_| (0..plan.rows).map(|_| row()).collect::<Result<Vec<_>>>());
        turned.over.store(true, Ordering::Release);
        give(&turned.next)?;
        server.join().unwrap_or(Ok(()))?;
        rows
    })?;
    let params = [("descriptors", count)];
    let mut cases = Vec::new();
    for (part, name) in ["turn-p50", "turn-p99"].into_iter().enumerate() {
        for (usual, way) in ways[..2].iter().enumerate() {
            let runs: Vec<_> = rows.iter().map(|row| (row[usual][part], row[2][part])).collect();
            cases.push(Case::new(name, &params, "us", way.name(), &runs));
        }
    }
    Ok(cases)
}

// -- Overshoot

fn overshoots(plan: &Plan, ours: Way, micros: u64) -> Result<Vec<Case>> {
    let files = events(16, false)?;
    let mut waiter = Waiter::new(&files)?;
    let ways = [Way::Millis, Way::Pwait2, Way::Ppoll, Way::Timerfd, ours];
    let mut cases = Vec::new();
    // The default, and the slack of a thread that asks for precision.
    for (name, slack) in [("overshoot", NonZeroU64::new(1)), ("overshoot-slack", None)] {
        rustix::thread::set_current_timer_slack(slack).map_err(failed("set", "the timer slack"))?;
        let mut row = || -> Result<[f64; 5]> {
            let mut row = [0.0; 5];
            for (cell, way) in row.iter_mut().zip(ways) {
                *cell = overshoot(&mut waiter, way, Duration::from_micros(micros), plan.waits)?;
            }
            Ok(row)
        };
        row()?;
        let rows: Vec<_> = (0..plan.rows).map(|_| row()).collect::<Result<_>>()?;
        for (usual, way) in ways[..4].iter().enumerate() {
            let runs: Vec<_> = rows.iter().map(|row| (row[usual], row[4])).collect();
            cases.push(Case::new(name, &[("wait-us", micros)], "us", way.name(), &runs));
        }
    }
    rustix::thread::set_current_timer_slack(None).map_err(failed("set", "the timer slack"))?;
    Ok(cases)
}

/// How much longer than asked the median of some waits takes, in microseconds.
fn overshoot(waiter: &mut Waiter<'_>, way: Way, wait: Duration, waits: u64) -> Result<f64> {
    let mut once = || -> Result<u64> {
        let start = Instant::now();
        waiter.wait(way, wait)?;
        let took = start.elapsed();
        let early = || Error::new("wait long enough with", way.name(), Errno::TIMEDOUT);
        let over = took.checked_sub(wait).ok_or_else(early)?;
        Ok(u64::try_from(over.as_nanos()).unwrap_or(u64::MAX))
    };
    let all = (0..waits).map(|_| once()).collect::<Result<Vec<_>>>()?;
    Ok(percentiles(all)[0])
}

// -- The library on a kernel without the calls

/// Calls of each run of one side.
const CALLS: u64 = 2_000;

fn fallback(plan: &Plan) -> Result<Vec<Case>> {
    let files = events(16, false)?;
    give(&files[3])?;
    let (set, poller) = (set()?, Poller::with_backend(Backend::Pwait2)?);
    add(&set, &files)?;
    for (number, file) in (0..).zip(&files) {
        poller.add(file, number, Interest::READABLE)?;
    }
    let mut room = vec![EpollEvent { events: 0, u64: 0 }; 16];
    let mut events = Events::new(16)?;
    let file = &files[0];
    let mod_plain = || {
        epoll::ctl(&set, epoll::CTL_MOD, file.as_raw_fd(), epoll::IN, 0)
            .map_err(failed("change", "an epoll set"))
    };
    let mod_ours = || poller.change(file, 0, Interest::READABLE);
    let mut wait_plain = || {
        let waited = epoll::pwait2(&set, &mut room, Some(&Timespec::default()), None);
        ready(waited.map_err(failed("wait for", "an epoll set"))?)
    };
    let mut wait_ours = || ready(poller.try_wait(&mut events)?);
    let changes = in_turn(plan.rows, || clocked(CALLS, mod_plain), || clocked(CALLS, mod_ours))?;
    let waits =
        in_turn(plan.rows, || clocked(CALLS, &mut wait_plain), || clocked(CALLS, &mut wait_ours))?;
    let params = [("calls", CALLS)];
    Ok(vec![
        Case::new("fallback-mod", &params, "us", "epoll_ctl", &changes),
        Case::new("fallback-wait", &params, "us", "epoll_pwait2", &waits),
    ])
}

fn ready(count: usize) -> Result<()> {
    if count == 1 { Ok(()) } else { Err(Error::new("find", "what is ready", Errno::AGAIN)) }
}

// -- Summary

/// Busbar's side, and how latency grows with the number of descriptors.
fn summary(cases: &[Case], ours: Way) -> String {
    let latency = |against: &str, count: u64, pick: fn(&Case) -> f64| {
        let of = |case: &&Case| {
            case.name == "turn-p50"
                && case.against == against
                && case.params["descriptors"] == count
        };
        cases.iter().find(of).map_or(0.0, pick)
    };
    let growth = |name: &str, against: &str, pick: fn(&Case) -> f64| {
        let [few, many] = [16, 200].map(|count| latency(against, count, pick));
        format!(
            "{name}: {few:.1} us with 16 descriptors, {many:.1} us with 200, {:.2} times\n",
            many / few
        )
    };
    [
        format!("Busbar's side of turns and waits: {}\n", ours.name()),
        growth("ppoll", "ppoll", |case| case.baseline.median),
        growth("epoll_wait", "epoll_wait", |case| case.baseline.median),
        growth(ours.name(), "ppoll", |case| case.busbar.median),
    ]
    .concat()
}
