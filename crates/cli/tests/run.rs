//! The command `busbar run`: each useful source with each sink, refusals, and
//! parts that go away.

mod support;

use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread::sleep;
use std::time::Duration;

use busbar_lab::stage::load_converter;
use rustix::process::{Resource, Signal};
use serde_json::Value;
use support::{finish, last, port, signal, summary, text, wait_until};
use tempfile::TempDir;

/// A folder with files of pipelines.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A pipeline, and the command that runs it.
    fn pipeline(&self, name: &str, text: &str) -> Command {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        support::command(&["run", path.to_str().unwrap(), "--json"])
    }

    /// A running pipeline, and its reports.
    fn start(&self, text: &str) -> (Child, Log) {
        let log = Log { journal: self.path("journal"), metrics: format!("127.0.0.1:{}", port()) };
        let _ = fs::remove_file(&log.journal);
        let arguments = ["--journal", log.journal.to_str().unwrap(), "--metrics", &log.metrics];
        (self.pipeline("p", text).args(arguments).spawn().unwrap(), log)
    }

    fn run(&self, text: &str, arguments: &[&str]) -> Value {
        summary(&self.pipeline("pipeline.toml", text).args(arguments).output().unwrap())
    }
}

/// Files and address of a pipeline's reports.
struct Log {
    journal: PathBuf,
    metrics: String,
}

impl Log {
    /// Waits until signals are handled, which is before the journal exists.
    fn until_opened(&self) {
        wait_until("the journal", || self.journal.exists());
    }

    /// Waits until the journal has this many events `what`.
    fn until(&self, count: usize, what: &str) {
        let all = || fs::read_to_string(&self.journal).unwrap_or_default();
        wait_until(what, || all().matches(what).count() >= count);
    }

    /// Waits until the metrics show more samples at a sink than `before`.
    fn until_samples(&self, sink: &str, before: u64) {
        wait_until("samples", || self.samples(sink).is_some_and(|count| count > before));
    }

    /// How many samples a sink has, by the metrics of the last second.
    fn samples(&self, sink: &str) -> Option<u64> {
        let counter = format!("busbar_sink_samples_total{{sink=\"{sink}\"}} ");
        let answer = self.scraped().ok()?;
        let count = answer.lines().find_map(|line| line.strip_prefix(&counter))?;
        Some(count.parse().unwrap())
    }

    /// The response of the metrics server, if there is one.
    fn scraped(&self) -> io::Result<String> {
        let mut socket = TcpStream::connect(&self.metrics)?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
        io::read_to_string(socket)
    }
}

/// The error of a command that has failed.
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    text(&output.stderr)
}

/// The counters of one node.
fn node<'a>(summary: &'a Value, kind: &str, name: &str) -> &'a Value {
    let all = summary[kind].as_array().unwrap();
    all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {summary}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value}"))
}

/// Samples delivered, and samples reported as missing.
fn told(sink: &Value) -> u64 {
    assert_eq!(number(sink, "unknown"), 0, "{sink}");
    number(sink, "samples") + number(sink, "lost")
}

#[test]
fn a_file_is_checked_without_starting_anything() {
    let files = Files::new();
    let path = files.path("a.toml");
    let check = |text: &str| {
        fs::write(&path, text).unwrap();
        support::command(&["run", "--check", path.to_str().unwrap()]).output().unwrap()
    };
    let good = "[source.a]\nfrom = \"iio:not-there\"\n[sink.b]\ninput = \"a\"\nto = \"null:\"\n";
    let output = check(good);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("1 source, 1 sink"));
    let output = check(&good.replace("input", "inputs"));
    let said = failure(&output);
    for part in ["a.toml, line 4", "`sink.b.inputs`", "did you mean `input`?"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = files.pipeline("b.toml", good).output().unwrap();
    let said = failure(&output);
    assert!(said.contains("cannot"), "{said}");
}

