//! The command `busbar serve`, on any host: libiio's programs, and clients that mean harm.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal};
use support::iiod::{Raw, Server};
use support::{command, text, wait_until};
use tempfile::TempDir;

/// Bytes of a sample of the four voltages.
const FRAME: usize = 8;
const VOLTAGES: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];
/// The mask of these, of six channels.
const MASK: &str = "0000000f";

fn u64s(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The numbers of samples of the counter: each one more than the one before.
fn assert_counts(bytes: &[u8]) {
    let numbers = u64s(bytes);
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap");
}

#[test]
fn bad_usage_ends_with_2_and_failures_end_with_1() {
    for (arguments, code, says) in [
        (&["serve", "--clients", "0"][..], 2, "1..=1024"),
        (&["serve", "--listen", "127.0.0.1:0", "synth:square"], 1, "square"),
        (&["serve", "--listen", "127.0.0.1:0", "tcp:x"], 1, "[NAME=]synth:PATTERN"),
        (&["serve", "--listen", "127.0.0.1:0", "file:/nowhere"], 1, "nowhere"),
        (&["serve", "--listen", "127.0.0.1:0", "iio:no-such"], 1, "no-such"),
        (&["serve", "--listen", "nowhere", "synth:sine"], 1, "nowhere"),
        (
            &["serve", "--listen", "127.0.0.1:0", "a=synth:sine", "a=synth:counter"],
            1,
            "each name is given once",
        ),
        (&["serve", "--listen", "127.0.0.1:0", "--silence", "4", "synth:sine"], 1, "5 s to 1 day"),
        (&["serve", "--wait", "synth:sine"], 2, "--wait"),
        (&["stream", "list", "usb:"], 1, "local:, ip:HOST[:PORT], ip:"),
    ] {
        let output = command(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn iio_info_and_iio_genxml_show_devices_channels_and_attributes() {
    let server =
        Server::start(&["adc=synth:counter?rate=1M", "sine=synth:sine?rate=48k&channels=1"]);
    let info = text(&server.run("iio_info", &[]).stdout);
    for wanted in [
        "Backend version: 0.24 (git tag: busbar",
        "IIO context has 2 devices",
        "iio:device0: adc (buffer capable)",
        "iio:device1: sine (buffer capable)",
        "voltage1_q:  (input, index: 3, format: le:S16/16>>0)",
        "count0:  (input, index: 4, format: le:U64/64>>0)",
        "timestamp:  (input, index: 5, format: le:S64/64>>0)",
        "sampling_frequency value: 1000000",
        "sampling_frequency value: 48000",
        "busbar_lost value: 0",
        "No trigger on this device",
    ] {
        assert!(info.contains(wanted), "no {wanted:?} in\n{info}");
    }
    let xml = text(&server.run("iio_genxml", &[]).stdout);
    assert!(xml.contains("<device id=\"iio:device0\" name=\"adc\""), "{xml}");
}

#[test]
fn iio_readdev_reads_every_sample_of_a_source_that_waits() {
    let server = Server::start(&["synth:counter"]);
    for (size, samples) in [("16", 1000), ("4096", 100_000), ("65536", 1_000_000)] {
        let count = samples.to_string();
        let arguments = [&["-b", size, "-s", &count, "counter"][..], &VOLTAGES].concat();
        let read = server.run("iio_readdev", &arguments).stdout;
        assert_eq!(read.len(), samples * FRAME);
        assert_eq!(u64s(&read)[0], 0);
        assert_counts(&read);
    }
    // Some channels, and those that are wider.
    let read =
        server.run("iio_readdev", &["-b", "256", "-s", "1000", "counter", "voltage0_i", "count0"]);
    let pairs: Vec<_> = read.stdout.chunks_exact(16).collect();
    assert_eq!(pairs.len(), 1000);
    for (index, pair) in pairs.iter().enumerate() {
        assert_eq!(u64::from(u16::from_le_bytes([pair[0], pair[1]])), index as u64);
        assert_eq!(u64s(&pair[8..]), [index as u64]);
    }
    let summary = server.finish().pop().unwrap();
    // Only short blocks are copied: that is cheaper.
    assert!(summary["copied"].as_u64() < Some(32 << 10), "{summary}");
}

#[test]
fn a_recording_is_a_device_that_begins_anew_each_time() {
    let folder = TempDir::new().unwrap();
    let file = format!("file:{}", folder.path().join("taken").display());
    let recorded = command(&["stream", "synth:counter", &file, "--count", "20k"]).output().unwrap();
    assert!(recorded.status.success());
    let data = fs::read(folder.path().join("taken.sigmf-data")).unwrap();
    let server = Server::start(&[&file]);
    for _ in 0..2 {
        let read = server.run("iio_readdev", &["-b", "1000", "-s", "20000", "taken"]).stdout;
        assert!(read == data[..20_000 * FRAME], "as it was recorded");
    }
    // After its end there is an error.
    let mut client = server.connect();
    assert_eq!(client.ask("OPEN taken 1024 0000000f"), 0);
    let mut read = 0;
    let errno = loop {
        match client.read("taken", 1024 * FRAME) {
            Ok(bytes) => read += bytes.len(),
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, -32);
    assert!(data.len() - read < 1024 * FRAME, "{read} of {}", data.len());
}

#[test]
fn commands_are_answered_with_the_numbers_of_the_system() {
    let server = Server::start(&["adc=synth:counter", "--read-only"]);
    let mut client = server.connect();
    for (line, answer) in [
        ("TIMEOUT 100", 0),
        ("NONSENSE", -22),
        ("READ", -22),
        ("READ nothing x", -19),
        ("READ adc nothing", -2),
        ("READ adc uevent", -2),
        ("READ adc INPUT nothing x", -6),
        ("READ adc INPUT voltage0_i x", -2),
        ("OPEN nothing 1024 0000000f", -19),
        ("OPEN adc 1024 0f", -22),
        ("OPEN adc 0 0000000f", -22),
        ("OPEN adc -1 0000000f", -22),
        ("OPEN adc 1024 00000000", -22),
        ("OPEN adc 1024 80000000", -22),
        ("OPEN adc 1024 0000000f CYCLIC", -1),
        ("OPEN adc 9999999999 0000000f", -12),
        ("OPEN adc 9223372036854775807 0000000f", -12),
        ("READBUF adc 8192", -9),
        ("WRITEBUF adc 8192", -9),
        ("CLOSE adc", -6),
        ("CLOSE nothing", -19),
        ("GETTRIG nothing", -19),
        ("GETTRIG adc", -2),
        ("SETTRIG adc", -1),
        ("SET adc BUFFERS_COUNT 0", -22),
        ("SET adc BUFFERS_COUNT 8", 0),
        ("SET nothing BUFFERS_COUNT 8", -19),
        ("ZPRINT", -22),
        ("OPEN adc 1024 0000000f", 0),
        ("OPEN adc 1024 0000000f", -16),
        ("READBUF adc 7", 0),
        ("READBUF adc -5", -22),
        ("WRITEBUF adc 8192", -1),
        ("CLOSE adc", 0),
        ("CLOSE adc", -6),
    ] {
        assert_eq!(client.ask(line), answer, "{line}");
    }
    // All attributes, each after its length and filled up to four bytes.
    let all = client.value("READ adc").unwrap();
    assert_eq!(all, b"\0\0\0\x020\0\0\0".repeat(3));
    // A value is taken from the stream in any case in which its device exists.
    assert_eq!(client.write("adc pattern", b"VERSION\r\n"), -1);
    assert_eq!(client.write("adc busbar_report_loss", b"2"), -22);
    assert_eq!(client.write("adc busbar_report_loss", b"1\0"), 2);
    assert_eq!(client.attribute("adc busbar_report_loss"), "1");
    client.send(b"WRITE adc pattern 1000000\r\n");
    client.send(&vec![b'\n'; 1_000_000]);
    assert_eq!(client.number(), -12);
    client.send(b"VERSION\r\n");
    assert_eq!(client.line(), "0.24.busbar ");
    client.send(b"EXIT\r\n");
    assert!(client.is_closed());
}

#[test]
fn what_a_slow_client_misses_is_told_to_the_sample() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let mut client = server.connect();
    let mut other = server.connect();
    assert_eq!(client.ask("OPEN adc 1000 0000000f"), 0);
    let (mut next, mut missed) = (0, 0);
    for round in 0..60 {
        let numbers = u64s(&client.read("adc", 1000 * FRAME).unwrap());
        assert_eq!(numbers.len(), 1000);
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
        missed += numbers[0] - next;
        next = numbers[999] + 1;
        // It sleeps sometimes: then 50 ms are 50 000 samples.
        if round % 20 == 10 {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    assert!(missed > 0, "it was not too slow");
    // What is lost by now comes later than the last block that was read: all of it is told with the next.
    let told: u64 = other.attribute("adc busbar_lost").parse().unwrap();
    assert!(told >= missed, "{told} told, {missed} missed");
    assert_eq!(other.attribute("adc busbar_unknown"), "0");
    // With an error, if asked. The block after it is the one that comes after the gap.
    assert_eq!(other.write("adc busbar_report_loss", b"1"), 1);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let errno = loop {
        match client.read("adc", 1000 * FRAME) {
            Ok(bytes) => next = u64s(&bytes)[999] + 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, -105);
    assert!(u64s(&client.read("adc", 1000 * FRAME).unwrap())[0] > next);
    drop(client);
    let lines = server.finish();
    let lost = lines.iter().filter(|line| line["event"] == "lost");
    assert!(lost.map(|line| line["lost"].as_u64().unwrap()).sum::<u64>() >= missed, "{lines:?}");
}

#[test]
fn losses_add_up_exactly_once_a_source_has_ended() {
    let folder = TempDir::new().unwrap();
    let file = format!("file:{}", folder.path().join("gaps").display());
    // A recording with gaps: its converter had too few blocks.
    let mut stream = command(&[
        "stream",
        "synth:counter?rate=20M",
        &file,
        "--count",
        "400k",
        "--blocks",
        "2",
        "--block-len",
        "16K",
        "--json",
    ]);
    let recorded = support::summary(&stream.output().unwrap());
    let server = Server::start(&["--memory-limit", "64M", &file]);
    let mut client = server.connect();
    assert_eq!(client.ask("OPEN gaps 512 0000000f"), 0);
    let mut all = Vec::new();
    while let Ok(bytes) = client.read("gaps", 512 * FRAME) {
        all.extend(u64s(&bytes));
    }
    let missing: u64 = all.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
    let told: u64 = client.attribute("gaps busbar_lost").parse().unwrap();
    assert_eq!((told, told), (missing, recorded["lost"].as_u64().unwrap()));
}

#[test]
fn a_slow_client_hurts_no_other_and_each_gets_what_it_asked_for() {
    let server = Server::start(&["adc=synth:counter?rate=2M"]);
    let mut slow = server.connect();
    assert_eq!(slow.ask("OPEN adc 1000 0000000f"), 0);
    slow.read("adc", 1000 * FRAME).unwrap();
    // It asks for more than it ever reads.
    slow.send(b"READBUF adc 800000000\r\n");
    let arguments = [&["-b", "1000", "-s", "200000", "adc"][..], &VOLTAGES].concat();
    let read = server.run("iio_readdev", &arguments).stdout;
    assert_counts(&read[..1000 * FRAME]);
    assert_eq!(read.len(), 200_000 * FRAME);
    let mut other = server.connect();
    // The buffers of its connection take some megabytes first.
    wait_until("the slow client's loss", || {
        other.attribute("adc busbar_lost").parse::<u64>().unwrap() > 0
    });
}

#[test]
fn a_second_client_with_more_channels_gets_them_and_the_first_goes_on() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let (mut one, mut two) = (server.connect(), server.connect());
    assert_eq!(one.ask("OPEN adc 256 00000001"), 0);
    assert_eq!(one.read("adc", 512).unwrap().len(), 512);
    assert_eq!(two.ask("OPEN adc 256 0000000f"), 0);
    assert_counts(&two.read("adc", 256 * FRAME).unwrap());
    // Those of before are read first; then the mask is the new one.
    let mut masks = BTreeSet::new();
    for _ in 0..20 {
        one.send(b"READBUF adc 512\r\n");
        let len = one.number();
        if len > 0 {
            masks.insert(one.line());
            one.bytes(usize::try_from(len).unwrap());
        }
    }
    assert!(masks.contains(MASK), "{masks:?}");
    assert_eq!(one.attribute("adc busbar_unknown"), "1");
}

#[test]
fn clients_that_go_leave_nothing_behind() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let mut watcher = server.connect();
    watcher.send(b"VERSION\r\n");
    watcher.line();
    let before = server.descriptors();
    for round in 0..20 {
        let mut client = server.connect();
        assert_eq!(client.ask("OPEN adc 65536 0000000f"), 0);
        match round % 4 {
            0 => client.send(b"READBUF adc 8000000\r\n"),
            1 => drop(client.read("adc", 65536 * FRAME)),
            2 => client.send(b"READBUF adc 524288\r\nREADBUF adc 524288\r\nREAD ad"),
            _ => client.send(b"WRITE adc x 100\r\nabc"),
        }
    }
    wait_until("the descriptors are closed", || server.descriptors() == before);
}

#[test]
fn answers_come_in_order_to_a_client_that_does_not_wait_for_them() {
    let server = Server::start(&["adc=synth:counter"]);
    let mut client = server.connect();
    client.send(b"OPEN adc 64 0000000f\r\nREADBUF adc 512\r\nVERSION\r\nREADBUF adc 1024\r\nREAD adc busbar_lost\r\n");
    client.send("READBUF adc 8192\r\n".repeat(50).as_bytes());
    assert_eq!(client.number(), 0);
    let mut all = Vec::new();
    let mut samples = |client: &mut Raw, len: usize| {
        let mut got = 0;
        while got < len {
            let count = usize::try_from(client.number()).unwrap();
            if got == 0 {
                assert_eq!(client.line(), MASK);
            }
            all.extend(client.bytes(count));
            got += count;
        }
    };
    samples(&mut client, 512);
    assert_eq!(client.line(), "0.24.busbar ");
    samples(&mut client, 1024);
    assert_eq!((client.number(), client.bytes(3)), (2, b"0\0\n".to_vec()));
    for _ in 0..50 {
        samples(&mut client, 8192);
    }
    assert_eq!(u64s(&all)[0], 0);
    assert_counts(&all);
}

/// A client that asks for the next block when it has got one, and before it has read that.
#[test]
fn blocks_stay_whole_until_a_client_has_read_them() {
    let server = Server::start(&["adc=synth:counter"]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 1 << 20).unwrap();
    // More than what is copied anyway.
    let (samples, blocks) = (2560, 9);
    let len = samples * FRAME;
    stream.write_all(format!("OPEN adc {samples} 0000000f\r\n").as_bytes()).unwrap();
    let head = format!("{len}\n0000000f\n");
    let waiting = |count: usize| {
        wait_until("an answer", || rustix::io::ioctl_fionread(&stream).unwrap() >= count as u64);
    };
    waiting(2);
    for block in 1..=blocks {
        (&stream).write_all(format!("READBUF adc {len}\r\n").as_bytes()).unwrap();
        waiting(2 + block * (head.len() + len));
    }
    // The source has gone on to fill every block that it has.
    let mut all = vec![0; 2 + blocks * (head.len() + len)];
    stream.read_exact(&mut all).unwrap();
    assert_eq!(&all[..2], b"0\n");
    let mut counts = Vec::new();
    for answer in all[2..].chunks(head.len() + len) {
        assert_eq!(&answer[..head.len()], head.as_bytes());
        counts.extend_from_slice(&answer[head.len()..]);
    }
    assert_eq!(u64s(&counts)[0], 0);
    assert_counts(&counts);
}

#[test]
fn too_many_clients_and_endless_lines_are_turned_away() {
    let server = Server::start(&["adc=synth:counter", "--clients", "2"]);
    let (mut one, mut two) = (server.connect(), server.connect());
    assert_eq!((one.ask("TIMEOUT 1"), two.ask("TIMEOUT 1")), (0, 0));
    assert!(server.connect().is_closed());
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let _ = stream.write_all(b"VERSION\r\n");
    one.send(&[b'x'; 5000]);
    assert_eq!(one.number(), -22);
    assert!(one.is_closed());
    let mut three = server.connect();
    assert_eq!(three.ask("TIMEOUT 1"), 0);
    let lines = server.finish();
    let away = lines.iter().find(|line| line["what"] == "turned away");
    let why = away.and_then(|line| line["why"].as_str()).unwrap_or_else(|| panic!("{lines:?}"));
    assert!(why.contains("all 2 places") && why.contains("--clients"), "{why}");
}

#[test]
fn short_connections_are_summed_up_in_the_log() {
    const CONNECTIONS: u64 = 300;
    let server = Server::start(&["adc=synth:counter?rate=1k"]);
    let begun = Instant::now();
    for _ in 0..CONNECTIONS {
        let mut client = server.connect();
        client.send(b"VERSION\r\n");
        assert_eq!(client.line(), "0.24.busbar ");
    }
    let lines = server.finish();
    let of_clients: Vec<_> = lines.iter().filter(|line| line["address"].is_string()).collect();
    // Those of each second, and of the part of one at the end.
    let most = 8 * (begun.elapsed().as_secs() + 2);
    assert!(of_clients.len() as u64 <= most, "{} lines, not {most}", of_clients.len());
    let one = lines.iter().filter(|line| line["what"] == "came").count() as u64;
    let more = lines.iter().filter_map(|line| line["came"].as_u64()).sum::<u64>();
    assert_eq!(one + more, CONNECTIONS);
}

#[test]
fn connections_wait_while_there_are_no_descriptors_and_that_is_told() {
    let server = Server::start(&["adc=synth:counter?rate=1"]);
    let mut first = server.connect();
    assert_eq!((first.ask("TIMEOUT 100"), first.ask("OPEN adc 500 0000000f")), (0, 0));
    let id = rustix::process::Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    let usual = rustix::process::getrlimit(Resource::Nofile);
    let limit = |current| {
        let limits = Rlimit { current, maximum: usual.maximum };
        rustix::process::prlimit(Some(id), Resource::Nofile, limits).unwrap();
    };
    limit(Some(server.descriptors() as u64));
    // There may be some numbers left that are smaller.
    let mut others: Vec<_> = (0..16).map(|_| server.connect()).collect();
    for other in &mut others {
        other.send(b"VERSION\r\n");
    }
    // The server has looked for connections meanwhile.
    assert_eq!(first.read("adc", 500 * FRAME), Err(-110));
    limit(usual.current);
    for other in &mut others {
        assert_eq!(other.line(), "0.24.busbar ");
    }
    let lines = server.finish();
    assert!(lines.iter().any(|line| line["event"] == "not_accepted"), "{lines:?}");
}

#[test]
fn sigusr1_lists_devices_anew_and_ends_nothing() {
    let server = Server::start(&["adc=synth:counter"]);
    let mut client = server.connect();
    assert_eq!(client.ask("OPEN adc 64 0000000f"), 0);
    let id = rustix::process::Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    for _ in 0..3 {
        rustix::process::kill_process(id, Signal::USR1).unwrap();
        assert_counts(&client.read("adc", 512).unwrap());
    }
    drop(client);
    server.finish();
}

#[test]
fn a_read_ends_after_the_timeout_of_the_client_and_goes_on_later() {
    let server = Server::start(&["adc=synth:counter?rate=1000"]);
    let mut client = server.connect();
    assert_eq!(client.ask("TIMEOUT 50"), 0);
    assert_eq!(client.ask("OPEN adc 500 0000000f"), 0);
    assert_eq!(client.read("adc", 500 * FRAME), Err(-110));
    assert_eq!(client.ask("TIMEOUT 0"), 0);
    assert_eq!(u64s(&client.read("adc", 500 * FRAME).unwrap())[0], 0);
}

#[test]
fn iio_attr_reads_and_writes_attributes() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let uri = server.uri();
    let attr = |arguments: &[&str]| {
        let output =
            Command::new("iio_attr").args([&["-u", &uri], arguments].concat()).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    assert!(attr(&["-d", "adc", "sampling_frequency"]).contains("1000000"));
    // With the last client of a machine, what it has set goes.
    let mut stays = server.connect();
    assert_eq!(stays.attribute("adc sampling_frequency"), "1000000");
    assert_eq!(attr(&["-d", "adc", "busbar_report_loss", "1"]).trim(), "1");
    assert_eq!(stays.attribute("adc busbar_report_loss"), "1");
    assert!(attr(&["-d", "adc", "sampling_frequency", "1"]).contains("Permission denied"));
    drop(stays);
    wait_until("the setting has gone", || {
        server.connect().attribute("adc busbar_report_loss") == "0"
    });
}

#[test]
fn programs_say_why_something_cannot_be_done() {
    let server = Server::start(&["adc=synth:counter"]);
    let uri = server.uri();
    for (line, says) in [
        ("iio_reg adc 0", "Unable to read register: No such file or directory"),
        ("iio_reg adc 0 1", "Unable to write register: No such file or directory"),
        ("iio_writedev adc", "No output channels found"),
        ("iio_readdev -s 100 adc nothing", "Bad channel name"),
        ("iio_readdev -s 100 nothing", "nothing not found"),
        ("iio_attr -B adc length", "could not find attribute"),
    ] {
        let (program, arguments) = line.split_once(' ').unwrap();
        let mut command = Command::new(program);
        let output = command.args(["-u", &uri]).args(arguments.split(' ')).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains(says), "{line}: {said}");
    }
}

#[test]
fn a_stream_and_a_pipeline_serve_their_samples() {
    for source in ["synth:counter", "synth:counter?rate=2M"] {
        let port = support::port();
        let to = format!("iiod:127.0.0.1:{port}");
        let mut stream =
            command(&["stream", source, &to, "--block-len", "32K", "--json", "--blocks", "16"]);
        let child = stream.spawn().unwrap();
        wait_until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let uri = format!("ip:127.0.0.1:{port}");
        let read = |arguments: &[&str]| {
            let all = [&["-u", &uri, "-b", "2048", "-s", "65536", "counter"], arguments].concat();
            let output = Command::new("iio_readdev").args(all).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            output.stdout
        };
        let one = read(&[]);
        assert_eq!(one.len(), 65536 * FRAME);
        // Another one takes what comes then.
        let other = read(&VOLTAGES);
        for bytes in [&one, &other] {
            if source.contains("rate") {
                // On a busy machine some are lost.
                assert!(u64s(bytes).windows(2).all(|pair| pair[1] > pair[0]), "the order");
            } else {
                assert_counts(bytes);
            }
        }
        support::signal(&child, rustix::process::Signal::TERM);
        let summary = support::finish(child);
        assert_eq!(summary["copied"], 0, "{summary}");
    }
}

#[test]
fn a_served_device_is_a_source_and_is_listed() {
    let server = Server::start(&["adc=synth:counter", "slow=synth:counter?rate=1M"]);
    let all = "voltage0_i,voltage0_q,voltage1_i,voltage1_q,count0";
    let port = server.port;
    for (device, more) in
        [("adc", &["--channels", all][..]), ("slow", &["--channels", all]), ("slow", &[])]
    {
        let from = format!("iio:{device}@ip:127.0.0.1:{port}");
        let arguments =
            ["stream", &from, "null:", "--expect", "counter", "--count", "200k", "--json"];
        let output = command(&[&arguments, more].concat()).output().unwrap();
        let summary = support::summary(&output);
        assert!(summary["verified"].as_u64() >= Some(200_000), "{summary}");
        assert_eq!(summary["unknown"] == 0, !more.is_empty(), "{summary}");
        if device == "adc" {
            assert_eq!(summary["lost"], 0, "{summary}");
        }
    }
    let list = |arguments: &[&str]| {
        let place = format!("ip:127.0.0.1:{port}");
        let output = command(&[&["stream", "list", &place], arguments].concat()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let found = list(&[]);
    assert!(found.contains("iio:device1  slow  1000000 samples/s"), "{found}");
    assert!(found.contains(
        "    receives voltage0_i, voltage0_q, voltage1_i, voltage1_q, count0, timestamp"
    ));
    let found: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!(
        (&found[1]["name"], &found[1]["rate"]),
        (&"slow".into(), &1_000_000.0.into()),
        "{found}"
    );
}

#[test]
fn a_served_device_is_served_again() {
    let server = Server::start(&["adc=synth:counter"]);
    let port = support::port();
    let from = format!("iio:adc@ip:127.0.0.1:{}", server.port);
    let to = format!("iiod:127.0.0.1:{port}");
    let mut stream = command(&["stream", &from, &to]);
    let mut child = stream.spawn().unwrap();
    wait_until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let uri = format!("ip:127.0.0.1:{port}");
    let mut readdev = Command::new("iio_readdev");
    readdev.args(["-u", &uri, "-b", "2048", "-s", "65536", "adc"]).args(VOLTAGES);
    let output = readdev.output().unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(output.stdout.len(), 65536 * FRAME, "{}", text(&output.stderr));
    assert_counts(&output.stdout);
}

#[test]
fn attributes_of_a_remote_device_are_set() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let device = format!("adc@ip:127.0.0.1:{}", server.port);
    let set = |attribute: &str, value: &str| {
        busbar::stream::set_attribute(&device, attribute, value).map_err(|why| why.errno())
    };
    // With the last client of a machine, what it has set goes.
    let mut stays = server.connect();
    for value in ["1", "0", "1"] {
        assert_eq!(stays.attribute("adc sampling_frequency"), "1000000");
        assert_eq!(set("busbar_report_loss", value), Ok(()));
        assert_eq!(server.connect().attribute("adc busbar_report_loss"), value);
        // Not that of another machine.
        let mut other = Raw::connect_from(Ipv4Addr::new(127, 0, 0, 2), server.port);
        assert_eq!(other.attribute("adc busbar_report_loss"), "0");
    }
    assert_eq!(set("busbar_report_loss", "2"), Err(Some(Errno::INVAL)));
    // One that has the value is written as well.
    assert_eq!(set("sampling_frequency", "1000000"), Err(Some(Errno::ACCESS)));
    assert_eq!(set("sampling_frequency", "2000000"), Err(Some(Errno::ACCESS)));
    assert_eq!(set("nothing", "1"), Err(Some(Errno::NOENT)));
}

#[test]
fn a_remote_source_or_sink_says_what_is_wrong() {
    let server = Server::start(&["adc=synth:counter"]);
    let free = support::port();
    for (name, says) in [
        (format!("iio:nothing@ip:127.0.0.1:{}", server.port), "there are: adc"),
        (format!("iio:adc@ip:127.0.0.1:{free}"), "does `iiod` or `busbar serve` run there?"),
        (format!("iio:adc@ip:nowhere.invalid:{free}"), "nowhere.invalid"),
    ] {
        let output = command(&["stream", &name, "null:", "--count", "1k"]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(says), "{name}: {said}");
    }
    let adc = format!("iio:adc@ip:127.0.0.1:{}", server.port);
    let nothing = format!("iio:nothing@ip:127.0.0.1:{}", server.port);
    for (name, says) in [(adc, "it has no output channel"), (nothing, "there are: adc")] {
        let output = command(&["stream", "synth:counter", &name]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(says), "{name}: {said}");
    }
    let from = format!("iio:adc@ip:127.0.0.1:{}", server.port);
    for (arguments, says) in
        [(&["--channels", "voltage9"][..], "voltage9"), (&["--interface", "dmabuf"], "iiod")]
    {
        let output = command(&[&["stream", &from, "null:"], arguments].concat()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    // A server that goes ends the stream.
    let before = server.descriptors();
    let child = command(&["stream", &from, "null:"]).spawn().unwrap();
    wait_until("the stream is open", || server.descriptors() > before + 4);
    drop(server);
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("receive from IIO device `adc`"), "{said}");
}

/// A client that has a device open, and reads nothing.
fn opened(server: &Server, line: &str) -> Option<Raw> {
    let mut client = server.connect();
    (client.ask(line) == 0).then_some(client)
}

/// Lines of the server about a client that was refused, or about loss.
fn of_event<'a>(lines: &'a [serde_json::Value], event: &str) -> Vec<&'a serde_json::Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

#[test]
fn a_client_that_reads_nothing_stops_nobody_however_few_blocks_there_are() {
    // Four blocks.
    let server = Server::start(&["adc=synth:counter?rate=40k", "--memory-limit", "128K"]);
    let _idle = opened(&server, "OPEN adc 4096 0000000f").unwrap();
    let mut reader = opened(&server, "OPEN adc 4096 0000000f").unwrap();
    for _ in 0..8 {
        assert_counts(&reader.read("adc", 4096 * FRAME).unwrap());
    }
    // There is no block for a third one, which is told so, as is the owner.
    assert_eq!(server.connect().ask("OPEN adc 4096 0000000f"), -12);
    let lines = server.finish();
    assert!(!of_event(&lines, "lost").is_empty());
    let refused = of_event(&lines, "refused");
    assert!(refused[0]["why"].as_str().unwrap().contains("--memory-limit"), "{refused:?}");
}

#[test]
fn blocks_that_nobody_reads_stay_within_the_limit_of_memory() {
    let limit = 1 << 20;
    let server = Server::start(&["adc=synth:counter?rate=2M", "--memory-limit", "1M"]);
    let before = server.memory() + server.memfds();
    let mut clients = Vec::new();
    for round in 0..40 {
        // Each has the device opened anew: with more channels, or longer blocks.
        let mask = if round % 2 == 0 { "00000003" } else { "0000000f" };
        let client = opened(&server, &format!("OPEN adc {} {mask}", 1024 << (round % 5)));
        if let Some(mut client) = client {
            client.send(b"READBUF adc 1073741824\r\n");
            clients.push(client);
        }
        assert!(server.memory() + server.memfds() < before + limit + (8 << 20), "{round}");
        assert!(server.memfds() <= limit + (64 << 10), "{round}: {}", server.memfds());
    }
    assert!(!clients.is_empty());
}

#[test]
fn clients_that_want_all_descriptors_end_no_stream() {
    let server = Server::limited(&["adc=synth:counter?rate=200k"], "ulimit -n 256");
    assert_eq!(server.connect().ask("SET adc BUFFERS_COUNT 64"), 0);
    let mut clients: Vec<_> =
        (0..20).filter_map(|_| opened(&server, "OPEN adc 1024 00000003")).collect();
    assert!(clients.len() > 1, "{}", clients.len());
    assert!(server.descriptors() < 256 - 20, "{}", server.descriptors());
    for client in &mut clients {
        assert_eq!(client.read("adc", 1024).map(|bytes| bytes.len()), Ok(1024));
    }
    assert!(server.connect().value("PRINT").is_ok());
}

#[test]
fn a_client_may_read_single_samples() {
    let server = Server::start(&["adc=synth:counter?rate=20k"]);
    let mut client = opened(&server, "OPEN adc 1 0000000f").unwrap();
    let samples: Vec<_> = (0..200).flat_map(|_| client.read("adc", FRAME).unwrap()).collect();
    // A busy machine may leave it too slow for that: what is missing is told then.
    let numbers = u64s(&samples);
    assert!(numbers.is_sorted_by(|one, next| one < next));
    let missing = numbers[199] - numbers[0] - 199;
    let told: u64 = client.attribute("adc busbar_lost").parse().unwrap();
    assert!(missing <= told, "{missing} are missing, {told} are told");
}
