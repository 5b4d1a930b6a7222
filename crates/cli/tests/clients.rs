//! Programs of others as clients of `busbar serve`, as their users install them: pylibiio, pyadi-iio and zeroconf from `PyPI`,
//! GNU Radio from Debian. The programs are in `clients/`.
//!
//! Those of libiio-utils are in `serve.rs` and `iiod.rs`.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use converter::Converter;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use support::iiod::Server;
use support::{command, signal, text, wait_until};

/// The interpreter with the packages of `PyPI`: `tests/python.sh install` makes it.
fn python() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    std::env::var_os("BUSBAR_PYTHON").map_or(installed, PathBuf::from)
}

/// A program of `clients/`.
fn program(interpreter: &Path, name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    let mut command = Command::new(interpreter);
    command.arg("-B").arg(path);
    command
}

fn succeed(mut command: Command, arguments: &[&str]) {
    let output =
        command.args(arguments).output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Debian's own interpreter, which has GNU Radio.
fn gnuradio() -> Command {
    program(Path::new("/usr/bin/python3"), "with_gnuradio.py")
}

#[test]
#[ignore = "tests/run clients"]
fn pylibiio_reads_attributes_and_every_sample() {
    let server = Server::start(&["adc=synth:counter"]);
    let arguments = [&server.uri(), "adc", "busbar_report_loss", "1", "busbar_lost", "13"];
    succeed(program(&python(), "with_pylibiio.py"), &arguments);
}

#[test]
#[ignore = "tests/run clients"]
fn pyadi_iio_receives_every_sample_with_a_class_of_its_own() {
    let server = Server::start(&["axi-adrv9009-rx-hpc=synth:counter", "adc=synth:counter"]);
    succeed(program(&python(), "with_pyadi_iio.py"), &[&server.uri(), "adc"]);
}

#[test]
#[ignore = "tests/run clients"]
fn gnu_radio_receives_every_sample() {
    let server = Server::start(&["synth:counter"]);
    succeed(gnuradio(), &[&server.uri(), "counter", "1000000"]);
    let summary = server.finish().pop().unwrap();
    assert_eq!(summary["copied"], 0, "{summary}");
}

mod lab {
    use super::*;

    #[test]
    #[ignore = "needs the lab"]
    fn python_and_gnu_radio_are_clients_of_both_servers() {
        // The class of pyadi-iio looks for this name.
        let name = "axi-adrv9009-rx-hpc";
        let converter = Converter::named(name);
        let transmitter = format!("{name}-tx");
        // A single block that is sent through libiio's server is not received before the time limit of the client.
        for (server, more) in
            [(Server::start(&[]), &[&*transmitter][..]), (Server::of_libiio(), &[])]
        {
            let uri = server.uri();
            let arguments = [&uri, name, "pattern", "sine", "pattern_available", "13"];
            succeed(program(&python(), "with_pylibiio.py"), &arguments);
            succeed(program(&python(), "with_pyadi_iio.py"), &[&[&*uri, name], more].concat());
            succeed(gnuradio(), &[&uri, name, "100000"]);
            wait_until("the buffer is disabled", || converter.rx.get("buffer/enable") == "0");
        }
    }

    const HERE: &str = "busbar-here";
    const THERE: &str = "busbar-there";
    const ADDRESS: &str = "198.18.58.1";
    /// Where all hear multicast DNS.
    const GROUP: (&str, u16) = ("224.0.0.251", 5353);

    /// Two network namespaces, which are connected, until this is dropped.
    struct Networks;

    impl Networks {
        fn new() -> Self {
            let networks = Self;
            for line in [
                format!("netns add {HERE}"),
                format!("netns add {THERE}"),
                format!("-n {HERE} link add one type veth peer name two netns {THERE}"),
                format!("-n {HERE} addr add {ADDRESS}/24 dev one"),
                format!("-n {HERE} link set lo up"),
                format!("-n {HERE} link set one up"),
                format!("-n {THERE} addr add 198.18.58.2/24 dev two"),
                format!("-n {THERE} link set two up"),
                format!("-n {THERE} route add 224.0.0.0/4 dev two"),
            ] {
                let status = Command::new("ip").args(line.split(' ')).status().unwrap();
                assert!(status.success(), "ip {line}");
            }
            networks
        }
    }

    impl Drop for Networks {
        fn drop(&mut self) {
            for name in [HERE, THERE] {
                let _ = Command::new("ip").args(["netns", "del", name]).status();
            }
        }
    }

    /// A command in a network namespace.
    fn within(namespace: &str, command: &Command) -> Command {
        let mut all = Command::new("ip");
        all.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
        all.stdin(Stdio::null()).stdout(Stdio::piped());
        all
    }

    /// A process whose lines are read, and which ends with this.
    struct Lines(Child, Receiver<String>);

    impl Lines {
        fn of(namespace: &str, command: &Command) -> Self {
            let mut child = within(namespace, command).spawn().unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            let (said, lines) = channel();
            spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
            Self(child, lines)
        }

        fn serve(arguments: &[&str]) -> Self {
            Self::of(HERE, &command(&[&["serve", "--json"], arguments].concat()))
        }

        /// The next line that contains this text, within two minutes.
        fn find(&mut self, text: &str) -> String {
            let end = Instant::now() + Duration::from_secs(120);
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let line = self.1.recv_timeout(left);
                let line = line.unwrap_or_else(|why| panic!("no line with {text:?}: {why}"));
                if line.contains(text) {
                    return line;
                }
            }
        }

        /// Memory in use, in KiB.
        fn memory(&self) -> i64 {
            let status = format!("/proc/{}/status", self.0.id());
            let status = std::fs::read_to_string(status).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        }

        /// Processor time that it has taken.
        fn processor_time(&self) -> Duration {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
            // Behind the name: times of the program and of the kernel for it.
            let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
            let ticks: u64 = fields.map(|it| it.parse::<u64>().unwrap()).sum();
            Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
        }

        fn end(mut self) {
            signal(&self.0, Signal::TERM);
            self.0.wait().unwrap();
        }
    }

    impl Drop for Lines {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn zeroconf() -> Lines {
        let mut command = program(&python(), "with_zeroconf.py");
        let mut lines = Lines::of(THERE, command.arg("600"));
        lines.find("ready");
        lines
    }

    #[test]
    #[ignore = "needs the lab"]
    fn servers_are_announced_by_dns_sd_and_withdrawn() {
        let _networks = Networks::new();
        let mut neighbour = zeroconf();
        // None of these is announced.
        let mut local =
            Lines::serve(&["--listen", "127.0.0.1:4000", "--announce", "synth:counter"]);
        let mut silent = Lines::serve(&["--listen", "4001", "synth:counter"]);
        local.find("listening");
        silent.find("listening");

        let mut server = Lines::serve(&["--listen", "4002", "--announce", "synth:counter"]);
        let line: serde_json::Value = serde_json::from_str(&server.find("\"announced\"")).unwrap();
        let name = line["name"].as_str().unwrap().to_owned();
        assert!(name.starts_with("busbar on "), "{line}");
        let found = neighbour.find("Added");
        let found: Vec<_> = found.split('\t').collect();
        assert_eq!((found[1], found[2], &found[4..]), (&*name, "4002", &[ADDRESS][..]));
        assert!(found[3].ends_with("-iio4002.local."), "{found:?}");
        // A sink of a stream is a server as well. It gets another name, as the first one is taken.
        let to = format!("iiod:{ADDRESS}:4003");
        let stream = Lines::of(HERE, &command(&["stream", "--announce", "synth:counter", &to]));
        let second = neighbour.find("Added");
        assert!(second.contains(&format!("{name} (2)\t4003\t")), "{second}");

        let list = within(THERE, &command(&["stream", "list", "ip:"])).output().unwrap();
        let expected = format!("ip:{ADDRESS}:4002  {name}\nip:{ADDRESS}:4003  {name} (2)\n");
        assert_eq!(text(&list.stdout), expected);

        server.end();
        assert_eq!(neighbour.find("Removed"), format!("Removed\t{name}"));
        stream.end();
        assert_eq!(neighbour.find("Removed"), format!("Removed\t{name} (2)"));
        let list = within(THERE, &command(&["stream", "list", "ip:", "--json"])).output().unwrap();
        assert_eq!(text(&list.stdout).trim(), "[]");
    }

    #[test]
    #[ignore = "needs the lab"]
    fn a_server_serves_though_it_cannot_be_announced() {
        let _networks = Networks::new();
        let holder = enter(HERE, || UdpSocket::bind("0.0.0.0:5353").unwrap());
        let mut server = Lines::serve(&["--listen", "4000", "--announce", "synth:counter"]);
        assert!(server.find("not_announced").contains("5353"));
        let uri = format!("ip:{ADDRESS}:4000");
        let mut info = Command::new("iio_info");
        let output = within(THERE, info.args(["-u", &uri])).output().unwrap();
        assert!(text(&output.stdout).contains("IIO context has 1 devices"));
        drop(holder);
    }

    #[test]
    #[ignore = "needs the lab"]
    fn packets_of_a_hostile_neighbour_do_no_harm_and_take_no_memory() {
        let _networks = Networks::new();
        let mut server = Lines::serve(&["--listen", "4000", "--announce", "synth:counter"]);
        server.find("\"announced\"");
        // As many in a second as the server reads, so that none is left out.
        let (packets, each) = (support::rounds(2_000, 800), Duration::from_micros(2500));
        let (before, begun, time) = (server.memory(), Instant::now(), server.processor_time());
        enter(THERE, || {
            let socket = UdpSocket::bind("0.0.0.0:5353").unwrap();
            let mut random = fastrand::Rng::with_seed(23);
            for index in 0..packets {
                sleep(each);
                if index % 2 == 0 {
                    let packet = if index % 4 == 0 { answers(index) } else { pointers() };
                    socket.send_to(&packet, GROUP).unwrap();
                    continue;
                }
                let mut packet = vec![0; random.usize(..600)];
                random.fill(&mut packet);
                if packet.len() >= HEAD.len() && random.bool() {
                    // What looks like an answer or a question, with random counts of records.
                    packet[..HEAD.len()].copy_from_slice(&HEAD);
                    packet[2] = if random.bool() { 0x84 } else { 0 };
                    packet[5] = random.u8(..8);
                    packet[7] = random.u8(..8);
                }
                socket.send_to(&packet, GROUP).unwrap();
            }
        });
        let (time, all) = (server.processor_time().saturating_sub(time), begun.elapsed());
        assert!(time < all * 3 / 4, "{time:?} of {all:?}");
        let mut neighbour = zeroconf();
        assert!(neighbour.find("Added").contains("\t4000\t"));
        let grown = server.memory() - before;
        assert!(grown < 8 << 10, "{grown} KiB");
        server.end();
        neighbour.find("Removed");
    }

    /// Sixty addresses of hosts that nobody has asked for, for years.
    fn answers(index: u64) -> Vec<u8> {
        let mut message = b"\0\0\x84\0\0\0\0\x3c\0\0\0\0".to_vec();
        for host in 0..60 {
            message.push(16);
            message.extend_from_slice(format!("h{:015}", index * 60 + host).as_bytes());
            message.extend_from_slice(b"\x05local\0\0\x01\0\x01\x7f\xff\xff\xff\0\x04\x0a\0\0\x01");
        }
        message
    }

    /// 1400 questions for the same name of 253 bytes, by pointers to it.
    fn pointers() -> Vec<u8> {
        let mut message = b"\0\0\0\0\xff\xff\0\0\0\0\0\0".to_vec();
        message.extend(b"\x01a".repeat(126));
        message.extend(b"\0\0\x01\0\x01");
        message.extend(b"\xc0\x0c\0\x01\0\x01".repeat(1400));
        message
    }

    /// The head of a message, and a name.
    const HEAD: [u8; 25] = *b"\0\0\x84\0\0\x01\0\x01\0\0\0\0\x04_iio\x04_tcp\xc0\x0c\0";

    /// Does something in a network namespace. Sockets that it makes stay there.
    fn enter<T: Send>(namespace: &str, body: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind).unwrap();
            body()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }
}
