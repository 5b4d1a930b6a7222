//! One suite for all interfaces of `busbar::stream`.
//!
//! `synth:` is tested on any host. DMABUFs of three kinds of memory and `read`/`write` need
//! the lab and its virtual converter: `cargo test -p busbar --test stream -- --ignored` there. No test
//! asserts a time; something that never ends makes its test hang.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use busbar::block::{Block, Memory};
use busbar::stream::{Interface, Lost, Samples, Sink, Source, Space, StreamSetup};
use busbar::wait::{Events, Interest, Poller, Timeout};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More time than any step here takes.
const LONG: Duration = Duration::from_secs(600);
/// Bytes of a sample of all four voltages: its number, where the pattern is `counter`.
const FRAME: usize = 8;

/// The interface and memory of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Heap,
    /// `Heap` on a kernel that does not report blocks: each end is a fence.
    Fences,
    Pages,
    Huge,
    Fileio,
    Synth,
}

impl Kind {
    fn setup(self) -> StreamSetup {
        let (interface, memory) = match self {
            Self::Heap | Self::Fences => (Interface::Dmabuf, Memory::Heap("system".into())),
            Self::Pages => (Interface::Dmabuf, Memory::Pages),
            Self::Huge => {
                fs::write("/proc/sys/vm/nr_hugepages", "16").unwrap();
                (Interface::Dmabuf, Memory::HugePages)
            }
            Self::Fileio => (Interface::Fileio, Memory::Memfd),
            Self::Synth => (Interface::Synth, Memory::Memfd),
        };
        StreamSetup::new().blocks(4).interface(interface).memory(memory).block_len(4096)
    }

    fn is_dmabuf(self) -> bool {
        self.setup().interface == Some(Interface::Dmabuf)
    }

    fn converter(self, rate: u32) -> Converter {
        Converter::new(self == Self::Synth, rate)
    }
}

/// Makes one test for each interface: `all` tests run on every interface, `device` tests on those of devices.
macro_rules! on {
    (all $(fn $name:ident($kind:ident) $body:block)*) => {
        on!(@modules $($name)*);
        mod synth {
            $(#[test]
            fn $name() { super::all::$name(super::Kind::Synth) })*
        }
        mod all {
            use super::*;
            $(pub fn $name($kind: Kind) $body)*
        }
    };
    (device $(fn $name:ident($kind:ident) $body:block)*) => {
        on!(@device heap_device Heap $($name)*);
        on!(@device fences_device Fences $($name)*);
        on!(@device pages_device Pages $($name)*);
        on!(@device huge_device Huge $($name)*);
        on!(@device fileio_device Fileio $($name)*);
        mod device {
            use super::*;
            $(pub fn $name($kind: Kind) $body)*
        }
    };
    (@modules $($name:ident)*) => {
        on!(@all heap Heap $($name)*);
        on!(@all fences Fences $($name)*);
        on!(@all pages Pages $($name)*);
        on!(@all huge Huge $($name)*);
        on!(@all fileio Fileio $($name)*);
    };
    (@all $module:ident $variant:ident $($name:ident)*) => {
        mod $module {
            $(#[test]
            #[ignore = "needs the lab"]
            fn $name() { super::run(super::Kind::$variant, super::all::$name) })*
        }
    };
    (@device $module:ident $variant:ident $($name:ident)*) => {
        mod $module {
            $(#[test]
            #[ignore = "needs the lab"]
            fn $name() { super::run(super::Kind::$variant, super::device::$name) })*
        }
    };
}

/// Runs a test on an interface.
fn run(kind: Kind, test: fn(Kind)) {
    if kind != Kind::Fences {
        return test(kind);
    }
    // The filter lasts as long as a thread, and its threads and processes have it as well.
    let ended = thread::spawn(move || {
        refuse_reports();
        test(kind);
    });
    if let Err(panic) = ended.join() {
        std::panic::resume_unwind(panic);
    }
}

