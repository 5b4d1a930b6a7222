//! External programs: which are needed, and how they are run.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use busbar::{Error, Result};

use crate::at;
use crate::progress::Progress;

/// Lines of a log that an error shows.
const TAIL: usize = 40;

/// Tools for building, with their Debian packages.
pub(crate) const BUILD: &[(&str, &str)] = &[
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("patch", "patch"),
    ("depmod", "kmod"),
];

/// The compiler for the host's own architecture.
pub(crate) const NATIVE: &[(&str, &str)] = &[("gcc", "gcc"), ("ld", "binutils")];

/// The compiler for others, and what makes a root file system for them.
pub(crate) const FOREIGN: &[(&str, &str)] =
    &[("clang", "clang"), ("ld.lld", "lld"), ("llvm-ar", "llvm"), ("mmdebstrap", "mmdebstrap")];

/// What makes a root file system for another processor.
pub(crate) const ROOT: &[(&str, &str)] = &[("mmdebstrap", "mmdebstrap")];

/// Tools for running besides QEMU, with their Debian packages.
pub(crate) const RUN: &[(&str, &str)] =
    &[("setpriv", "util-linux"), ("modprobe", "kmod"), ("udevadm", "udev")];

/// Checks that all `tools` are installed.
pub(crate) fn require(tools: &[(&str, &str)]) -> Result<()> {
    let missing: Vec<_> = tools.iter().filter(|(tool, _)| find(tool).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (names, packages): (Vec<_>, Vec<_>) = missing.into_iter().copied().unzip();
    let error = io::Error::new(io::ErrorKind::NotFound, "not installed");
    Err(Error::new("find", names.join(" "), error)
        .help(format!("apt-get install {}", packages.join(" "))))
}

/// The program `name` in PATH, `/usr/sbin` or `/sbin`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| {
            file.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// A command that gets `signal` when this process ends, however it ends.
///
/// It must be started from a thread that lives as long as it is wanted. The variables with which an
/// outer `make` controls an inner one, or which would change a build, are not passed on.
pub(crate) fn bound(program: impl AsRef<OsStr>, signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program).env("LC_ALL", "C");
    for variable in [
        "ARCH",
        "CROSS_COMPILE",
        "KBUILD_OUTPUT",
        "KCFLAGS",
        "LLVM",
        "MAKEFLAGS",
        "MAKELEVEL",
        "MAKEOVERRIDES",
        "MFLAGS",
        "O",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Runs a step of a build. Its output is added to the file `log`, each line counts as progress.
///
/// Fails if it does not end with 0, with the end of its output.
pub(crate) fn step(
    command: &mut Command,
    what: &str,
    log: &Path,
    progress: &mut Progress,
) -> Result<()> {
    let mut file =
        OpenOptions::new().create(true).append(true).open(log).map_err(at("open", log))?;
    let (reader, writer) = io::pipe().map_err(|error| Error::new("create", "a pipe", error))?;
    let copy = writer.try_clone().map_err(|error| Error::new("create", "a pipe", error))?;
    let program = command.get_args().nth(3).unwrap_or_else(|| command.get_program());
    let program = program.display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(copy)
        .spawn()
        .map_err(|error| Error::new("run", &program, error))?;
    // The command holds the write ends: otherwise the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let tail = follow(reader, &mut file, progress).map_err(at("write to", log))?;
    let status = child.wait().map_err(|error| Error::new("wait for", &program, error))?;
    if status.success() {
        return Ok(());
    }
    let error = io::Error::other(format!("{program} ended with {status}; its last lines:\n{tail}"));
    Err(Error::new(what, "the lab", error).help(format!("all of it: {}", log.display())))
}

/// Copies lines to `log` and returns the last ones.
fn follow(output: impl io::Read, log: &mut File, progress: &mut Progress) -> io::Result<String> {
    let mut output = BufReader::new(output);
    let mut tail = VecDeque::with_capacity(TAIL);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        log.write_all(&line)?;
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(String::from_utf8_lossy(&line).into_owned());
        progress.tick(1);
        line.clear();
    }
    Ok(tail.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> (Result<()>, String) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut progress = Progress::new("test", None);
        let result = step(bound("sh", "KILL").args(["-c", script]), "try", &log, &mut progress);
        (result, std::fs::read_to_string(log).unwrap())
    }

    #[test]
    fn both_outputs_go_to_the_log() {
        let (result, log) = run("echo one; echo two >&2");
        result.unwrap();
        assert_eq!(log, "one\ntwo\n");
    }

    #[test]
    fn a_failure_shows_the_last_lines() {
        let (result, log) = run("seq 100; exit 3");
        let error = result.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("\n100\n"), "{error}");
        assert!(!error.contains("\n60\n"), "{error}");
        assert_eq!(log.lines().count(), 100);
    }

    #[test]
    fn missing_tools_are_named_with_their_packages() {
        require(&[("sh", "dash")]).unwrap();
        let error = require(&[("sh", "dash"), ("no-such-a", "pa"), ("no-such-b", "pb")]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no-such-a no-such-b"), "{error}");
        assert!(error.contains("apt-get install pa pb"), "{error}");
    }

    #[test]
    fn an_outer_make_does_not_reach_in() {
        let command = bound("true", "TERM");
        assert!(command.get_envs().any(|(name, value)| name == "MAKEFLAGS" && value.is_none()));
    }
}