#[test]
fn one_block_goes_to_every_sink() {
    let files = Files::new();
    let recording = files.path("tenth");
    let summary = files.run(
        &format!(
            r#"
            [source.adc]
            from = "synth:counter?rate=2M"
            [stage.tenth]
            input = "adc"
            do = "decimate"
            by = 10
            [stage.sum]
            input = "adc"
            do = "checksum"
            [stage.some]
            input = "sum"
            do = "select"
            channels = ["voltage0_i", "voltage0_q"]
            [sink.all]
            input = "sum"
            to = "verify:counter"
            [sink.few]
            input = "some"
            to = "verify:counter"
            [sink.recording]
            input = "tenth"
            to = "file:{}"
            [sink.nothing]
            input = "adc"
            to = "null:"
            "#,
            recording.display()
        ),
        &["--seconds", "0.5"],
    );
    let samples = number(node(&summary, "sources", "adc"), "samples");
    assert!(samples > 0, "{summary}");
    for sink in ["all", "few", "nothing"] {
        assert_eq!(told(node(&summary, "sinks", sink)), told_source(&summary, "adc"), "{sink}");
    }
    assert_eq!(number(node(&summary, "sinks", "few"), "verified"), samples);
    let recorded = node(&summary, "sinks", "recording");
    let tenth = number(recorded, "samples");
    assert_eq!(told(recorded), told_source(&summary, "adc").div_ceil(10));
    assert_eq!(fs::metadata(recording.with_extension("sigmf-data")).unwrap().len(), 8 * tenth);
    // Only the copies of the stages and of the file.
    let copied = 4 * samples + 2 * 8 * tenth;
    assert_eq!(number(&summary, "copied"), copied);
}

const RECEIVER: &str = r#"
    [source.net]
    from = "tcp-listen:127.0.0.1:PORT"
    [sink.right]
    input = "net"
    to = "verify:counter"
"#;

const SENDER: &str = r#"
    [source.adc]
    from = "synth:counter?rate=2M"
    [stage.sum]
    input = "adc"
    do = "checksum"
    [sink.net]
    input = "sum"
    to = "tcp:127.0.0.1:PORT"
"#;

#[test]
fn samples_come_through_the_network_with_their_check_sums() {
    let (files, port) = (Files::new(), port().to_string());
    let receiver = files.pipeline("r", &RECEIVER.replace("PORT", &port)).spawn().unwrap();
    let sent = files.run(&SENDER.replace("PORT", &port), &["--seconds", "0.5"]);
    let arrived = finish(receiver);
    let samples = number(node(&sent, "sources", "adc"), "samples");
    assert_eq!(told(node(&sent, "sinks", "net")), told_source(&sent, "adc"));
    assert_eq!(number(node(&arrived, "sinks", "right"), "verified"), samples);
    assert_eq!(number(&sent, "copied"), 0, "{sent}");
}

#[test]
fn a_receiver_that_is_killed_is_followed_by_another_and_nothing_is_missing_untold() {
    let (files, port) = (Files::new(), port().to_string());
    let receiver = || files.start(&RECEIVER.replace("PORT", &port));
    let (mut first, log) = receiver();
    let sender = files.pipeline("s", &SENDER.replace("PORT", &port)).spawn().unwrap();
    log.until_samples("right", 0);
    first.kill().unwrap();
    let output = first.wait_with_output().unwrap();
    assert!(!output.status.success());
    let (second, log) = receiver();
    log.until_samples("right", 0);
    signal(&sender, Signal::INT);
    let sent = finish(sender);
    let arrived = finish(second);
    let net = node(&sent, "sinks", "net");
    assert_eq!(told(net), told_source(&sent, "adc"), "{sent}");
    assert!(number(net, "reconnects") + number(net, "restarts") > 0, "{sent}");
    assert!(number(node(&arrived, "sinks", "right"), "verified") > 0);
}

