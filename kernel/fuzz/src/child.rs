//! Runs a sequence in a child process.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex, PoisonError};
use std::thread::scope;
use std::time::Duration;

use busbar::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::coverage::{Places, Trace};
use crate::describe::{Number, Place};
use crate::image::{Maker, Numbers};
use crate::sequence::{CALLS, ROUNDS, Sequence, Step, THREADS};
use crate::unsafe_calls::{
    self, Memory, call, fork, ignore_interrupts, limit_self, redirect, shared_numbers,
};

/// Time limit of a sequence in seconds, after which its process is killed.
const LIMIT: i64 = 3;
/// Interval at which blocking calls are interrupted by default.
pub const MOMENT: Duration = Duration::from_millis(60);
/// Seconds to wait for the end of a killed process; after that the kernel is blocking it.
const PATIENCE: i64 = 120;
/// Bytes of memory for the calls of one thread.
const MEMORY: usize = 256 << 10;
/// Result of a call that was not made.
const NOT_MADE: u64 = i64::MIN.unsigned_abs();

/// Outcome of a sequence.
#[derive(Debug)]
pub struct Outcome {
    /// Kernel code that its calls executed.
    pub places: Places,
    /// Last result of each call, if it was made and returned.
    pub results: Vec<Option<i64>>,
    /// All calls have returned before the time limit.
    pub ended: bool,
}

/// Runs sequences.
#[derive(Debug)]
pub struct Runner {
    numbers: Numbers,
    traces: Vec<Trace>,
    memories: Vec<Memory>,
    results: &'static [AtomicU64],
    null: File,
    fail: bool,
    /// Interval at which blocking calls are interrupted.
    pub moment: Duration,
}

impl Runner {
    /// Opens KCOV and allocates memory; `numbers` are those of the guest.
    pub fn new(numbers: Numbers) -> Result<Self> {
        let failed = |why| Error::new("prepare", "memory for calls", why);
        ignore_interrupts();
        Ok(Self {
            numbers,
            traces: (0..THREADS).map(|_| Trace::open()).collect::<Result<_>>()?,
            memories: (0..THREADS)
                .map(|_| Memory::new(MEMORY))
                .collect::<std::io::Result<_>>()
                .map_err(failed)?,
            results: shared_numbers(None, CALLS).map_err(failed)?,
            null: File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .map_err(|why| Error::new("open", "/dev/null", why))?,
            fail: arm().is_ok(),
            moment: MOMENT,
        })
    }

    /// Can allocations of calls be made to fail?
    pub fn can_fail(&self) -> bool {
        self.fail
    }

    /// Runs one sequence.
    ///
    /// # Errors
    /// The process does not end after it was killed.
    pub fn run(&self, sequence: &Sequence) -> Result<Outcome> {
        self.traces.iter().for_each(Trace::clear);
        self.results.iter().for_each(|result| result.store(NOT_MADE, Ordering::Relaxed));
        let child =
            fork(|| self.inside(sequence)).map_err(|why| Error::new("fork", "self", why))?;
        let ended = wait(child)?;
        let result = |index: usize| {
            let result = self.results[index].load(Ordering::Relaxed);
            (result != NOT_MADE).then_some(result.cast_signed())
        };
        Ok(Outcome {
            places: self.traces.iter().flat_map(Trace::places).collect(),
            results: (0..sequence.steps.len()).map(result).collect(),
            ended,
        })
    }

    /// The child's side: starts threads and interrupts those that block.
    fn inside(&self, sequence: &Sequence) {
        limit_self();
        (0..3).for_each(|stream| redirect(stream, &self.null));
        let threads = sequence.steps.iter().map(|step| step.thread + 1).max().unwrap_or(0);
        let running: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect();
        let state = State {
            given: (0..CALLS).map(|_| AtomicI64::new(-1)).collect(),
            barrier: Barrier::new(threads),
            left: Mutex::new(threads),
            ended: Condvar::new(),
        };
        scope(|scope| {
            for (thread, id) in running.iter().enumerate() {
                let state = &state;
                scope.spawn(move || {
                    id.store(unsafe_calls::thread(), Ordering::Relaxed);
                    self.thread(sequence, thread, state);
                    state.has_ended();
                });
            }
            while !state.all_have_ended(self.moment) {
                running.iter().for_each(unsafe_calls::interrupt);
            }
        });
    }

