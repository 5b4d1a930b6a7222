//! The commands `busbar endpoint` and `busbar doctor`.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use busbar::endpoint::{Controller, Endpoint, MAX_MESSAGE};
use busbar_coprocessor::service::data;
use busbar_coprocessor::service::sink::{Answer, Query};
use busbar_lab::stage::Side;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use support::{command as busbar, eptfd, in_tree, signal, text};

fn run(arguments: &[&str]) -> Output {
    busbar(arguments).output().unwrap()
}

fn on(side: &Side, arguments: &[&str]) -> Command {
    let mut command = busbar(&["endpoint"]);
    command.args(arguments).arg("--controller").arg(side.controller());
    command
}

fn json(output: &Output) -> Value {
    let text = text(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn feed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The feeder may fail if the command does not read any more.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output().unwrap()
    })
}

#[test]
fn bad_usage_ends_with_2_and_names_the_argument() {
    for (arguments, named) in [
        (&["endpoint", "ping"][..], "<SERVICE|ADDR>"),
        (&["endpoint", "ping", "echo", "-s", "497"], "--size"),
        (&["endpoint", "ping", "echo", "-c", "0"], "--count"),
        (&["endpoint", "ping", "echo", "-i", "-1"], "-1"),
        (&["endpoint", "ping", "0xffffffff"], "0xffffffff"),
        (&["endpoint", "ping", "echo", "--implementation", "tty"], "auto, fd, node"),
        (&["endpoint", "cat", "echo", "--size", "0"], "--size"),
        (&["endpoint", "cat", "echo", "--linger", "soon"], "--linger"),
        (&["endpoint"], "list"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(named), "{}", text(&output.stderr));
    }
}

#[test]
fn what_is_no_control_device_ends_with_1_and_says_so() {
    for path in ["/dev/null", "/etc/passwd", "/dev/rpmsg_ctrl_none"] {
        let output = run(&["endpoint", "ping", "echo", "--controller", path]);
        assert_eq!(output.status.code(), Some(1), "{path}");
        let message = text(&output.stderr);
        assert!(
            message.contains(path) && message.contains("/dev/rpmsg_ctrl0")
                || message.contains("busbar endpoint list"),
            "{message}"
        );
    }
}

/// The error of a command, which has to exit with 1.
fn failure(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(said.starts_with("busbar: ") && said.lines().count() == 1, "{said}");
    said
}

#[test]
fn a_port_in_use_comes_with_how_to_find_its_user() {
    let other = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    for arguments in
        [&["receive", "--port", &port][..], &["stream", &format!("tcp-listen:{port}"), "null:"]]
    {
        let said = failure(arguments);
        assert!(said.contains(&port) && said.contains("`ss -ltnp`"), "{said}");
    }
}

#[test]
fn what_is_missing_is_said_at_once_and_by_its_name() {
    for (arguments, named) in [
        (&["receive", "--port", "0", "--device", "none0"][..], &["none0", "`ip link`"][..]),
        (&["receive", "--port", "0", "--dst", "file:/none/x"], &["/none/x", "no folder /none"]),
        (&["stream", "synth:sine", "null:", "--memory", "heap:none"], &["dma_heap/none"]),
        (&["stream", "synth:sine", "iio:none"], &["IIO"]),
        (&["bulk", "send", "/none/x"], &["/none/x"]),
    ] {
        let said = failure(arguments);
        assert!(named.iter().all(|name| said.contains(name)), "{said}");
    }
}

#[test]
fn without_a_coprocessor_each_command_leads_to_doctor() {
    // With a control device, these would not fail.
    if std::fs::exists("/sys/bus/rpmsg").unwrap() {
        return;
    }
    for arguments in [&["endpoint", "ping", "echo"][..], &["bulk", "receive", "-"]] {
        let said = failure(arguments);
        assert!(said.contains("`busbar doctor`"), "{said}");
    }
}