/// Samples of a source, and samples that it reports as missing.
fn told_source(summary: &Value, name: &str) -> u64 {
    let source = node(summary, "sources", name);
    assert_eq!(number(source, "unknown"), 0, "{source}");
    number(source, "samples") + number(source, "lost")
}

#[test]
fn a_recording_is_played_into_another() {
    let files = Files::new();
    let (one, other) = (files.path("one"), files.path("other"));
    let record = |from: &str, to: &Path, seconds: &[&str]| {
        let text = format!(
            "[source.a]\nfrom = \"{from}\"\n[sink.b]\ninput = \"a\"\nto = \"file:{}\"\n\
             [sink.c]\ninput = \"a\"\nto = \"verify:counter\"\n",
            to.display()
        );
        files.run(&text, seconds)
    };
    record("synth:counter?rate=1M", &one, &["--seconds", "0.3"]);
    record(&format!("file:{}", one.display()), &other, &[]);
    let read = |path: &Path| fs::read(path.with_extension("sigmf-data")).unwrap();
    assert!(!read(&one).is_empty() && read(&one) == read(&other));
    // None is overwritten.
    let text = format!(
        "[source.a]\nfrom = \"synth:sine\"\n[sink.b]\ninput = \"a\"\nto = \"file:{}\"\n",
        one.display()
    );
    let output = files.pipeline("again", &text).output().unwrap();
    let said = failure(&output);
    assert!(said.contains("never overwritten"), "{said}");
}

#[test]
fn a_slow_sink_that_may_drop_holds_up_nobody() {
    let files = Files::new();
    // Accepts connections and never reads.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        r#"
        [pipeline]
        drain = "200ms"
        [source.adc]
        from = "synth:counter?rate=2M"
        [sink.right]
        input = "adc"
        to = "verify:counter"
        [sink.slow]
        input = "adc"
        to = "tcp:{}"
        queue = 3
        when-full = "drop-oldest"
        "#,
        deaf.local_addr().unwrap()
    );
    let output = files.pipeline("p", &text).args(["--seconds", "0.5"]).output().unwrap();
    // Blocks that could not be delivered are reported, and are a failure.
    let said = failure(&output);
    assert!(said.contains("3 for `slow`"), "{said}");
    let summary = last(str::from_utf8(&output.stdout).unwrap());
    assert_eq!(summary["remaining"]["slow"], 3);
    assert_eq!(told(node(&summary, "sinks", "right")), told_source(&summary, "adc"));
    let slow = node(&summary, "sinks", "slow");
    assert!(number(slow, "dropped_samples") > 100_000, "{slow}");
}

