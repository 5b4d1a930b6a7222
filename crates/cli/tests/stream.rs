//! The command `busbar stream`, on any host.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use busbar_lab::stage::load_converter;
use rustix::process::Signal;
use serde_json::Value;
use support::{finish, port, signal, summary, text};
use tempfile::TempDir;

fn stream(arguments: &[&str]) -> Command {
    support::command(&[&["stream"], arguments].concat())
}

fn run(arguments: &[&str]) -> Output {
    stream(arguments).output().unwrap()
}

fn file(folder: &TempDir, name: &str) -> String {
    format!("file:{}", folder.path().join(name).display())
}

#[test]
fn bad_usage_ends_with_2_and_says_what_is_allowed() {
    for (arguments, says) in [
        (&[][..], "<SRC>"),
        (&["synth:sine"], "<DST>"),
        (&["nowhere", "null:"], "tcp-listen:[HOST:]PORT"),
        (&["synth:sine", "tcp:host"], "tcp:HOST:PORT"),
        (&["synth:sine", "null:", "--block-len", "0"], "64K"),
        (&["synth:sine", "null:", "--memory", "cheap"], "huge"),
        (&["synth:sine", "null:", "--count", "0"], "10k"),
        (&["synth:sine", "null:", "--blocks", "0"], "1..=1024"),
        (&["synth:sine", "null:", "--expect", "noise"], "counter"),
        (&["picture"], "<RECORDING>"),
        (&["picture", "a", "b", "--size", "7"], "WIDTHxHEIGHT"),
        (&["picture", "a", "b", "--checksum"], "--checksum"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn failures_end_with_1_and_say_why() {
    let folder = TempDir::new().unwrap();
    let nothing = file(&folder, "nothing");
    let refused = format!("tcp:127.0.0.1:{}", port());
    for (arguments, says) in [
        (&["synth:square", "null:"][..], "square"),
        (&["iio:no-such-converter", "null:"], "cannot"),
        (&[nothing.as_str(), "null:"], "No such file"),
        (&["synth:sine", "iio:no-such-converter"], "cannot"),
        (&["synth:sine", "null:", "--memory", "heap:no-such-heap"], "no-such-heap"),
        (&["synth:sine", "null:", "--channels", "voltage9"], "voltage9"),
        (&["synth:sine", "null:", "--expect", "counter", "--count", "1M"], "cannot verify"),
        (&["synth:sine", refused.as_str(), "--patience", "0.5"], "tcp-listen:"),
        (&["synth:counter", &nothing, "--channels", "voltage0_i,count0"], "--channels"),
        (&["picture", "/nowhere", "/tmp/picture.png"], "nowhere"),
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    // A recording that cannot be written is not started.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn synth_to_nothing_counts_and_verifies_every_sample() {
    let output =
        run(&["synth:counter", "null:", "--count", "100k", "--expect", "counter", "--json"]);
    let summary = summary(&output);
    // To the end of the block.
    assert_eq!(summary["samples"], 106_496);
    assert_eq!(summary["bytes"], 106_496 * 8);
    assert_eq!(summary["verified"], summary["samples"]);
    for nothing in ["lost", "unknown", "failed", "copied", "reconnects", "corrupted"] {
        assert_eq!(summary[nothing], 0, "{nothing}");
    }
    assert_eq!(summary["interface"], "synth");
    assert!(summary["seconds"].as_f64().unwrap() > 0.0);
    assert!(summary["cpu_seconds"].as_f64().unwrap() > 0.0);
}

/// The received recording, and both summaries.
fn through_the_network(folder: &TempDir, more: &[&str]) -> (Value, Value) {
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:localhost:{port}"));
    let recording = file(folder, "counted");
    let listener = stream(&[&listen, &recording, "--expect", "counter", "--json"]).spawn().unwrap();
    let arguments = ["synth:counter", &to, "--count", "200k", "--block-len", "40000", "--json"];
    let sent = summary(&run(&[&arguments[..], more].concat()));
    (sent, finish(listener))
}

#[test]
fn every_sample_comes_through_the_network_into_a_file() {
    for more in [&[][..], &["--checksum"]] {
        let folder = TempDir::new().unwrap();
        let (sent, received) = through_the_network(&folder, more);
        assert_eq!((&sent["samples"], &received["samples"]), (&200_000.into(), &200_000.into()));
        assert_eq!(received["verified"], 200_000);
        assert_eq!((&sent["lost"], &received["lost"]), (&0.into(), &0.into()));
        // No copy when sending; when receiving, one into a block and one into the file.
        assert_eq!(sent["copied"], 0);
        assert_eq!(received["copied"], 2 * 200_000 * 8);
        let data = fs::read(folder.path().join("counted.sigmf-data")).unwrap();
        let expected: Vec<u8> = (0..200_000u64).flat_map(u64::to_le_bytes).collect();
        assert!(data == expected);
        // The same again, from the file.
        let meta = file(&folder, "counted.sigmf-meta");
        let played = summary(&run(&[&meta, "null:", "--expect", "counter", "--json"]));
        assert_eq!((&played["verified"], &played["lost"]), (&200_000.into(), &0.into()));
    }
}

#[test]
fn what_was_lost_is_told_to_the_end() {
    let folder = TempDir::new().unwrap();
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:localhost:{port}"));
    let recording = file(&folder, "lossy");
    let listener = stream(&[&listen, &recording, "--expect", "counter", "--json"]).spawn().unwrap();
    // Far more than any machine can generate and send: most samples are lost.
    let source = "synth:counter?rate=1G";
    let sent = summary(&run(&[source, &to, "--count", "1M", "--json"]));
    let received = finish(listener);
    assert!(sent["lost"].as_u64().unwrap() > 0);
    assert_eq!(sent["lost"], received["lost"]);
    assert_eq!(received["verified"], received["samples"]);
    let played = summary(&run(&[&recording, "null:", "--expect", "counter", "--json"]));
    for field in ["samples", "lost", "unknown"] {
        assert_eq!(played[field], received[field], "{field}");
    }
}

#[test]
fn a_receiver_that_cannot_write_tells_the_sender() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("there.sigmf-data"), "").unwrap();
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:localhost:{port}"));
    let listener = stream(&[&listen, &file(&folder, "there")]).spawn().unwrap();
    let sender = run(&["synth:sine", &to, "--count", "1G"]);
    let receiver = listener.wait_with_output().unwrap();
    for output in [sender, receiver] {
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("never overwritten"), "{said}");
    }
}

#[test]
fn a_listener_that_has_enough_tells_the_sender() {
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:localhost:{port}"));
    let listener = stream(&[&listen, "null:", "--count", "10k", "--json"]).spawn().unwrap();
    let sender = run(&["synth:sine?rate=1M", &to]);
    assert!(finish(listener)["samples"].as_u64().unwrap() >= 10_000);
    assert_eq!(sender.status.code(), Some(1));
    assert!(text(&sender.stderr).contains("takes no more"), "{}", text(&sender.stderr));
}

#[test]
fn signals_end_it_with_a_summary() {
    for end in [Signal::INT, Signal::TERM] {
        let folder = TempDir::new().unwrap();
        let recording = file(&folder, "interrupted");
        let child = stream(&["synth:noise?rate=100k", &recording, "--json"]).spawn().unwrap();
        let data = folder.path().join("interrupted.sigmf-data");
        support::wait_until("the first samples", || {
            fs::metadata(&data).is_ok_and(|data| data.len() > 0)
        });
        signal(&child, end);
        let summary = finish(child);
        assert_eq!(fs::metadata(&data).unwrap().len(), summary["bytes"].as_u64().unwrap());
    }
}

#[test]
fn a_signal_ends_a_listener_that_nobody_has_called() {
    let port = port();
    let child = stream(&[&format!("tcp-listen:{port}"), "null:"]).spawn().unwrap();
    support::wait_until("the port", || {
        // A silent connection is no stream.
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    signal(&child, Signal::TERM);
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn a_sender_that_was_killed_is_followed_by_another() {
    let folder = TempDir::new().unwrap();
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:localhost:{port}"));
    let recording = file(&folder, "two");
    let listener = stream(&[&listen, &recording, "--json"]).spawn().unwrap();
    let mut first = stream(&["synth:counter?rate=1M", &to]).spawn().unwrap();
    let data = folder.path().join("two.sigmf-data");
    support::wait_until("the first samples", || {
        fs::metadata(&data).is_ok_and(|data| data.len() > 0)
    });
    first.kill().unwrap();
    first.wait().unwrap();
    // The listener may see the second connection before the end of the first one.
    let mut second = run(&["synth:counter?rate=1M", &to, "--count", "100k", "--json"]);
    support::wait_until("the second sender", || {
        if second.status.success() {
            return true;
        }
        let said = text(&second.stderr);
        assert!(said.contains("another sender's stream"), "{said}");
        second = run(&["synth:counter?rate=1M", &to, "--count", "100k", "--json"]);
        false
    });
    let received = finish(listener);
    assert_eq!((&received["unknown"], &received["reconnects"]), (&1.into(), &1.into()));
    assert!(received["samples"].as_u64().unwrap() > 100_000);
}

#[test]
fn a_picture_is_a_png_of_the_size_that_was_asked_for() {
    let folder = TempDir::new().unwrap();
    let recording = file(&folder, "sine");
    let source = "synth:sine?rate=1M&frequency=5k";
    summary(&run(&[source, &recording, "--count", "2k", "--json"]));
    let name = folder.path().join("sine.sigmf-meta");
    let picture = folder.path().join("sine.png");
    let arguments = ["picture", path(&name), path(&picture), "--size", "800x300"];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let png = fs::read(&picture).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    assert_eq!(png[16..24], [0, 0, 3, 32, 0, 0, 1, 44]);
    let beyond = run(&["picture", path(&name), path(&picture), "--from", "1000000"]);
    assert_eq!(beyond.status.code(), Some(1));
    assert!(text(&beyond.stderr).contains("a part of its"), "{}", text(&beyond.stderr));
}

/// `vconv0` without a rate while this exists: on a busy machine it would lose samples.
struct Unhurried(Vec<(PathBuf, Vec<u8>)>);

impl Unhurried {
    fn load() -> Self {
        load_converter().unwrap();
        let devices =
            fs::read_dir("/sys/bus/iio/devices").unwrap().map(|entry| entry.unwrap().path());
        let is_one = |folder: &PathBuf| {
            fs::read_to_string(folder.join("name")).is_ok_and(|name| name.starts_with("vconv0"))
        };
        let rates = devices.filter(is_one).map(|folder| folder.join("sampling_frequency"));
        let before = rates.map(|rate| (rate.clone(), fs::read(rate).unwrap())).collect::<Vec<_>>();
        for (rate, _) in &before {
            fs::write(rate, "0").unwrap();
        }
        Self(before)
    }
}

impl Drop for Unhurried {
    fn drop(&mut self) {
        for (rate, before) in &self.0 {
            fs::write(rate, before).unwrap();
        }
    }
}

/// Sends from `vconv0` through the network, and verifies each sample; returns both summaries.
fn from_a_converter(arguments: &[&str]) -> (Value, Value) {
    let _unhurried = Unhurried::load();
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:127.0.0.1:{port}"));
    let listener = stream(&[&listen, "null:", "--expect", "counter", "--json"]).spawn().unwrap();
    let source = ["iio:vconv0", &to, "--count", "100k", "--json"];
    let sent = summary(&run(&[&source[..], arguments].concat()));
    let received = finish(listener);
    assert_eq!(received["verified"], sent["samples"]);
    assert_eq!((&sent["lost"], &received["lost"]), (&0.into(), &0.into()));
    (sent, received)
}

#[test]
#[ignore = "needs the lab"]
fn pages_of_a_converter_go_out_as_they_are() {
    // They are printed by default.
    for arguments in [&[][..], &["--memory", "pages", "--block-len", "1M"], &["--checksum"]] {
        let (sent, received) = from_a_converter(arguments);
        assert_eq!(
            (&sent["interface"], &sent["memory"]),
            (&"dmabuf".into(), &"pages (udmabuf)".into())
        );
        assert_eq!((&sent["copied"], &received["copied"]), (&0.into(), &sent["bytes"]));
    }
}

#[test]
#[ignore = "needs the lab"]
fn what_has_to_be_copied_is_counted() {
    for arguments in [["--memory", "heap:system"], ["--interface", "fileio"]] {
        let (sent, _) = from_a_converter(&arguments);
        assert_eq!(sent["copied"], sent["bytes"], "{arguments:?}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn from_one_converter_to_another_nothing_is_copied() {
    let _unhurried = Unhurried::load();
    let output = run(&["iio:vconv0", "iio:vconv0-tx", "--count", "100k", "--json"]);
    let summary = summary(&output);
    assert_eq!((&summary["copied"], &summary["lost"]), (&0.into(), &0.into()));
    assert!(summary["samples"].as_u64().unwrap() >= 100_000);
}

#[test]
#[ignore = "needs the lab"]
fn from_the_network_to_a_converter_only_the_socket_is_copied() {
    let _unhurried = Unhurried::load();
    let port = port();
    let (listen, to) = (format!("tcp-listen:{port}"), format!("tcp:127.0.0.1:{port}"));
    let listener = stream(&[&listen, "iio:vconv0-tx", "--json"]).spawn().unwrap();
    let sent = summary(&run(&["synth:counter", &to, "--count", "100k", "--json"]));
    let received = finish(listener);
    assert_eq!((&received["samples"], &received["copied"]), (&sent["samples"], &sent["bytes"]));
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
