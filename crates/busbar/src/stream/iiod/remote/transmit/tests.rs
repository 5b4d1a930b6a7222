use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use rustix::event::PollFlags;

use super::*;
use crate::poll;
use crate::stream::iiod::context::{Channel, Context, Device, Scan};
use crate::stream::scan::Type;
use crate::stream::{Format, Sink, Source};

/// A server that takes samples, and may answer otherwise.
struct Server {
    port: u16,
    listener: TcpListener,
    seen: Arc<Mutex<Seen>>,
}

/// What it was sent.
#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    bytes: Vec<u8>,
}

/// A device with two output channels and the input `monitor`.
fn dac(attributes: &[&str]) -> Device {
    let channel = |(index, name): (u32, &&str)| Channel {
        id: (*name).into(),
        is_output: *name != "monitor",
        scan: Some(Scan {
            index,
            kind: Type::parse("le:s16/16>>0").unwrap(),
            scale: None,
            name: (*name).into(),
        }),
        ..Channel::default()
    };
    Device {
        id: "iio:device1".into(),
        name: Some("dac".into()),
        channels: (0..).zip(&["monitor", "voltage0_i", "voltage0_q"]).map(channel).collect(),
        attributes: attributes.iter().map(|name| (*name).into()).collect(),
        ..Device::default()
    }
}

impl Server {
    /// A server like `busbar serve`.
    fn new() -> Self {
        Self::odd(&[LOST], |_| None)
    }

    /// A server whose device has these attributes. `odd` is asked for the answer to each line: `None` is the right one,
    /// "" closes the connection, "last" does so after the right one. At each "|", there is a pause; after one at the end,
    /// the connection is closed.
    fn odd(
        attributes: &[&str],
        mut odd: impl FnMut(&str) -> Option<&'static str> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = listener.try_clone().unwrap();
        let adc = Device { id: "iio:device0".into(), name: Some("adc".into()), ..dac(&[]) };
        let adc = Device { channels: adc.channels.into_iter().take(1).collect(), ..adc };
        let context = Context { devices: vec![adc, dac(attributes)], ..Context::default() };
        let xml = context.xml((0, 24, "test"));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // The client has gone.
                let _ = serve(&stream.unwrap(), &xml, &shared, &mut odd);
            }
        });
        Self { port, listener: own, seen }
    }

    fn name(&self) -> String {
        format!("iio:dac@ip:127.0.0.1:{}", self.port)
    }

    /// Of a block, the server's socket has room for a part only.
    fn transmit(&self) -> Transmit {
        sockopt::set_socket_recv_buffer_size(&self.listener, 1).unwrap();
        let remote = Remote::of(self.name().trim_start_matches("iio:")).unwrap();
        transmit(&remote, &setup()).unwrap().2
    }

    fn open(&self, setup: &StreamSetup) -> Result<Sink> {
        Sink::open(&self.name(), setup)
    }

    /// Lines that begin with these words.
    fn lines(&self, begin: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.lines.iter().filter(|line| line.starts_with(begin)).cloned().collect()
    }

    fn bytes(&self) -> Vec<u8> {
        self.seen.lock().unwrap().bytes.clone()
    }
}

