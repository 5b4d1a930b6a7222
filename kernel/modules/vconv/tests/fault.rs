//! Failures: injected faults, programs that are killed, devices that are removed, calls that race.

mod converter;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use busbar_uapi::iio::{self, CYCLIC, Ended, REPORT};
use converter::{
    Block, Converter, Device, FRAME, RX_VOLTAGES, TX_VOLTAGES, assert_counter, attached,
    enqueue_all, i16s, non_blocking, outcome, transfer, u64s,
};
use rustix::io::Errno;
use support::fault::arm;
use support::{modprobe, open_descriptors, wait_until};

const LEN: usize = 16 << 10;
const SAMPLES: u64 = (LEN / FRAME) as u64;
const FOREVER: Duration = Duration::from_secs(60);

/// The use count of the module: converters of configfs, attached DMABUFs, open devices.
fn references() -> u32 {
    fs::read_to_string("/sys/module/vconv/refcnt").unwrap().trim().parse().unwrap()
}

/// Repetitions of something that is slow in the debug kernel.
fn rounds(release: u32, debug: u32) -> u32 {
    if Path::new("/sys/kernel/debug/kmemleak").exists() { debug } else { release }
}

// -- Faults on demand --

#[test]
#[ignore = "needs the lab"]
fn lost_samples_are_missing_once_and_exactly() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&["in_voltage0_i", "in_voltage0_q", "in_voltage1_i", "in_voltage1_q", "in_count0"]);
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    rx.enable();
    let mut next = 0;
    let mut lost = 0;
    for lose in [0, 1, 0, 1000, 0xffff_ffff, 0, 7] {
        if lose > 0 {
            rx.inject("lose_samples", lose);
            assert_eq!(rx.pending("lose_samples"), lose);
        }
        assert_eq!(transfer(&buffer, block, LEN), Ok(()));
        assert_eq!(rx.pending("lose_samples"), 0);
        lost += lose;
        next += lose;
        for sample in u64s(&block.read(LEN)).collect::<Vec<_>>().chunks_exact(2) {
            assert_eq!(sample, [next; 2], "the pattern and the count");
            next += 1;
        }
        assert_eq!(rx.number("overruns"), lost);
    }
}

#[test]
#[ignore = "needs the lab"]
fn short_block_ends_where_it_was_told_and_loses_nothing() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    rx.enable();
    let mut next = 0;
    for short in [0, 1, 100, 0, SAMPLES, SAMPLES + 1, 0] {
        block.write(&[0xa5; LEN]);
        rx.inject("short_samples", short);
        assert_eq!(transfer(&buffer, block, LEN), Ok(()));
        assert_eq!(rx.pending("short_samples"), 0);
        let samples = SAMPLES.saturating_sub(short);
        let bytes = block.read(LEN);
        let (filled, rest) = bytes.split_at(usize::try_from(samples).unwrap() * FRAME);
        assert_counter(filled, next);
        assert!(rest.iter().all(|&byte| byte == 0xa5), "not touched");
        next += samples;
    }
    assert_eq!(rx.get("overruns"), "0");
    rx.disable();
    drop(buffer);

    // `read` gets fewer bytes in one call, but the same samples.
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.set("buffer/length", 128);
    rx.inject("short_samples", 5);
    rx.enable();
    let mut file = rx.open();
    let mut bytes = vec![0; 1024 * FRAME];
    let first = file.read(&mut bytes).unwrap();
    assert_eq!(first, 59 * FRAME);
    file.read_exact(&mut bytes[first..]).unwrap();
    assert_counter(&bytes, 0);
    assert_eq!(rx.pending("short_samples"), 0);
}

/// Whether this is the content of a failed block.
fn is_poisoned(bytes: &[u8]) -> bool {
    i16s(bytes).iter().all(|&value| value == i16::MIN)
}

/// The status of each block. The error of a fence is visible only in a sync file exported before it is
/// signalled.
fn outcomes(device: &Device, buffer: &OwnedFd, blocks: &[Block]) -> Vec<Result<(), Errno>> {
    let queue = |block: &Block| {
        iio::enqueue(buffer, block, LEN as u64, 0).unwrap();
        block.fences()
    };
    let fences: Vec<_> = blocks.iter().map(queue).collect();
    device.enable();
    fences.iter().map(outcome).collect()
}

