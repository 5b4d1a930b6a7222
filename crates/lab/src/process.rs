//! A running guest: its events, its time limits, and its end.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use busbar::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::console;
use crate::host::Host;
use crate::job::End;
use crate::patience::{Limits, Patience};
use crate::transport::{self, Connected, Event, Streams};

/// Time from the end of the command until the guest has reported everything, with a search for leaks.
const LAST_WORDS: Limits = Limits {
    first: Duration::from_secs(1800),
    time: Duration::from_secs(1800),
    work: Duration::from_secs(180),
};
/// Time for bytes that the guest has sent to arrive.
const IN_FLIGHT: Duration = Duration::from_secs(10);
/// Time for killed processes to end.
const KILLED: Duration = Duration::from_secs(10);
/// How often signals and deadlines are checked.
const LOOK: Duration = Duration::from_millis(50);
/// Lines of the console that an error shows.
const TAIL: usize = 25;

/// Taint flags that stand for a report, with their meanings.
const TAINTS: [(u32, &str); 4] =
    [(5, "a bad page"), (7, "an oops"), (9, "a warning"), (14, "a soft lockup")];

/// virtme-ng and QEMU. Dropping it ends them and removes their files.
pub(crate) struct Process {
    child: Child,
    events: Receiver<Event>,
    streams: Connected,
    console: PathBuf,
    host: Host,
    interrupt: Arc<AtomicUsize>,
    leaks: String,
    taint: u64,
    /// No process has the console open any more.
    gone: bool,
    /// It has been killed and waited for.
    ended: bool,
    _folder: TempDir,
}

/// Results of a guest.
pub(crate) struct Remains {
    pub reports: Vec<String>,
    pub console: PathBuf,
    pub captured: [Vec<u8>; 2],
}

impl Process {
    /// Starts `command`, whose stderr is the console; `folder` is removed with it.
    pub fn start(
        mut command: Command,
        folder: TempDir,
        streams: Streams,
        (console, log): (PathBuf, File),
        interrupt: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let failed = |error| Error::new("start", "virtme-ng", error);
        let (reader, writer) = io::pipe().map_err(failed)?;
        // A group of its own: Ctrl-C is for this process, and all of it can be ended at once.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
        let child = command.spawn().map_err(failed)?;
        // It holds one end of the pipe.
        drop(command);
        let (sender, events) = mpsc::channel();
        let host = Host::new(folder.path(), Pid::from_child(&child));
        let mut process = Self {
            child,
            events,
            streams: Connected::default(),
            console,
            host,
            interrupt,
            leaks: String::new(),
            taint: 0,
            gone: false,
            ended: false,
            _folder: folder,
        };
        transport::console(reader, log, sender.clone());
        process.streams = streams.connect(&sender)?;
        Ok(process)
    }

    /// The number of the signal that this process got.
    pub fn interrupted(&self) -> Option<usize> {
        Some(self.interrupt.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
    }

    /// Waits until the command starts. An interrupt ends it too.
    pub fn up(&mut self, limits: Limits) -> Result<()> {
        let mut patience = Patience::new(limits, self.group());
        loop {
            let why = match self.next(Some(patience.next())) {
                Next::Event(Event::Up) | Next::Interrupted(_) => return Ok(()),
                Next::Event(Event::Failed(why)) => Some(why),
                Next::Event(Event::Gone) => Some("it went down".to_owned()),
                Next::Event(Event::Stalled) if self.has_lost_a_timer() => {
                    Some("QEMU has lost the timer of a processor".to_owned())
                }
                Next::Event(event) => {
                    if event == Event::Console {
                        patience.heard();
                    }
                    None
                }
                Next::Late => patience.end(),
            };
            if let Some(why) = why {
                return Err(self.failed("boot", &why));
            }
        }
    }

    /// The fault of QEMU's that has ended the boot, if one has, and nothing of stdin was taken.
    ///
    /// QEMU before 8.1 may execute a breakpoint that another emulated processor has removed already, while Linux changes
    /// its own code.
    pub fn may_boot_again(&self) -> Option<&'static str> {
        if self.interrupted().is_some() || self.streams.has_input() {
            return None;
        }
        let console = self.console();
        if console::has_lost_a_timer(&console) {
            return Some("lost the timer of a processor");
        }
        let is_int3 = console::reports(&console).iter().any(|it| is_int3(it));
        is_int3.then_some("executed a breakpoint that Linux had removed")
    }