fn serve(
    stream: &TcpStream,
    xml: &str,
    seen: &Mutex<Seen>,
    odd: &mut impl FnMut(&str) -> Option<&'static str>,
) -> std::io::Result<()> {
    let (mut from, mut to) = (BufReader::new(stream), stream);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim().to_owned();
        seen.lock().unwrap().lines.push(line.clone());
        let odd = odd(&line);
        match odd {
            Some("") => return Ok(()),
            Some("last") | None => {}
            Some(answer) => {
                for (at, part) in answer.split('|').enumerate() {
                    // What comes before is heard of before.
                    thread::sleep(Duration::from_millis(50 * u64::from(at > 0)));
                    to.write_all(part.as_bytes())?;
                }
                if answer.ends_with('|') {
                    return Ok(());
                }
                continue;
            }
        }
        let words: Vec<_> = line.split(' ').collect();
        let answer = match words[0] {
            "PRINT" => format!("{}\n{xml}\n", xml.len()),
            "READ" if line.ends_with("sampling_frequency") => "8\n1000000\0\n".into(),
            "READ" => "-2\n".into(),
            "WRITEBUF" => {
                to.write_all(b"0\n")?;
                let mut bytes = vec![0; words[2].parse().unwrap()];
                from.read_exact(&mut bytes)?;
                seen.lock().unwrap().bytes.extend(bytes);
                format!("{}\n", words[2])
            }
            _ => "0\n".into(),
        };
        if odd == Some("last") {
            // The client waits for the answer then.
            thread::sleep(Duration::from_millis(50));
        }
        to.write_all(answer.as_bytes())?;
        if odd == Some("last") {
            return Ok(());
        }
    }
}

/// Sends a block of these bytes, repeated.
fn send(sink: &Sink, len: usize, fill: u8) -> Result<()> {
    let mut space = sink.space()?;
    space.write()?.bytes_mut().fill(fill);
    space.send(len)
}

/// Small blocks are copied; these are not.
const LEN: usize = 32 << 10;
/// How long anything may take here.
const LIMIT: Duration = Duration::from_secs(20);

fn setup() -> StreamSetup {
    StreamSetup::new().block_len(LEN).blocks(4)
}

#[test]
fn samples_arrive_in_their_order_uncopied_and_the_device_is_closed_when_they_are_drained() {
    let server = Server::new();
    let sink = server.open(&setup()).unwrap();
    assert_eq!((sink.block_len(), sink.format().sample_len), (LEN, 4));
    assert_eq!(sink.interface(), Interface::Iiod);
    assert!(sink.try_drain().unwrap(), "there is nothing yet");
    for fill in 0..20 {
        send(&sink, LEN, fill).unwrap();
    }
    send(&sink, 400, 99).unwrap();
    sink.drain().unwrap();
    assert_eq!(server.lines("CLOSE"), ["CLOSE iio:device1"]);
    // As it was opened before.
    send(&sink, 4, 100).unwrap();
    sink.drain().unwrap();
    let mut expected: Vec<_> = (0..20).flat_map(|fill| vec![fill; LEN]).collect();
    expected.extend([[99; 400].as_slice(), &[100; 4]].concat());
    assert!(server.bytes() == expected);
    assert_eq!(server.lines("OPEN"), vec!["OPEN iio:device1 8192 00000006"; 2]);
    assert_eq!(server.lines("SET"), vec!["SET iio:device1 BUFFERS_COUNT 4"; 2]);
    // Without a rate, it may be slow.
    assert_eq!(server.lines("TIMEOUT"), ["TIMEOUT 62500"]);
    // The short ones.
    assert_eq!(sink.copied(), 404);
}

#[test]
fn a_server_that_does_not_tell_when_samples_are_transmitted_has_time_and_whole_buffers() {
    let server = Server::odd(&["sampling_frequency"], |_| None);
    let sink = server.open(&setup()).unwrap();
    assert_eq!(server.lines("TIMEOUT"), ["TIMEOUT 2532"]);
    send(&sink, LEN, 1).unwrap();
    send(&sink, LEN, 2).unwrap();
    send(&sink, 400, 3).unwrap();
    let begun = Instant::now();
    sink.drain().unwrap();
    // Five blocks of 8192 samples, at 1 MS/s.
    assert!(begun.elapsed() >= Duration::from_millis(40));
    let bytes = server.bytes();
    assert_eq!(bytes.len(), 4 * LEN, "two blocks at a time");
    assert!(bytes[..2 * LEN + 400].ends_with(&[3; 400]));
    assert!(bytes[2 * LEN + 400..].iter().all(|byte| *byte == 0));
    assert_eq!(server.lines("CLOSE").len(), 0);
    assert!(sink.try_drain().unwrap());
}

