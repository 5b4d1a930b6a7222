//! `busbar serve` and libiio's own server on the same devices: the same answers.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::process::{Command, Stdio};

use busbar::stream::{Sink, StreamSetup};
use converter::{Converter, FRAME, assert_counter};
use rustix::io::Errno;
use support::iiod::{Binary, Raw, Server, op};
use support::wait_until;

const VOLTAGES: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];

/// What a server says about its devices: its elements, sorted, without those that only one of them has.
fn elements(server: &Server) -> Vec<String> {
    let xml = server.connect().value("PRINT").unwrap();
    let xml = String::from_utf8(xml).unwrap();
    let mut elements: Vec<_> = xml
        .split('<')
        .map(|element| element.trim_end_matches(['>', ' ', '/']).to_owned())
        .filter(|element| !element.contains("busbar") && !element.starts_with("context name="))
        .collect();
    elements.sort();
    elements
}

/// The bytes that a server answers to a line, until it answers the next one.
fn answer(client: &mut Raw, line: &str) -> String {
    client.send(format!("{line}\r\nVERSION\r\n").as_bytes());
    let mut all = String::new();
    loop {
        let line = client.line();
        // There is no end of line after samples.
        if let Some((before, _)) = line.split_once("0.24.") {
            return all + before;
        }
        all += &line;
        all.push('\n');
    }
}

