//! The examples for C work, and are short.

mod tools;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use busbar_lab::stage::{Driver, Side};
use tools::{compile, folder, text};

fn examples() -> PathBuf {
    folder().join("../../examples/c")
}

fn build(name: &str, scratch: &Path) -> PathBuf {
    let program = scratch.join(name);
    compile(&examples().join(format!("{name}.c")), &[], &program);
    program
}

#[test]
fn examples_are_short_and_each_is_run() {
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 60, "{}: {lines} lines", path.display());
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(include_str!("c_examples.rs").contains(&format!("build(\"{stem}\"")), "{stem}");
    }
}

#[test]
fn a_stream_consumer_prints_the_level_until_a_line_comes() {
    let scratch = tempfile::tempdir().unwrap();
    let stream = build("stream", scratch.path());
    let mut child = Command::new(&stream)
        .args(["synth:sine?amplitude=0.5&frequency=0.01&rate=1M", "voltage0_i"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}");
    let lines: Vec<_> = out.lines().collect();
    // Half of 32767 is the amplitude; the level of a sine is 0.7071 of that.
    let is_right = |line: &&str| line.contains(": 32768 samples, rms 1158");
    assert!(!lines.is_empty() && lines.iter().all(is_right), "{out}");

    let mut none = Command::new(stream);
    let output = none.args(["synth:sine", "none"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = "cannot use the name of a channel: `none` is not allowed (allowed: voltage0_i";
    assert!(text(&output.stderr).starts_with(why), "{}", text(&output.stderr));
}

#[test]
fn an_endpoint_client_says_that_there_is_no_such_service() {
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(build("endpoint", scratch.path())).arg("nobody").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot find service `nobody`"));
}

#[test]
#[ignore = "needs the lab"]
fn an_endpoint_client_prints_the_answers() {
    let busbar = folder().join("../../target/release/busbar");
    let busbar = std::env::var_os("BUSBAR_PROGRAM").map_or(busbar, PathBuf::from);
    let scratch = tempfile::tempdir().unwrap();
    let endpoint = build("endpoint", scratch.path());
    for (index, driver) in [(0, Driver::Eptfd), (1, Driver::InTree)] {
        let _side = Side::up(index, driver, &busbar, &["echo"]).unwrap();
        let mut child = Command::new(&endpoint)
            .arg("echo")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"hello\n\nworld\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(text(&output.stdout), "hello\n\nworld\n");
    }
}

/// The program of docs/c.md.
#[test]
fn the_program_of_the_page_prints_a_period_of_a_sine() {
    let page = include_str!("../../../docs/c.md");
    let (_, program) = page.split_once("```c\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    let scratch = tempfile::tempdir().unwrap();
    let [source, binary] = ["level.c", "level"].map(|name| scratch.path().join(name));
    fs::write(&source, program).unwrap();
    compile(&source, &[], &binary);
    let out = tools::run(&mut Command::new(binary));
    let levels: Vec<f64> =
        out.lines().map(|line| line.split_once(' ').unwrap().1.parse().unwrap()).collect();
    assert_eq!(levels.len(), 100);
    let most = levels.iter().fold(0.0, |most: f64, level| most.max(*level));
    // Half of 32767, and the period is 50 samples.
    assert!((16380.0..16390.0).contains(&most), "{most}");
    let is_periodic = |at: usize| (levels[at] - levels[at + 50]).abs() < 2.0;
    assert!((0..50).all(is_periodic), "{out}");
}
