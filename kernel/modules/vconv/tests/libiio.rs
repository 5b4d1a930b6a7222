//! Debian's own libiio and its programs (package libiio-utils), unmodified.

mod converter;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use converter::{Converter, FRAME, assert_counter, u64s};

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().expect("libiio-utils");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    output
}

const VOLTAGES: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];

#[test]
#[ignore = "needs the lab"]
fn iio_info_shows_all_of_it() {
    let converter = Converter::named("libiio-info");
    converter.rx.set("in_voltage0_q_hardwaregain", "0.5");
    let output = run("iio_info", &["-u", "local:"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let from = text.find(": libiio-info (buffer capable)").expect("the receiver");
    for wanted in [
        "voltage0_i:  (input, index: 0, format: le:S16/16>>0)",
        "voltage1_q:  (input, index: 3, format: le:S16/16>>0)",
        "count0:  (input, index: 4, format: le:U64/64>>0)",
        "timestamp:  (input, index: 5, format: le:S64/64>>0)",
        "value: 0.500000",
        "pattern value: counter",
        "pattern_available value: counter sine noise none",
        "sampling_frequency value: 0",
        "sine_frequency value: 1000",
        "loopback value: 0",
        "overruns value: 0",
    ] {
        assert!(text[from..].contains(wanted), "no {wanted:?} in\n{text}");
    }
    let from = text.find(": libiio-info-tx (buffer capable)").expect("the transmitter");
    for wanted in ["voltage0_i:  (output, index: 0, format: le:S16/16>>0)", "underruns value: 0"] {
        assert!(text[from..].contains(wanted), "no {wanted:?} in\n{text}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn iio_readdev_reads_the_counter() {
    let _converter = Converter::named("libiio-read");
    for (size, samples) in [("256", "10000"), ("4096", "100000")] {
        let arguments = ["-u", "local:", "-b", size, "-s", samples, "libiio-read"];
        let output = run("iio_readdev", &[arguments.as_slice(), &VOLTAGES].concat());
        assert_eq!(output.stdout.len(), samples.parse::<usize>().unwrap() * FRAME);
        assert_counter(&output.stdout, 0);
    }
    // All channels: 8 bytes of voltages, the count, the time.
    let output = run("iio_readdev", &["-u", "local:", "-b", "256", "-s", "10000", "libiio-read"]);
    let words: Vec<_> = u64s(&output.stdout).collect();
    assert_eq!(words.len(), 30_000);
    for (index, sample) in words.chunks_exact(3).enumerate() {
        assert_eq!(sample[..2], [index as u64; 2]);
        assert!(sample[2] >= words[2]);
    }
}

#[test]
#[ignore = "needs the lab"]
fn iio_writedev_reaches_iio_readdev() {
    let converter = Converter::named("libiio-loop");
    converter.rx.set("loopback", 1);
    let samples = 20_000;
    // When the writer ends, its last blocks are cancelled.
    let more = samples + 10_000;
    let spawn = |program: &str, device: &str, count: usize, stdin: Stdio| {
        let count = count.to_string();
        let arguments = ["-u", "local:", "-T", "0", "-b", "1000", "-s", &count, device];
        let mut child = Command::new(program);
        child.args(arguments).args(VOLTAGES).stdin(stdin);
        child.stdout(Stdio::piped()).spawn().expect("libiio-utils")
    };
    let reader = spawn("iio_readdev", "libiio-loop", samples, Stdio::null());
    support::wait_until("the receiver", || converter.rx.get("buffer/enable") == "1");
    let mut writer = spawn("iio_writedev", "libiio-loop-tx", more, Stdio::piped());
    let mut bytes = vec![0; more * FRAME];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    let mut stdin = writer.stdin.take().unwrap();
    stdin.write_all(&bytes).unwrap();
    drop(stdin);
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout.len(), samples * FRAME);
    assert!(output.stdout == bytes[..samples * FRAME], "what was written is read");
    assert!(writer.wait().unwrap().success());
}