#[test]
#[ignore = "needs the lab"]
fn failed_block_says_so_once_and_its_samples_are_lost() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 3, LEN);
    rx.inject("fail_blocks", 2);
    for left in [0, 0] {
        assert_eq!(outcomes(rx, &buffer, &blocks), [Err(Errno::IO), Err(Errno::IO), Ok(())]);
        assert_eq!(rx.pending("fail_blocks"), left);
        assert_eq!(rx.number("overruns"), 2 * SAMPLES);
        for block in &blocks[..2] {
            assert!(is_poisoned(&block.read(LEN)), "also for who does not ask how it ended");
        }
        assert_counter(&blocks[2].read(LEN), 2 * SAMPLES);
        rx.disable();
        assert_eq!(outcomes(rx, &buffer, &blocks), [Ok(()); 3], "and not again");
        assert_counter(&blocks[0].read(LEN), 0);
        assert_eq!(rx.get("overruns"), "0");
        rx.disable();
        rx.inject("fail_blocks", 2);
    }

    let tx = &converter.tx;
    tx.channels(&TX_VOLTAGES);
    let buffer = tx.buffer();
    let blocks = attached(&buffer, 2, LEN);
    tx.inject("fail_blocks", 1);
    assert_eq!(outcomes(tx, &buffer, &blocks), [Err(Errno::IO), Ok(())]);
    assert_eq!(tx.number("underruns"), SAMPLES);
}

#[test]
#[ignore = "needs the lab"]
fn read_goes_on_after_a_failed_block() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&["in_count0"]);
    rx.set("buffer/length", 128);
    rx.inject("fail_blocks", 1);
    rx.enable();
    let mut bytes = vec![0; 1024 * 8];
    rx.open().read_exact(&mut bytes).unwrap();
    assert_counter(&bytes, 64);
    assert_eq!(rx.get("overruns"), "64");
}

#[test]
#[ignore = "needs the lab"]
fn write_goes_on_after_a_failed_and_an_empty_block() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    rx.set("buffer/length", 128);
    tx.set("buffer/length", 128);
    for fault in ["fail_blocks", "short_samples"] {
        rx.enable();
        let (mut from, mut to) = (tx.open(), rx.open());
        tx.inject(fault, if fault == "fail_blocks" { 2 } else { 64 });
        let lost = if fault == "fail_blocks" { 128 } else { 64 };
        tx.enable();
        let mut bytes = vec![0; 1024 * FRAME - lost * FRAME];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let samples: Vec<_> = (0..1024_u64).flat_map(u64::to_le_bytes).collect();
                from.write_all(&samples).unwrap();
            });
            to.read_exact(&mut bytes).unwrap();
        });
        assert_counter(&bytes, lost as u64);
        tx.disable();
        rx.disable();
    }
}

#[test]
#[ignore = "needs the lab"]
fn samples_of_a_failed_block_go_nowhere() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    let (from, to) = (tx.buffer(), rx.buffer());
    let sent = attached(&from, 3, LEN);
    for (block, value) in sent.iter().zip(1..) {
        block.write(&[value; LEN]);
    }
    let received = attached(&to, 2, LEN);
    rx.inject("fail_blocks", 1);
    tx.inject("fail_blocks", 1);
    let fences: Vec<_> = received
        .iter()
        .map(|block| {
            iio::enqueue(&to, block, LEN as u64, 0).unwrap();
            block.fences()
        })
        .collect();
    rx.enable();
    assert_eq!(outcomes(tx, &from, &sent), [Err(Errno::IO), Ok(()), Ok(())]);
    assert_eq!(outcome(&fences[0]), Err(Errno::IO));
    assert_eq!(outcome(&fences[1]), Ok(()));
    assert!(is_poisoned(&received[0].read(LEN)));
    assert_eq!(received[1].read(LEN), [3; LEN], "the first was not sent, the second not received");
    // Repeating no sample would never end.
    tx.inject("fail_blocks", 1);
    iio::enqueue(&from, &sent[0], LEN as u64, CYCLIC).unwrap();
    assert!(sent[0].done_within(FOREVER));
}