#[test]
fn nobody_need_listen_to_complaints() {
    let mut command = busbar(&["endpoint", "ping", "echo"]);
    // A pipe that is closed at its other end.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn doctor_answers_for_every_path_and_always_succeeds() {
    let output = run(&["doctor", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = json(&output);
    let paths: Vec<_> = report["paths"].as_array().unwrap().iter().map(|it| &it["path"]).collect();
    assert_eq!(paths, ["endpoint", "bulk", "wait", "stream", "receive"]);
    assert!(!report["lab"]["uses"].as_array().unwrap().is_empty());
    let wait = report["paths"][2]["uses"][0].as_str().unwrap();
    let settled = busbar::wait::Poller::new().unwrap().backend();
    assert!(wait.starts_with(&format!("back end {settled}: ")), "{wait}");
    let output = run(&["doctor"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("endpoint: messages to and from a coprocessor"));
}

#[test]
#[ignore = "needs the lab"]
fn list_and_doctor_show_both_kinds_of_control_devices() {
    let (one, two) = (eptfd(&["echo"]), in_tree(&["echo", "sink"]));
    let list = json(&run(&["endpoint", "list", "--json"]));
    let find = |side: &Side| {
        let path = side.controller().to_str().unwrap();
        list.as_array().unwrap().iter().find(|it| it["path"] == path).unwrap().clone()
    };
    assert_eq!(find(&one)["driver"], "rpmsg_eptfd");
    assert_eq!(find(&two)["driver"], "rpmsg_ctrl");
    assert_eq!(find(&two)["remoteproc"]["state"], "running");
    assert_eq!(find(&two)["channels"][1]["service"], "sink");
    let table = text(&run(&["endpoint", "list"]).stdout);
    assert!(table.starts_with("CONTROLLER"), "{table}");
    assert_eq!(table.lines().count(), 4, "{table}");

    let doctor = text(&run(&["doctor"]).stdout);
    let uses = |side: &Side, what: &str| format!("uses: {}: {what}", side.controller().display());
    assert!(doctor.contains(&uses(&one, "endpoints that are descriptors")), "{doctor}");
    assert!(doctor.contains(&uses(&two, "endpoints that are device nodes")), "{doctor}");
}

#[test]
#[ignore = "needs the lab"]
fn ping_gets_its_replies_over_both() {
    for (side, implementation) in [(eptfd(&["echo"]), "fd"), (in_tree(&["echo"]), "node")] {
        let output =
            on(&side, &["ping", "echo", "-c", "20", "-i", "0", "-s", "496"]).output().unwrap();
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
        let by = format!("by {implementation}: 496(512) bytes of data.");
        assert!(said.starts_with("PING echo (0x400) through /dev/rpmsg_ctrl"), "{said}");
        assert!(said.contains(&by), "{said}");
        assert_eq!(said.matches("496 bytes from echo (0x400): seq=").count(), 20, "{said}");
        assert!(said.contains("20 messages transmitted, 20 received, 0% loss"), "{said}");
        assert!(said.contains("rtt min/avg/max/mdev = "), "{said}");

        let output =
            on(&side, &["ping", "0x400", "-c", "3", "-i", "0.01", "--json"]).output().unwrap();
        let report = json(&output);
        assert_eq!(report["implementation"], implementation);
        assert_eq!((&report["transmitted"], &report["received"]), (&3.into(), &3.into()));
        assert!(report["rtt_ms"]["min"].as_f64().unwrap() > 0.0);
    }
}

#[test]
#[ignore = "needs the lab"]
fn ping_without_a_reply_ends_with_1() {
    let side = eptfd(&["sink"]);
    let output =
        on(&side, &["ping", "sink", "-c", "2", "-i", "0.01", "-W", "0.1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("2 messages transmitted, 0 received, 100% loss"), "{said}");
    assert!(!said.contains("rtt"), "{said}");
}

#[test]
#[ignore = "needs the lab"]
fn an_interrupted_ping_prints_its_statistics_and_leaves_nothing() {
    let side = in_tree(&["echo"]);
    for end in [Signal::INT, Signal::TERM] {
        let mut child = on(&side, &["ping", "echo", "-i", "0.01"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("seq=3 ")));
        signal(&child, end);
        let rest: Vec<_> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{rest:?}");
        for part in ["messages transmitted", "rtt min/avg/max/mdev"] {
            assert!(rest.iter().any(|line| line.contains(part)), "{rest:?}");
        }
        let left = std::fs::read_dir("/dev").unwrap().flatten().map(|it| it.file_name());
        let left: Vec<_> = left
            .filter(|name| {
                text(name.as_encoded_bytes()).starts_with("rpmsg")
                    && !text(name.as_encoded_bytes()).starts_with("rpmsg_ctrl")
            })
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_crash_ends_ping_with_statistics_and_the_reason() {
    for mut side in [eptfd(&["echo"]), in_tree(&["echo"])] {
        let mut child = on(&side, &["ping", "echo", "-i", "0.01"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("seq=3 ")));
        side.kill().unwrap();
        assert!(lines.any(|line| line.unwrap().contains("messages transmitted")));
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let reason = text(&output.stderr);
        assert!(reason.contains("the coprocessor stopped or crashed"), "{reason}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn cat_sends_lines_and_prints_replies() {
    for side in [eptfd(&["echo"]), in_tree(&["echo"])] {
        let output = feed(&mut on(&side, &["cat", "echo"]), b"one\n\ntwo\nlast");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "one\n\ntwo\nlast\n");
    }
}

#[test]
#[ignore = "needs the lab"]
fn cat_carries_blocks_whole_and_in_order() {
    let data: Vec<u8> = (0..50_000u32).flat_map(u32::to_le_bytes).collect();
    for side in [eptfd(&["echo"]), in_tree(&["echo"])] {
        let output = feed(&mut on(&side, &["cat", "echo", "--size", "496", "-l", "5"]), &data);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(output.stdout == data, "{} of {} bytes", output.stdout.len(), data.len());
    }
}

#[test]
#[ignore = "needs the lab"]
fn cat_names_the_line_that_is_too_long_and_sends_those_before() {
    let side = eptfd(&["echo"]);
    let input = [b"good\n".as_slice(), &[b'x'; 497], b"\nnever\n"].concat();
    let output = feed(&mut on(&side, &["cat", "echo"]), &input);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "good\n");
    let reason = text(&output.stderr);
    assert!(reason.contains("line 2 of standard input"), "{reason}");
    assert!(reason.contains("0 to 496 bytes"), "{reason}");
}

#[test]
#[ignore = "needs the lab"]
fn one_controller_is_found_by_itself_and_several_are_asked_for() {
    let one = eptfd(&["echo"]);
    let output = run(&["endpoint", "ping", "echo", "-c", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let two = in_tree(&["echo"]);
    let output = run(&["endpoint", "ping", "echo", "-c", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let reason = text(&output.stderr);
    for side in [&one, &two] {
        assert!(reason.contains(side.controller().to_str().unwrap()), "{reason}");
    }
    let output = run(&["endpoint", "ping", "nobody", "-c", "1"]);
    assert!(text(&output.stderr).contains("announced: echo"), "{}", text(&output.stderr));
}

/// Messages that certainly do not fit in the ring.
const TOO_MANY: u32 = 1000;

const MOMENT: Duration = Duration::from_millis(100);

/// An endpoint to the sink of a stopped coprocessor, and the number of messages that it accepted.
fn fill(side: &Side) -> (Endpoint, u32) {
    let sink = Controller::open(side.controller()).unwrap().endpoint("sink").create().unwrap();
    kill_process(side.process().unwrap(), Signal::STOP).unwrap();
    let mut message = [0; 100];
    let fits = |sequence: &u32| {
        data::fill(*sequence, &mut message).unwrap();
        sink.try_send(&message).unwrap()
    };
    let sent = (0..TOO_MANY).take_while(fits).count().try_into().unwrap();
    assert!((1..TOO_MANY).contains(&sent), "{sent}");
    (sink, sent)
}

#[test]
#[ignore = "needs the lab"]
fn a_full_ring_is_told_and_waited_for() {
    for side in [eptfd(&["sink"]), in_tree(&["sink"])] {
        let (sink, sent) = fill(&side);
        let mut message = [0; 100];
        data::fill(sent, &mut message).unwrap();
        let begun = Instant::now();
        assert!(!sink.send_timeout(&message, MOMENT).unwrap());
        assert!(begun.elapsed() >= MOMENT);
        assert!(!sink.try_send(&message).unwrap());
        thread::scope(|scope| {
            let sender = scope.spawn(|| sink.send(&message));
            thread::sleep(MOMENT);
            assert!(!sender.is_finished());
            kill_process(side.process().unwrap(), Signal::CONT).unwrap();
            sender.join().unwrap().unwrap();
        });
        // Nothing was lost, and nothing was sent that was reported as not sent.
        sink.send(&Query { token: 1, reset: false }.encode()).unwrap();
        let mut buffer = [0; MAX_MESSAGE];
        let length = sink.recv(&mut buffer).unwrap();
        let counts = Answer::decode(&buffer[..length]).unwrap().counts;
        assert!(counts.is_complete(u64::from(sent) + 1), "{sent}: {counts:?}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_crash_wakes_blocked_senders_and_receivers() {
    for mut side in [eptfd(&["sink"]), in_tree(&["sink"])] {
        let (sink, _) = fill(&side);
        thread::scope(|scope| {
            let sender = scope.spawn(|| sink.send(b"no room"));
            let patient = scope.spawn(|| sink.send_timeout(b"no room", MOMENT * 6000).map(drop));
            let receiver = scope.spawn(|| sink.recv(&mut [0; MAX_MESSAGE]).map(drop));
            thread::sleep(MOMENT);
            assert!(!sender.is_finished() && !patient.is_finished() && !receiver.is_finished());
            side.kill().unwrap();
            for thread in [sender, patient, receiver] {
                let error = thread.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            }
        });
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_controller_from_before_a_crash_is_a_broken_pipe() {
    for mut side in [eptfd(&["echo"]), in_tree(&["echo"])] {
        let controller = Controller::open(side.controller()).unwrap();
        drop(controller.endpoint("echo").create().unwrap());
        side.kill().unwrap();
        side.start().unwrap();
        for error in [
            controller.channels().unwrap_err(),
            controller.endpoint("echo").create().unwrap_err(),
            controller.endpoint("echo").destination(0x400).create().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        }
        let again = Controller::open(side.controller()).unwrap();
        let echo = again.endpoint("echo").create().unwrap();
        echo.send(b"again").unwrap();
        assert_eq!(echo.recv(&mut [0; MAX_MESSAGE]).unwrap(), 5);
    }
}