    fn thread(&self, sequence: &Sequence, thread: usize, state: &State) {
        let fail = File::options().read(true).write(true).open("/proc/thread-self/fail-nth");
        let fail = fail.ok().filter(|_| self.fail);
        let alone = sequence.alone();
        let trace = &self.traces[thread];
        let is_traced = trace.start();
        if thread == 0 {
            self.steps(sequence, 0..alone, thread, state, fail.as_ref());
        }
        state.barrier.wait();
        for _ in 0..sequence.rounds.clamp(1, ROUNDS) {
            self.steps(sequence, alone..sequence.steps.len(), thread, state, fail.as_ref());
        }
        if is_traced {
            trace.stop();
        }
    }

    fn steps(
        &self,
        sequence: &Sequence,
        range: std::ops::Range<usize>,
        thread: usize,
        state: &State,
        fail: Option<&File>,
    ) {
        for index in range {
            let step = &sequence.steps[index];
            if step.thread == thread {
                self.step(step, index, state, fail);
            }
        }
    }

    fn step(&self, step: &Step, index: usize, state: &State, fail: Option<&File>) {
        let memory = self.memories[step.thread];
        let given = |call: usize| state.given[call].load(Ordering::Relaxed).cast_unsigned();
        let maker = Maker { memory: memory.place(), numbers: &self.numbers, given: &given };
        let Some(image) = maker.make(step) else { return };
        let number = match step.description().number {
            Number::Is(number) => number,
            Number::Found(found) => {
                self.numbers.get(&found).map_or(-1, |&number| number.cast_signed() as libc::c_long)
            }
        };
        memory.fill(&image.bytes);
        let fail = fail.filter(|_| step.fault > 0);
        if let Some(mut fail) = fail {
            let _ = fail.write_all(step.fault.to_string().as_bytes());
        }
        // SAFETY: this process exists only for these calls; see `call`.
        #[allow(unsafe_code)]
        let result = unsafe { call(number, image.words) };
        if let Some(fail) = fail {
            disarm(fail);
        }
        self.results[index].store(result.cast_unsigned(), Ordering::Relaxed);
        if result >= 0 {
            let given = match step.description().gives {
                Some((_, Place::Result)) => Some(result),
                Some((_, Place::Memory(argument, offset))) => memory
                    .read_u32(image.words[argument].wrapping_add(offset as u64))
                    .map(|given| given.cast_signed().into()),
                None => None,
            };
            if let Some(given) = given {
                state.given[index].store(given, Ordering::Relaxed);
            }
        }
    }
}

/// State that the threads of a sequence share.
struct State {
    given: Vec<AtomicI64>,
    barrier: Barrier,
    /// Number of threads that have not ended; the condition is notified when one does.
    left: Mutex<usize>,
    ended: Condvar,
}

impl State {
    fn has_ended(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.ended.notify_all();
    }

    /// Waits until all threads have ended; false if they have not within this time.
    fn all_have_ended(&self, time: Duration) -> bool {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(left, time, |left| *left > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }
}

/// Ends fault injection. The write is itself a copy that may be made to fail, so it is repeated.
fn disarm(mut fail: &File) {
    for _ in 0..100 {
        if fail.write_all(b"0").is_ok() {
            return;
        }
    }
}

/// Enables failures of small allocations, also of those that may sleep, and of copies, without console messages.
fn arm() -> std::io::Result<()> {
    let folder = std::path::Path::new("/sys/kernel/debug");
    for fault in ["failslab", "fail_page_alloc"] {
        std::fs::write(folder.join(fault).join("ignore-gfp-wait"), "N")?;
    }
    std::fs::write(folder.join("fail_page_alloc/min-order"), "0")?;
    for fault in ["failslab", "fail_page_alloc", "fail_usercopy"] {
        std::fs::write(folder.join(fault).join("verbose"), "0")?;
    }
    Ok(())
}

/// Waits for a child and kills it at the time limit; true if it ended by itself.
fn wait(child: Pid) -> Result<bool> {
    let failed = |why| Error::new("wait for", "a sequence", why);
    let handle = pidfd_open(child, PidfdFlags::empty()).map_err(failed)?;
    let ends_within = |seconds| {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&time)).map(|ready| ready > 0)
    };
    if !ends_within(LIMIT).map_err(failed)? {
        kill_process(child, Signal::KILL).map_err(failed)?;
        if !ends_within(PATIENCE).map_err(failed)? {
            let why = std::io::Error::other("its process does not end after it was killed");
            return Err(Error::new("end", "a sequence", why));
        }
    }
    let ended = waitpid(Some(child), WaitOptions::empty()).map_err(failed)?;
    Ok(ended.is_some_and(|(_, status)| status.exit_status() == Some(0)))
}