    /// What the console has said.
    fn console(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn has_lost_a_timer(&self) -> bool {
        console::has_lost_a_timer(&self.console())
    }

    /// Ends the guest; the error has the reason and the end of its console.
    fn failed(&mut self, tried: &str, why: &str) -> Error {
        self.kill();
        let error = io::Error::other(format!("{why}; its console ends with\n{}", self.tail()));
        Error::new(tried, "the guest", error).help(format!("all of it: {}", self.console.display()))
    }

    /// The last lines of the console.
    fn tail(&self) -> String {
        let text = self.console();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Waits until the command has ended and all its output has arrived.
    pub fn end(&mut self, timeout: Option<Duration>) -> Result<End> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match self.next(deadline) {
                Next::Event(Event::Exited(code)) => return self.last_words(code),
                Next::Event(event) => {
                    if let Some(end) = self.note(event)? {
                        return Ok(end);
                    }
                }
                Next::Interrupted(signal) => return Ok(End::Interrupted(signal)),
                Next::Late => return Ok(End::TimedOut),
            }
        }
    }

    /// Waits for the guest's reports after the command has ended.
    fn last_words(&mut self, code: u8) -> Result<End> {
        let mut patience = Patience::new(LAST_WORDS, self.group());
        patience.heard();
        loop {
            match self.next(Some(patience.next())) {
                Next::Event(Event::Done(bytes)) => return self.drained(bytes, code),
                Next::Event(event) => {
                    if let Some(end) = self.note(event)? {
                        return Ok(end);
                    }
                }
                Next::Interrupted(signal) => return Ok(End::Interrupted(signal)),
                Next::Late => {
                    if let Some(why) = patience.end() {
                        let why = format!("a process cannot be killed, or the kernel hangs: {why}");
                        return Err(self.failed("end", &why));
                    }
                }
            }
        }
    }