#[test]
#[ignore = "needs the lab"]
fn memory_that_can_never_be_written_or_read_is_an_error() {
    arm();
    let faults = Path::new("/sys/kernel/debug/fail_usercopy");
    let converter = Converter::new();
    let (rx, tx) = (&converter.rx, &converter.tx);
    rx.channels(&RX_VOLTAGES);
    tx.channels(&TX_VOLTAGES);
    rx.enable();
    tx.enable();
    let (mut from, mut to) = (rx.open(), tx.open());
    let (mut bytes, zeros) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    // The pages are present, but each copy fails, as with wrong memory tags.
    for (name, value) in [("task-filter", "Y"), ("times", "-1"), ("probability", "100")] {
        fs::write(faults.join(name), value).unwrap();
    }
    let results = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            fs::write("/proc/thread-self/make-it-fail", "1").unwrap();
            (from.read(&mut bytes), to.write(&zeros))
        });
        thread.join().unwrap()
    });
    for (name, value) in [("probability", "0"), ("task-filter", "N")] {
        fs::write(faults.join(name), value).unwrap();
    }
    let errno = |why: std::io::Error| Errno::from_io_error(&why);
    assert_eq!(results.0.map_err(errno), Err(Some(Errno::FAULT)));
    assert_eq!(results.1.map_err(errno), Err(Some(Errno::FAULT)));
    let mut bytes = vec![0; 64 * FRAME];
    from.read_exact(&mut bytes).unwrap();
    assert_counter(&bytes, 0);
}

#[test]
#[ignore = "needs the lab"]
fn faults_have_numbers_and_bounds() {
    let converter = Converter::new();
    for device in [&converter.rx, &converter.tx] {
        for (register, name) in ["lose_samples", "short_samples", "fail_blocks"].iter().enumerate()
        {
            let refused = fs::write(device.fault(name), "4294967296").unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::INVAL));
            let access = device.fault("direct_reg_access");
            fs::write(&access, format!("{register} 21")).unwrap();
            assert_eq!(device.pending(name), 21);
            assert_eq!(fs::read_to_string(&access).unwrap().trim(), "0x15");
        }
        assert!(fs::write(device.fault("direct_reg_access"), "3 1").is_err());
    }
}

#[test]
#[ignore = "needs the lab"]
fn the_report_of_a_block_tells_its_error() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 3, LEN);
    rx.inject("fail_blocks", 2);
    enqueue_all(&buffer, &blocks, LEN, REPORT);
    rx.enable();
    assert!(blocks[2].done_within(FOREVER));
    let mut errors = Vec::new();
    wait_until("three reports", || {
        let mut ended = [Ended::default(); 4];
        let count = iio::dequeue(&buffer, &mut ended).unwrap();
        errors.extend(ended[..count].iter().map(|it| it.error));
        errors.len() >= 3
    });
    assert_eq!(errors, [-Errno::IO.raw_os_error(), -Errno::IO.raw_os_error(), 0]);
}

// -- On, off and in between --

#[test]
#[ignore = "needs the lab"]
fn blocks_wait_for_the_buffer_to_be_enabled() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 3, LEN);
    for block in &blocks {
        iio::enqueue(&buffer, block, LEN as u64, 0).unwrap();
        assert!(!block.done_within(Duration::from_millis(20)));
    }
    rx.enable();
    for (index, block) in blocks.iter().enumerate() {
        assert_counter(&block.read(LEN), index as u64 * SAMPLES);
    }
}

#[test]
#[ignore = "needs the lab"]
fn attaching_more_forgets_nothing() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks: Vec<_> = (0..3).map(|_| Block::new(LEN)).collect();
    for block in &blocks {
        iio::attach(&buffer, block).unwrap();
        iio::enqueue(&buffer, block, LEN as u64, 0).unwrap();
    }
    rx.enable();
    for (index, block) in blocks.iter().enumerate() {
        assert!(block.done_within(FOREVER), "block {index}");
        assert_counter(&block.read(LEN), index as u64 * SAMPLES);
    }
}

