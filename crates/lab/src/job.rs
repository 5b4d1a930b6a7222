//! A command for the guest, and its outcome.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use busbar::{Error, Result};

use crate::accelerator::{Accelerator, Choice};

/// The lab kernel is built for this many processors.
const CPUS: u32 = 8;

/// How the command's streams are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stdio {
    /// Connected to this process's streams. A terminal is not passed on as stdin.
    #[default]
    Inherit,
    /// Nothing on stdin; stdout and stderr into the [`Outcome`].
    Capture,
    /// Connected to this process's terminal, in raw mode. Ctrl-] ends the guest.
    Terminal,
}

/// A command for the guest.
#[derive(Clone, Debug)]
pub struct Job {
    /// Program and arguments, passed unchanged; the program is searched for in PATH.
    pub command: Vec<OsString>,
    /// How its streams are connected.
    pub stdio: Stdio,
    /// Processors of the guest, 1 to 8.
    pub cpus: u32,
    /// Memory of the guest: a number and `M` or `G`.
    pub memory: String,
    /// What executes the guest's instructions.
    pub accelerator: Choice,
    /// Time limit of the command, from when the guest has booted.
    pub timeout: Option<Duration>,
    /// What the guest's `request_firmware()` finds: names and contents.
    pub firmware: Vec<(String, Vec<u8>)>,
    /// Folders that the command may write to, besides the current one, the project's and
    /// `$CARGO_TARGET_DIR`. It may write elsewhere too, but those files are lost afterwards.
    pub writable: Vec<PathBuf>,
    /// File for the console, instead of a new one in the cache.
    pub console: Option<PathBuf>,
    /// Reports of the kernel that contain one of these texts do not count: bugs of Linux's own
    /// drivers, which a test provokes on purpose.
    pub known: Vec<String>,
    /// More options on the kernel's command line, such as `idle=poll`.
    pub kernel_options: Vec<String>,
    /// The guest has an active IOMMU, and behind it a PCI device that no driver of Linux takes
    /// (`1b36:0005`).
    pub iommu: bool,
    /// Ends the guest when it is set to a signal's number.
    pub interrupt: Arc<AtomicUsize>,
}

impl Job {
    /// A command with two processors and 2 GiB.
    #[must_use]
    pub fn new(command: Vec<OsString>) -> Self {
        Self {
            command,
            stdio: Stdio::default(),
            cpus: 2,
            memory: "2G".to_owned(),
            accelerator: Choice::default(),
            timeout: None,
            firmware: Vec::new(),
            writable: Vec::new(),
            console: None,
            known: Vec::new(),
            kernel_options: Vec::new(),
            iommu: false,
            interrupt: Arc::default(),
        }
    }

    /// Fails if no guest can have these settings.
    pub(crate) fn check(&self) -> Result<()> {
        if self.command.is_empty() {
            return Err(Error::invalid("command", "", "a program and its arguments"));
        }
        if !(1..=CPUS).contains(&self.cpus) {
            return Err(Error::invalid("cpus", self.cpus, format!("1 to {CPUS}")));
        }
        let number = self.memory.strip_suffix(['M', 'G']);
        if number.and_then(|number| number.parse::<u32>().ok()).is_none_or(|number| number == 0) {
            return Err(Error::invalid("memory", &self.memory, "a number and M or G, such as 2G"));
        }
        let whole = |option: &&String| !option.is_empty() && !option.contains(char::is_whitespace);
        if let Some(option) = self.kernel_options.iter().find(|option| !whole(option)) {
            return Err(Error::invalid("kernel option", option, "one option, without spaces"));
        }
        Ok(())
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code, or 128 plus the number of the signal that killed it.
    Exited(u8),
    /// Its time limit was exceeded.
    TimedOut,
    /// This process got the signal of this number.
    Interrupted(usize),
    /// The reader of its output went away.
    OutputClosed,
    /// The user has ended the guest from its terminal.
    Escaped,
    /// The guest went down while it ran.
    Died,
    /// QEMU has lost the timer of one of the guest's processors, which then waits for ever. Another run helps.
    Stalled,
}

/// The outcome of a command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Reports of the kernel: warnings, oopses, lockdep, KASAN, leaks. Empty if there was none.
    pub reports: Vec<String>,
    /// The file with all console output of the kernel.
    pub console: PathBuf,
    /// What the command wrote, with [`Stdio::Capture`].
    pub stdout: Vec<u8>,
    /// What the command wrote, with [`Stdio::Capture`].
    pub stderr: Vec<u8>,
    /// What executed the guest's instructions.
    pub accelerator: Accelerator,
    /// From the start of virtme-ng until the command started.
    pub boot: Duration,
}

impl Outcome {
    /// The exit code for a process that stands for the command: its own; 124 after its time limit,
    /// 128 plus the signal's number if interrupted, 141 without a reader; 75 if QEMU has lost a
    /// timer, so that another run helps; 1 if the guest went down, or if the command succeeded and the kernel reported something.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self.end {
            End::Exited(0) if !self.reports.is_empty() => 1,
            End::Exited(code) => code,
            End::TimedOut => 124,
            End::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            End::OutputClosed => 141,
            End::Escaped => 0,
            End::Died => 1,
            End::Stalled => 75,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(end: End, reports: &[&str]) -> Outcome {
        Outcome {
            end,
            reports: reports.iter().map(ToString::to_string).collect(),
            console: PathBuf::new(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            accelerator: Accelerator::Tcg,
            boot: Duration::ZERO,
        }
    }

    #[test]
    fn a_report_fails_a_command_that_succeeded() {
        assert_eq!(outcome(End::Exited(0), &[]).code(), 0);
        assert_eq!(outcome(End::Exited(0), &["WARNING"]).code(), 1);
        assert_eq!(outcome(End::Exited(3), &["WARNING"]).code(), 3);
    }

    #[test]
    fn other_ends_have_the_usual_codes() {
        let code = |end| outcome(end, &[]).code();
        assert_eq!(code(End::TimedOut), 124);
        assert_eq!(code(End::Interrupted(2)), 130);
        assert_eq!(code(End::OutputClosed), 141);
        assert_eq!(code(End::Died), 1);
        assert_eq!(code(End::Stalled), 75);
    }

    #[test]
    fn what_is_wrong_with_a_job_is_named() {
        let job = || Job::new(vec!["true".into()]);
        job().check().unwrap();
        let fails = |job: &Job, field: &str| {
            let error = job.check().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        };
        fails(&Job::new(Vec::new()), "command");
        for cpus in [0, 9] {
            fails(&Job { cpus, ..job() }, "cpus");
        }
        for memory in ["", "2", "G", "0M", "-1G", "2GB", "99999999999G"] {
            fails(&Job { memory: memory.to_owned(), ..job() }, "memory");
        }
        for option in ["", "a b", "a\nb"] {
            fails(&Job { kernel_options: vec![option.to_owned()], ..job() }, "kernel option");
        }
    }
}
