//! `busbar serve --usb`: libiio's programs on a USB host.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::io::Write;
use std::process::{Command, Stdio};

use converter::{Converter, FRAME, assert_counter};
use support::iiod::Server;
use support::usb::{configured, gadgets, load, load_slower, program, read, serve, unplugged};
use support::{modprobe, text, wait_until};

const VOLTAGES: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];

/// What a program says, without its first lines about the connection.
fn said(mut program: Command, marker: &str) -> String {
    let output = program.output().expect("package libiio-utils");
    assert!(output.status.success(), "{program:?}: {}", text(&output.stderr));
    let said = text(&output.stdout);
    let (_, said) = said.split_once(marker).unwrap_or_else(|| panic!("{program:?}: {said}"));
    said.to_owned()
}

#[test]
#[ignore = "needs the lab"]
fn attributes_and_every_sample_reach_a_host() {
    load();
    let server = serve(&["adc=synth:counter"]);
    let by_network = |name: &str| {
        let mut program = Command::new(name);
        program.args(["-u", &server.uri()]);
        program
    };
    // What libiio's own server says is compared in another test.
    for (name, marker) in [("iio_info", "IIO context has 1 devices"), ("iio_genxml", "<device ")] {
        assert_eq!(said(program(name, &[]), marker), said(by_network(name), marker), "{name}");
    }
    let attribute = |arguments: &[&str]| {
        said(program("iio_attr", &[&["-d", "adc", "busbar_report_loss"], arguments].concat()), "")
    };
    assert_eq!(attribute(&[]).trim(), "0");
    assert_eq!(attribute(&["1"]).trim(), "1");
    // With the last program of the host, what it has set goes.
    wait_until("the setting has gone", || attribute(&[]).trim() == "0");
    let mut sent = 0;
    for (size, samples) in [("16", 1000), ("4096", 100_000), ("65536", 200_000)] {
        let count = samples.to_string();
        let arguments = [&["-b", size, "-s", &count, "adc"][..], &VOLTAGES].concat();
        let read = read(&arguments);
        assert_eq!(read.len(), samples * FRAME);
        assert_counter(&read, 0);
        sent += samples * FRAME;
    }
    let lines = server.finish();
    let summary = lines.last().unwrap();
    assert!(summary["copied"].as_u64() >= Some(sent as u64), "{summary}");
    assert!(lines.iter().any(|line| line["address"] == "usb:0" && line["what"] == "came"));
    assert!(gadgets().is_empty());
    unplugged();
}

/// What a program of the USB host transmits comes back to one of the network.
fn goes_round(server: &Server, converter: &Converter, name: &str, size: &str, samples: usize) {
    converter.rx.set("loopback", 1);
    let count = samples.to_string();
    let arguments = ["-T", "0", "-b", size, "-s", &count];
    let mut reader = Command::new("iio_readdev");
    reader.args(["-u", &server.uri()]).args(arguments).arg(name).args(VOLTAGES);
    let reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the receiver", || converter.rx.get("buffer/enable") == "1");
    let mut writer = program("iio_writedev", &arguments);
    writer.arg(format!("{name}-tx")).args(VOLTAGES);
    let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
    let mut bytes = vec![0; samples * FRAME];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    writer.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == bytes, "{size}: what was written is read");
    assert!(writer.wait().unwrap().success());
    wait_until("the transmitter ends", || converter.tx.get("buffer/enable") == "0");
    converter.rx.set("loopback", 0);
}

#[test]
#[ignore = "needs the lab"]
fn what_a_host_transmits_reaches_a_reader_in_the_network() {
    load();
    let converter = Converter::named("usb-loop");
    let server = serve(&[]);
    // Blocks that end with a short packet, and ones of whole packets.
    for (size, samples) in [("1000", 20_000), ("1024", 20_480), ("65536", 131_072)] {
        goes_round(&server, &converter, "usb-loop", size, samples);
    }
    drop(server);
    unplugged();
}

/// Packets have other lengths there.
#[test]
#[ignore = "needs the lab"]
fn slower_hosts_are_served_as_well() {
    for is_high_speed in [true, false] {
        load_slower(is_high_speed);
        let converter = Converter::named("usb-slow");
        let server = serve(&[]);
        for (size, samples) in [("1000", 4000), ("1024", 4096)] {
            let count = samples.to_string();
            let arguments = ["-T", "0", "-b", size, "-s", &count, "usb-slow"];
            let read = read(&[&arguments[..], &VOLTAGES].concat());
            assert_eq!(read.len(), samples * FRAME);
            assert_counter(&read, 0);
            goes_round(&server, &converter, "usb-slow", size, samples);
        }
        drop(server);
        unplugged();
    }
    modprobe(&["-r", "dummy_hcd"]).unwrap();
}