#[test]
fn blocks_of_a_source_are_lent_and_go_back_and_a_slow_server_holds_them() {
    let (go, gate) = mpsc::channel::<()>();
    let server = Server::odd(&[LOST], move |line| {
        if line.starts_with("WRITEBUF") {
            gate.recv().unwrap();
        }
        None
    });
    let from = StreamSetup::new().block_len(LEN).blocks(8).channels(["voltage0_i", "voltage0_q"]);
    let source = Source::open("synth:counter", &from).unwrap();
    let sink = Sink::open_for(&server.name(), source.format(), &setup()).unwrap();
    let is_readable =
        |timeout| !poll::wait(&sink, PollFlags::IN, Some(timeout)).unwrap().is_empty();
    let mut lent = 0;
    let refused = loop {
        let samples = source.next().unwrap();
        if !sink.try_forward(&samples).unwrap() {
            break samples;
        }
        lent += 1;
    };
    assert_eq!((lent, sink.queued()), (4, 4), "half of the source's");
    for _ in 0..4 {
        go.send(()).unwrap();
    }
    while !sink.try_forward(&refused).unwrap() {
        assert!(is_readable(Duration::from_secs(10)));
    }
    drop(refused);
    go.send(()).unwrap();
    for _ in 0..8 {
        go.send(()).unwrap();
        sink.forward(&source.next().unwrap()).unwrap();
    }
    sink.drain().unwrap();
    let bytes = server.bytes();
    assert_eq!((bytes.len(), sink.queued(), sink.copied()), (13 * LEN, 0, 0));
    let first = |block: usize| bytes[block * LEN..block * LEN + 2].to_vec();
    assert_eq!((first(0), first(12)), (vec![0, 0], (12 * 8192_u32).to_le_bytes()[..2].to_vec()));
}

