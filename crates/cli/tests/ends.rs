//! What ends a command: its time, signals, and a reader that has left.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

use rustix::process::Signal;
use support::{command, signal, text};
use tempfile::TempDir;

/// A pipeline that goes on until it is told to end.
const PIPELINE: &str = "[source.a]\nfrom = \"synth:counter?rate=100k\"\nblock-len = \"1K\"\n\
    [sink.b]\ninput = \"a\"\nto = \"null:\"\n";
const SYNTH: &str = "synth:counter?rate=100k";

/// Starts a command, and waits for its first line, from which on it handles signals.
fn begun(command: &mut Command) -> (Child, String) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

#[test]
fn no_number_of_seconds_is_too_large() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pipeline.toml");
    fs::write(&path, PIPELINE).unwrap();
    let path = path.to_str().unwrap();
    for (arguments, option) in [
        (&["stream", SYNTH, "null:"][..], "--seconds"),
        (&["stream", SYNTH, "null:"], "--patience"),
        (&["run", path], "--seconds"),
        (&["serve", "--listen", "127.0.0.1:0", SYNTH], "--seconds"),
        (&["receive", "--address", "127.0.0.1", "--port", "0"], "--seconds"),
    ] {
        for value in ["1e12", "1e19"] {
            let (child, _) = begun(command(arguments).args(["--json", option, value]));
            signal(&child, Signal::INT);
            let output = child.wait_with_output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{arguments:?} {option} {value}: {said}");
        }
        let output = command(arguments).args([option, "1e300"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {option}");
    }
}