#[test]
#[ignore = "needs the lab"]
fn disabling_interrupts_what_is_queued_and_enabling_starts_anew() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 3, LEN);
    for _ in 0..rounds(200, 50) {
        // One block would take years.
        rx.set("sampling_frequency", 1);
        rx.enable();
        enqueue_all(&buffer, &blocks, LEN, 0);
        let fences: Vec<_> = blocks.iter().map(Block::fences).collect();
        rx.disable();
        for fences in &fences {
            assert_eq!(outcome(fences), Err(Errno::INTR));
        }
        rx.set("sampling_frequency", 0);
        rx.enable();
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!(transfer(&buffer, block, LEN), Ok(()));
            assert_counter(&block.read(LEN), index as u64 * SAMPLES);
        }
        rx.disable();
    }
}

#[test]
#[ignore = "needs the lab"]
fn big_block_is_left_in_the_middle() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES[..1]);
    rx.set("pattern", "noise");
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, 64 << 20)[0];
    rx.enable();
    iio::enqueue(&buffer, block, 64 << 20, 0).unwrap();
    let fences = block.fences();
    rx.disable();
    assert_eq!(outcome(&fences), Err(Errno::INTR));
}

#[test]
#[ignore = "needs the lab"]
fn detached_block_is_still_filled() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let before = references();
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    iio::enqueue(&buffer, block, LEN as u64, 0).unwrap();
    let fences = block.fences();
    iio::detach(&buffer, block).unwrap();
    assert_eq!(iio::enqueue(&buffer, block, LEN as u64, 0), Err(Errno::PERM));
    rx.enable();
    assert_eq!(outcome(&fences), Ok(()));
    assert_counter(&block.read(LEN), 0);
    wait_until("nobody to need the module", || references() == before);
    rx.disable();
    non_blocking(&buffer, false);
    iio::attach(&buffer, block).expect("it can come back");
    rx.enable();
    assert_eq!(transfer(&buffer, block, LEN), Ok(()));
    assert_counter(&block.read(LEN), 0);
}

#[test]
#[ignore = "needs the lab"]
fn block_shorter_than_a_sample_is_done_and_empty() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    block.write(&[0xa5; LEN]);
    rx.enable();
    assert_eq!(transfer(&buffer, block, 7), Ok(()));
    assert_eq!(block.read(16), [0xa5; 16]);
    assert_eq!(transfer(&buffer, block, 15), Ok(()));
    assert_counter(&block.read(8), 0);
    assert_eq!(block.read(16)[8..], [0xa5; 8], "whole samples only");
    let tx = &converter.tx;
    tx.channels(&TX_VOLTAGES);
    let buffer = tx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    tx.enable();
    iio::enqueue(&buffer, block, 7, CYCLIC).unwrap();
    assert!(block.done_within(FOREVER), "there is nothing to repeat");
}

#[test]
#[ignore = "needs the lab"]
fn cyclic_starts_and_stops_leave_nothing() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    let before = references();
    for round in 0..rounds(300, 60) {
        let (from, to) = (tx.buffer(), rx.buffer());
        let (sent, received) = (attached(&from, 2, 4096), attached(&to, 1, LEN));
        sent[0].write(&[0x11; 4096]);
        sent[1].write(&[0x22; 4096]);
        // The receiver comes later: one without blocks would stop the first one in mid pass.
        for block in &sent {
            iio::enqueue(&from, block, 4096, CYCLIC).unwrap();
        }
        tx.enable();
        assert!(sent[0].done_within(FOREVER), "the second one takes over");
        rx.enable();
        assert_eq!(transfer(&to, &received[0], LEN), Ok(()));
        let values = received[0].read(LEN);
        assert!(values.iter().all(|byte| [0x11, 0x22].contains(byte)));
        // In either order: the one waits for the other at times.
        let (first, second) = if round % 2 == 0 { (rx, tx) } else { (tx, rx) };
        first.disable();
        second.disable();
        assert!(sent[1].done_within(FOREVER));
    }
    wait_until("nobody to need the module", || references() == before);
}