/// From now on `IIO_BUFFER_DMABUF_DEQUEUE_IOCTL` fails in this thread, as it does on a kernel without Busbar's patches.
#[allow(unsafe_code)]
fn refuse_reports() {
    use libc::{
        BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, EINVAL, PR_SET_SECCOMP,
        SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, sock_filter, sock_fprog,
    };
    let step = |code: u32, jt, jf, k| sock_filter { code: code.try_into().unwrap(), jt, jf, k };
    // Of `struct seccomp_data`: the number of the call, and the lower half of its second argument.
    let load = |at| step(BPF_LD | BPF_W | BPF_ABS, 0, 0, at);
    let argument = std::mem::offset_of!(libc::seccomp_data, args) + 8;
    let is = |value, otherwise| step(BPF_JMP | BPF_JEQ | BPF_K, 0, otherwise, value);
    let end = |with| step(BPF_RET | BPF_K, 0, 0, with);
    let mut filter = [
        load(0),
        is(libc::SYS_ioctl.try_into().unwrap(), 3),
        load(argument.try_into().unwrap()),
        is(0x4010_699f, 1),
        end(SECCOMP_RET_ERRNO | EINVAL.cast_unsigned()),
        end(SECCOMP_RET_ALLOW),
    ];
    let len = filter.len().try_into().unwrap();
    let program = sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its steps outlive the call.
    let set = unsafe { libc::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A converter, `vconv` or `synth:`, with the pattern `counter`.
struct Converter {
    name: String,
    rate: u32,
    folder: Option<PathBuf>,
}

impl Converter {
    fn new(is_synth: bool, rate: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if is_synth {
            return Self { name: String::new(), rate, folder: None };
        }
        load("vconv");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("stream-{}-{number}", std::process::id());
        let folder = Path::new("/sys/kernel/config/iio/devices/vconv").join(&name);
        fs::create_dir(&folder).unwrap();
        let converter = Self { name, rate, folder: Some(folder) };
        for direction in ["", "-tx"] {
            converter.set(direction, "sampling_frequency", &rate.to_string());
            let node = Path::new("/dev").join(converter.sysfs(direction).file_name().unwrap());
            wait_until("the device node", || node.exists());
        }
        converter
    }

    fn source_name(&self) -> String {
        match &self.folder {
            Some(_) => format!("iio:{}", self.name),
            None => format!("synth:counter?rate={}", self.rate),
        }
    }

    fn source(&self, setup: &StreamSetup) -> Source {
        Source::open(&self.source_name(), setup).unwrap()
    }

    fn sink(&self, setup: &StreamSetup) -> Sink {
        Sink::open(&format!("iio:{}-tx", self.name), setup).unwrap()
    }

    /// The directory of the receiver, or of the transmitter `-tx`.
    fn sysfs(&self, direction: &str) -> PathBuf {
        let wanted = format!("{}{direction}\n", self.name);
        let all = fs::read_dir("/sys/bus/iio/devices").unwrap().map(|entry| entry.unwrap().path());
        all.into_iter()
            .find(|path| fs::read_to_string(path.join("name")).is_ok_and(|name| name == wanted))
            .unwrap()
    }

    fn set(&self, direction: &str, attribute: &str, value: &str) {
        let path = self.sysfs(direction).join(attribute);
        fs::write(&path, value).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    }

    fn get(&self, attribute: &str) -> String {
        fs::read_to_string(self.sysfs("").join(attribute)).unwrap().trim().to_owned()
    }

    /// Makes a fault happen in the next block.
    fn inject(&self, direction: &str, fault: &str, value: u64) {
        let device = self.sysfs(direction);
        let folder = Path::new("/sys/kernel/debug/iio").join(device.file_name().unwrap());
        fs::write(folder.join(fault), value.to_string()).unwrap();
    }

    /// Removes the device, as if it was unplugged.
    fn remove(&mut self) {
        if let Some(folder) = self.folder.take() {
            fs::remove_dir(folder).unwrap();
        }
    }
}

impl Drop for Converter {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take() {
            let removed = fs::remove_dir(folder);
            assert!(thread::panicking() || removed.is_ok(), "{removed:?}");
        }
    }
}

fn load(module: &str) {
    assert!(Command::new("modprobe").arg(module).status().unwrap().success());
    if !Path::new("/sys/kernel/config/iio").exists() {
        let mount = ["-t", "configfs", "none", "/sys/kernel/config"];
        assert!(Command::new("mount").args(mount).status().unwrap().success());
    }
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The inodes of all DMABUFs of the system.
fn dmabufs() -> HashSet<u64> {
    let all = fs::read_to_string("/sys/kernel/debug/dma_buf/bufinfo").unwrap();
    all.lines().filter_map(|line| line.split('\t').nth(5)?.parse().ok()).collect()
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs a test in a process of its own.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os("BUSBAR_ALONE").is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--include-ignored"]).env("BUSBAR_ALONE", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The process cannot open anything while this exists.
struct NoDescriptors(Rlimit);

impl NoDescriptors {
    fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        // A copy gets the lowest number that is free.
        let free = rustix::io::dup(std::io::stdin()).unwrap().as_raw_fd();
        let limit = Rlimit { current: Some(u64::from(free.cast_unsigned())), ..before };
        setrlimit(Resource::Nofile, limit).unwrap();
        Self(before)
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

#[track_caller]
fn next(source: &Source) -> Samples {
    source.next_timeout(LONG).unwrap().expect("a block in time")
}

fn bytes_of(samples: &Samples) -> Vec<u8> {
    samples.read().unwrap().bytes().to_vec()
}

/// Verifies that the numbers of the samples follow each other; returns the first.
#[track_caller]
fn first_of(samples: &Samples) -> u64 {
    let bytes = bytes_of(samples);
    assert_eq!(bytes.len(), samples.meta().len);
    first_number(&bytes)
}

#[track_caller]
fn first_number(bytes: &[u8]) -> u64 {
    let numbers: Vec<_> = bytes
        .chunks_exact(FRAME)
        .map(|frame| u64::from_le_bytes(frame.try_into().unwrap()))
        .collect();
    for (pair, place) in numbers.windows(2).zip(1..) {
        assert_eq!(pair[1], pair[0] + 1, "sample {place} of {}", numbers.len());
    }
    numbers[0]
}

#[track_caller]
fn lost(samples: &Samples) -> u64 {
    match samples.meta().lost {
        Lost::Samples(lost) => lost,
        Lost::Unknown => panic!("unknown"),
    }
}

#[track_caller]
fn assert_over(result: busbar::Result<Option<Samples>>) {
    let error = result.map(|samples| samples.map(|one| *one.meta())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
}

fn samples(len: usize) -> u64 {
    u64::try_from(len / FRAME).unwrap()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

on! { all
    fn every_sample_arrives_once_and_in_order(kind) {
        let converter = kind.converter(0);
        let source = converter.source(&kind.setup());
        assert_eq!((source.blocks(), source.block_len()), (4, 4096));
        assert_eq!(source.format().sample_len, FRAME);
        for sequence in 0..50 {
            let samples = next(&source);
            assert_eq!(samples.meta().sequence, sequence);
            assert_eq!((samples.meta().lost, samples.meta().len), (Lost::Samples(0), 4096));
            assert_eq!(first_of(&samples), sequence * 512);
        }
        let copied = source.copied();
        let expected = if kind == Kind::Fileio { 50 * 4096..=54 * 4096 } else { 0..=0 };
        assert!(expected.contains(&copied), "{copied}");
    }

    fn a_stream_tells_what_it_is(kind) {
        let setup = kind.setup();
        let source = kind.converter(0);
        let source = source.source(&setup);
        assert_eq!(Some(source.interface()), setup.interface);
        assert_eq!(Some(source.memory()), setup.memory.as_ref());
        let channels = &source.format().channels;
        let found: Vec<_> = channels.iter().map(|one| (one.name.as_str(), one.offset)).collect();
        let expected = [("voltage0_i", 0), ("voltage0_q", 2), ("voltage1_i", 4), ("voltage1_q", 6)];
        assert_eq!(found, expected);
        assert!(channels.iter().all(|one| (one.signed, one.bits, one.shift) == (true, 16, 0)));
        assert_eq!(source.format().rate, None);
    }

    fn blocks_are_whole_samples(kind) {
        let converter = kind.converter(0);
        let channels = names(&["voltage0_q", "count0", "timestamp"]);
        let setup = kind.setup().block_len(1000).channels(channels);
        let source = converter.source(&setup);
        assert_eq!((source.format().sample_len, source.block_len()), (24, 984));
        for sequence in 0..10 {
            let samples = next(&source);
            assert_eq!((samples.meta().lost, samples.meta().len), (Lost::Samples(0), 984));
            let bytes = bytes_of(&samples);
            for (sample, number) in bytes.chunks_exact(24).zip(41 * sequence..) {
                assert_eq!(u64::from_le_bytes(sample[8..16].try_into().unwrap()), number);
            }
        }
        drop(source);
        let setup = kind.setup().block_len(1);
        assert_eq!(converter.source(&setup).block_len(), FRAME);
    }

    fn a_driver_without_blocks_gives_nothing_until_one_is_given_back(kind) {
        let converter = kind.converter(0);
        let source = converter.source(&kind.setup());
        let mut held: Vec<_> = (0..4).map(|_| next(&source)).collect();
        assert!(source.next_timeout(Duration::from_millis(20)).unwrap().is_none());
        // In any order, from any thread.
        let second = held.remove(1);
        thread::scope(|scope| { scope.spawn(move || drop(second)); });
        assert_eq!(next(&source).meta().sequence, 4);
        for (samples, sequence) in held.iter().zip([0, 2, 3]) {
            assert_eq!(first_of(samples), sequence * 512, "what is held stays as it is");
        }
    }

    fn who_waits_for_a_block_gets_the_one_given_back(kind) {
        let converter = kind.converter(0);
        let source = converter.source(&kind.setup().blocks(1));
        let held = next(&source);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| next(&source).meta().sequence);
            thread::sleep(Duration::from_millis(20));
            drop(held);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    }

    fn a_late_consumer_is_told_exactly_what_it_lost(kind) {
        let converter = kind.converter(200_000);
        let source = converter.source(&kind.setup());
        assert_eq!(source.format().rate, Some(200_000.0));
        let (mut expected, mut all) = (0, 0);
        for round in 0..30 {
            let held = (round % 10 == 9).then(|| (0..4).map(|_| next(&source)).collect());
            let blocks: Vec<Samples> = held.unwrap_or_else(|| vec![next(&source)]);
            if blocks.len() > 1 {
                thread::sleep(Duration::from_millis(30));
            }
            for block in &blocks {
                all += lost(block);
                assert_eq!(first_of(block), expected + lost(block), "{:?}", block.meta());
                expected = first_of(block) + samples(block.meta().len);
            }
        }
        // 30 ms are 6000 samples.
        assert!(all >= 2 * 5000, "{all}");
    }

    fn times_go_forward(kind) {
        let converter = kind.converter(1_000_000);
        let before = std::time::SystemTime::now();
        let source = converter.source(&kind.setup());
        let times: Vec<_> = (0..10).map(|_| next(&source).meta().time).collect();
        let after = std::time::SystemTime::now();
        assert!(times.is_sorted() && times[0] >= before && times[9] <= after, "{times:?}");
    }

    fn a_timeout_is_waited_for_and_no_time_is_none(kind) {
        let converter = kind.converter(1000);
        let source = converter.source(&kind.setup());
        assert!(source.try_next().unwrap().is_none());
        let start = Instant::now();
        assert!(source.next_timeout(Duration::from_millis(30)).unwrap().is_none());
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(first_of(&next(&source)), 0);
    }

    fn a_stopped_stream_is_over_for_everybody(kind) {
        let converter = kind.converter(100);
        let source = converter.source(&kind.setup());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| assert_over(source.next_timeout(LONG)));
            thread::sleep(Duration::from_millis(20));
            source.stop().unwrap();
            waiting.join().unwrap();
        });
        assert_over(source.try_next());
        source.stop().unwrap();
    }

    fn blocks_outlive_their_stream(kind) {
        let converter = kind.converter(0);
        let source = converter.source(&kind.setup());
        let (first, second) = (next(&source), next(&source));
        drop(source);
        assert_eq!((first_of(&first), first_of(&second)), (0, 512));
        drop(first);
        // The device is not used meanwhile.
        let source = converter.source(&kind.setup());
        assert_eq!(first_of(&next(&source)), 0);
        assert_eq!(first_of(&second), 512);
    }

    fn a_poller_tells_when_there_is_a_block(kind) {
        let converter = kind.converter(1_000_000);
        let source = converter.source(&kind.setup());
        let poller = Poller::new().unwrap();
        poller.add(&source, 7, Interest::READABLE).unwrap();
        let mut events = Events::new(4).unwrap();
        let mut expected = 0;
        for sequence in 0..20 {
            let samples = loop {
                assert_eq!(poller.wait_timeout(&mut events, Timeout::After(LONG)).unwrap(), 1);
                if let Some(samples) = source.try_next().unwrap() { break samples }
            };
            assert_eq!(samples.meta().sequence, sequence);
            assert_eq!(first_of(&samples), expected + lost(&samples));
            expected = first_of(&samples) + 512;
        }
    }

    fn a_poller_is_quiet_while_all_blocks_are_held_and_hears_of_the_end(kind) {
        let converter = kind.converter(0);
        let source = converter.source(&kind.setup());
        let poller = Poller::new().unwrap();
        poller.add(&source, 7, Interest::READABLE).unwrap();
        let mut events = Events::new(4).unwrap();
        let held: Vec<_> = (0..4).map(|_| next(&source)).collect();
        // For longer than between two checks of the device.
        std::thread::sleep(Duration::from_millis(300));
        // It may be readable without a block, but not all the time.
        let quiet = (0..1000).any(|_| {
            assert!(source.try_next().unwrap().is_none());
            poller.wait_timeout(&mut events, Duration::from_millis(1)).unwrap() == 0
        });
        assert!(quiet);
        drop(held);
        poller.wait_timeout(&mut events, Timeout::After(LONG)).unwrap();
        source.stop().unwrap();
        assert_eq!(poller.wait_timeout(&mut events, Timeout::After(LONG)).unwrap(), 1);
        assert_over(source.try_next());
    }

    fn many_streams_leave_nothing_open(kind) {
        let converter = kind.converter(0);
        let setup = kind.setup().blocks(2);
        drop(next(&converter.source(&setup)));
        let before = open_descriptors();
        // Emulated kernels are slow.
        let rounds = if std::env::var_os("BUSBAR_QUICK").is_some() { 100 } else { 1000 };
        for round in 0..rounds {
            let source = converter.source(&setup);
            if round % 4 == 0 {
                let samples = next(&source);
                assert_eq!(first_of(&samples), 0);
                drop(source);
            }
        }
        // Other tests run at the same time and have some open; a leak would be one in each fourth round.
        assert!(open_descriptors() < before + rounds / 8);
    }

    fn bad_input_is_named(kind) {
        let converter = kind.converter(0);
        let bad = [
            kind.setup().blocks(0),
            kind.setup().blocks(1025),
            kind.setup().block_len(0),
            kind.setup().block_len((1 << 30) + 1),
            kind.setup().channels(names(&["voltage7"])),
            kind.setup().memory(Memory::Foreign),
        ];
        for setup in bad {
            let error = Source::open(&converter.source_name(), &setup).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{setup:?}: {error}");
        }
        let other = if kind == Kind::Synth { Interface::Dmabuf } else { Interface::Synth };
        let setup = kind.setup().interface(other);
        assert!(Source::open(&converter.source_name(), &setup).is_err());
    }
}

on! { device
    fn injected_loss_is_told_exactly_by_the_count(kind) {
        let converter = kind.converter(0);
        let channels = names(&["voltage0_i", "count0"]);
        assert_loss(&converter, kind, channels, 100_000_000_000);
    }

    fn injected_loss_is_told_exactly_by_the_pattern(kind) {
        let converter = kind.converter(0);
        assert_loss(&converter, kind, Vec::new(), 1_000_000);
        let two = names(&["voltage0_i", "voltage0_q"]);
        assert_loss(&converter, kind, two, 1_000_000);
    }

    fn injected_loss_is_told_exactly_by_the_time(kind) {
        let converter = kind.converter(1_000_000);
        converter.set("", "pattern", "sine");
        // More blocks than that have to pass in time.
        assert_loss(&converter, kind, names(&["voltage0_i", "timestamp"]), 5_000);
    }

    fn loss_is_unknown_where_nothing_tells(kind) {
        let converter = kind.converter(1_000_000);
        for (pattern, channels) in
            [("sine", names(&[])), ("none", names(&[])), ("counter", names(&["voltage0_i"]))]
        {
            converter.set("", "pattern", pattern);
            let source = converter.source(&kind.setup().channels(channels));
            assert_eq!(next(&source).meta().lost, Lost::Unknown, "{pattern}");
        }
        converter.set("", "pattern", "counter");
        converter.set("", "loopback", "1");
        let source = converter.source(&kind.setup());
        // With loopback, nothing is received until something is sent.
        assert!(source.next_timeout(Duration::from_millis(10)).unwrap().is_none());
    }

    fn short_blocks_end_where_the_driver_has_ended(kind) {
        for channels in [names(&[]), names(&["voltage0_i", "count0"])] {
            let converter = kind.converter(0);
            let source = converter.source(&kind.setup().channels(channels));
            let full = u64::try_from(source.block_len() / source.format().sample_len).unwrap();
            let (mut cut, mut all) = (0, 0);
            for round in 0..60 {
                if round == 10 || round == 20 {
                    converter.inject("", "short_samples", 100);
                }
                let samples = next(&source);
                assert_eq!(samples.meta().lost, Lost::Samples(0), "round {round}");
                let count = samples.meta().len / source.format().sample_len;
                let count = u64::try_from(count).unwrap();
                cut += full - count;
                all += count;
            }
            // `read` returns the bytes of the blocks only.
            assert_eq!(cut, if kind.is_dmabuf() { 200 } else { 0 });
            assert_eq!(all + cut, 60 * full);
        }
    }

    fn an_error_of_the_driver_is_told_once_and_the_stream_goes_on(kind) {
        let converter = kind.converter(20_000);
        let source = converter.source(&kind.setup());
        assert_eq!(first_of(&next(&source)), 0);
        converter.inject("", "fail_blocks", 2);
        let (mut errors, mut expected, mut all, mut sequence) = (0, 512, 0, 1);
        while sequence < 12 {
            match source.next_timeout(LONG) {
                Ok(samples) => {
                    let samples = samples.unwrap();
                    assert_eq!(samples.meta().sequence, sequence);
                    assert_eq!(first_of(&samples), expected + lost(&samples));
                    all += lost(&samples);
                    expected = first_of(&samples) + 512;
                }
                Err(error) => {
                    assert_eq!(error.errno(), Some(Errno::IO), "{error}");
                    errors += 1;
                }
            }
            sequence += 1;
        }
        // `read` skips the block, and the next one says what was lost.
        assert_eq!(errors, if kind.is_dmabuf() { 2 } else { 0 });
        assert!(all >= 1024, "{all}");
    }

    fn a_device_that_is_pulled_out_is_an_error_and_no_hang(kind) {
        for is_watched in [false, true] {
            let mut converter = kind.converter(100);
            let source = converter.source(&kind.setup());
            let poller = Poller::new().unwrap();
            if is_watched {
                poller.add(&source, 1, Interest::READABLE).unwrap();
            }
            thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    if !is_watched {
                        return assert_over(source.next_timeout(LONG));
                    }
                    let mut events = Events::new(1).unwrap();
                    loop {
                        poller.wait(&mut events).unwrap();
                        match source.try_next() {
                            Ok(None) => {}
                            other => return assert_over(other),
                        }
                    }
                });
                thread::sleep(Duration::from_millis(20));
                converter.remove();
                waiting.join().unwrap();
            });
            assert_over(source.try_next());
            source.stop().unwrap();
        }
    }

    fn a_device_that_somebody_disables_is_an_error_and_no_hang(kind) {
        for blocks in [1, 4] {
            let converter = kind.converter(if blocks == 1 { 0 } else { 100 });
            let source = converter.source(&kind.setup().blocks(blocks));
            // No block is left to say what was lost.
            let held = (blocks == 1).then(|| next(&source));
            converter.set("", "buffer0/enable", "0");
            drop(held);
            // With `read`, blocks that were complete before can still be read.
            let left = (0..3).find(|_| !matches!(source.next_timeout(LONG), Ok(Some(_))));
            assert!(left.is_some_and(|left| left == 0 || kind == Kind::Fileio), "{left:?}");
            assert_over(source.next_timeout(LONG));
            drop(source);
            let source = converter.source(&kind.setup());
            assert_eq!(source.try_next().unwrap().map_or(0, |one| first_of(&one)), 0);
        }
    }

    fn a_stream_goes_on_and_can_be_stopped_without_descriptors(kind) {
        let module = format!("{kind:?}_device").to_lowercase();
        alone(&format!("{module}::a_stream_goes_on_and_can_be_stopped_without_descriptors"), || {
            // A block in a minute.
            let converter = kind.converter(10);
            converter.set("", "buffer0/in_timestamp_en", "1");
            let source = converter.source(&kind.setup());
            let none = NoDescriptors::new();
            // The device is checked meanwhile.
            let waited = source.next_timeout(Duration::from_millis(500)).unwrap();
            assert!(waited.is_none());
            // This can disable the device. To restore its channels it needs a descriptor; `read`'s blocks,
            // which are freed first, leave some.
            let errno = source.stop().err().and_then(|why| why.errno());
            assert_eq!(errno, kind.is_dmabuf().then_some(Errno::MFILE));
            drop(none);
            assert_eq!(converter.get("buffer0/enable"), "0");
            source.stop().unwrap();
            assert_eq!(converter.get("buffer0/in_timestamp_en"), "1");
        });
    }

    fn complete_blocks_do_not_hide_that_somebody_has_disabled_a_device(kind) {
        for is_watched in [false, true] {
            let converter = kind.converter(0);
            let source = converter.source(&kind.setup());
            let poller = Poller::new().unwrap();
            if is_watched {
                poller.add(&source, 1, Interest::READABLE).unwrap();
            }
            let held = next(&source);
            // Time to fill the other blocks: then the driver has no block to report the error with.
            thread::sleep(Duration::from_millis(50));
            converter.set("", "buffer0/enable", "0");
            drop(held);
            let mut events = Events::new(1).unwrap();
            loop {
                if is_watched {
                    poller.wait(&mut events).unwrap();
                }
                let next = if is_watched { source.try_next() } else { source.next_timeout(LONG) };
                match next {
                    Ok(Some(_)) => {}
                    Ok(None) if is_watched => {}
                    other => break assert_over(other),
                }
            }
        }
    }

    fn a_sink_lets_go_of_the_blocks_of_sources_that_are_gone(kind) {
        let (first, second) = (kind.converter(0), kind.converter(0));
        let sink = second.sink(&kind.setup());
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let source = first.source(&kind.setup());
            for _ in 0..2 * source.blocks() {
                let samples = next(&source);
                seen.insert(rustix::fs::fstat(samples.block().unwrap()).unwrap().st_ino);
                sink.forward(&samples).unwrap();
            }
            assert!(sink.drain_timeout(LONG).unwrap());
            first.set("", "buffer0/enable", "0");
            while let Ok(Some(_)) = source.next_timeout(LONG) {}
            drop(source);
            sink.reap().unwrap();
        }
        if kind.is_dmabuf() {
            // The kernel frees them a moment later.
            wait_until("end of the DMABUFs", || dmabufs().is_disjoint(&seen));
            assert_eq!((seen.len(), sink.copied()), (20 * 4, 0));
        }
    }

    fn the_device_is_as_it_was_afterwards(kind) {
        let converter = kind.converter(0);
        converter.set("", "buffer0/in_voltage1_q_en", "1");
        converter.set("", "buffer0/in_timestamp_en", "1");
        let files = ["enable", "length", "in_voltage0_i_en", "in_voltage1_q_en", "in_timestamp_en"];
        let look = || files.map(|file| converter.get(&format!("buffer0/{file}")));
        let before = look();
        let source = converter.source(&kind.setup().channels(names(&["voltage0_i"])));
        let during = look();
        assert_eq!((&*during[0], &during[2..]), ("1", &names(&["1", "0", "0"])[..]));
        drop(source);
        assert_eq!(look(), before);
    }

    fn a_device_has_one_stream_at_a_time(kind) {
        let converter = kind.converter(0);
        let source = converter.source(&kind.setup());
        let error = Source::open(&converter.source_name(), &kind.setup()).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::BUSY), "{error}");
        assert_eq!(first_of(&next(&source)), 0);
        let error = Source::open(&format!("iio:{}-tx", converter.name), &kind.setup()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }

    fn a_killed_program_leaves_a_device_that_works(kind) {
        let converter = kind.converter(0);
        for _ in 0..3 {
            let mut child = child(&converter, kind);
            child.kill().unwrap();
            child.wait().unwrap();
            let source = converter.source(&kind.setup());
            assert_eq!(first_of(&next(&source)), 0);
        }
    }

    fn what_is_sent_is_received(kind) {
        let converter = kind.converter(0);
        converter.set("", "loopback", "1");
        let source = converter.source(&kind.setup());
        let sink = converter.sink(&kind.setup());
        assert_eq!((sink.format().sample_len, sink.block_len(), sink.blocks()), (8, 4096, 4));
        for block in 0..20_u64 {
            let mut space = sink.space_timeout(LONG).unwrap().unwrap();
            assert_eq!(space.len(), 4096);
            fill_block(&mut space, block * 512);
            space.send(4096).unwrap();
            assert_eq!(first_of(&next(&source)), block * 512);
        }
        assert!(sink.drain_timeout(LONG).unwrap());
        let expected = if kind.is_dmabuf() { 0 } else { 20 * 4096 };
        assert_eq!(sink.copied(), expected);
    }

    fn parts_of_blocks_are_sent_too(kind) {
        let converter = kind.converter(0);
        converter.set("", "loopback", "1");
        let source = converter.source(&kind.setup().block_len(80));
        let sink = converter.sink(&kind.setup().blocks(2));
        let mut sent = 0;
        for len in [8, 16, 24, 32] {
            let mut space = sink.space_timeout(LONG).unwrap().unwrap();
            fill_block(&mut space, sent);
            space.send(len).unwrap();
            sent += samples(len);
        }
        // With `write`, that makes the driver send a block that is not full.
        let draining = thread::spawn(move || (sink.drain_timeout(LONG).unwrap(), sink));
        assert_eq!(first_of(&next(&source)), 0);
        if kind == Kind::Fileio {
            for _ in 0..50 {
                let samples = next(&source);
                assert!(bytes_of(&samples).iter().all(|byte| *byte == 0), "padding");
            }
        }
        assert!(draining.join().unwrap().0);
    }

    fn a_full_driver_has_no_space_until_it_has_sent(kind) {
        let converter = kind.converter(1000);
        let sink = converter.sink(&kind.setup());
        let mut sent = 0;
        while let Some(space) = sink.try_space().unwrap() {
            space.send(4096).unwrap();
            sent += 1;
        }
        assert!(sent >= 4, "{sent}");
        assert!(!sink.drain_timeout(Duration::from_millis(20)).unwrap());
        // One block takes half a second.
        drop(sink.space_timeout(LONG).unwrap().unwrap());
        sink.stop().unwrap();
        assert_eq!(sink.try_space().unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    fn a_poller_tells_when_there_is_space(kind) {
        let converter = kind.converter(1_000_000);
        let sink = converter.sink(&kind.setup());
        let poller = Poller::new().unwrap();
        poller.add(&sink, 7, Interest::READABLE).unwrap();
        let mut events = Events::new(4).unwrap();
        let mut sent = 0;
        while sent < 20 {
            assert_eq!(poller.wait_timeout(&mut events, Timeout::After(LONG)).unwrap(), 1);
            if let Some(space) = sink.try_space().unwrap() {
                space.send(4096).unwrap();
                sent += 1;
            }
        }
        sink.stop().unwrap();
        assert_eq!(poller.wait_timeout(&mut events, Timeout::After(LONG)).unwrap(), 1);
    }

    fn a_transmitter_that_goes_is_an_error_and_no_hang(kind) {
        for pull in [true, false] {
            let mut converter = kind.converter(100);
            let sink = converter.sink(&kind.setup());
            for _ in 0..4 {
                sink.space_timeout(LONG).unwrap().unwrap().send(4096).unwrap();
            }
            if pull {
                converter.remove();
            } else {
                converter.set("-tx", "buffer0/enable", "0");
            }
            let error = loop {
                match sink.drain_timeout(LONG) {
                    Ok(drained) => assert!(!drained),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            sink.stop().unwrap();
        }
    }

    fn a_received_block_is_forwarded_as_it_is(kind) {
        let (first, second) = (kind.converter(0), kind.converter(0));
        second.set("", "loopback", "1");
        let end = second.source(&kind.setup());
        let (source, sink) = (first.source(&kind.setup()), second.sink(&kind.setup()));
        for block in 0..40 {
            sink.forward(&next(&source)).unwrap();
            assert_eq!(first_of(&next(&end)), block * 512);
        }
        assert!(sink.drain_timeout(LONG).unwrap());
        if kind.is_dmabuf() {
            assert_eq!((source.copied(), sink.copied(), end.copied()), (0, 0, 0));
        } else {
            // Copied into a block of the sink, and from there into the driver.
            assert_eq!(sink.copied(), 2 * 40 * 4096);
        }
    }

    fn forwarding_waits_for_room_as_long_as_it_may(kind) {
        // The sink takes a tenth of a second for each block.
        let (first, second) = (kind.converter(0), kind.converter(5_000));
        let (source, sink) = (first.source(&kind.setup()), second.sink(&kind.setup()));
        let mut was_full = false;
        for block in 0..10 {
            let samples = next(&source);
            assert_eq!(first_of(&samples), block * 512);
            if !sink.try_forward(&samples).unwrap() {
                was_full = true;
                assert!(sink.forward_timeout(&samples, LONG).unwrap());
            }
        }
        assert!(was_full || !kind.is_dmabuf());
        sink.drain().unwrap();
    }

    fn a_block_can_be_forwarded_again_before_it_is_transmitted(kind) {
        // The sink takes a tenth of a second for each block.
        let (first, second) = (kind.converter(0), kind.converter(5_000));
        second.set("", "loopback", "1");
        let end = second.source(&kind.setup());
        let (source, sink) = (first.source(&kind.setup().blocks(8)), second.sink(&kind.setup()));
        let received = thread::spawn(move || [(); 5].map(|()| first_of(&next(&end))));
        // It has begun with this one, and not with those that follow.
        sink.forward(&next(&source)).unwrap();
        let samples = next(&source);
        for _ in 0..3 {
            assert!(sink.forward_timeout(&samples, LONG).unwrap());
        }
        drop(samples);
        sink.forward(&next(&source)).unwrap();
        assert!(sink.drain_timeout(LONG).unwrap());
        assert_eq!(received.join().unwrap(), [0, 512, 512, 512, 1024]);
        // The driver has a block once at a time.
        assert!(sink.copied() > 0);
    }

    fn a_source_with_one_block_can_forward_it(kind) {
        let (first, second) = (kind.converter(0), kind.converter(0));
        let source = first.source(&kind.setup().blocks(1));
        let sink = second.sink(&kind.setup());
        for block in 0..10 {
            let samples = next(&source);
            assert_eq!(first_of(&samples), block * 512);
            sink.forward(&samples).unwrap();
        }
        assert!(sink.drain_timeout(LONG).unwrap());
        assert_eq!(sink.copied(), 10 * 4096 * if kind.is_dmabuf() { 1 } else { 2 });
    }
}

/// Lost samples appear in the stream exactly as injected.
#[track_caller]
fn assert_loss(converter: &Converter, kind: Kind, channels: Vec<String>, most: u64) {
    let source = converter.source(&kind.setup().channels(channels));
    let mut all = lost(&next(&source));
    for injected in [1, 2, 511, 512, 513, most.min(u64::from(u32::MAX))] {
        let before: u64 = converter.get("overruns").parse().unwrap();
        converter.inject("", "lose_samples", injected);
        let mut told = 0;
        // Blocks under way are complete without it.
        for _ in 0..12 {
            told += lost(&next(&source));
        }
        let real: u64 = converter.get("overruns").parse().unwrap();
        assert!(real - before >= injected);
        if converter.rate == 0 {
            assert_eq!(told, injected);
        }
        all += told;
    }
    // All losses that the converter has counted, except those in blocks that are not fetched yet.
    source_is_level(converter, &source, all);
}

/// Verifies that the losses of the blocks are those that the driver counts, once all its blocks are fetched.
#[track_caller]
fn source_is_level(converter: &Converter, source: &Source, mut told: u64) {
    let mut held = Vec::new();
    while held.len() < source.blocks() {
        let samples = next(source);
        told += lost(&samples);
        held.push(samples);
    }
    if source.interface() == Interface::Dmabuf {
        assert_eq!(converter.get("overruns"), told.to_string());
    }
}

/// Whether these are the 512 numbers from `first` on, modulo 512.
fn is_turn(bytes: &[u8], first: u64) -> bool {
    let numbers = bytes.chunks_exact(FRAME).map(|one| u64::from_le_bytes(one.try_into().unwrap()));
    let places: Vec<_> = numbers.map(|number| number.wrapping_sub(first)).collect();
    places[0] < 512 && places.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 512)
}

fn fill(bytes: &mut [u8], first: u64) {
    for (frame, number) in bytes.chunks_exact_mut(FRAME).zip(first..) {
        frame.copy_from_slice(&number.to_le_bytes());
    }
}

fn fill_block(space: &mut Space, first: u64) {
    let mut bytes = vec![0; space.len()];
    fill(&mut bytes, first);
    space.write().unwrap().bytes_mut().copy_from(&bytes);
}

/// Another process that has taken a block from the converter, and holds one.
fn child(converter: &Converter, kind: Kind) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "child_that_streams", "--nocapture"]);
    command.env("STREAM_CHILD", format!("{} {kind:?}", converter.source_name()));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("streaming")));
    child
}

