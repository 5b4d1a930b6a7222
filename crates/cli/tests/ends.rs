//! What ends a command: its time, signals, and a reader that has left.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, PipeWriter, pipe};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use support::{command, last, signal, text, wait_until};
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

/// Samples of a recording, whose two files have to agree.
fn recorded(path: &Path) -> u64 {
    let recording = busbar::stream::sigmf::Recording::open(path).unwrap();
    let bytes = fs::metadata(path.with_extension("sigmf-data")).unwrap().len();
    assert_eq!(recording.samples() * recording.format().sample_len as u64, bytes);
    recording.samples()
}

#[test]
fn the_end_of_a_terminal_ends_a_recording_in_order_and_user_signals_end_nothing() {
    let folder = TempDir::new().unwrap();
    for end in [Signal::INT, Signal::HUP] {
        let path = folder.path().join(format!("{end:?}"));
        let to = format!("file:{}", path.display());
        let (child, _) = begun(&mut command(&["stream", SYNTH, &to, "--json"]));
        signal(&child, Signal::USR1);
        signal(&child, Signal::USR2);
        signal(&child, end);
        if end == Signal::HUP {
            // The kernel sends it, and so does a shell.
            signal(&child, end);
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{end:?}: {}", text(&output.stderr));
        assert_eq!(last(&text(&output.stdout))["samples"], recorded(&path));
    }
}

#[test]
fn every_long_command_takes_the_end_of_a_terminal_as_an_interruption() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pipeline.toml");
    fs::write(&path, PIPELINE).unwrap();
    for arguments in [
        &["run", path.to_str().unwrap()][..],
        &["serve", "--listen", "127.0.0.1:0", SYNTH],
        &["receive", "--address", "127.0.0.1", "--port", "0"],
    ] {
        let (child, _) = begun(command(arguments).arg("--json"));
        signal(&child, Signal::USR1);
        signal(&child, Signal::HUP);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_command_of_nohup_goes_on() {
    let mut nohup = Command::new("nohup");
    nohup.arg(support::busbar()).args(["stream", SYNTH, "null:", "--json"]);
    let (child, _) =
        begun(nohup.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    signal(&child, Signal::HUP);
    signal(&child, Signal::USR1);
    let mut child = child;
    // A line of the next second.
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("progress"), "{line}");
    signal(&child, Signal::INT);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}

/// Waits until nobody has the other end of a pipe: a child that another thread has just forked has it for a moment.
fn has_left(writer: &PipeWriter) {
    wait_until("the end of the reader", || {
        let mut polled = [PollFd::new(writer, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).unwrap() == 1
    });
}

/// How a command ends whose reader leaves after `lines`: 141, as `SIGPIPE` would, without a word.
fn without_a_reader(command: &mut Command, lines: usize) {
    let (mut reader, writer) = pipe().unwrap();
    if lines == 0 {
        drop(std::mem::replace(&mut reader, pipe().unwrap().0));
        has_left(&writer);
    }
    let mut child = command.stdout(writer).spawn().unwrap();
    // The command has the writer, too.
    command.stdout(Stdio::null());
    let mut reader = BufReader::new(reader);
    for _ in 0..lines {
        reader.read_line(&mut String::new()).unwrap();
    }
    drop(reader);
    let status = child.wait().unwrap();
    let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!((status.code(), said.as_str()), (Some(141), ""), "{command:?}");
}

#[test]
fn a_reader_that_has_left_ends_each_command_without_a_word() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("pipeline.toml");
    fs::write(&path, PIPELINE).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["endpoint", "list"],
        &["endpoint", "list", "--json"],
        &["stream", "list", "--json"],
        &["stream", SYNTH, "null:", "--count", "1k"],
        &["run", "--check", path],
        &["receive", "--address", "127.0.0.1", "--port", "0", "--json"],
    ] {
        without_a_reader(&mut command(arguments), 0);
    }
    for arguments in [
        &["stream", SYNTH, "null:"][..],
        &["run", path],
        // There is nothing more to print.
        &["receive", "--address", "127.0.0.1", "--port", "0"],
        &["serve", "--listen", "127.0.0.1:0", SYNTH],
    ] {
        without_a_reader(command(arguments).arg("--json"), 1);
    }
}

#[test]
fn a_reader_that_leaves_with_ctrl_c_makes_no_second_request_of_it() {
    let folder = TempDir::new().unwrap();
    for round in 0..8 {
        let path = folder.path().join(round.to_string());
        let to = format!("file:{}", path.display());
        let (reader, writer) = pipe().unwrap();
        let mut child = command(&["stream", SYNTH, &to, "--json"]).stdout(writer).spawn().unwrap();
        let mut reader = BufReader::new(reader);
        reader.read_line(&mut String::new()).unwrap();
        // Both are there before it can take one.
        signal(&child, Signal::STOP);
        drop(reader);
        signal(&child, Signal::INT);
        signal(&child, Signal::CONT);
        let status = child.wait().unwrap();
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(141), ""));
        assert!(recorded(&path) > 0);
        assert!(busbar::stream::sigmf::Recording::open(&path).unwrap().is_complete());
    }
}

#[test]
fn without_a_reader_a_recording_and_a_journal_still_end_in_order() {
    let folder = TempDir::new().unwrap();
    let (path, journal) = (folder.path().join("recording"), folder.path().join("journal"));
    let to = format!("file:{}", path.display());
    without_a_reader(&mut command(&["stream", SYNTH, &to, "--json"]), 1);
    assert!(recorded(&path) > 0);
    let file = folder.path().join("pipeline.toml");
    fs::write(&file, PIPELINE).unwrap();
    let mut run = command(&["run", file.to_str().unwrap(), "--json", "--journal"]);
    without_a_reader(run.arg(&journal), 1);
    let journal = fs::read_to_string(journal).unwrap();
    assert!(journal.lines().last().unwrap().contains("\"summary\""), "{journal}");
}

#[test]
fn a_full_disk_leaves_a_recording_of_whole_blocks_that_is_not_complete() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("full");
    let to = format!("file:{}", path.display());
    let mut shell = Command::new("sh");
    // A limit of 51 200 bytes, which is not at the end of a block.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 100; exec \"$@\"", "sh"]).arg(support::busbar());
    let output = shell.args(["stream", SYNTH, &to, "--block-len", "3000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(recorded(&path) * 8, 51_000);
    let recording = busbar::stream::sigmf::Recording::open(&path).unwrap();
    assert!(!recording.is_complete() && recording.gaps().len() == 1);
}