#[test]
#[ignore = "needs the lab"]
fn receiver_waits_for_the_transmitter_until_it_is_disabled() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    let (from, to) = (tx.buffer(), rx.buffer());
    let (sent, received) = (&attached(&from, 1, 1 << 20)[0], &attached(&to, 1, LEN)[0]);
    rx.enable();
    tx.enable();
    iio::enqueue(&to, received, LEN as u64, 0).unwrap();
    let fences = received.fences();
    assert!(!received.done_within(Duration::from_millis(50)));
    rx.disable();
    assert_eq!(outcome(&fences), Err(Errno::INTR));
    // The transmitter waits for the receiver: there are more samples than the ring has room for.
    rx.enable();
    iio::enqueue(&from, sent, 1 << 20, 0).unwrap();
    let fences = sent.fences();
    assert!(!sent.done_within(Duration::from_millis(50)));
    tx.disable();
    assert_eq!(outcome(&fences), Err(Errno::INTR));
}

// -- Programs that die --

/// Runs the case that the environment names until it is killed.
#[test]
#[ignore = "needs the lab"]
fn victim() {
    let Ok(task) = std::env::var("VCONV_VICTIM") else { return };
    let (task, name) = task.split_once(' ').unwrap();
    let device = Device::find(name).unwrap();
    if task == "read" {
        device.enable();
        let mut file = device.open();
        let mut bytes = vec![0; 4096];
        println!("ready");
        loop {
            file.read_exact(&mut bytes).unwrap();
        }
    }
    let buffer = device.buffer();
    let blocks = attached(&buffer, 4, LEN);
    let flags = if task == "cyclic" { CYCLIC } else { 0 };
    if task != "queued" {
        device.enable();
    }
    enqueue_all(&buffer, &blocks, LEN, flags);
    println!("ready");
    for block in blocks.iter().cycle() {
        if task != "stream" {
            std::thread::park();
        }
        assert!(block.done_within(FOREVER));
        iio::enqueue(&buffer, block, LEN as u64, 0).unwrap();
    }
}

struct Victim(Child);

impl Victim {
    fn new(task: &str, device: &Device) -> Self {
        let arguments = ["--ignored", "--exact", "--nocapture", "victim"];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .env("VCONV_VICTIM", format!("{task} {}", device.name))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut byte = [0];
        while !said.contains("ready") {
            assert_eq!(child.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "{said}");
            said.push(byte[0].into());
        }
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        assert!(!self.0.wait().unwrap().success());
    }
}