#[test]
#[ignore = "needs the lab"]
fn child_that_streams() {
    let Ok(wanted) = std::env::var("STREAM_CHILD") else { return };
    let (name, kind) = wanted.split_once(' ').unwrap();
    let kinds = [Kind::Heap, Kind::Fences, Kind::Pages, Kind::Huge, Kind::Fileio];
    let kind = kinds.into_iter().find(|one| format!("{one:?}") == kind).unwrap();
    let source = Source::open(name, &kind.setup()).unwrap();
    let held = next(&source);
    println!("streaming");
    loop {
        drop(next(&source));
        assert_eq!(held.meta().sequence, 0);
    }
}

/// Linux for armv7 has huge pages only where it is built for LPAE.
fn dmabuf_kinds() -> Vec<Kind> {
    let mut kinds = vec![Kind::Heap, Kind::Pages];
    if Path::new("/proc/sys/vm/nr_hugepages").exists() {
        kinds.push(Kind::Huge);
    }
    kinds
}

#[test]
#[ignore = "needs the lab"]
fn a_block_is_repeated_until_it_is_replaced_or_stopped() {
    for kind in dmabuf_kinds() {
        let converter = kind.converter(0);
        converter.set("", "loopback", "1");
        let source = converter.source(&kind.setup());
        let sink = converter.sink(&kind.setup());
        let mut bytes = [0; 4096];
        for first in [10_000, 20_000] {
            fill(&mut bytes, first);
            sink.cyclic(&bytes).unwrap();
            let mut seen = 0;
            while seen < 10 {
                let samples = next(&source);
                let bytes = bytes_of(&samples);
                // The last blocks of the old stream are under way; the new one may begin at any number.
                seen = if is_turn(&bytes, first) { seen + 1 } else { 0 };
            }
        }
        assert_eq!(sink.try_space().unwrap_err().errno(), Some(Errno::BUSY));
        assert_eq!(sink.forward(&next(&source)).unwrap_err().errno(), Some(Errno::BUSY));
        assert_eq!(sink.copied(), 8192);
        let error = sink.cyclic(&[0; 4]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        sink.stop().unwrap();
        assert_eq!(sink.cyclic(&bytes).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
#[ignore = "needs the lab"]
fn no_block_is_repeated_without_dmabufs() {
    let converter = Kind::Fileio.converter(0);
    let error = converter.sink(&Kind::Fileio.setup()).cyclic(&[0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
#[ignore = "needs the lab"]
fn an_error_of_a_transmitter_is_told() {
    for kind in dmabuf_kinds() {
        let converter = kind.converter(20_000);
        let sink = converter.sink(&kind.setup());
        for _ in 0..2 {
            sink.space_timeout(LONG).unwrap().unwrap().send(4096).unwrap();
        }
        converter.inject("-tx", "fail_blocks", 1);
        for _ in 0..2 {
            sink.space_timeout(LONG).unwrap().unwrap().send(4096).unwrap();
        }
        assert_eq!(sink.drain_timeout(LONG).unwrap_err().errno(), Some(Errno::IO));
        assert!(sink.drain_timeout(LONG).unwrap());
    }
}

#[test]
#[ignore = "needs the lab"]
fn a_stream_takes_dmabufs_by_itself_and_a_block_may_go_to_another_process() {
    let converter = Kind::Heap.converter(0);
    let source = converter.source(&StreamSetup::default());
    assert_eq!(source.interface(), Interface::Dmabuf);
    assert_eq!(source.memory(), &Memory::Heap("system".into()));
    let samples = next(&source);
    let block = samples.block().unwrap();
    assert!(block.is_dmabuf() && block.memory_file().is_none());
    // The same memory by another descriptor, as another process would get it.
    let shared = Block::try_from(std::os::fd::OwnedFd::from(block.try_clone().unwrap()));
    assert_eq!(first_number(&shared.unwrap().read().unwrap().bytes().to_vec()), 0);
}

#[test]
#[ignore = "needs the lab"]
fn forwarding_between_what_does_not_fit_copies() {
    let converter = Kind::Heap.converter(0);
    converter.set("", "loopback", "1");
    let end = converter.source(&Kind::Heap.setup());
    let sink = converter.sink(&Kind::Heap.setup());
    let source = Source::open("synth:counter", &Kind::Synth.setup()).unwrap();
    for block in 0..10 {
        sink.forward(&next(&source)).unwrap();
        assert_eq!(first_of(&next(&end)), block * 512);
    }
    assert_eq!(sink.copied(), 10 * 4096);
    let long = Source::open("synth:counter", &Kind::Synth.setup().block_len(8192)).unwrap();
    let samples = next(&long);
    let too_long = [
        sink.forward(&samples).map(|()| true),
        sink.try_forward(&samples),
        sink.forward_timeout(&samples, LONG),
    ];
    for forwarded in too_long {
        assert_eq!(forwarded.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let odd = StreamSetup::new().channels(names(&["count0", "voltage0_i"])).block_len(48);
    let source = Source::open("synth:counter?channels=1", &odd).unwrap();
    assert_eq!(source.format().sample_len, 16);
    let odd = StreamSetup::new().channels(names(&["voltage0_i"])).block_len(6);
    let source = Source::open("synth:counter", &odd).unwrap();
    let error = sink.forward(&next(&source)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// Makes a device with a trigger, by a driver of the kernel without DMABUFs, unless it exists.
///
/// Neither is removed afterwards: when they are removed, Linux 6.12 leaks a part of the device (`iio_dummy_probe`), and
/// uses memory of the trigger that is freed (`trigger_drop_group`); the debug kernel reports both.
fn make_dummy() {
    load("iio_dummy");
    load("iio_trig_hrtimer");
    for item in ["devices/dummy/busbar-dummy", "triggers/hrtimer/busbar-trigger"] {
        let made = fs::create_dir(Path::new("/sys/kernel/config/iio").join(item));
        let is_there = made.as_ref().is_err_and(|why| why.kind() == ErrorKind::AlreadyExists);
        assert!(made.is_ok() || is_there, "{item}: {made:?}");
    }
    let sysfs = |name: &str| {
        let wanted = format!("{name}\n");
        let all = fs::read_dir("/sys/bus/iio/devices").unwrap();
        all.map(|entry| entry.unwrap().path())
            .find(|path| fs::read_to_string(path.join("name")).is_ok_and(|is| is == wanted))
            .unwrap()
    };
    fs::write(sysfs("busbar-trigger").join("sampling_frequency"), "1000").unwrap();
    let trigger = sysfs("busbar-dummy").join("trigger/current_trigger");
    fs::write(trigger, "busbar-trigger").unwrap();
    let node = Path::new("/dev").join(sysfs("busbar-dummy").file_name().unwrap());
    wait_until("the device node", || node.exists());
}

#[test]
#[ignore = "needs the lab"]
fn a_driver_without_dmabufs_is_read() {
    make_dummy();
    let setup = StreamSetup::new().block_len(160);
    let source = Source::open("iio:busbar-dummy", &setup).unwrap();
    assert_eq!((source.interface(), source.memory()), (Interface::Fileio, &Memory::Memfd));
    assert!(source.format().channels.iter().all(|one| one.name.starts_with("voltage")));
    let first = bytes_of(&next(&source));
    for sequence in 1..5 {
        let samples = next(&source);
        assert_eq!((samples.meta().sequence, samples.meta().lost), (sequence, Lost::Unknown));
        assert_eq!(samples.meta().len, source.block_len());
    }
    assert!(first.iter().any(|byte| *byte != 0), "the dummy gives constants");
    assert!(source.copied() >= 5 * source.block_len() as u64);
    drop(source);

    let setup = setup.interface(Interface::Dmabuf);
    let error = Source::open("iio:busbar-dummy", &setup).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
}

#[test]
fn a_stream_that_is_watched_without_descriptors_is_readable() {
    alone("a_stream_that_is_watched_without_descriptors_is_readable", || {
        let source = Source::open("synth:counter?rate=100k", &StreamSetup::new()).unwrap();
        let (poller, mut events) = (Poller::new().unwrap(), Events::new(8).unwrap());
        let none = NoDescriptors::new();
        poller.add(&source, 1, Interest::READABLE).unwrap();
        assert_eq!(poller.wait_timeout(&mut events, LONG).unwrap(), 1);
        assert_eq!(source.try_next().unwrap_err().errno(), Some(Errno::MFILE));
        drop(none);
        for _ in 0..10 {
            while source.try_next().unwrap().is_none() {
                assert_eq!(poller.wait_timeout(&mut events, LONG).unwrap(), 1);
            }
        }
        source.stop().unwrap();
        assert_eq!(poller.wait_timeout(&mut events, LONG).unwrap(), 1);
    });
}

#[test]
fn names_that_are_none_say_what_there_is() {
    for name in ["", "synth", "iio", "tcp:x:1", "synth:", "synth:square", "synth:sine?x=1"] {
        let error = Source::open(name, &StreamSetup::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error}");
    }
    let keys = [
        "rate=",
        "rate=-1",
        "rate=nan",
        "rate=1x",
        "rate=2G",
        "rate=inf",
        "channels=3",
        "amplitude=1.1",
        "frequency=1",
        "rate=10&frequency=11",
        "rate",
        "=",
    ];
    for key in keys {
        let error =
            Source::open(&format!("synth:sine?{key}"), &StreamSetup::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{key}: {error}");
    }
    for name in ["synth:sine", "null:x", "null", "verify:sine", "file:", "tcp:nowhere", "iio"] {
        let error = Sink::open(name, &StreamSetup::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error}");
    }
}

#[test]
fn a_sink_for_a_format_takes_no_other_channels_or_rate() {
    let source = Source::open("synth:counter", &StreamSetup::default()).unwrap();
    for setup in [StreamSetup::new().channels(["voltage0_i"]), StreamSetup::new().rate(1e6)] {
        let error = Sink::open_for("null:", source.format(), &setup).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("the format of the samples tells"), "{error}");
    }
    Sink::open_for("null:", source.format(), &StreamSetup::new()).unwrap();
}

#[test]
fn a_device_that_is_not_there_is_not_found() {
    let error = Source::open("iio:no-such-converter", &StreamSetup::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn a_sine_is_one() {
    let source =
        Source::open("synth:sine?rate=1M&frequency=1k&amplitude=1", &StreamSetup::default());
    let source = source.unwrap();
    let samples = next(&source);
    let bytes = bytes_of(&samples);
    let values: Vec<_> =
        bytes.chunks_exact(2).map(|two| f64::from(i16::from_le_bytes([two[0], two[1]]))).collect();
    for (frame, number) in values.chunks_exact(4).zip(0_u32..) {
        let phase = f64::from(number) / 1000.0 * std::f64::consts::TAU;
        // The table has 16384 entries.
        let near = |value: f64, exact: f64| (value - exact * 32767.0).abs() < 16.0;
        assert!(near(frame[0], phase.cos()) && near(frame[1], phase.sin()), "{number}: {frame:?}");
        assert_eq!((frame[2], frame[3]), (frame[1], frame[0]));
    }
}

#[test]
fn noise_is_always_the_same_and_has_no_mean() {
    let one = || {
        let source =
            Source::open("synth:noise?amplitude=1&channels=1", &StreamSetup::default()).unwrap();
        assert_eq!(source.format().sample_len, 4);
        bytes_of(&next(&source))
    };
    let bytes = one();
    assert_eq!(one(), bytes);
    let values = bytes.chunks_exact(2).map(|two| f64::from(i16::from_le_bytes([two[0], two[1]])));
    let mean = values.sum::<f64>() / 32768.0;
    assert!(mean.abs() < 500.0, "{mean}");
}

#[test]
fn the_times_of_samples_are_those_of_the_rate() {
    let channels = names(&["count0", "timestamp"]);
    let setup = StreamSetup::new().channels(channels).block_len(1600);
    let source = Source::open("synth:counter?rate=100k", &setup).unwrap();
    let mut first = None;
    for _ in 0..5 {
        let samples = next(&source);
        for sample in bytes_of(&samples).chunks_exact(16) {
            let [number, time] =
                [0, 8].map(|at| i64::from_le_bytes(sample[at..at + 8].try_into().unwrap()));
            let start = *first.get_or_insert(time);
            assert_eq!(time - start, number * 10_000);
        }
    }
}

#[test]
fn ordinary_memory_goes_to_another_process_by_its_descriptor() {
    let source = Source::open("synth:counter", &StreamSetup::default()).unwrap();
    let samples = next(&source);
    let block = samples.block().unwrap();
    assert!(!block.is_dmabuf());
    let file = block.memory_file().unwrap().try_clone_to_owned().unwrap();
    let block = Block::try_from(file).unwrap();
    assert_eq!(first_number(&block.read().unwrap().bytes().to_vec()), 0);
}