/// A program of libiio that reads from two devices in turn, each by a pipe of its own.
const BOTH: &str = "
import array, ctypes
iio = ctypes.CDLL('libiio.so.0', use_errno=True)
def call(name, *arguments, returns=ctypes.c_void_p):
    function = getattr(iio, name)
    function.restype = returns
    result = function(*arguments)
    assert result is not None, (name, ctypes.get_errno())
    return result
pointer, size = ctypes.c_void_p, ctypes.c_size_t
context = pointer(call('iio_create_context_from_uri', b'usb:'))
buffers = []
for name in (b'one', b'two'):
    device = pointer(call('iio_context_find_device', context, name))
    channel = pointer(call('iio_device_find_channel', device, b'count0', ctypes.c_bool(False)))
    call('iio_channel_enable', channel, returns=ctypes.c_int)
    buffers.append([pointer(call('iio_device_create_buffer', device, size(1000), ctypes.c_bool(False))), 0])
for turn in range(20):
    for pair in buffers:
        count = call('iio_buffer_refill', pair[0], returns=ctypes.c_ssize_t)
        assert count == 8000, count
        start = call('iio_buffer_start', pair[0])
        counts = array.array('Q', ctypes.string_at(start, count))
        assert counts.tolist() == list(range(pair[1], pair[1] + 1000)), (turn, counts[0])
        pair[1] += 1000
device = pointer(call('iio_context_find_device', context, b'three'))
channel = pointer(call('iio_device_find_channel', device, b'count0', ctypes.c_bool(False)))
call('iio_channel_enable', channel, returns=ctypes.c_int)
create = iio.iio_device_create_buffer
create.restype = pointer
assert create(device, size(1000), ctypes.c_bool(False)) is None
print(ctypes.get_errno())
for pair in buffers:
    iio.iio_buffer_destroy(pair[0])
iio.iio_context_destroy(context)
";

#[test]
#[ignore = "needs the lab"]
fn a_program_has_a_pipe_for_each_device() {
    load();
    let devices = ["one=synth:counter", "two=synth:counter", "three=synth:counter"];
    let server = serve(&devices);
    let mut both = Command::new("/usr/bin/python3");
    let output = both.args(["-c", BOTH]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    // There are three pipes: one is for the context.
    assert_eq!(text(&output.stdout).trim(), rustix::io::Errno::BUSY.raw_os_error().to_string());
    let went = |line: &serde_json::Value| line["what"] == "gone";
    assert_eq!(server.finish().iter().filter(|line| went(line)).count(), 3);
    unplugged();
}

/// As docs/serve.md has it.
const COMPOSITE: &str = "
set -e
modprobe libcomposite
cd /sys/kernel/config/usb_gadget && mkdir board && cd board
echo 0x1209 >idVendor; echo 0x0001 >idProduct
mkdir -p configs/c.1 functions/acm.serial functions/ffs.iio /run/ffs-iio
ln -s functions/acm.serial functions/ffs.iio configs/c.1
mount -t functionfs iio /run/ffs-iio
";
const REMOVE: &str = "
umount /run/ffs-iio
cd /sys/kernel/config/usb_gadget/board
rm configs/c.1/*.*
rmdir functions/*.* configs/c.1 ../board
";

/// The interface is not the first of the device.
#[test]
#[ignore = "needs the lab"]
fn it_is_one_function_of_a_composite_device() {
    load();
    let run = |script: &str| {
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success(), "{script}");
    };
    run(COMPOSITE);
    let server = Server::start(&["--usb", "usb:?ffs=/run/ffs-iio", "adc=synth:counter"]);
    run("echo dummy_udc.0 >/sys/kernel/config/usb_gadget/board/UDC");
    configured();
    let output = program("iio_readdev", &["-s", "1000", "adc"]).args(VOLTAGES).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_counter(&output.stdout[..1000 * FRAME], 0);
    server.finish();
    unplugged();
    run(REMOVE);
}

#[test]
#[ignore = "needs the lab"]
fn what_is_missing_is_told() {
    load();
    for (address, said) in [
        ("usb:?udc=none", "dummy_udc.0"),
        ("usb:?ffs=/nowhere", "/nowhere/ep0"),
        ("usb:?ffs=/proc", "/proc/ep0"),
    ] {
        let listen = format!("127.0.0.1:{}", support::port());
        let arguments = ["serve", "--listen", &listen, "--usb", address, "synth:counter"];
        let output = support::command(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{address}");
        assert!(text(&output.stderr).contains(said), "{address}: {}", text(&output.stderr));
    }
    let server = serve(&["synth:counter"]);
    let listen = format!("127.0.0.1:{}", support::port());
    let second = ["serve", "--listen", &listen, "--usb", "usb:", "synth:counter"];
    let output = support::command(&second).output().unwrap();
    assert!(text(&output.stderr).contains("udc="), "{}", text(&output.stderr));
    drop(server);
    unplugged();
}