#[test]
#[ignore = "needs the lab"]
fn killed_program_leaves_a_device_that_works() {
    let converter = Converter::new();
    let (rx, tx) = (&converter.rx, &converter.tx);
    rx.channels(&RX_VOLTAGES);
    tx.channels(&TX_VOLTAGES);
    let before = references();
    for (task, device) in [
        ("stream", rx),
        ("queued", rx),
        ("read", rx),
        ("stream", tx),
        ("queued", tx),
        ("cyclic", tx),
    ] {
        for _ in 0..rounds(5, 2) {
            let victim = Victim::new(task, device);
            std::thread::sleep(Duration::from_millis(20));
            victim.kill();
            // Blocks queued before the buffer is enabled wait for that, with or without their
            // program; the others complete. A cyclic one would go on.
            let left = references() > before;
            assert!(!left || task != "read", "{task}");
            device.set("buffer/enable", u8::from(task == "queued"));
            wait_until("nobody to need the module", || references() == before);
            device.disable();
            let buffer = device.buffer();
            let block = &attached(&buffer, 1, LEN)[0];
            device.enable();
            assert_eq!(transfer(&buffer, block, LEN), Ok(()), "{task}");
            if device.name == rx.name {
                assert_counter(&block.read(LEN), 0);
            }
            device.disable();
            drop(buffer);
            wait_until("nobody to need the module", || references() == before);
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn closing_and_opening_leaks_nothing() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let (before, descriptors) = (references(), open_descriptors());
    let count = rounds(10_000, 1_000);
    let block = Block::new(4096);
    for round in 0..count {
        let buffer = rx.buffer();
        // Work in the background after a close has the block's lock for a moment: wait for it.
        non_blocking(&buffer, false);
        iio::attach(&buffer, &block).unwrap();
        match round % 4 {
            0 => {}
            1 => iio::detach(&buffer, &block).unwrap(),
            2 => {
                rx.enable();
                assert_eq!(transfer(&buffer, &block, 4096), Ok(()));
                rx.disable();
            }
            _ => {
                rx.enable();
                iio::enqueue(&buffer, &block, 4096, 0).unwrap();
                rx.disable();
            }
        }
    }
    println!("{count} rounds");
    wait_until("nobody to need the module", || references() == before);
    assert_eq!(open_descriptors(), descriptors + 1, "the block is the test's own");
}

// -- Devices and modules that go --

#[test]
#[ignore = "needs the lab"]
fn device_that_goes_ends_all_that_is_queued() {
    converter::load();
    let before = references();
    for enabled in [false, true] {
        let converter = Converter::new();
        let (rx, tx) = (&converter.rx, &converter.tx);
        rx.channels(&RX_VOLTAGES);
        tx.channels(&TX_VOLTAGES);
        for device in [rx, tx] {
            device.set("sampling_frequency", 1);
        }
        let (to, from) = (rx.buffer(), tx.buffer());
        let (received, sent) = (attached(&to, 3, LEN), attached(&from, 3, LEN));
        for device in [rx, tx].iter().filter(|_| enabled) {
            device.enable();
        }
        for (buffer, blocks, flags) in [(&to, &received, 0), (&from, &sent, CYCLIC)] {
            for block in blocks {
                iio::enqueue(buffer, block, LEN as u64, flags).unwrap();
            }
        }
        let all = || received.iter().chain(&sent);
        let fences: Vec<_> = all().map(Block::fences).collect();
        converter.remove().unwrap();
        let end = if enabled { Errno::INTR } else { Errno::NODEV };
        for fences in &fences {
            assert_eq!(outcome(fences), Err(end));
        }
        for block in all() {
            assert!(block.done_within(FOREVER));
        }
        assert_eq!(iio::enqueue(&to, &received[0], 8, 0), Err(Errno::NODEV));
        iio::detach(&to, &received[0]).unwrap();
        drop((to, from));
        wait_until("nobody to need the module", || references() == before);
    }
}

#[test]
#[ignore = "needs the lab"]
fn reader_learns_that_the_device_is_gone() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.set("sampling_frequency", 1);
    rx.enable();
    let mut file = rx.open();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || file.read(&mut [0; 4096]));
        std::thread::sleep(Duration::from_millis(100));
        converter.remove().unwrap();
        let why = reader.join().unwrap().unwrap_err();
        assert_eq!(Errno::from_io_error(&why), Some(Errno::NODEV));
    });
}

fn unload() -> bool {
    modprobe(&["-r", "vconv"]).is_ok()
}

#[test]
#[ignore = "needs the lab"]
fn module_stays_while_it_is_needed_and_goes_when_it_is_not() {
    converter::load();
    let converter = Converter::new();
    assert!(!unload(), "a converter of configfs");
    drop(converter);

    let rx = Device::find("vconv0").unwrap();
    rx.channels(&RX_VOLTAGES);
    let device = rx.open();
    assert!(!unload(), "an open device");
    let buffer = iio::buffer_fd(&device, 0).unwrap();
    drop(device);
    let block = Block::new(LEN);
    iio::attach(&buffer, &block).unwrap();
    assert!(!unload(), "an attached block");
    iio::enqueue(&buffer, &block, LEN as u64, 0).unwrap();
    drop(buffer);
    assert!(!unload(), "a queued block");
    rx.enable();
    assert!(block.done_within(FOREVER));
    assert_counter(&block.read(LEN), 0);
    wait_until("the module to go, with a buffer that is enabled", unload);

    // A file without blocks holds no reference. Unloading then waits until it is closed.
    converter::load();
    let rx = Device::find("vconv0").unwrap();
    let buffer = rx.buffer();
    let mut modprobe = Command::new("modprobe").args(["-r", "vconv"]).spawn().unwrap();
    wait_until("the device to go", || !rx.folder.exists());
    std::thread::sleep(Duration::from_millis(100));
    assert!(modprobe.try_wait().unwrap().is_none(), "it waits");
    assert!(iio::attach(&buffer, &block).is_err());
    assert_eq!(rustix::io::read(&buffer, &mut [0; 8]), Err(Errno::NODEV));
    drop(buffer);
    assert!(modprobe.wait().unwrap().success());
    converter::load();
}

