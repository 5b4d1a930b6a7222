//! Twelve faults of clients and of the machine, against `busbar serve` and libiio's own server on the same device: whether
//! the server hangs, crashes, leaks, or loses samples and does not say so.
//!
//! The table that it prints is in docs/iiod.md.

#[path = "../../../kernel/modules/vconv/tests/converter.rs"]
mod converter;
mod support;

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use converter::{Converter, FRAME};
use support::iiod::{Raw, Server};

/// A device that stays, and one that the fault is about.
const STAYS: &str = "faults-stays";
const GOES: &str = "faults-goes";
/// Samples a second: little, so that an emulated machine keeps up.
const RATE: u64 = 20_000;
/// What a client opens a buffer with and reads at a time, as libiio does: of what it does not read, `iiod` drops the rest. These are
/// whole samples with each set of channels.
const BLOCK: usize = 4608 * FRAME;
/// What a server that does not answer within this time never will.
const HANG: Duration = Duration::from_secs(60);

/// A server, its device, and what it had open before the fault.
struct Trial {
    server: Server,
    stays: Converter,
    goes: Option<Converter>,
    /// Where its messages go, if that is a disk of its own.
    disk: Option<Disk>,
    before: (usize, usize),
}

/// A file system of 64 KiB.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none"])
            .arg(folder.path())
            .status();
        assert!(mount.unwrap().success());
        Self(folder)
    }

    fn messages(&self) -> std::path::PathBuf {
        self.0.path().join("messages")
    }

    fn fill(&self) {
        let mut file = File::create(self.0.path().join("other")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Reads a device until it is asked to end, and counts the samples between those that it gets.
struct Reader {
    thread: JoinHandle<Option<u64>>,
    read: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Reader {
    fn start(trial: &Trial) -> Self {
        let (ends, read) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let (its_end, its_read) = (Arc::clone(&ends), Arc::clone(&read));
        let port = trial.server.port;
        let thread = thread::spawn(move || {
            let mut client = Raw::connect(port);
            if client.ask(&format!("OPEN {STAYS} 4608 0000000f")) != 0 {
                return None;
            }
            let (mut lost, mut next) = (0, None);
            while !its_end.load(Ordering::Acquire) {
                lost += gaps(&mut client, &mut next)?;
                its_read.fetch_add(1, Ordering::AcqRel);
            }
            client.ask(&format!("CLOSE {STAYS}"));
            Some(lost)
        });
        Self { thread, read, ends }
    }

    /// Waits for some more blocks; returns whether they have come.
    fn goes_on(&self) -> bool {
        let wanted = self.read.load(Ordering::Acquire) + 3;
        within(|| self.thread.is_finished() || self.read.load(Ordering::Acquire) >= wanted)
            && !self.thread.is_finished()
    }

    /// The samples that it has not got between two that it has, or none if it could not read to the end.
    fn end(self) -> Option<u64> {
        self.ends.store(true, Ordering::Release);
        self.thread.join().unwrap_or(None)
    }
}

/// Reads a block with all voltages; returns how many samples are missing before or within it, or none if it cannot be read.
/// `next` is the number that comes next, once one is known.
fn gaps(client: &mut Raw, next: &mut Option<u64>) -> Option<u64> {
    let (bytes, mask) = client.read_with_mask(STAYS, BLOCK).ok()?;
    // Another client may have opened count0 and the timestamp, which have 8 bytes each.
    let frame = FRAME * (1 + (mask & 0x30).count_ones() as usize);
    let mut gaps = 0;
    for frame in bytes.chunks_exact(frame) {
        let number = u64::from_le_bytes(frame[..FRAME].try_into().unwrap());
        gaps += next.map_or(0, |next| number.saturating_sub(next));
        *next = Some(number + 1);
    }
    Some(gaps)
}

/// Whether it is so within the time after which a server hangs.
fn within(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + HANG;
    while !is_so() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

impl Trial {
    fn new(is_ours: bool, fault: &Fault) -> Self {
        let stays = Converter::named(STAYS);
        stays.rx.set("sampling_frequency", RATE);
        let goes = fault.needs_another.then(|| Converter::named(GOES));
        let disk = fault.fills_disk.then(Disk::new);
        let messages = disk.as_ref().map(Disk::messages);
        let server = Server::with_messages(is_ours, messages.as_deref());
        let mut trial = Self { server, stays, goes, disk, before: (0, 0) };
        // What is kept for the first client.
        assert!(trial.serves(), "before the fault");
        support::wait_until("the buffer is disabled", || {
            trial.stays.rx.get("buffer/enable") == "0"
        });
        trial.before = trial.open();
        trial
    }

    /// Its descriptors and threads.
    fn open(&self) -> (usize, usize) {
        (self.server.descriptors(), self.server.threads())
    }

    fn connect(&self) -> Raw {
        self.server.connect()
    }

    /// Whether a new client gets an attribute and samples.
    fn serves(&self) -> bool {
        self.serves_at(Ipv4Addr::LOCALHOST)
    }

    /// The same with a client of another machine, which has this address.
    fn serves_at(&self, address: Ipv4Addr) -> bool {
        let port = self.server.port;
        let client = thread::spawn(move || {
            let mut client = Raw::connect_from(address, port);
            client.attribute(&format!("{STAYS} sampling_frequency"));
            if client.ask(&format!("OPEN {STAYS} 4608 0000000f")) != 0 {
                return false;
            }
            let is_read = client.read(STAYS, BLOCK).is_ok_and(|bytes| bytes.len() == BLOCK);
            client.ask(&format!("CLOSE {STAYS}")) == 0 && is_read
        });
        within(|| client.is_finished()) && client.join().unwrap_or(false)
    }

    /// Ends the server; returns the samples that it has said are lost. That of libiio says nothing of that.
    fn told(self, is_ours: bool) -> u64 {
        if !is_ours {
            return 0;
        }
        let lines = self.server.finish();
        let lost = lines.iter().filter(|line| line["event"] == "lost");
        // A number that is not known says that there is a loss, too.
        lost.map(|line| line["lost"].as_u64().unwrap_or(u64::MAX >> 8)).sum()
    }
}

/// What a fault has done to the client that makes it.
#[derive(Default)]
struct Damage {
    /// Samples that it has not got.
    lost: u64,
    /// Another client was not served meanwhile.
    is_stuck: bool,
}

/// Something that a client or the machine does while another client reads.
struct Fault {
    name: &'static str,
    needs_another: bool,
    fills_disk: bool,
    happens: fn(&Trial, &Reader) -> Damage,
}

const fn fault(name: &'static str, happens: fn(&Trial, &Reader) -> Damage) -> Fault {
    Fault { name, needs_another: false, fills_disk: false, happens }
}

const FAULTS: [Fault; 13] = [
    fault("none: one client reads", |_, reader| Damage {
        is_stuck: !reader.goes_on(),
        ..Damage::default()
    }),
    fault("two clients open one buffer, with other channels and lengths", two_creators),
    fault("a client is killed while it reads", killed),
    fault("half a command, in both protocols", half),
    fault("a client does not read", unread),
    fault("64 clients of one machine say nothing, and one of another machine comes", idle),
    Fault { needs_another: true, ..fault("the device goes while it is read", gone) },
    Fault { fills_disk: true, ..fault("the disk with the messages is full", full) },
    fault("lengths that are negative, too long or not sent", lengths),
    fault("300 connections come and go", storm),
    fault("names longer than 4 KiB", names),
    fault("a read is cancelled under way", cancel),
    fault("10 000 attributes are asked for, and no answer is read", flood),
];

fn two_creators(trial: &Trial, reader: &Reader) -> Damage {
    for round in 0..10 {
        let (mut one, mut two) = (trial.connect(), trial.connect());
        // Either may be refused, as the other or the reader has the buffer.
        one.send(format!("OPEN {STAYS} {} 00000003\r\n", 256 + round).as_bytes());
        two.send(format!("OPEN {STAYS} 2048 0000001f\r\n").as_bytes());
        for client in [&mut one, &mut two] {
            if client.number() == 0 {
                let _ = client.read(STAYS, 256);
            }
        }
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn killed(trial: &Trial, reader: &Reader) -> Damage {
    for _ in 0..3 {
        let mut client = Command::new("iio_readdev");
        client.args(["-u", &trial.server.uri(), "-b", "4608", STAYS]);
        client.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = client.spawn().expect("package libiio-utils");
        let mut some = [0; 64];
        std::io::Read::read_exact(client.stdout.as_mut().unwrap(), &mut some).unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn half(trial: &Trial, reader: &Reader) -> Damage {
    let (mut text, mut binary, mut value) = (trial.connect(), trial.connect(), trial.connect());
    text.send(b"READ ");
    assert!(matches!(binary.ask("BINARY"), 0 | -22));
    binary.send(&[1, 0, 3, 0]);
    // A value that is announced and does not come.
    value.send(format!("WRITE {STAYS} pattern 7\r\nco").as_bytes());
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn unread(trial: &Trial, reader: &Reader) -> Damage {
    let mut client = trial.connect();
    assert_eq!(client.ask(&format!("OPEN {STAYS} 4608 0000000f")), 0);
    let mut next = None;
    let mut lost = gaps(&mut client, &mut next).unwrap_or(0);
    // Longer than all blocks of both servers and of the kernel last.
    for _ in 0..12 {
        if !reader.goes_on() {
            return Damage { is_stuck: true, ..Damage::default() };
        }
    }
    for _ in 0..12 {
        lost += gaps(&mut client, &mut next).unwrap_or(0);
    }
    Damage { lost, is_stuck: false }
}

fn idle(trial: &Trial, reader: &Reader) -> Damage {
    let _clients: Vec<_> = (0..64).map(|_| trial.connect()).collect();
    let is_stuck = !reader.goes_on() || !trial.serves_at(Ipv4Addr::new(127, 0, 0, 2));
    Damage { is_stuck, ..Damage::default() }
}

fn gone(trial: &Trial, reader: &Reader) -> Damage {
    let mut client = trial.connect();
    if client.ask(&format!("OPEN {GOES} 4608 0000000f")) == 0 {
        let _ = client.read(GOES, BLOCK);
    }
    trial.goes.as_ref().unwrap().remove().unwrap();
    // It has to be told.
    while client.read(GOES, BLOCK).is_ok_and(|bytes| !bytes.is_empty()) {}
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn full(trial: &Trial, reader: &Reader) -> Damage {
    trial.disk.as_ref().unwrap().fill();
    // Each of these makes a message.
    for _ in 0..20 {
        trial.connect().ask("NONSENSE");
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn lengths(trial: &Trial, reader: &Reader) -> Damage {
    for line in [
        "READBUF {} -1",
        "READBUF {} 18446744073709551615",
        "WRITE {} pattern -1",
        "WRITE {} pattern 0",
        "WRITE {} pattern 18446744073709551616",
        "WRITEBUF {} 9223372036854775807",
        "OPEN {} 0 0000000f",
        "OPEN {} 18446744073709551615 0000000f",
        "OPEN {} 1024 ",
        "OPEN {} 1024 ffffffffffffffffffffffffffffffffffffffff",
        "WRITE {} pattern 100000",
    ] {
        let mut client = trial.connect();
        // It goes without the bytes that it has announced.
        client.send(format!("{}\r\n", line.replace("{}", STAYS)).as_bytes());
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn storm(trial: &Trial, reader: &Reader) -> Damage {
    for round in 0..300 {
        let mut client = trial.connect();
        if round % 3 == 0 {
            client.send(b"VERSION\r\n");
        }
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn names(trial: &Trial, reader: &Reader) -> Damage {
    let long = "x".repeat(5000);
    for line in [
        format!("READ {long}\r\n"),
        format!("READ {STAYS} {long}\r\n"),
        format!("OPEN {long} 16 1\r\n"),
        "x".repeat(1 << 20),
    ] {
        let mut client = trial.connect();
        // The server may close the connection meanwhile.
        let _ = client.try_send(line.as_bytes());
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn cancel(trial: &Trial, reader: &Reader) -> Damage {
    for round in 0..10 {
        let mut client = trial.connect();
        if client.ask(&format!("OPEN {STAYS} 4608 0000000f")) != 0 {
            continue;
        }
        client.send(format!("READBUF {STAYS} 1073741824\r\n").as_bytes());
        if round % 2 == 0 {
            client.number();
        }
        let _ = client.try_send(format!("CLOSE {STAYS}\r\n").as_bytes());
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

fn flood(trial: &Trial, reader: &Reader) -> Damage {
    let mut client = trial.connect();
    let lines = format!("READ {STAYS} sampling_frequency\r\n").repeat(100);
    client.set_write_timeout(Duration::from_secs(2));
    for _ in 0..100 {
        // It is right not to take more of them.
        if client.try_send(lines.as_bytes()).is_err() {
            break;
        }
    }
    Damage { is_stuck: !reader.goes_on(), ..Damage::default() }
}

/// What the fault does to a server: nothing, or one or more words.
fn judge(is_ours: bool, fault: &Fault) -> String {
    let mut trial = Trial::new(is_ours, fault);
    let reader = Reader::start(&trial);
    assert!(reader.goes_on(), "before the fault");
    let damage = (fault.happens)(&trial, &reader);
    let ended = reader.end();
    if trial.server.has_ended() {
        return "crash".into();
    }
    let mut found = Vec::new();
    if damage.is_stuck || ended.is_none() || !trial.serves() {
        found.push("hang");
    }
    if !within(|| trial.open().0 <= trial.before.0 && trial.open().1 <= trial.before.1) {
        found.push("leak");
    }
    if damage.lost + ended.unwrap_or(0) > trial.told(is_ours) {
        found.push("loss untold");
    }
    if found.is_empty() { "none".into() } else { found.join(", ") }
}

#[test]
#[ignore = "needs the lab"]
fn no_fault_stops_or_fills_the_server_or_loses_samples_untold() {
    println!("\n| fault | Debian's `iiod` | `busbar serve` |\n|---|---|---|");
    let mut wrong = Vec::new();
    for fault in &FAULTS {
        let [theirs, ours] = [false, true].map(|is_ours| judge(is_ours, fault));
        println!("| {} | {theirs} | {ours} |", fault.name);
        if ours != "none" {
            wrong.push(format!("{}: {ours}", fault.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The rows of docs/iiod.md are those of this file.
#[test]
fn the_table_of_the_documentation_has_every_fault() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/iiod.md");
    let text = std::fs::read_to_string(path).unwrap();
    for fault in &FAULTS {
        let row = text.lines().find(|line| line.starts_with(&format!("| {} |", fault.name)));
        let row = row.unwrap_or_else(|| panic!("docs/iiod.md has no row `{}`", fault.name));
        assert!(row.ends_with("| none |"), "{row}");
    }
}
