//! Samples pass from a source to a destination.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use busbar::stream::{Lost, Samples};
use busbar::{Error, Result};
use busbar_coprocessor::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::ends::{From, To};
use super::input::Input;
use super::output::Output;
use super::report::Report;
use super::{Expected, Flags};
use busbar::stream::verify::Counter;

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Blocks between two looks at anything else.
const BATCH: usize = 16;
/// A converter that fails with so many blocks in a row does not work.
const MAX_FAILURES: u32 = 16;
/// After a signal: in which what is under way has to arrive.
const FAREWELL: Duration = Duration::from_secs(5);

pub fn run(from: &From, to: &To, flags: &Flags) -> Result<()> {
    let stop = Stop::new()?.on_signal(Signal::INT.as_raw())?.on_signal(Signal::TERM.as_raw())?;
    let input = Input::open(from, to, flags)?;
    let report = Report::new(flags.json, flags.count);
    let mut pass = Pass { input, output: None, verify: None, report, failures: 0, until: None };
    let result = pass.run(from, to, flags, &stop);
    // What went wrong is said after what went well.
    if pass.output.is_some() { pass.sum_up().and(result) } else { result }
}

struct Pass {
    input: Input,
    /// Opened once it is known what comes.
    output: Option<Output>,
    verify: Option<Counter>,
    report: Report,
    /// Blocks in a row that have failed.
    failures: u32,
    until: Option<Instant>,
}

impl Pass {
    fn run(&mut self, from: &From, to: &To, flags: &Flags, stop: &Stop) -> Result<()> {
        while !self.is_over(flags) {
            if self.output.is_none() {
                self.open(from, to, flags)?;
            }
            let moved = self.transfer(flags)?;
            self.tell()?;
            if self.wait(stop, !moved)? {
                return self.finish(Some(Instant::now() + FAREWELL));
            }
        }
        self.finish(None)
    }

    fn is_over(&self, flags: &Flags) -> bool {
        let enough = flags.count.is_some_and(|count| self.report.counts.samples >= count);
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        enough || late || self.input.is_finished()
    }

    /// Opens the destination once the source has said what comes.
    fn open(&mut self, from: &From, to: &To, flags: &Flags) -> Result<()> {
        self.input.look()?;
        let (Some(format), Some(block_len)) = (self.input.format(), self.input.block_len()) else {
            return Ok(());
        };
        let opened = Output::open(to, from, format, block_len, flags).and_then(|output| {
            let verify = flags.expect.map(|Expected::Counter| Counter::new(format)).transpose()?;
            Ok((output, verify))
        });
        match opened {
            Ok((output, verify)) => {
                (self.output, self.verify) = (Some(output), verify);
                self.until = flags.seconds.map(|seconds| Instant::now() + seconds);
                Ok(())
            }
            Err(error) => {
                self.input.refuse(&error.to_string());
                Err(error)
            }
        }
    }

    /// Passes on what there is, for a while. Whether there was something.
    fn transfer(&mut self, flags: &Flags) -> Result<bool> {
        let Some(output) = &mut self.output else { return Ok(false) };
        output.turn()?;
        for passed in 0..BATCH {
            if flags.count.is_some_and(|count| self.report.counts.samples >= count) {
                return Ok(true);
            }
            match self.input.next() {
                Ok(Some(samples)) => {
                    self.failures = 0;
                    self.take(samples)?;
                }
                Ok(None) => return Ok(passed > 0),
                Err(error) => self.fail(error)?,
            }
        }
        Ok(true)
    }

    fn take(&mut self, samples: Samples) -> Result<()> {
        let (Some(output), Some(format)) = (&mut self.output, self.input.format()) else {
            return Ok(());
        };
        let meta = *samples.meta();
        let count = (meta.len / format.sample_len) as u64;
        self.report.add(count, meta.len as u64, meta.lost);
        if let Some(verify) = &mut self.verify {
            let verified = verify.verify(&samples, meta.lost);
            self.report.counts.verified = Some(verify.samples());
            verified?;
        }
        output.take(samples)
    }

    /// A converter can fail with one block and go on with the next.
    fn fail(&mut self, error: Error) -> Result<()> {
        self.failures += 1;
        let goes_on = matches!(self.input, Input::Device(_))
            && error.errno() != Some(Errno::PIPE)
            && self.failures <= MAX_FAILURES;
        if !goes_on {
            return Err(error);
        }
        self.report.counts.failed += 1;
        self.report.warn(&error);
        Ok(())
    }

    /// Passes on to the user what goes wrong and how it stands.
    fn tell(&mut self) -> Result<()> {
        let troubles =
            [self.input.take_trouble(), self.output.as_mut().and_then(Output::take_trouble)];
        troubles.iter().flatten().for_each(|error| self.report.warn(error));
        self.count();
        self.report.progress()
    }

    fn count(&mut self) {
        let counts = &mut self.report.counts;
        let (back, corrupted) = self.input.connections();
        let output = self.output.as_ref();
        let (again, resent) = output.map_or((0, 0), Output::connections);
        counts.copied = self.input.copied() + output.map_or(0, Output::copied);
        (counts.reconnects, counts.corrupted, counts.resent) = (back + again, corrupted, resent);
    }

    /// Waits until something may have to be done, or only looks; whether a signal has come.
    fn wait(&self, stop: &Stop, idle: bool) -> Result<bool> {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        if idle {
            fds.push(PollFd::from_borrowed_fd(self.input.as_fd(), PollFlags::IN));
            let output = self.output.as_ref().and_then(Output::descriptor);
            fds.extend(output.map(|output| PollFd::from_borrowed_fd(output, PollFlags::IN)));
        }
        wait(&mut fds, if idle { TICK } else { Duration::ZERO })?;
        Ok(!fds[0].revents().is_empty())
    }

    /// Sees to it that what has come arrives, until `deadline` if there is one.
    fn finish(&mut self, deadline: Option<Instant>) -> Result<()> {
        let lost = self.input.end();
        if lost != Lost::Samples(0) {
            self.report.lose(lost);
        }
        if let Some(output) = &mut self.output {
            output.finish(lost)?;
        }
        while let Some(output) = &mut self.output {
            output.turn()?;
            if output.is_finished()? {
                break;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let why = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(Error::new("deliver", "the last blocks after the signal", why));
            }
            if let Some(output) = output.descriptor() {
                wait(&mut [PollFd::from_borrowed_fd(output, PollFlags::IN)], TICK)?;
            }
            self.tell()?;
        }
        self.tell()?;
        self.input.refuse("the receiver has what it wanted, and takes no more");
        Ok(())
    }

    fn sum_up(&mut self) -> Result<()> {
        self.count();
        self.report.summary(self.input.about())
    }
}

fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<()> {
    let timeout = Timespec::try_from(timeout).ok();
    match poll(fds, timeout.as_ref()) {
        Ok(_) => Ok(()),
        Err(Errno::INTR) => {
            fds.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(errno) => Err(Error::new("wait for", "samples", errno)),
    }
}