// -- Races --

/// Repeats it until the flag is set.
fn again<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    mut work: impl FnMut() + Send + 'scope,
) {
    scope.spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            work();
        }
    });
}

#[test]
#[ignore = "needs the lab"]
fn calls_that_race_do_no_harm() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    rx.set("buffer/length", 64);
    let before = references();
    {
        let (to, from) = (rx.buffer(), tx.buffer());
        let blocks: Vec<_> = (0..4).map(|_| Block::new(4096)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (device, buffer) in [(rx, &to), (tx, &from)] {
                again(scope, &stop, || {
                    let _ = device.try_set("buffer/enable", 1);
                    std::thread::sleep(Duration::from_micros(300));
                    let _ = device.try_set("buffer/enable", 0);
                });
                for block in &blocks {
                    let block = block.as_fd();
                    again(scope, &stop, move || {
                        let _ = iio::attach(buffer, block);
                        for flags in [0, REPORT].repeat(10) {
                            let _ = iio::enqueue(buffer, block, 4096, flags);
                        }
                        let _ = iio::detach(buffer, block);
                    });
                }
                for _ in 0..2 {
                    again(scope, &stop, move || {
                        let _ = iio::dequeue(buffer, &mut [Ended::default(); 2]);
                    });
                }
            }
            again(scope, &stop, || {
                let _ = rustix::io::read(&to, &mut [0; 512]);
                let _ = rustix::io::write(&from, &[0; 512]);
            });
            again(scope, &stop, || {
                for name in ["lose_samples", "short_samples", "fail_blocks"] {
                    rx.inject(name, 3);
                    tx.inject(name, 2);
                }
                rx.get("overruns");
                std::thread::sleep(Duration::from_millis(1));
            });
            std::thread::sleep(Duration::from_secs(3));
            stop.store(true, Ordering::Relaxed);
        });
    }
    // Blocks queued while the buffers were disabled wait for them.
    let until = Instant::now() + FOREVER;
    while references() > before {
        for device in [rx, tx] {
            let _ = device.try_set("buffer/enable", 1);
            let _ = device.try_set("buffer/enable", 0);
        }
        assert!(Instant::now() < until, "{} references more", references() - before);
    }
    for name in ["lose_samples", "short_samples", "fail_blocks"] {
        rx.inject(name, 0);
    }
    rx.set("loopback", 0);
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    rx.enable();
    assert_eq!(transfer(&buffer, block, LEN), Ok(()));
    assert_eq!(i16s(&block.read(LEN))[4], 1);
}

#[test]
#[ignore = "needs the lab"]
fn device_goes_while_it_is_used() {
    converter::load();
    let before = references();
    for _ in 0..rounds(60, 15) {
        let converter = Converter::new();
        let rx = &converter.rx;
        rx.channels(&RX_VOLTAGES);
        let buffer = rx.buffer();
        let blocks = attached(&buffer, 2, 4096);
        let files: Vec<_> = blocks.iter().map(AsFd::as_fd).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            again(scope, &stop, || {
                for (block, flags) in files.iter().zip([0, REPORT]) {
                    let _ = iio::enqueue(&buffer, block, 4096, flags);
                }
                let _ = iio::dequeue(&buffer, &mut [Ended::default()]);
            });
            again(scope, &stop, || {
                let _ = rx.try_set("buffer/enable", 1);
                let _ = rx.try_set("buffer/enable", 0);
            });
            std::thread::sleep(Duration::from_millis(10));
            converter.remove().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        for block in &blocks {
            assert!(block.done_within(FOREVER));
        }
        drop(buffer);
        wait_until("nobody to need the module", || references() == before);
    }
}
