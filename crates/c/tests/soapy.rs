//! The module for `SoapySDR`: a program that checks its API, `SoapySDRUtil`, and a flow graph of GNU Radio.

mod tools;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tools::{Way, built_soapy, folder, run, served, text};

/// The devices of an ADALM-Pluto, as far as the module knows them.
const PLUTO: &str = r#"<context name="local" description="a test">
<device id="iio:device0" name="ad9361-phy">
 <channel id="altvoltage0" name="RX_LO" type="output">
  <attribute name="frequency" filename="out_altvoltage0_RX_LO_frequency"/>
  <attribute name="frequency_available" filename="out_altvoltage0_RX_LO_frequency_available"/></channel>
 <channel id="altvoltage1" name="TX_LO" type="output">
  <attribute name="frequency" filename="out_altvoltage1_TX_LO_frequency"/>
  <attribute name="frequency_available" filename="out_altvoltage1_TX_LO_frequency_available"/></channel>
 <channel id="voltage0" type="input">
  <attribute name="hardwaregain" filename="in_voltage0_hardwaregain"/>
  <attribute name="hardwaregain_available" filename="in_voltage0_hardwaregain_available"/>
  <attribute name="gain_control_mode" filename="in_voltage0_gain_control_mode"/>
  <attribute name="rf_bandwidth" filename="in_voltage_rf_bandwidth"/>
  <attribute name="rf_bandwidth_available" filename="in_voltage_rf_bandwidth_available"/>
  <attribute name="sampling_frequency" filename="in_voltage_sampling_frequency"/>
  <attribute name="sampling_frequency_available" filename="in_voltage_sampling_frequency_available"/></channel>
</device>
<device id="iio:device1" name="cf-ad9361-lpc">
 <channel id="voltage0" type="input"><scan-element index="0" format="le:S12/16&gt;&gt;0"/>
  <attribute name="sampling_frequency" filename="in_voltage_sampling_frequency"/></channel>
 <channel id="voltage1" type="input"><scan-element index="1" format="le:S12/16&gt;&gt;0"/>
  <attribute name="sampling_frequency" filename="in_voltage_sampling_frequency"/></channel>
</device>
<device id="iio:device2" name="accelerometer">
 <channel id="accel_x" type="input"><scan-element index="0" format="le:S16/16&gt;&gt;0"/></channel>
</device>
<device id="iio:device3" name="thermometer">
 <channel id="voltage0" type="input"><scan-element index="0" format="le:S16/16&gt;&gt;0"/></channel>
 <attribute name="sampling_frequency"/>
</device></context>"#;
/// Values of its attributes, by their places in the protocol.
const VALUES: [(&str, &str); 12] = [
    ("iio:device3 sampling_frequency", "128"),
    ("iio:device0 OUTPUT altvoltage0 frequency", "2400000000"),
    ("iio:device0 OUTPUT altvoltage0 frequency_available", "[70000000 1 6000000000]"),
    ("iio:device0 OUTPUT altvoltage1 frequency", "2450000000"),
    ("iio:device0 INPUT voltage0 hardwaregain", "71.000000 dB"),
    ("iio:device0 INPUT voltage0 hardwaregain_available", "[-3 1 71]"),
    ("iio:device0 INPUT voltage0 gain_control_mode", "slow_attack"),
    ("iio:device0 INPUT voltage0 rf_bandwidth", "18000000"),
    ("iio:device0 INPUT voltage0 rf_bandwidth_available", "[200000 1 56000000]"),
    ("iio:device0 INPUT voltage0 sampling_frequency", "30720000"),
    ("iio:device0 INPUT voltage0 sampling_frequency_available", "4000000 61440000"),
    ("iio:device1 INPUT voltage0 sampling_frequency", "3840000"),
];

/// A server of the text protocol, as long as the process: `PRINT`, `READ` and `WRITE`.
fn pluto() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let values: HashMap<_, _> =
        VALUES.map(|(place, value)| (place.to_owned(), value.to_owned())).into();
    let values = Arc::new(Mutex::new(values));
    thread::spawn(move || {
        for client in listener.incoming() {
            let values = Arc::clone(&values);
            thread::spawn(move || answer(&client.unwrap(), &values));
        }
    });
    address
}