#[test]
fn what_cannot_be_transmitted_to_is_an_error_that_says_why() {
    let server = Server::new();
    let open = |name: &str, setup: &StreamSetup| {
        let name = format!("iio:{name}@ip:127.0.0.1:{}", server.port);
        Sink::open(&name, setup).unwrap_err().to_string()
    };
    for (error, says) in [
        (open("none", &setup()), "there are: adc, dac"),
        (open("adc", &setup()), "it has no output channel"),
        (open("adc", &setup().channels(["monitor"])), "it has no output channel"),
        (open("dac", &setup().channels(["monitor"])), "allowed: voltage0_i, voltage0_q"),
        (open("dac", &setup().interface(Interface::Dmabuf)), "allowed: iiod"),
        (open("dac", &setup().rate(1.0)), "the rate"),
    ] {
        assert!(error.contains(says), "{error}");
    }
    let mut format = Format::of_shorts(&["voltage0_i", "voltage0_q"]);
    format.channels[1].bits = 12;
    let error = Sink::open_for(&server.name(), &format, &setup()).unwrap_err().to_string();
    for says in ["voltage0_q le:s12/16>>0", "voltage0_q le:s16/16>>0"] {
        assert!(error.contains(says), "{error}");
    }
    for (answer, says) in [
        ("-16\n", "another program uses it"),
        ("-1\n", "the server allows nobody to transmit"),
        ("-22\n", "Invalid argument"),
        ("x\n", "no number"),
    ] {
        let server = Server::odd(&[LOST], move |line| line.starts_with("OPEN").then_some(answer));
        let error = server.open(&setup()).unwrap_err().to_string();
        assert!(error.contains(says), "{answer}: {error}");
    }
    for names in [["voltage0_q", "voltage0_i"], ["voltage0_i", "voltage0_q"]] {
        let mut format = Format::of_shorts(&names);
        format.channels[1].signed = names[0] != "voltage0_i";
        let error = Sink::open_for(&server.name(), &format, &setup()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let cyclic = server.open(&setup()).unwrap().cyclic(&[0; 4]).unwrap_err();
    assert_eq!(cyclic.kind(), ErrorKind::Unsupported);
}

#[test]
fn whatever_a_server_answers_ends_the_sink_with_a_reason_and_gives_the_blocks_back() {
    const LONG: &str = match std::str::from_utf8(&[b'1'; 5000]) {
        Ok(long) => long,
        Err(_) => "",
    };
    for (to, answer, says) in [
        ("WRITEBUF", "-32\n", "Broken pipe"),
        ("WRITEBUF", "-99999999999\n", "the server says"),
        ("WRITEBUF", "5\n", "answers 5 instead of 0"),
        ("WRITEBUF", "99999999999999999999\n", "not of the protocol"),
        ("WRITEBUF", "\n", "not of the protocol"),
        ("WRITEBUF", LONG, "not of the protocol"),
        ("WRITEBUF", "", "closed the connection"),
        // It has not taken the samples, or says so before it could have.
        ("WRITEBUF", "0\n|0\n", "answers 0 instead of 32768"),
        ("WRITEBUF", "0\n|32764\n", "answers 32764 instead of 32768"),
        ("WRITEBUF", "0\n0\n", "the server answers "),
        ("WRITEBUF", "0\n-110\n", "Connection timed out"),
        ("CLOSE", "-5\n", "Input/output error"),
        ("CLOSE", "", "closed the connection"),
        ("CLOSE", "0\n0\n", "without a question"),
    ] {
        let server = Server::odd(&[LOST], move |line| line.starts_with(to).then_some(answer));
        let source = Source::open(
            "synth:counter",
            &setup().blocks(4).channels(["voltage0_i", "voltage0_q"]),
        );
        let source = source.unwrap();
        let sink = Sink::open_for(&server.name(), source.format(), &setup()).unwrap();
        let begun = Instant::now();
        // Samples after a drain that was given up would be a new question.
        let drain = if to == "CLOSE" { LIMIT } else { Duration::from_millis(10) };
        let error = loop {
            assert!(begun.elapsed() < LIMIT, "{to} {answer}");
            let samples = source.next_timeout(LIMIT).unwrap().unwrap();
            let failed = sink
                .forward_timeout(&samples, Duration::from_millis(10))
                .and_then(|_| sink.drain_timeout(drain));
            if let Err(error) = failed {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{to} {answer}: {error}");
        let text = error.to_string();
        assert!(text.contains(says), "{to} {answer}: {text}");
        assert!(text.contains("transmit to IIO device `dac`"), "{text}");
        assert_eq!(sink.space().unwrap_err().kind(), ErrorKind::BrokenPipe);
        // All blocks of the source at a time.
        let _all: Vec<_> = (0..4).map(|_| source.next_timeout(LIMIT).unwrap().unwrap()).collect();
    }
}

#[test]
fn a_block_that_is_longer_than_those_of_the_sink_is_refused() {
    let server = Server::new();
    let from = setup().block_len(2 * LEN).channels(["voltage0_i", "voltage0_q"]);
    let source = Source::open("synth:counter", &from).unwrap();
    let sink = Sink::open_for(&server.name(), source.format(), &setup()).unwrap();
    let error = sink.forward(&source.next_timeout(LIMIT).unwrap().unwrap()).unwrap_err();
    assert!(error.to_string().contains("up to 32768"), "{error}");
}

#[test]
fn blocks_that_the_server_has_taken_before_an_error_are_not_queued_any_more() {
    let from = setup().blocks(8).channels(["voltage0_i", "voltage0_q"]);
    let source = Source::open("synth:counter", &from).unwrap();
    for is_lent in [true, false] {
        let server = Server::odd(&[LOST], |line| line.starts_with("WRITEBUF").then_some("last"));
        let sink = Sink::open_for(&server.name(), source.format(), &setup()).unwrap();
        let push = || {
            if is_lent {
                sink.forward(&source.next_timeout(LIMIT).unwrap().unwrap()).unwrap();
            } else {
                send(&sink, LEN, 1).unwrap();
            }
        };
        push();
        push();
        let error = loop {
            // Until the server has acted.
            thread::sleep(Duration::from_millis(100));
            if let Err(error) = sink.reap() {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        assert_eq!(sink.queued(), 1);
    }
}

#[test]
fn a_server_that_goes_is_noticed_without_samples_to_transmit() {
    let (go, gate) = mpsc::channel::<()>();
    let server = Server::odd(&[LOST], move |line| {
        if line.starts_with("WRITEBUF") {
            return None;
        }
        line.starts_with("CLOSE").then(|| {
            gate.recv().unwrap();
            ""
        })
    });
    let sink = server.open(&setup()).unwrap();
    send(&sink, LEN, 1).unwrap();
    assert!(!sink.drain_timeout(Duration::from_millis(100)).unwrap());
    go.send(()).unwrap();
    assert_eq!(sink.drain().unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_silent_server_ends_the_sink() {
    let server = Server::odd(&["sampling_frequency"], |line| {
        while line.starts_with("WRITEBUF") {
            thread::park();
        }
        None
    });
    let mut transmit = server.transmit();
    assert!(transmit.silence > Duration::from_secs(7));
    transmit.silence = Duration::from_millis(100);
    let error = failure_of(&mut transmit, &source());
    assert!(error.contains("does not answer"), "{error}");
}

fn source() -> Source {
    Source::open("synth:counter", &setup()).unwrap()
}

/// Transmits a block, which fails.
fn failure_of(transmit: &mut Transmit, source: &Source) -> String {
    transmit.push(source.next_timeout(LIMIT).unwrap().unwrap(), true);
    let begun = Instant::now();
    loop {
        if let Err(error) = transmit.advance() {
            return error.to_string();
        }
        assert!(begun.elapsed() < LIMIT);
        poll::wait(&*transmit, PollFlags::IN, Some(LIMIT)).unwrap();
    }
}

#[test]
fn an_answer_is_heard_while_a_block_is_larger_than_the_room_in_the_sockets() {
    for (answer, says) in [
        ("0\n|-19\n", "No such device"),
        ("0\n|-19\n|", "No such device"),
        ("0\n|", "onnection"),
        ("0\n|32768\n", "answers before it has the samples"),
    ] {
        let server =
            Server::odd(&[LOST], move |line| line.starts_with("WRITEBUF").then_some(answer));
        let mut transmit = server.transmit();
        let socket = &transmit.talk.as_ref().unwrap().socket;
        sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
        transmit.silence = Duration::from_secs(2);
        let error = failure_of(&mut transmit, &source());
        assert!(error.contains(says), "{answer}: {error}");
    }
}

#[test]
fn an_answer_before_the_server_has_acknowledged_all_samples_keeps_the_block() {
    let server =
        Server::odd(&[LOST], |line| line.starts_with("WRITEBUF").then_some("0\n|32768\n|"));
    let mut transmit = server.transmit();
    let error = failure_of(&mut transmit, &source());
    assert!(error.contains("answers before it has the samples"), "{error}");
    assert_eq!(transmit.returned(), 0);
}

#[test]
fn a_server_that_refuses_a_number_of_buffers_has_the_usual_one() {
    for (answer, half) in [("0\n", 1), ("-22\n", 2)] {
        let server = Server::odd(&[], move |line| line.starts_with("SET").then_some(answer));
        let remote = Remote::of(server.name().trim_start_matches("iio:")).unwrap();
        let (_, _, transmit) = transmit(&remote, &setup().blocks(3)).unwrap();
        assert_eq!(transmit.half, Some(half * LEN));
    }
}

#[test]
fn a_server_that_goes_is_noticed_while_there_is_nothing_to_do() {
    let server = Server::odd(&[LOST], |line| line.starts_with("OPEN").then_some("0\n|"));
    let sink = server.open(&setup()).unwrap();
    let begun = Instant::now();
    let error = loop {
        if let Err(error) = sink.reap() {
            break error;
        }
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(5));
    };
    assert!(error.to_string().contains("closed the connection"), "{error}");
}

#[cfg(feature = "pipeline")]
fn pipeline(server: &Server) -> crate::pipeline::Pipeline {
    let text = format!(
        "source.adc = {{ from = \"synth:counter?rate=1M&channels=1\", block-len = \"32K\", blocks = 16 }}\n\
         sink.dac = {{ input = \"adc\", to = \"{}\", when-full = \"drop-oldest\", patience = \"500ms\" }}\n",
        server.name()
    );
    let config = crate::pipeline::Config::parse("test", &text).unwrap();
    crate::pipeline::Pipeline::open(config).unwrap()
}

/// Lets it run until it fails.
#[cfg(feature = "pipeline")]
fn failure_of_pipeline(pipeline: &mut crate::pipeline::Pipeline) -> Error {
    let begun = Instant::now();
    loop {
        if let Err(error) = pipeline.turn() {
            return error;
        }
        assert!(begun.elapsed() < Duration::from_secs(3));
    }
}

#[cfg(feature = "pipeline")]
#[test]
fn a_pipeline_gives_a_server_up_that_refuses_each_first_block() {
    let server = Server::odd(&[LOST], |line| line.starts_with("WRITEBUF").then_some("-5\n"));
    failure_of_pipeline(&mut pipeline(&server));
    let opens = server.lines("OPEN").len();
    assert!((2..8).contains(&opens), "{opens}");
}

#[cfg(feature = "pipeline")]
#[test]
fn a_pipeline_gives_a_server_up_that_takes_long_to_open() {
    let mut prints = 0;
    let server = Server::odd(&[LOST], move |line| {
        prints += usize::from(line.starts_with("PRINT"));
        if prints == 2 {
            // Longer than the patience of the pipeline.
            thread::sleep(LIMIT);
        }
        line.starts_with("WRITEBUF").then_some("")
    });
    let error = failure_of_pipeline(&mut pipeline(&server));
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

#[cfg(feature = "pipeline")]
#[test]
fn a_pipeline_opens_it_again_and_others_do_not_wait_for_it() {
    use crate::pipeline::{Config, Pipeline};

    let (ask, is_asked) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let mut writes = 0;
    let server = Server::odd(&[LOST], move |line| {
        writes += usize::from(line.starts_with("WRITEBUF"));
        // Once gone, it comes back when the test says so.
        if line.starts_with("PRINT") && writes == 3 {
            let _ = ask.send(());
            let _ = may_go_on.recv();
        }
        let goes = line.starts_with("WRITEBUF") && writes == 3;
        if goes {
            // While the block is under way.
            thread::sleep(Duration::from_millis(50));
        }
        goes.then_some("")
    });
    let text = format!(
        "source.adc = {{ from = \"synth:counter?rate=1M&channels=1\", block-len = \"32K\", blocks = 16 }}\n\
         sink.dac = {{ input = \"adc\", to = \"{}\", when-full = \"drop-oldest\", patience = \"60s\" }}\n\
         sink.other = {{ input = \"adc\", to = \"verify:counter\" }}\n",
        server.name()
    );
    let mut pipeline = Pipeline::open(Config::parse("test", &text).unwrap()).unwrap();
    let begun = Instant::now();
    let mut turn = || {
        assert!(begun.elapsed() < Duration::from_secs(60));
        pipeline.turn().unwrap();
        let [dac, other] = <[_; 2]>::try_from(pipeline.counters().sinks).unwrap();
        (dac, other)
    };
    while is_asked.try_recv().is_err() {
        turn();
    }
    // The other goes on meanwhile, with more blocks than there are, so that some are dropped.
    let (_, other) = turn();
    let enough = other.blocks + 40;
    while turn().1.blocks < enough {}
    drop(go_on);
    let (dac, other) = loop {
        let (dac, other) = turn();
        if dac.restarts > 0 && dac.lost > 0 {
            break (dac, other);
        }
    };
    assert!(dac.failed > 0 && dac.restarts == 1, "{dac:?}");
    assert_eq!(other.restarts, 0);
    assert_eq!(server.lines("OPEN").len(), 2);
}