#[test]
#[ignore = "needs the lab"]
fn both_servers_describe_the_same_devices() {
    let converter = Converter::named("iiod-context");
    converter.rx.set("in_voltage0_q_hardwaregain", "0.5");
    let (theirs, ours) = (Server::of_libiio(), Server::start(&[]));
    let (expected, found) = (elements(&theirs), elements(&ours));
    assert!(expected.iter().any(|element| element.contains("iiod-context-tx")));
    for (one, other) in expected.iter().zip(&found) {
        assert_eq!(one, other);
    }
    assert_eq!(expected.len(), found.len());
    // Their order is the same as well: the bits of masks depend on it. Channels of other devices that have no bits, such
    // as those of iio_dummy, come in any order.
    let channels = |server: &Server| {
        let xml = String::from_utf8(server.connect().value("PRINT").unwrap()).unwrap();
        let devices = xml.split("<device ").filter(|device| device.contains("\"iiod-context"));
        let ids = devices.flat_map(|device| device.split('<'));
        let ids =
            ids.filter(|element| element.starts_with("channel ") || element.starts_with("id="));
        ids.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(channels(&theirs).iter().filter(|it| it.starts_with("channel ")).count(), 10);
    let trimmed = |all: Vec<String>| all.iter().map(|it| it.replace(' ', "")).collect::<Vec<_>>();
    assert_eq!(trimmed(channels(&theirs)), trimmed(channels(&ours)));
}

/// What to report if two answers differ.
fn difference<T: PartialEq + std::fmt::Debug>(line: &str, theirs: &T, ours: &T) -> Option<String> {
    (theirs != ours).then(|| format!("{line}: {theirs:?} of iiod, {ours:?} of Busbar"))
}

/// Commands whose answers are compared; `D` is the receiver.
const LINES: &[&str] = &[
    "",
    "TIMEOUT 1000",
    "NONSENSE",
    "VERSIONS",
    " VERSION",
    "READ",
    "OPEN",
    "CLOSE D",
    "CLOSE nothing",
    "READ nothing x",
    "READ nothing INPUT x y",
    "READ D nothing",
    "READ D pattern",
    "READ iiod-same pattern",
    "READ D pattern_available",
    "READ D sampling_frequency",
    "READ D overruns",
    "READ D BUFFER data_available",
    "READ D BUFFER nothing",
    "READ D INPUT voltage0_i scale",
    "READ D INPUT voltage0_i hardwaregain",
    "READ D INPUT voltage0_i nothing",
    "READ D INPUT nothing scale",
    "READ D OUTPUT voltage0_i scale",
    "read D input voltage0_q hardwaregain",
    "READ D INPUT timestamp x",
    "READ D INPUT",
    "READ D pattern x",
    "READ D pattern x y z",
    "GETTRIG D",
    "GETTRIG nothing",
];

/// Files that the context does not list, which iiod reads and writes all the same.
const HIDDEN: &[&str] = &["name", "..", "power", "uevent", "BUFFER watermark", "BUFFER length"];

#[test]
#[ignore = "needs the lab"]
fn only_attributes_of_the_context_are_read_and_written() {
    let converter = Converter::named("iiod-hidden");
    let rx = converter.rx.folder.file_name().unwrap().to_str().unwrap();
    let server = Server::start(&[]);
    let mut client = server.connect();
    for hidden in HIDDEN {
        assert_eq!(client.ask(&format!("READ {rx} {hidden}")), -2, "{hidden}");
        assert_eq!(client.write(&format!("{rx} {hidden}"), b"1\0"), -13, "{hidden}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn both_servers_give_the_same_answers() {
    let converter = Converter::named("iiod-same");
    let rx = converter.rx.folder.file_name().unwrap().to_str().unwrap();
    let (theirs, ours) = (Server::of_libiio(), Server::start(&[]));
    let (mut theirs, mut ours) = (theirs.connect(), ours.connect());
    let mut found = Vec::new();
    for line in LINES {
        let words = line.split(' ').map(|word| if word == "D" { rx } else { word });
        let line = words.collect::<Vec<_>>().join(" ");
        found.extend(difference(&line, &answer(&mut theirs, &line), &answer(&mut ours, &line)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// What one of libiio's programs says and how it ends, without what only one of the servers has.
fn said(server: &Server, arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let uri = server.uri();
    let mut command = Command::new(arguments[0]);
    let output = command.args(["-u", &uri]).args(&arguments[1..]).output().unwrap();
    let all = support::text(&output.stdout) + &support::text(&output.stderr);
    let all = all.replace(&uri, "ip:");
    // The attributes of Busbar, how many attributes there are with these, and the version.
    let is_own = |line: &&str| {
        ["busbar", "device attributes", "device-specific attributes", "git tag"]
            .iter()
            .any(|own| line.contains(own))
    };
    // Attributes are numbered.
    let number = |it: char| it.is_ascii_digit() || it == ' ' || it == ':';
    let plain = |line: &str| match line.split_once("attr ") {
        Some((before, rest)) => format!("{before}attr {}", rest.trim_start_matches(number)),
        None => line.to_owned(),
    };
    let mut lines: Vec<_> = all.lines().filter(|line| !is_own(line)).map(plain).collect();
    // Attributes, and channels without a place in a sample, come in any order.
    lines.sort();
    (output.status.code(), lines)
}

#[test]
#[ignore = "needs the lab"]
fn libiios_programs_say_the_same_of_both_servers() {
    let name = "iiod-programs";
    let converter = Converter::named(name);
    let (theirs, ours) = (Server::of_libiio(), Server::start(&[]));
    let mut found = Vec::new();
    for line in [
        "iio_info",
        "iio_attr -C",
        "iio_attr -d",
        "iio_attr -d N",
        "iio_attr -d N pattern",
        "iio_attr -d N pattern sine",
        "iio_attr -d N pattern nonsense",
        "iio_attr -d N name x",
        "iio_attr -d N nothing",
        "iio_attr -c N",
        "iio_attr -c N voltage0_i",
        "iio_attr -c N voltage0_q hardwaregain 0.5",
        "iio_attr -c N voltage0_q hardwaregain",
        "iio_attr -c N voltage0_q hardwaregain nonsense",
        "iio_attr -c N count0 scale",
        "iio_attr -B N",
        "iio_attr -B N length 64",
        "iio_attr -D N",
        "iio_attr -D N lose_samples",
        "iio_reg N 0",
        "iio_reg N 0 0",
        "iio_reg N 999",
        "iio_reg N 999 1",
        "iio_readdev -s 1 N nothing",
        "iio_readdev -s 1 nothing",
        "iio_writedev -s 1 N voltage0_i",
    ] {
        let words: Vec<_> =
            line.split(' ').map(|word| if word == "N" { name } else { word }).collect();
        found.extend(difference(line, &said(&theirs, &words), &said(&ours, &words)));
    }
    // The XML is one line.
    let xml = |server: &Server| {
        let xml = support::text(&server.run("iio_genxml", &[]).stdout);
        let elements = xml.split('<').filter(|it| !it.contains("busbar") && !it.contains("uri"));
        let mut elements: Vec<_> = elements.map(|it| it.trim().to_owned()).collect();
        elements.sort();
        elements
    };
    found.extend(difference("iio_genxml", &xml(&theirs), &xml(&ours)));
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(converter.rx.get("pattern"), "sine");
}

#[test]
#[ignore = "needs the lab"]
fn iio_readdev_gets_every_sample_uncopied_and_leaves_the_buffer_disabled() {
    let converter = Converter::named("iiod-read");
    let server = Server::start(&[]);
    for (size, samples) in [("256", 10_000), ("4096", 100_000)] {
        let count = samples.to_string();
        let arguments = [&["-b", size, "-s", &count, "iiod-read"][..], &VOLTAGES].concat();
        let output = server.run("iio_readdev", &arguments);
        assert_eq!(output.stdout.len(), samples * FRAME);
        assert_counter(&output.stdout, 0);
        wait_until("the buffer is disabled", || converter.rx.get("buffer/enable") == "0");
    }
    // A client that is killed.
    let mut client = server.connect();
    assert_eq!(client.ask("OPEN iiod-read 65536 0000000f"), 0);
    assert_eq!(converter.rx.get("buffer/enable"), "1");
    client.send(b"READBUF iiod-read 5242880\r\n");
    client.number();
    drop(client);
    wait_until("the buffer is disabled", || converter.rx.get("buffer/enable") == "0");
    let summary = server.finish().pop().unwrap();
    // All but what the last one asked for: it asked for more than two blocks at a time.
    assert!(summary["copied"].as_u64() < Some(6 << 20), "{summary}");
    assert!(summary["sent"].as_u64() > Some(110_000 * FRAME as u64), "{summary}");
}

#[test]
#[ignore = "needs the lab"]
fn iio_writedev_reaches_iio_readdev_and_cycles_repeat() {
    let converter = Converter::named("iiod-loop");
    converter.rx.set("loopback", 1);
    let server = Server::start(&[]);
    let uri = server.uri();
    let samples = 20_000;
    let spawn = |program: &str, device: &str, stdin: Stdio| {
        let count = samples.to_string();
        let mut child = Command::new(program);
        child.args(["-u", &uri, "-T", "0", "-b", "1000", "-s", &count, device]).args(VOLTAGES);
        child.stdin(stdin).stdout(Stdio::piped()).spawn().expect("libiio-utils")
    };
    let reader = spawn("iio_readdev", "iiod-loop", Stdio::null());
    wait_until("the receiver", || converter.rx.get("buffer/enable") == "1");
    let mut writer = spawn("iio_writedev", "iiod-loop-tx", Stdio::piped());
    let mut bytes = vec![0; samples * FRAME];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    let mut stdin = writer.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &bytes).unwrap();
    drop(stdin);
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == bytes, "what was written is read");
    assert!(writer.wait().unwrap().success());
    wait_until("the transmitter ends", || converter.tx.get("buffer/enable") == "0");

    let (mut rx, mut tx) = (server.connect(), server.connect());
    assert_eq!(rx.ask("TIMEOUT 0"), 0);
    assert_eq!(rx.ask("OPEN iiod-loop 100 0000000f"), 0);
    assert_eq!(tx.ask("OPEN iiod-loop-tx 100 0000000f CYCLIC"), 0);
    assert_eq!(tx.ask("WRITEBUF iiod-loop-tx 800"), 0);
    tx.send(&bytes[..800]);
    assert_eq!(tx.number(), 800);
    for _ in 0..5 {
        assert!(rx.read("iiod-loop", 800).unwrap() == bytes[..800], "again and again");
    }
    drop(tx);
    wait_until("the transmitter ends", || converter.tx.get("buffer/enable") == "0");
}

#[test]
#[ignore = "needs the lab"]
fn read_only_means_that_nothing_is_written_or_transmitted() {
    let converter = Converter::named("iiod-read-only");
    let server = Server::start(&["--read-only"]);
    let mut client = server.connect();
    let before = converter.rx.get("pattern");
    assert_eq!(client.write("iiod-read-only pattern", b"sine"), -1);
    assert_eq!(client.write("iiod-read-only INPUT voltage0_i hardwaregain", b"0.5"), -1);
    assert_eq!(client.ask("SETTRIG iiod-read-only"), -1);
    assert_eq!(client.ask("OPEN iiod-read-only-tx 64 0000000f"), -1);
    assert_eq!(converter.rx.get("pattern"), before);
    assert_eq!(client.ask("OPEN iiod-read-only 64 0000000f"), 0);
    assert_counter(&client.read("iiod-read-only", 512).unwrap(), 0);
}

#[test]
#[ignore = "needs the lab"]
fn a_device_that_goes_ends_its_streams_and_no_others() {
    let (converter, other) = (Converter::named("iiod-gone"), Converter::named("iiod-stays"));
    let server = Server::start(&[]);
    let (mut one, mut two) = (server.connect(), server.connect());
    assert_eq!(one.ask("OPEN iiod-gone 64 0000000f"), 0);
    assert_eq!(two.ask("OPEN iiod-stays 64 0000000f"), 0);
    one.read("iiod-gone", 512).unwrap();
    converter.remove().unwrap();
    let errno = loop {
        if let Err(errno) = one.read("iiod-gone", 512) {
            break errno;
        }
    };
    assert_eq!(errno, -32);
    assert_eq!(two.read("iiod-stays", 512).unwrap().len(), 512);
    assert_eq!(one.ask("CLOSE iiod-gone"), 0);
    drop(other);
}

#[test]
#[ignore = "needs the lab"]
fn devices_of_libiios_own_server_are_sources() {
    let converter = Converter::named("iiod-source");
    let server = Server::of_libiio();
    let from = format!("iio:iiod-source@{}", server.uri());
    let all = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q", "count0"].join(",");
    // Slow enough for the emulated network, and then as fast as blocks are queued, so that some are lost.
    for (rate, channels) in [("200000", ""), ("200000", &*all), ("0", &*all)] {
        converter.rx.set("sampling_frequency", rate);
        let mut arguments = vec!["stream", &from, "null:", "--expect", "counter", "--count"];
        arguments.extend(["100k", "--json"]);
        if !channels.is_empty() {
            arguments.extend(["--channels", channels]);
        }
        let summary = support::summary(&support::command(&arguments).output().unwrap());
        assert!(summary["verified"].as_u64() >= Some(100_000), "{rate}: {summary}");
        // The numbers of samples, or else the counter itself, show each loss.
        assert_eq!(summary["unknown"], 0, "{rate}: {summary}");
        wait_until("the buffer is disabled", || converter.rx.get("buffer/enable") == "0");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_loss_of_a_device_of_libiios_own_server_is_told() {
    let converter = Converter::named("iiod-loss");
    converter.rx.set("sampling_frequency", 50_000);
    let server = Server::of_libiio();
    let from = format!("iio:iiod-loss@{}", server.uri());
    let channels = "voltage0_i,voltage0_q,voltage1_i,voltage1_q,count0";
    let arguments = ["stream", &from, "null:", "--block-len", "40K", "--count", "100k", "--json"];
    let arguments = [&arguments[..], &["--expect", "counter", "--channels", channels]].concat();
    let child = support::command(&arguments).spawn().unwrap();
    wait_until("the stream", || converter.rx.get("buffer/enable") == "1");
    // Some blocks later.
    std::thread::sleep(std::time::Duration::from_millis(500));
    converter.rx.inject("lose_samples", 777);
    let summary = support::finish(child);
    assert!(summary["verified"].as_u64() >= Some(99_000), "{summary}");
    assert_eq!(summary["unknown"], 0, "{summary}");
    // A busy machine loses more, which the converter counts until its buffer is enabled again.
    let overruns = converter.rx.get("overruns").parse().unwrap();
    let lost = summary["lost"].as_u64().unwrap();
    assert!((777..=overruns).contains(&lost), "of {overruns}: {summary}");
}

#[test]
#[ignore = "needs the lab"]
fn devices_of_both_servers_are_sinks_that_transmit_to_the_last_sample() {
    let converter = Converter::named("iiod-sink");
    converter.rx.set("loopback", 1);
    for server in [Server::of_libiio(), Server::start(&[])] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("received");
        let to = format!("file:{}", file.display());
        // The last block is half of what is transmitted at a time without DMABUFs.
        let blocks = ["--block-len", "32K", "--count", "100k", "--json"];
        let arguments = [&["stream", "iio:iiod-sink", &to][..], &blocks].concat();
        let receiver = support::command(&arguments).spawn().unwrap();
        wait_until("the receiver", || converter.rx.get("buffer/enable") == "1");
        let to = format!("iio:iiod-sink-tx@{}", server.uri());
        let arguments = [&["stream", "synth:counter", &to][..], &blocks].concat();
        let sent = support::summary(&support::command(&arguments).output().unwrap());
        // From memory of the source, by reference.
        assert_eq!((&sent["samples"], &sent["copied"]), (&102_400.into(), &0.into()), "{sent}");
        support::finish(receiver);
        let bytes = std::fs::read(file.with_extension("sigmf-data")).unwrap();
        assert_eq!(bytes.len(), 102_400 * FRAME);
        assert_counter(&bytes, 0);
        wait_until("the transmitter ends", || converter.tx.get("buffer/enable") == "0");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_device_of_both_servers_that_is_used_or_goes_is_told() {
    for (name, is_ours) in [("iiod-used", false), ("iiod-used-ours", true)] {
        let converter = Converter::named(name);
        let server = if is_ours { Server::start(&[]) } else { Server::of_libiio() };
        // The server waits as long as that takes, and some seconds more.
        converter.tx.set("sampling_frequency", 1_000_000);
        let to = format!("iio:{name}-tx@{}", server.uri());
        let open = || Sink::open(&to, &StreamSetup::new().block_len(4096));
        // Each server opens another of these.
        let held = (converter.tx.buffer(), converter.tx.open());
        let error = open().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::BUSY), "{error}");
        drop(held);
        let sink = open().unwrap();
        converter.remove().unwrap();
        let error = loop {
            match sink.space().and_then(|space| space.send(4096)) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Some(Errno::PIPE), "{error}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn attributes_are_set_on_both_servers() {
    let converter = Converter::named("iiod-set");
    for server in [Server::of_libiio(), Server::start(&[])] {
        let device = format!("iiod-set@{}", server.uri());
        let set = |attribute: &str, value: &str| {
            busbar::stream::set_attribute(&device, attribute, value).map_err(|why| why.errno())
        };
        for (attribute, value) in [
            ("in_voltage0_q_hardwaregain", "0.25"),
            ("in_voltage0_q_hardwaregain", "1"),
            ("pattern", "sine"),
            ("pattern", "counter"),
            ("sampling_frequency", "48000"),
            ("sampling_frequency", "0"),
        ] {
            assert_eq!(set(attribute, value), Ok(()), "{attribute} {value}");
            let found = converter.rx.get(attribute);
            let number = |text: &str| text.split(' ').next().unwrap().parse::<f64>().ok();
            assert_eq!(number(&found), number(value), "{attribute}: {found}");
            assert!(number(value).is_some() || found == value, "{attribute}: {found}");
        }
        assert_eq!(set("pattern", "nonsense"), Err(Some(Errno::INVAL)));
        assert_eq!(set("nothing", "1"), Err(Some(Errno::NOENT)));
        assert_eq!(converter.rx.get("pattern"), "counter");
    }
}

/// A device of this name, as a client of the binary protocol counts: by the order of ids.
fn number_of(server: &Server, name: &str) -> u8 {
    let xml = String::from_utf8(server.connect().value("PRINT").unwrap()).unwrap();
    let value = |device: &str, what: &str| {
        let head = format!(" {}", device.split('>').next()?);
        let (_, rest) = head.split_once(&format!(" {what}=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let devices = xml.split("<device ").skip(1);
    let mut devices: Vec<_> =
        devices.map(|device| (value(device, "id").unwrap(), value(device, "name"))).collect();
    devices.sort();
    let found = devices.iter().position(|(_, other)| other.as_deref() == Some(name)).unwrap();
    u8::try_from(found).unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn a_client_of_the_binary_protocol_receives_what_another_one_transmits() {
    let converter = Converter::named("iiod-binary");
    converter.rx.set("loopback", 1);
    let server = Server::start(&[]);
    let (rx, tx) = (number_of(&server, "iiod-binary"), number_of(&server, "iiod-binary-tx"));
    let (mut receiver, mut sender) = (Binary::connect(server.port), Binary::connect(server.port));
    // Long enough for the first block to be transmitted by an emulated machine.
    assert_eq!(sender.ask(op::TIMEOUT, 0, 20_000, &[]), 0);
    let len = 1000 * FRAME;
    receiver.open(rx, 0xf, 4, len);
    (0..4).for_each(|block| receiver.transfer(rx, block, len));
    assert_eq!(receiver.ask(op::ENABLE, rx, 0, &[]), 0);
    wait_until("the receiver", || converter.rx.get("buffer/enable") == "1");

    sender.open(tx, 0xf, 4, len);
    let mut bytes = vec![0; 20 * len];
    fastrand::Rng::with_seed(5).fill(&mut bytes);
    let blocks: Vec<_> = bytes.chunks(len).collect();
    let send = |sender: &mut Binary, round: usize| {
        let block = u16::try_from(round % 4).unwrap();
        let more = [&(len as u64).to_le_bytes()[..], blocks[round]].concat();
        sender.command(100 + block, op::TRANSFER, tx, i32::from(block) << 16, &more);
    };
    // What comes before the start waits for it.
    (0..4).for_each(|round| send(&mut sender, round));
    assert_eq!(sender.ask(op::NOTHING, 0, 0, &[]), 0);
    assert_eq!(converter.tx.get("buffer/enable"), "0");
    assert_eq!(sender.ask(op::ENABLE, tx, 0, &[]), 0);
    for (round, sent) in blocks.iter().enumerate() {
        let block = u16::try_from(round % 4).unwrap();
        assert_eq!(sender.answer(), (100 + block, 0), "{round}");
        if round + 4 < 20 {
            send(&mut sender, round + 4);
        }
        assert!(receiver.samples(block).unwrap() == *sent, "{round}");
        receiver.transfer(rx, block, len);
    }
    // Another one cannot transmit meanwhile, and samples that cannot be transmitted are taken nevertheless.
    let mut third = Binary::connect(server.port);
    assert_eq!(third.ask(op::OPEN, tx, 0, &[15, 0, 0, 0]), -16);
    let more = [&(len as u64).to_le_bytes()[..], blocks[0]].concat();
    assert_eq!(third.ask(op::TRANSFER, tx, 0, &more), -9);
    // Again and again, which is answered once.
    sender.command(100, op::CYCLIC, tx, 0, &more);
    assert_eq!(sender.answer(), (100, 0));
    for round in 0..12 {
        let samples = receiver.samples(round % 4).unwrap();
        assert!(samples == blocks[0], "{round}");
        receiver.transfer(rx, round % 4, len);
    }
    assert_eq!(sender.ask(op::CLOSE, tx, 0, &[]), 0);
    assert_eq!(converter.tx.get("buffer/enable"), "0");
    // A type is read anew.
    assert_eq!(sender.value(op::FORMAT, rx, 0, &[]).unwrap(), b"le:s16/16>>0");
    drop((receiver, sender));
    wait_until("the receiver ends", || converter.rx.get("buffer/enable") == "0");
}