#[test]
fn signals_end_it_in_order_and_two_of_them_at_once() {
    let files = Files::new();
    let text = "[source.a]\nfrom = \"synth:counter?rate=1M\"\n[sink.b]\ninput = \"a\"\n\
                to = \"verify:counter\"\n";
    for end in [Signal::INT, Signal::TERM] {
        let (child, log) = files.start(text);
        log.until_opened();
        sleep(Duration::from_millis(300));
        signal(&child, end);
        let summary = finish(child);
        let sink = node(&summary, "sinks", "b");
        assert_eq!(number(sink, "verified"), number(node(&summary, "sources", "a"), "samples"));
    }
    // Without a receiver, the end takes its whole time limit, unless there is a second signal.
    let text = format!(
        "[pipeline]\ndrain = \"10min\"\n[source.a]\nfrom = \"synth:counter?rate=1M\"\n\
         [sink.b]\ninput = \"a\"\nto = \"tcp:127.0.0.1:{}\"\n",
        port()
    );
    let (child, log) = files.start(&text);
    log.until_opened();
    sleep(Duration::from_millis(300));
    signal(&child, Signal::TERM);
    sleep(Duration::from_millis(300));
    signal(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    let said = failure(&output);
    assert!(said.contains("interrupt"), "{said}");
}

#[test]
fn metrics_and_a_journal_tell_how_it_goes() {
    let files = Files::new();
    let (child, log) = files.start(
        "[source.a]\nfrom = \"synth:counter?rate=1M\"\n[sink.b]\ninput = \"a\"\nto = \"null:\"\n",
    );
    log.until_samples("b", 0);
    assert!(log.scraped().unwrap().starts_with("HTTP/1.1 200"));
    signal(&child, Signal::INT);
    finish(child);
    let journal = fs::read_to_string(log.journal).unwrap();
    let last: Value = serde_json::from_str(journal.lines().last().unwrap()).unwrap();
    assert_eq!(last["what"], "summary");
    assert_eq!(told(node(&last, "sinks", "b")), told_source(&last, "a"));
}

/// A coprocessor's process, killed when this is dropped.
struct Core(Child);

impl Core {
    fn run(services: &str) -> Self {
        let arguments = ["coprocessor", "run", "--device", "/dev/vcoproc0", "--service", services];
        Self(support::command(&arguments).spawn().unwrap())
    }

    fn crash(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Clock ticks that the threads of this name have used.
fn ticks(process: u32, name: &str) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let stat = |it: fs::DirEntry| fs::read_to_string(it.path().join("stat")).unwrap();
    let ours = threads.map(stat).filter(|stat| stat.contains(&format!("({name})")));
    let used = |stat: String| -> u64 {
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').skip(11).take(2).map(|it| it.parse::<u64>().unwrap()).sum()
    };
    ours.map(used).sum()
}

#[test]
fn metrics_wait_for_descriptors_that_have_run_out() {
    let files = Files::new();
    let text = "[source.adc]\nfrom = \"synth:counter?rate=1k\"\n[sink.none]\ninput = \"adc\"\nto = \"null:\"\n";
    let (child, log) = files.start(text);
    log.until_samples("none", 0);
    let process = rustix::process::Pid::from_child(&child);
    let set = |current| {
        let limit =
            rustix::process::Rlimit { current, ..rustix::process::getrlimit(Resource::Nofile) };
        rustix::process::prlimit(Some(process), Resource::Nofile, limit).unwrap()
    };
    // Less than it has open.
    let before = set(Some(3));
    let ask = || {
        let mut socket = TcpStream::connect(&log.metrics).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        socket
    };
    // A server that waits for a connection may have a descriptor for it already, and for that one only.
    let sockets = [ask(), ask()];
    let used = ticks(child.id(), "metrics");
    sleep(Duration::from_secs(1));
    // It would be nearly 100, if it retried without a pause.
    let used = ticks(child.id(), "metrics") - used;
    assert!(used < 10, "{used}");
    set(before.current);
    for socket in sockets {
        assert!(io::read_to_string(socket).unwrap().starts_with("HTTP/1.1 200 OK"));
    }
    signal(&child, Signal::INT);
    finish(child);
}

fn load() {
    load_converter().unwrap();
    // With the in-tree pair, which other tests leave: endpoints are nodes here.
    let modules = ["-a", "vcoproc", "rpmsg_ctrl", "rpmsg_char"];
    assert!(Command::new("modprobe").args(modules).status().unwrap().success());
}

/// Also sets the converter's pattern to `counter`, with this rate.
fn load_counter(rate: &str) {
    load();
    set("sampling_frequency", rate);
    set("pattern", "counter");
}

fn converter() -> PathBuf {
    let all = fs::read_dir("/sys/bus/iio/devices").unwrap().flatten().map(|it| it.path());
    let is_it = |path: &PathBuf| {
        fs::read_to_string(path.join("name")).is_ok_and(|name| name.trim() == "vconv0")
    };
    all.into_iter().find(is_it).unwrap()
}

fn set(attribute: &str, value: &str) {
    fs::write(converter().join(attribute), value).unwrap();
}

#[test]
#[ignore = "needs the lab"]
fn a_coprocessor_starts_tunes_and_crashes_and_the_samples_go_on() {
    load_counter("0");
    let services = "control+gain=50+rate=200000+trigger=100";
    let core = Core::run(services);
    let files = Files::new();
    let (child, log) = files.start(
        r#"
            [source.adc]
            from = "iio:vconv0"
            channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
            [sink.right]
            input = "adc"
            to = "verify:counter"
            [control.core]
            endpoint = "control"
            sources = ["adc"]
            deadline = "10s"
            on.trigger = ["set adc in_voltage0_q_hardwaregain 0.25"]
            "#,
    );
    log.until(1, "trigger 2");
    let gain = |channel: &str| {
        let path = converter().join(format!("in_{channel}_hardwaregain"));
        fs::read_to_string(path).unwrap().trim().parse::<f64>().unwrap()
    };
    assert_eq!((gain("voltage0_i"), gain("voltage0_q")), (0.5, 0.25));
    core.crash();
    log.until(1, "\"trouble\"");
    let _core = Core::run(services);
    log.until(2, "\"came\"");
    log.until(2, "trigger 1\"");
    signal(&child, Signal::TERM);
    let summary = finish(child);
    let control = node(&summary, "controls", "core");
    // Six at each start, and perhaps the one at the end.
    let (commands, refused) = (number(control, "commands"), number(control, "refused"));
    assert!((12..=13).contains(&commands) && refused == 0, "{control}");
    assert_eq!((number(control, "malformed"), number(control, "late")), (0, 0), "{control}");
    assert_eq!(number(control, "restarts"), 1, "{control}");
    let (source, sink) = (node(&summary, "sources", "adc"), node(&summary, "sinks", "right"));
    assert!(number(source, "samples") > 10_000, "{source}");
    assert_eq!(told(sink), told_source(&summary, "adc"), "{summary}");
    assert_eq!((number(source, "restarts"), number(&summary, "copied")), (0, 0), "{summary}");
}

#[test]
#[ignore = "needs the lab"]
fn a_gate_opens_on_a_trigger_and_tells_what_it_kept_back() {
    load();
    set("sampling_frequency", "100000");
    let _core = Core::run("control+trigger=300");
    let files = Files::new();
    let summary = files.run(
        r#"
        [source.adc]
        from = "iio:vconv0"
        block-len = "8K"
        channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
        [stage.gate]
        input = "adc"
        do = "gate"
        control = "core"
        open-on = "trigger"
        samples = 3000
        [sink.right]
        input = "gate"
        to = "verify:counter"
        [control.core]
        endpoint = "control"
        sources = ["adc"]
        "#,
        &["--seconds", "4"],
    );
    let (gate, sink) = (node(&summary, "stages", "gate"), node(&summary, "sinks", "right"));
    assert!(number(gate, "opened") >= 2 && number(gate, "kept_back") > 0, "{gate}");
    let through = number(sink, "samples");
    assert!(through >= 3000 && through < number(node(&summary, "sources", "adc"), "samples"));
    assert_eq!(told(sink), told_source(&summary, "adc"), "{summary}");
}

#[test]
#[ignore = "needs the lab"]
fn from_one_converter_to_another_by_reference() {
    load_counter("0");
    let files = Files::new();
    let text = r#"
        [source.adc]
        from = "iio:vconv0"
        channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
        [sink.dac]
        input = "adc"
        to = "iio:vconv0-tx"
        [sink.right]
        input = "adc"
        to = "verify:counter"
    "#;
    let summary = files.run(text, &["--seconds", "2"]);
    let sent = node(&summary, "sinks", "dac");
    assert_eq!(told(sent), told_source(&summary, "adc"), "{summary}");
    assert!(number(sent, "samples") > 10_000, "{summary}");
    assert_eq!(number(&summary, "copied"), 0, "{summary}");
}

#[test]
#[ignore = "needs the lab"]
fn a_coprocessor_tunes_the_converter_that_transmits() {
    load_counter("0");
    let _core = Core::run("control+rate=200000+trigger=100");
    let files = Files::new();
    let (child, log) = files.start(
        r#"
        [source.adc]
        from = "iio:vconv0"
        channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
        [sink.dac]
        input = "adc"
        to = "iio:vconv0-tx"
        [control.core]
        endpoint = "control"
        sources = ["adc"]
        sinks = ["dac"]
        deadline = "10s"
        on.trigger = ["set dac sampling_frequency 300000", "set dac no_such_attribute 1"]
        "#,
    );
    // What the driver of the transmitter says: it changes no rate meanwhile.
    let of = "of IIO device `vconv0-tx` (iio:device";
    log.until(1, &format!("cannot write `300000` to `sampling_frequency` {of}"));
    log.until(1, &format!("cannot write `1` to `no_such_attribute` {of}"));
    signal(&child, Signal::TERM);
    finish(child);
}

#[test]
#[ignore = "needs the lab"]
fn a_converter_that_goes_is_opened_again() {
    load();
    let directory = Path::new("/sys/kernel/config/iio/devices/vconv/again");
    fs::create_dir(directory).unwrap();
    let files = Files::new();
    let text = r#"
        [source.adc]
        from = "iio:again"
        channels = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]
        [sink.right]
        input = "adc"
        to = "verify:counter"
    "#;
    let (child, log) = files.start(text);
    log.until_samples("right", 0);
    fs::remove_dir(directory).unwrap();
    log.until(1, "\"trouble\"");
    fs::create_dir(directory).unwrap();
    log.until(1, "\"restarted\"");
    // Twice, as the first increase may come from earlier samples.
    for _ in 0..2 {
        log.until_samples("right", log.samples("right").unwrap());
    }
    signal(&child, Signal::INT);
    let summary = finish(child);
    fs::remove_dir(directory).unwrap();
    let source = node(&summary, "sources", "adc");
    assert_eq!((number(source, "restarts"), number(source, "unknown")), (1, 1), "{summary}");
    let verified = number(node(&summary, "sinks", "right"), "verified");
    assert_eq!(verified, number(source, "samples"), "{summary}");
}

/// The number of DMABUFs of the system.
fn dmabufs() -> usize {
    let all = fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").unwrap();
    let total =
        |line: &str| Some(line.strip_prefix("Total ")?.split_once(" objects")?.0.parse().unwrap());
    all.lines().find_map(total).unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn a_converter_that_is_disabled_again_and_again_goes_on_and_leaves_nothing() {
    load();
    set("sampling_frequency", "0");
    let files = Files::new();
    let text = r#"
        [source.adc]
        from = "iio:vconv0"
        block-len = "64K"
        blocks = 8
        interface = "dmabuf"
        [sink.dac]
        input = "adc"
        to = "iio:vconv0-tx"
        queue = 4
    "#;
    let (child, log) = files.start(text);
    log.until_samples("dac", 0);
    let before = dmabufs();
    for round in 1..=20 {
        set("buffer0/enable", "0");
        log.until(round, "\"restarted\"");
        log.until_samples("dac", log.samples("dac").unwrap());
    }
    // Each source has allocated 8; the kernel frees earlier ones a moment later.
    wait_until("the end of the DMABUFs", || dmabufs() <= before);
    signal(&child, Signal::INT);
    let summary = finish(child);
    assert_eq!(number(node(&summary, "sources", "adc"), "restarts"), 20, "{summary}");
    assert_eq!(number(&summary, "copied"), 0, "{summary}");
}

#[test]
#[ignore = "needs the lab"]
fn samples_go_to_a_coprocessor_in_messages_and_in_blocks() {
    load();
    let _core = support::eptfd(&["sink", "bulk"]);
    let files = Files::new();
    for to in ["endpoint:sink", "bulk:fd", "bulk:buffer"] {
        let text = format!(
            "[source.adc]\nfrom = \"synth:counter?rate=50k\"\nblock-len = \"8K\"\n\
             [sink.core]\ninput = \"adc\"\nto = \"{to}\"\n"
        );
        let summary = files.run(&text, &["--seconds", "2"]);
        let sink = node(&summary, "sinks", "core");
        assert_eq!(told(sink), told_source(&summary, "adc"), "{to}: {summary}");
        assert!(number(sink, "samples") > 1000, "{to}: {summary}");
        // A message is copied out of the block once; a block once more, by the link.
        let copies = if to.starts_with("bulk") { 2 } else { 1 };
        assert_eq!(number(sink, "copied"), copies * number(sink, "bytes"), "{to}: {summary}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn samples_come_from_a_coprocessor_in_messages() {
    load();
    let core = Core::run("converter");
    let files = Files::new();
    let recording = files.path("recording");
    let text = format!(
        "[source.core]\nfrom = \"endpoint:converter?type=ci16_le&channels=2\"\n\
         [sink.file]\ninput = \"core\"\nto = \"file:{}\"\n\
         [sink.right]\ninput = \"core\"\nto = \"verify:counter\"\n",
        recording.display()
    );
    let (child, log) = files.start(&text);
    let len = || fs::metadata(recording.with_extension("sigmf-data")).map_or(0, |it| it.len());
    wait_until("samples", || len() > 1000);
    core.crash();
    log.until(1, "\"trouble\"");
    let _core = Core::run("converter");
    log.until(1, "\"restarted\"");
    let before = len();
    wait_until("more samples", || len() > before);
    signal(&child, Signal::INT);
    let summary = finish(child);
    let sink = node(&summary, "sinks", "file");
    assert_eq!((number(sink, "bytes"), number(sink, "unknown")), (len(), 1), "{summary}");
    let verified = number(node(&summary, "sinks", "right"), "verified");
    assert_eq!(8 * verified, len(), "{summary}");
}

#[path = "../../busbar/tests/pair/mod.rs"]
mod pair;

#[test]
#[ignore = "needs the lab"]
fn blocks_land_in_device_memory_and_nobody_copies_them() {
    load_counter("0");
    let _pair = pair::Pair::new();
    let [here, _] = pair::V4;
    let files = Files::new();
    let receiver = format!(
        "[source.net]\nfrom = \"receive:{}:{here}:4960\"\n[sink.right]\ninput = \"net\"\n\
         to = \"verify:counter\"\n[sink.nothing]\ninput = \"net\"\nto = \"null:\"\n",
        pair::DEVICE
    );
    let receiver = files.pipeline("r", &receiver).spawn().unwrap();
    let sender = format!(
        "[pipeline]\ndrain = \"60s\"\n[source.adc]\nfrom = \"iio:vconv0\"\n\
         channels = [\"voltage0_i\", \"voltage0_q\", \"voltage1_i\", \"voltage1_q\"]\n\
         [stage.sum]\ninput = \"adc\"\ndo = \"checksum\"\n\
         [sink.net]\ninput = \"sum\"\nto = \"tcp:{here}:4960\"\n"
    );
    // The process in the far end's namespace sends.
    let path = files.path("s");
    fs::write(&path, sender).unwrap();
    let sent = Command::new("ip")
        .args(["netns", "exec", pair::NAMESPACE])
        .arg(support::busbar())
        .args(["run", path.to_str().unwrap(), "--json", "--seconds", "3"])
        .output()
        .unwrap();
    let (sent, arrived) = (summary(&sent), finish(receiver));
    let samples = number(node(&sent, "sources", "adc"), "samples");
    assert!(samples > 10_000, "{sent}");
    assert_eq!(told(node(&arrived, "sinks", "right")), samples, "{arrived}");
    assert_eq!(number(node(&arrived, "sinks", "right"), "verified"), samples);
    assert_eq!((number(&sent, "copied"), number(&arrived, "copied")), (0, 0), "{arrived}");
}

/// All sinks, behind the source `from`.
const EVERY_SINK: &str = r#"
    [source.from]
    from = "FROM"
    block-len = "8K"
    channels = CHANNELS
    [sink.null]
    input = "from"
    to = "null:"
    [sink.verify]
    input = "from"
    to = "verify:counter"
    [sink.file]
    input = "from"
    to = "file:FILE"
    [sink.tcp]
    input = "from"
    to = "tcp:127.0.0.1:PORT"
    [sink.iio]
    input = "from"
    to = "iio:vconv0-tx"
    [sink.endpoint]
    input = "from"
    to = "endpoint:sink"
    [sink.bulk]
    input = "from"
    to = "bulk:fd"
"#;

const VOLTAGES: &str = r#"["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"]"#;

#[test]
#[ignore = "needs the lab"]
fn every_source_reaches_every_sink() {
    load_counter("20000");
    let _core = support::eptfd(&["sink", "bulk", "converter"]);
    let files = Files::new();
    let recorded = files.path("recorded");
    files.run(
        &format!(
            "[source.a]\nfrom = \"synth:counter?rate=20k\"\nchannels = {VOLTAGES}\n\
             [sink.b]\ninput = \"a\"\nto = \"file:{}\"\n",
            recorded.display()
        ),
        &["--seconds", "1"],
    );
    let there = port();
    let all = [
        ("synth:counter?rate=20k".to_owned(), VOLTAGES),
        ("iio:vconv0".to_owned(), VOLTAGES),
        (format!("file:{}", recorded.display()), "[]"),
        ("endpoint:converter?channels=2".to_owned(), "[]"),
        (format!("tcp-listen:127.0.0.1:{there}"), "[]"),
        (format!("receive:host:127.0.0.1:{there}"), "[]"),
    ];
    for (index, (from, channels)) in all.iter().enumerate() {
        let port = port().to_string();
        let receiver = files.pipeline("r", &RECEIVER.replace("PORT", &port)).spawn().unwrap();
        let text = EVERY_SINK
            .replace("FROM", from)
            .replace("CHANNELS", channels)
            .replace("FILE", files.path(&format!("copy{index}")).to_str().unwrap())
            .replace("PORT", &port);
        let is_called = from.contains(&there.to_string());
        let ends = is_called || from.starts_with("file:");
        let seconds: &[&str] = if ends { &[] } else { &["--seconds", "2"] };
        let child = files.pipeline("p", &text).args(seconds).spawn().unwrap();
        if is_called {
            let sender = SENDER.replace("2M", "20k").replace("PORT", &there.to_string());
            files.run(&sender, &["--seconds", "2"]);
        }
        let (summary, arrived) = (finish(child), finish(receiver));
        let source = told_source(&summary, "from");
        assert!(source > 1000, "{from}: {summary}");
        for sink in ["null", "verify", "file", "tcp", "iio", "endpoint", "bulk"] {
            assert_eq!(told(node(&summary, "sinks", sink)), source, "{from} to {sink}: {summary}");
        }
        assert_eq!(told(node(&arrived, "sinks", "right")), source, "{from}: {arrived}");
    }
}

#[test]
fn blocks_may_be_received_by_receive_on_any_host() {
    let (files, port) = (Files::new(), port().to_string());
    let receiver =
        RECEIVER.replace("tcp-listen:127.0.0.1:PORT", &format!("receive:host:127.0.0.1:{port}"));
    let receiver = files.pipeline("r", &receiver).spawn().unwrap();
    let sent = files.run(&SENDER.replace("PORT", &port), &["--seconds", "0.5"]);
    let arrived = finish(receiver);
    let samples = number(node(&sent, "sources", "adc"), "samples");
    assert_eq!(number(node(&arrived, "sinks", "right"), "verified"), samples, "{arrived}");
}