/// Answers one client until it goes.
fn answer(mut client: &TcpStream, values: &Mutex<HashMap<String, String>>) {
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap_or(0) > 0 {
        let (command, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        let answer = match command {
            "PRINT" => format!("{}\n{PLUTO}\n", PLUTO.len()),
            "READ" => match values.lock().unwrap().get(rest) {
                Some(value) => format!("{}\n{value}\n", value.len()),
                None => "-2\n".into(),
            },
            _ => {
                let (place, len) = rest.rsplit_once(' ').unwrap();
                let mut value = vec![0; len.parse().unwrap()];
                lines.read_exact(&mut value).unwrap();
                values
                    .lock()
                    .unwrap()
                    .insert(place.into(), text(&value).trim_end_matches('\0').into());
                format!("{len}\n")
            }
        };
        client.write_all(answer.as_bytes()).unwrap();
        line.clear();
    }
}

fn is_right(way: Way) {
    let (place, scratch) = (built_soapy(way), tempfile::tempdir().unwrap());
    served(|address| {
        let mut command = way.command(&place.join("check"));
        command.arg(scratch.path()).arg(address).arg(pluto()).env("SOAPY_SDR_PLUGIN_PATH", &place);
        assert!(run(&mut command).ends_with("done\n"));
    });
}

#[test]
fn the_module_does_what_soapysdr_defines() {
    is_right(Way::Plain);
}

#[test]
fn the_module_is_right_under_address_sanitizer() {
    is_right(Way::Sanitizer);
}

#[test]
fn the_module_is_right_under_valgrind() {
    is_right(Way::Valgrind);
}

#[test]
fn values_of_all_types_are_converted() {
    let place = built_soapy(Way::Sanitizer);
    assert!(run(&mut Command::new(place.join("convert"))).ends_with("done\n"));
}

fn util(place: &Path, argument: &str) -> Command {
    let mut util = Command::new("SoapySDRUtil");
    util.arg(argument).env("SOAPY_SDR_PLUGIN_PATH", place);
    util
}

#[test]
fn soapysdrutil_finds_and_probes() {
    let place = built_soapy(Way::Plain);
    let found = run(&mut util(&place, "--find=driver=busbar,uri=synth:sine,label=mine"));
    assert!(found.contains("uri = synth:sine") && found.contains("label = mine"), "{found}");
    let output = util(&place, "--find=driver=busbar,uri=synth:cheese").output().unwrap();
    assert!(text(&output.stderr).contains("No devices found"), "{}", text(&output.stdout));

    let probed = run(&mut util(&place, "--probe=driver=busbar,uri=synth:counter?rate=1M,tx=null:"));
    for part in [
        "driver=busbar",
        "receives from=synth:counter?rate=1M",
        "Channels: 2 Rx, 2 Tx",
        "Timestamps: YES",
        "rx_lost",
        "Native format: CS16 [full-scale=32768]",
        "Stream formats: CS16, CF32, CF64, CS32, CS8",
    ] {
        assert!(probed.contains(part), "{part}: {probed}");
    }
    let wrong = util(&place, "--probe=driver=busbar,uri=synth:cheese").output().unwrap();
    let said = text(&wrong.stdout) + &text(&wrong.stderr);
    assert!(!wrong.status.success() && said.contains("allowed: counter, sine, noise"), "{said}");
}

/// The rate is printed every 5 s.
#[test]
fn soapysdrutil_measures_the_rate() {
    let place = built_soapy(Way::Plain);
    for (args, direction) in [("uri=synth:counter", "RX"), ("tx=null:", "TX")] {
        let test = util(&place, &format!("--args=driver=busbar,{args}"))
            .args(["--rate=500e3", &format!("--direction={direction}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("SoapySDRUtil: see tests/parts.toml");
        thread::sleep(Duration::from_millis(5500));
        let pid = Pid::from_raw(i32::try_from(test.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let output = test.wait_with_output().unwrap();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        // It ends with 1 after a signal, whatever the device is.
        assert!(output.status.code().is_some() && stdout.contains("Msps\t"), "{stdout}{stderr}");
        assert!(!(stdout + &stderr).to_lowercase().contains("error"), "{stderr}");
    }
}

/// GNU Radio is large, so it is used where it is installed.
#[test]
fn gnu_radio_receives_and_transmits() {
    let python = "/usr/bin/python3";
    let imported = Command::new(python).args(["-c", "from gnuradio import soapy"]).output();
    if !imported.is_ok_and(|imported| imported.status.success()) {
        // Not by a macro, whose output a test keeps to itself.
        let said = b"gnu_radio_receives_and_transmits: skipped: no GNU Radio (Debian: gnuradio)\n";
        std::io::stderr().write_all(said).unwrap();
        return;
    }
    let graph = folder().join("../../soapy/tests/flowgraph.py");
    let mut command = Command::new(python);
    command.arg(graph).env("SOAPY_SDR_PLUGIN_PATH", built_soapy(Way::Plain));
    let output = command.output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && stdout.ends_with("done\n"), "{stdout}{stderr}");
    assert!(!(stdout + &stderr).contains("busbar: "), "{stderr}");
}
