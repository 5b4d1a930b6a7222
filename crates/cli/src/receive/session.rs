//! Accepts connections, and passes their data on.

use std::time::{Duration, Instant};

use busbar::receive::{Connection, Listener, Receiver};
use busbar::wait::{Events, Interest, Poller};
use busbar::{Error, Reason, Result, later};
use busbar_coprocessor::Stop;

use super::Args;
use super::output::{Output, To};
use super::report::Report;
use crate::progress::{TICK, explain_listen, interruption};

/// Views that are taken from one connection before the others have their turn.
const BATCH: usize = 1024;
const STOP: u64 = 0;
const OTHERS: u64 = 1;

pub fn run(args: &Args) -> Result<()> {
    // Before any setting that has to be undone.
    let stop = interruption(args.json)?;
    let receiver = args.receiver()?;
    let mut report = Report::new(args.json);
    let passed = pass(args, &stop, &receiver, &mut report);
    // The summary comes before the error; undoing the settings comes before both.
    let counted = receiver.statistics().map(|now| report.counts.take(now));
    let end = report.now();
    let closed = receiver.close();
    let told =
        if report.counts.connections > 0 || passed.is_ok() { report.summary(&end) } else { Ok(()) };
    passed.and(counted).and(closed).and(told)
}

fn pass(args: &Args, stop: &Stop, receiver: &Receiver, report: &mut Report) -> Result<()> {
    let listener = receiver.listen(args.address()).map_err(explain_listen)?;
    report.listening(&args.device, receiver, listener.local_addr()?)?;
    let poller = Poller::new()?;
    poller.add(stop, STOP, Interest::READABLE)?;
    poller.add(&listener, OTHERS, Interest::READABLE)?;
    let until = args.seconds.map(|seconds| later(Instant::now(), seconds));
    let mut session =
        Session { args, receiver, listener, poller, report, links: Vec::new(), done: 0 };
    session.run(until)
}

struct Session<'a> {
    args: &'a Args,
    receiver: &'a Receiver,
    listener: Listener,
    poller: Poller,
    report: &'a mut Report,
    links: Vec<(Connection, Output)>,
    /// Verified bytes of the connections that have ended.
    done: u64,
}

impl Session<'_> {
    fn run(&mut self, until: Option<Instant>) -> Result<()> {
        let mut events = Events::new(16)?;
        let mut is_idle = true;
        loop {
            match self.poller.wait_timeout(&mut events, if is_idle { TICK } else { Duration::ZERO })
            {
                // A signal is seen by way of `stop`.
                Err(error) if error.reason() == Reason::Interrupted => continue,
                waited => waited?,
            };
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if is_late || events.iter().any(|event| event.key() == STOP) {
                return Ok(());
            }
            self.accept()?;
            is_idle = !self.transfer()?;
            if self.report.is_due() {
                self.report.counts.take(self.receiver.statistics()?);
                self.report.progress()?;
            }
            if self.links.is_empty() && self.report.counts.connections == self.args.connections {
                return Ok(());
            }
        }
    }

    /// Accepts waiting connections, as many as are wanted.
    fn accept(&mut self) -> Result<()> {
        while self.report.counts.connections < self.args.connections {
            let Some(connection) = self.listener.try_accept()? else { break };
            self.poller.add(&connection, OTHERS, Interest::READABLE)?;
            self.links.push((connection, Output::open(&self.args.dst)?));
            self.report.connected();
            if self.report.counts.connections == self.args.connections {
                self.poller.remove(&self.listener)?;
            }
        }
        Ok(())
    }

    /// Passes on what has arrived, for a while, and tells whether there was anything.
    fn transfer(&mut self) -> Result<bool> {
        let mut moved = false;
        for index in (0..self.links.len()).rev() {
            let (connection, output) = &mut self.links[index];
            match drain(connection, output) {
                Ok(some) => moved |= some,
                // The other connections go on if one peer dies.
                Err(Failure::Peer(error)) if self.args.connections > 1 => self.report.warn(&error),
                Err(Failure::Peer(error) | Failure::Here(error)) => {
                    self.count();
                    return Err(error);
                }
            }
            if self.links[index].0.is_finished() {
                let (connection, output) = self.links.swap_remove(index);
                self.poller.remove(&connection)?;
                self.done += output.verified().unwrap_or(0);
            }
        }
        self.count();
        Ok(moved)
    }

    fn count(&mut self) {
        let running = self.links.iter().filter_map(|(_, output)| output.verified());
        let verified = self.done + running.sum::<u64>();
        let is_wanted = matches!(self.args.dst, To::Verify(_));
        self.report.counts.verified = is_wanted.then_some(verified);
    }
}

enum Failure {
    Peer(Error),
    Here(Error),
}

/// Passes on what has arrived, for a while, and tells whether there was anything.
fn drain(connection: &mut Connection, output: &mut Output) -> Result<bool, Failure> {
    for passed in 0..BATCH {
        match connection.try_next().map_err(Failure::Peer)? {
            Some(piece) => output.take(&piece).map_err(Failure::Here)?,
            None => return Ok(passed > 0),
        }
    }
    Ok(true)
}
