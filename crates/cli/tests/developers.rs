//! The developers' verbs, which `busbar` passes to `busbar-dev`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

/// A program of this name, a script.
fn script(folder: &Path, text: &str) {
    fs::create_dir_all(folder).unwrap();
    let file = folder.join("busbar-dev");
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// One test at a time: a program that one thread writes cannot be executed (ETXTBSY) while a process that
/// another thread has forked in the meantime still has the file open.
static ONE: Mutex<()> = Mutex::new(());

/// A folder with only `busbar`, and one in PATH.
struct Place(TempDir, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Place {
    fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let place = Self(tempfile::tempdir().unwrap(), one);
        fs::create_dir(place.installed()).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_busbar"), place.installed().join("busbar")).unwrap();
        place
    }

    fn installed(&self) -> PathBuf {
        self.0.path().join("installed")
    }

    fn in_path(&self) -> PathBuf {
        self.0.path().join("path")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.installed().join("busbar"));
        let path = format!("{}:/usr/bin:/bin", self.in_path().display());
        command.args(arguments).env("PATH", path).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn arguments_streams_and_exit_code_are_those_of_the_developers_command() {
    let place = Place::new();
    script(&place.installed(), r#"printf '<%s>' "$@"; echo complaint >&2; exit 7"#);
    for arguments in [
        &["lab", "run", "--", "sh", "-c", "exit 3", "--", ""][..],
        &["bench", "--help"],
        &["report", "a b", "-h"],
        &["generate", "man", "x"],
        &["help", "lab", "run"],
    ] {
        let output = place.run(arguments);
        let expected = format!("<{}>", arguments.join("><"));
        assert_eq!(text(&output.stdout), expected);
        assert_eq!(text(&output.stderr), "complaint\n");
        assert_eq!(output.status.code(), Some(7));
    }
}

/// The process stays the same, so that a signal reaches the developers' command, and its exit code
/// is the one of `busbar`.
#[test]
fn it_is_the_same_process() {
    let place = Place::new();
    script(&place.installed(), "echo $$; kill -TERM $$; sleep 60");
    let child = place.command(&["lab"]).stdout(Stdio::piped()).spawn().unwrap();
    let process = child.id().to_string();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), process);
    assert_eq!(output.status.signal(), Some(15));
}

#[test]
fn the_one_beside_busbar_comes_before_the_one_in_path() {
    let place = Place::new();
    script(&place.in_path(), "echo path");
    assert_eq!(text(&place.run(&["lab"]).stdout), "path\n");
    script(&place.installed(), "echo beside");
    assert_eq!(text(&place.run(&["lab"]).stdout), "beside\n");
    // A link elsewhere leads to the same folder.
    let link = place.0.path().join("link");
    symlink(place.installed().join("busbar"), &link).unwrap();
    assert_eq!(text(&Command::new(link).arg("lab").output().unwrap().stdout), "beside\n");
}

#[test]
fn without_it_the_error_says_what_to_install_and_help_names_the_verbs() {
    let place = Place::new();
    // A file that cannot be executed is skipped.
    fs::write(place.installed().join("busbar-dev"), "").unwrap();
    for arguments in [&["lab", "shell"][..], &["bench", "--help"], &["help", "report"]] {
        let output = place.run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("busbar: cannot find busbar-dev: "), "{said}");
        assert!(said.contains("make build install-dev") && said.lines().count() == 1, "{said}");
    }
    let output = place.run(&["--help"]);
    let help = text(&output.stdout);
    assert!(output.status.success(), "{help}");
    for verb in ["lab", "bench", "report"] {
        assert!(help.contains(&format!("\n  {verb} ")), "{help}");
    }
}