    /// Handles events that may come at any time; some of them end the run.
    fn note(&mut self, event: Event) -> Result<Option<End>> {
        match event {
            Event::Leak(line) => self.leaks.extend([line.as_str(), "\n"]),
            Event::Taint(taint) => self.taint = taint,
            Event::OutputClosed(None) => return Ok(Some(End::OutputClosed)),
            Event::OutputClosed(Some(why)) => {
                return Err(Error::new("write", "the command's output", io::Error::other(why)));
            }
            Event::Escape => return Ok(Some(End::Escaped)),
            Event::Stalled if self.has_lost_a_timer() => return Ok(Some(End::Stalled)),
            Event::Gone => {
                self.gone = true;
                return Ok(Some(End::Died));
            }
            _ => {}
        }
        Ok(None)
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for bytes that have not arrived yet. A slow reader may take any time.
    fn drained(&mut self, bytes: [u64; 2], code: u8) -> Result<End> {
        let mut deadline = Instant::now() + IN_FLIGHT;
        let mut before = [0; 2];
        loop {
            let now = self.streams.bytes();
            if now == bytes {
                return Ok(End::Exited(code));
            }
            if now != before || self.streams.is_writing() {
                before = now;
                deadline = Instant::now() + IN_FLIGHT;
            }
            match self.next(Some(deadline.min(Instant::now() + Duration::from_millis(5)))) {
                Next::Interrupted(signal) => return Ok(End::Interrupted(signal)),
                Next::Event(Event::OutputClosed(None)) => return Ok(End::OutputClosed),
                Next::Late if Instant::now() >= deadline => {
                    let error = io::Error::other(format!("{now:?} of {bytes:?} bytes arrived"));
                    return Err(Error::new("read", "the command's output", error));
                }
                _ => {}
            }
        }
    }

    /// The next event before the deadline.
    fn next(&mut self, deadline: Option<Instant>) -> Next {
        loop {
            if let Some(signal) = self.interrupted() {
                return Next::Interrupted(signal);
            }
            self.host.tell();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.events.recv_timeout(left.map_or(LOOK, |left| left.min(LOOK))) {
                Ok(event) => return Next::Event(event),
                Err(RecvTimeoutError::Disconnected) => return Next::Event(Event::Gone),
                Err(RecvTimeoutError::Timeout) if left.is_some_and(|left| left.is_zero()) => {
                    return Next::Late;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Ends the guest and collects the reports of the kernel.
    pub fn finish(mut self) -> Result<Remains> {
        self.kill();
        let text = fs::read(&self.console)
            .map_err(|error| Error::new("read", self.console.display().to_string(), error))?;
        let mut reports = console::reports(&String::from_utf8_lossy(&text));
        if !self.leaks.is_empty() {
            reports.push(std::mem::take(&mut self.leaks));
        }
        if reports.is_empty() {
            // A report may be missing on the console, for example because the command has silenced it.
            reports.extend(tainted(self.taint));
        }
        Ok(Remains { reports, console: self.console.clone(), captured: self.streams.captured() })
    }

    /// Kills the group and waits until all its processes have ended.
    fn kill(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let _ = kill_process_group(self.group(), Signal::KILL);
        let _ = self.child.wait();
        let deadline = Instant::now() + KILLED;
        while !self.gone && Instant::now() < deadline {
            // The console ends with the last of them.
            let left = deadline.saturating_duration_since(Instant::now());
            self.gone =
                !matches!(self.events.recv_timeout(left), Ok(event) if event != Event::Gone);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

enum Next {
    Event(Event),
    Interrupted(usize),
    Late,
}

/// Whether a report is of a breakpoint where none is.
fn is_int3(report: &str) -> bool {
    report.lines().next().is_some_and(|line| line.contains("Oops: int3:"))
}

/// The meaning of the kernel's taint flags.
fn tainted(flags: u64) -> Option<String> {
    let set = TAINTS.iter().filter(|(bit, _)| flags >> bit & 1 == 1);
    let names: Vec<_> = set.map(|(_, name)| *name).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| format!("the kernel is tainted ({flags}) by {names}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_that_was_removed_is_a_fault_of_qemu() {
        let of_qemu = "\
[    2.518291] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI
[    2.518291] CPU: 1 UID: 0 PID: 0 Comm: swapper/1 Not tainted 6.12.117+deb12-amd64 #1
[    2.518291] RIP: 0010:sched_clock_cpu+0x6/0x190
";
        assert!(console::reports(of_qemu).iter().any(|report| is_int3(report)));
        let other = of_qemu.replace("int3", "0002");
        assert!(!console::reports(&other).iter().any(|report| is_int3(report)));
    }

    /// A guest that says nothing but this on its console.
    fn saying(console: &str) -> Process {
        let folder = tempfile::tempdir().unwrap();
        let streams = Streams::new(crate::Stdio::Capture, folder.path()).unwrap();
        let path = folder.path().join("console");
        let log = File::create(&path).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "printf %s \"$0\" >&2; exec sleep 600", console]);
        Process::start(command, folder, streams, (path, log), Arc::default()).unwrap()
    }

    #[test]
    fn a_guest_that_has_lost_a_timer_ends_at_once_and_may_boot_again() {
        let console = "\
[  109.789707] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:
[  109.798686]  arch_cpu_idle+0x9/0x10
[  109.800389] rcu: rcu_sched kthread timer wakeup didn't happen for 26251 jiffies! g-151 f0x0 ->state=0x402
";
        let limit = Duration::from_secs(500);
        let mut guest = saying(console);
        let error = guest.up(Limits { first: limit, time: limit, work: limit }).unwrap_err();
        assert!(error.to_string().contains("timer of a processor"), "{error}");
        assert_eq!(guest.may_boot_again(), Some("lost the timer of a processor"));
        assert_eq!(saying(console).end(Some(limit)).unwrap(), End::Stalled);

        let busy = console.replace("arch_cpu_idle", "vconv_poll");
        assert_eq!(saying(&busy).end(Some(Duration::from_secs(1))).unwrap(), End::TimedOut);
    }

    #[test]
    fn taint_flags_are_named() {
        assert_eq!(tainted(0), None);
        // An out-of-tree module is no error.
        assert_eq!(tainted(1 << 12), None);
        let text = tainted(1 << 9 | 1 << 12 | 1 << 7).unwrap();
        assert!(text.contains("an oops, a warning"), "{text}");
    }
}
