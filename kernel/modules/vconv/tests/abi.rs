//! The interface of a converter: attributes, patterns, samples by `read` and by DMABUF.

mod converter;
#[path = "../../../../crates/cli/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use busbar_uapi::iio::{self, CYCLIC, Ended, REPORT};
use converter::{
    Block, Converter, Device, FOLDER, FRAME, RX_VOLTAGES, TX_VOLTAGES, assert_counter, attached,
    enqueue_all, i16s, outcome, transfer, u64s,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use support::{modprobe, rounds, wait_until};

const LEN: usize = 64 << 10;
const SAMPLES: u64 = (LEN / FRAME) as u64;

#[test]
#[ignore = "needs the lab"]
fn counter_comes_by_dmabuf() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 4, LEN);
    enqueue_all(&buffer, &blocks, LEN, 0);
    rx.enable();
    for round in 0..8 {
        for (index, block) in blocks.iter().enumerate() {
            let first = (round * 4 + index as u64) * SAMPLES;
            assert_counter(&block.read(LEN), first);
            iio::enqueue(&buffer, block, LEN as u64, 0).unwrap();
        }
    }
    assert_eq!(rx.get("overruns"), "0");
    rx.disable();
}

#[test]
#[ignore = "needs the lab"]
fn counter_comes_by_read() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.set("buffer/length", 2048);
    rx.enable();
    let mut file = rx.open();
    let mut bytes = vec![0; 1 << 20];
    file.read_exact(&mut bytes).unwrap();
    assert_counter(&bytes, 0);
    // It starts again from any position: within a block, and between the two of them.
    for samples in [8, 1024, 1025, 3072, 5] {
        rx.disable();
        rx.enable();
        let mut again = vec![0; samples * FRAME];
        file.read_exact(&mut again).unwrap();
        assert_counter(&again, 0);
    }
}

/// The position of a channel according to the IIO documentation.
fn place(at: &mut usize, len: usize, on: bool) -> Option<usize> {
    let start = at.next_multiple_of(len);
    on.then(|| {
        *at = start + len;
        start
    })
}

#[test]
#[ignore = "needs the lab"]
fn every_choice_of_channels_has_its_layout() {
    let converter = Converter::new();
    let rx = &converter.rx;
    let names = [RX_VOLTAGES.as_slice(), &["in_count0", "in_timestamp"]].concat();
    rx.set("sampling_frequency", 1_000_000);
    rx.set("buffer/length", 1200);
    for mask in 1..64_u32 {
        let on = |channel: usize| mask >> channel & 1 == 1;
        let chosen: Vec<_> = (0..6).filter(|&n| on(n)).map(|n| names[n]).collect();
        rx.channels(&chosen);
        if chosen == ["in_timestamp"] {
            assert_eq!(rx.try_set("buffer/enable", 1), Err(Errno::INVAL));
            continue;
        }
        let mut end = 0;
        let voltages: Vec<_> = (0..4).map(|n| place(&mut end, 2, on(n))).collect();
        let count = place(&mut end, 8, on(4));
        let time = place(&mut end, 8, on(5));
        let len = if on(4) || on(5) { end.next_multiple_of(8) } else { end };
        rx.enable();
        let mut bytes = vec![0; 1200 * len];
        rx.open().read_exact(&mut bytes).unwrap();
        rx.disable();
        check_layout(&bytes, len, &voltages, count, time);
    }
}

fn check_layout(
    bytes: &[u8],
    len: usize,
    voltages: &[Option<usize>],
    count: Option<usize>,
    time: Option<usize>,
) {
    let u64_at =
        |sample: &[u8], at: usize| u64::from_le_bytes(sample[at..at + 8].try_into().unwrap());
    let start = time.map(|at| u64_at(bytes, at));
    // A slow reader of two short blocks may lose samples, which the count then shows.
    let mut number = 0;
    for (index, sample) in bytes.chunks_exact(len).enumerate() {
        number = match count {
            Some(at) => u64_at(sample, at),
            None => match voltages[0] {
                Some(at) => u64::from(u16::from_le_bytes([sample[at], sample[at + 1]])),
                None => number,
            },
        };
        for (word, at) in voltages.iter().enumerate() {
            let Some(at) = *at else { continue };
            let value = u16::from_le_bytes([sample[at], sample[at + 1]]);
            if count.is_some() || word == 0 {
                assert_eq!(u64::from(value), number >> (16 * word) & 0xffff, "sample {index}");
            } else {
                assert_eq!(value, 0, "sample {index}");
            }
        }
        if let (Some(at), Some(start), Some(_)) = (time, start, count) {
            assert_eq!(u64_at(sample, at), start + 1000 * number, "sample {index}");
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn times_are_those_of_start_and_rate() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&["in_count0", "in_timestamp"]);
    // A period that is not a whole number of nanoseconds.
    rx.set("sampling_frequency", 7_000_000);
    rx.set("current_timestamp_clock", "monotonic");
    let monotonic = || monotonic_ns().cast_signed();
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    iio::enqueue(&buffer, block, LEN as u64, 0).unwrap();
    let before = monotonic();
    rx.enable();
    let after = monotonic();
    let words: Vec<_> = u64s(&block.read(LEN)).collect();
    let done = monotonic();
    let start = words[1].cast_signed();
    assert!((before..=after).contains(&start), "{before} {start} {after}");
    for (index, sample) in (0_i64..).zip(words.chunks_exact(2)) {
        assert_eq!(sample[0], index.cast_unsigned());
        let nanoseconds = index * 1000 / 7;
        assert_eq!(sample[1].cast_signed(), start + nanoseconds, "sample {index}");
    }
    let last = words[words.len() - 1].cast_signed();
    assert!(done >= last, "not before its time");
}

/// One block of `pattern`, as 16-bit values.
fn block_of(rx: &Device, pattern: &str) -> Vec<i16> {
    rx.set("pattern", pattern);
    let buffer = rx.buffer();
    let block = Block::new(LEN);
    block.write(&vec![0xa5; LEN]);
    iio::attach(&buffer, &block).unwrap();
    // Blocks queued before the buffer is enabled begin with sample 0, at any rate.
    iio::enqueue(&buffer, &block, LEN as u64, 0).unwrap();
    let fences = block.fences();
    rx.enable();
    assert_eq!(outcome(&fences), Ok(()));
    rx.disable();
    i16s(&block.read(LEN))
}

#[test]
#[ignore = "needs the lab"]
fn sine_is_one() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    for (rate, frequency) in [(0, 1000), (0, 12_345), (4_000_000, 100_000), (1_000_000, 0)] {
        rx.set("sampling_frequency", rate);
        rx.set("sine_frequency", frequency);
        let values = block_of(rx, "sine");
        // Without a rate the frequency refers to 1 MS/s. Phases are multiples of 2^-32 turns, the table
        // has 4096.
        let rate = if rate == 0 { 1_000_000.0 } else { f64::from(rate) };
        for (index, sample) in (0_u32..).zip(values.chunks_exact(4)) {
            let turns = f64::from(frequency) / rate * f64::from(index);
            let (sine, cosine) = (turns * std::f64::consts::TAU).sin_cos();
            for (value, wanted) in sample.iter().zip([cosine, sine, sine, -cosine]) {
                let error = (f64::from(*value) - 32_767.0 * wanted).abs();
                assert!(error < 30.0, "sample {index}: {value}, not {}", 32_767.0 * wanted);
            }
        }
    }
}

fn mix(count: u64) -> u64 {
    let value = count.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[test]
#[ignore = "needs the lab"]
fn noise_is_the_documented_one_and_gain_scales_it() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.set("in_voltage0_q_hardwaregain", "0.5");
    rx.set("in_voltage1_i_hardwaregain", "0");
    rx.set("in_voltage1_q_hardwaregain", "0.25");
    let values = block_of(rx, "noise");
    for (index, sample) in values.chunks_exact(4).enumerate() {
        let words = i16s(&mix(index as u64).to_le_bytes());
        let wanted = [words[0], words[1] / 2, 0, words[3] / 4];
        assert_eq!(sample, wanted, "sample {index}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn none_touches_nothing() {
    let converter = Converter::new();
    converter.rx.channels(&RX_VOLTAGES);
    let untouched = i16::from_le_bytes([0xa5; 2]);
    assert!(block_of(&converter.rx, "none").iter().all(|&value| value == untouched));
    // Except for the channels beside the voltages.
    converter.rx.channels(&["in_voltage0_i", "in_count0"]);
    let values = block_of(&converter.rx, "none");
    for (index, sample) in (0_i16..).zip(values.chunks_exact(8)) {
        assert_eq!(sample[..4], [untouched; 4]);
        assert_eq!(sample[4], index);
        assert_eq!(sample[5..], [0; 3]);
    }
}

#[test]
#[ignore = "needs the lab"]
fn attributes_have_ranges() {
    let converter = Converter::new();
    let (rx, tx) = (&converter.rx, &converter.tx);
    assert_eq!(rx.get("pattern"), "counter");
    assert_eq!(rx.get("pattern_available"), "counter sine noise none");
    assert_eq!(rx.get("sampling_frequency"), "0");
    assert_eq!(rx.get("sampling_frequency_available"), "[0 1 1000000000]");
    assert_eq!(rx.get("in_voltage0_i_hardwaregain"), "1.000000");
    assert_eq!(rx.get("in_voltage_hardwaregain_available"), "[0.000000 0.000001 1.000000]");
    assert_eq!(rx.get("sine_frequency"), "1000");
    assert_eq!(rx.get("loopback"), "0");
    assert_eq!(tx.get("sampling_frequency"), "0");
    assert_eq!(tx.get("underruns"), "0");
    for channel in RX_VOLTAGES {
        assert_eq!(rx.get(&format!("scan_elements/{channel}_type")), "le:s16/16>>0");
    }
    assert_eq!(rx.get("scan_elements/in_count0_type"), "le:u64/64>>0");
    assert_eq!(rx.get("scan_elements/in_timestamp_type"), "le:s64/64>>0");
    for (attribute, values) in [
        ("pattern", ["", "count", "Sine"].as_slice()),
        ("sampling_frequency", &["-1", "1000000001", "0.5", "x"]),
        ("in_voltage1_q_hardwaregain", &["-0.1", "1.000001", "2", "x"]),
        ("sine_frequency", &["-1", "1000000001", "x"]),
        ("loopback", &["2", "x"]),
    ] {
        let before = rx.get(attribute);
        for value in values.iter().filter(|value| !value.is_empty()) {
            assert_eq!(rx.try_set(attribute, value), Err(Errno::INVAL), "{attribute}={value}");
        }
        assert_eq!(rx.get(attribute), before);
    }
    assert_eq!(tx.try_set("sampling_frequency", "-1"), Err(Errno::INVAL));
    for gain in ["0.000000", "0.125000", "0.333328", "1.000000"] {
        rx.set("in_voltage1_q_hardwaregain", gain);
        assert_eq!(rx.get("in_voltage1_q_hardwaregain"), gain);
    }
}

#[test]
#[ignore = "needs the lab"]
fn settings_are_fixed_while_the_buffer_is_enabled() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.enable();
    for (attribute, value) in [
        ("pattern", "sine"),
        ("sampling_frequency", "1"),
        ("sine_frequency", "1"),
        ("loopback", "1"),
        ("scan_elements/in_count0_en", "1"),
        ("buffer/length", "16"),
    ] {
        assert_eq!(rx.try_set(attribute, value), Err(Errno::BUSY), "{attribute}");
    }
    rx.set("in_voltage0_i_hardwaregain", "0.5");
    rx.disable();
    rx.set("pattern", "sine");
}

#[test]
#[ignore = "needs the lab"]
fn samples_that_no_block_was_there_for_are_counted() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.set("sampling_frequency", 1_000_000);
    rx.channels(&["in_count0"]);
    let buffer = rx.buffer();
    let block = &attached(&buffer, 1, 4096)[0];
    rx.enable();
    let mut next = 0;
    let mut lost = 0;
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(transfer(&buffer, block, 4096), Ok(()));
        let numbers: Vec<_> = u64s(&block.read(4096)).collect();
        lost += numbers[0] - next;
        next = numbers[511] + 1;
        assert!(numbers[0] > 0);
        assert_eq!(numbers[511] - numbers[0], 511);
        assert_eq!(rx.number("overruns"), lost);
    }
    rx.disable();
    rx.enable();
    assert_eq!(rx.get("overruns"), "0", "of this run");
}

#[test]
#[ignore = "needs the lab"]
fn blocks_in_time_lose_nothing_and_take_their_time() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.set("sampling_frequency", 100_000);
    rx.channels(&["in_count0"]);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 4, 80_000);
    enqueue_all(&buffer, &blocks, 80_000, 0);
    let start = std::time::Instant::now();
    rx.enable();
    for (index, block) in blocks.iter().enumerate() {
        assert_counter(&block.read(80_000), 10_000 * index as u64);
    }
    assert!(start.elapsed() >= Duration::from_millis(400));
    assert_eq!(rx.get("overruns"), "0");
}

#[test]
#[ignore = "needs the lab"]
fn transmitter_counts_what_it_had_nothing_for() {
    let converter = Converter::new();
    let tx = &converter.tx;
    tx.set("sampling_frequency", 1_000_000);
    tx.channels(&TX_VOLTAGES);
    let buffer = tx.buffer();
    let blocks = attached(&buffer, 1, LEN);
    tx.enable();
    std::thread::sleep(Duration::from_millis(3));
    assert_eq!(transfer(&buffer, &blocks[0], LEN), Ok(()));
    assert_eq!(tx.get("underruns"), "0", "it starts with the first block");
    std::thread::sleep(Duration::from_millis(3));
    assert_eq!(transfer(&buffer, &blocks[0], LEN), Ok(()));
    assert!(tx.number("underruns") >= 2000);
}

#[test]
#[ignore = "needs the lab"]
fn what_is_transmitted_is_received() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    let (from, to) = (tx.buffer(), rx.buffer());
    // Blocks of different lengths, and more of them than the ring between has room for.
    let (sent, received) = (attached(&from, 3, 200_000), attached(&to, 4, LEN));
    rx.enable();
    tx.enable();
    let mut bytes = vec![0; 600_000];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    for (block, part) in sent.iter().zip(bytes.chunks_exact(200_000)) {
        block.write(part);
        iio::enqueue(&from, block, 200_000, 0).unwrap();
    }
    let mut got = Vec::new();
    for block in received.iter().cycle().take(9) {
        assert_eq!(transfer(&to, block, LEN), Ok(()));
        got.extend(block.read(LEN));
    }
    assert_eq!(got, bytes[..got.len()]);
    rx.disable();
    for block in &sent {
        assert!(block.done_within(Duration::from_secs(60)), "nobody listens any more");
    }
}

#[test]
#[ignore = "needs the lab"]
fn write_is_looped_back_to_read() {
    let converter = Converter::new();
    let (rx, tx) = (&converter.rx, &converter.tx);
    rx.set("loopback", 1);
    rx.set("buffer/length", 512);
    tx.set("buffer/length", 256);
    rx.channels(&RX_VOLTAGES[..2]);
    tx.channels(&[TX_VOLTAGES[1], TX_VOLTAGES[3]]);
    rx.enable();
    tx.enable();
    let mut bytes = vec![0; 4096];
    fastrand::Rng::with_seed(2).fill(&mut bytes);
    let (mut to, mut from) = (tx.open(), rx.open());
    to.write_all(&bytes).unwrap();
    let mut got = vec![0; 4096];
    from.read_exact(&mut got).unwrap();
    // Only the second of both has been sent and is received.
    for (sent, received) in i16s(&bytes).chunks_exact(2).zip(i16s(&got).chunks_exact(2)) {
        assert_eq!(received, [0, sent[0]]);
    }
}

#[test]
#[ignore = "needs the lab"]
fn blocks_of_read_and_write_hold_whole_samples() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    for device in [rx, tx] {
        device.set("buffer/length", 5);
        assert_eq!(device.get("buffer/length"), "4");
        device.enable();
    }
    let samples: Vec<_> = (0..100_u64).flat_map(u64::to_le_bytes).collect();
    tx.open().write_all(&samples).unwrap();
    let mut bytes = vec![0; samples.len()];
    rx.open().read_exact(&mut bytes).unwrap();
    assert_counter(&bytes, 0);
}

/// `0033-iio-buffer-hold-the-fence-of-a-DMABUF-until-its-bloc.patch`: the second call replaced the fence of the first,
/// which was freed; the debug kernel reports its use.
#[test]
#[ignore = "needs the lab"]
fn a_block_that_is_enqueued_twice_is_transmitted_once() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    let buffer = tx.buffer();
    let blocks = attached(&buffer, 1, 4096);
    blocks[0].write(&[1; 800]);
    iio::enqueue(&buffer, &blocks[0], 800, 0).unwrap();
    let fences = blocks[0].fences();
    assert_eq!(iio::enqueue(&buffer, &blocks[0], 800, 0), Err(Errno::PERM));
    tx.enable();
    rx.enable();
    assert_eq!(outcome(&fences), Ok(()));
    assert_eq!(transfer(&buffer, &blocks[0], 800), Ok(()));
}

#[test]
#[ignore = "needs the lab"]
fn cyclic_block_repeats_until_another_comes() {
    let converter = Converter::looped();
    let (rx, tx) = (&converter.rx, &converter.tx);
    let (from, to) = (tx.buffer(), rx.buffer());
    let (sent, received) = (attached(&from, 2, 4096), attached(&to, 1, LEN));
    let period: Vec<u8> = (0..2400_u16).map(|n| (n % 251) as u8).collect();
    let last: Vec<u8> = vec![0xee; 800];
    sent[0].write(&period);
    sent[1].write(&last);
    iio::enqueue(&from, &sent[0], 2400, CYCLIC).unwrap();
    let fences = sent[0].fences();
    tx.enable();
    rx.enable();
    // Far more than the ring holds.
    let mut got = Vec::new();
    for _ in 0..20 {
        assert_eq!(transfer(&to, &received[0], 60_000), Ok(()));
        got.extend(received[0].read(60_000));
    }
    assert!(!sent[0].done_within(Duration::ZERO), "no completion per pass");
    iio::enqueue(&from, &sent[1], 800, 0).unwrap();
    while !got.ends_with(&last) {
        iio::enqueue(&to, &received[0], 800, 0).unwrap();
        assert_eq!(outcome(&received[0].fences()), Ok(()));
        got.extend(received[0].read(800));
        assert!(got.len() < 4 << 20, "the cyclic block does not end");
    }
    // Before the receiver was running, the first passes were discarded, always whole ones: the
    // received samples are the period repeatedly, from some position on, and then the last block.
    let (repeated, end) = got.split_at(got.len() - 800);
    let at = (0..2400).step_by(8).find(|&at| repeated.starts_with(&period[at..])).expect("a place");
    assert!(repeated.iter().zip(period.iter().cycle().skip(at)).all(|(a, b)| a == b));
    assert_eq!((at + repeated.len()) % 2400, 0, "whole passes");
    assert_eq!(end, last);
    assert_eq!(outcome(&fences), Ok(()));
    assert_eq!(transfer(&from, &sent[0], 2400), Ok(()), "it can be used again");
}

#[test]
#[ignore = "needs the lab"]
fn cyclic_block_ends_when_the_buffer_does() {
    let converter = Converter::new();
    let tx = &converter.tx;
    tx.channels(&TX_VOLTAGES);
    let buffer = tx.buffer();
    let block = &attached(&buffer, 1, LEN)[0];
    for rate in [0, 1_000_000, 1] {
        tx.set("sampling_frequency", rate);
        for _ in 0..3 {
            tx.enable();
            iio::enqueue(&buffer, block, LEN as u64, CYCLIC).unwrap();
            let fences = block.fences();
            assert!(!block.done_within(Duration::from_millis(30)));
            tx.disable();
            assert_eq!(outcome(&fences), Err(Errno::INTR));
        }
    }
}

#[test]
#[ignore = "needs the lab"]
fn names_are_unique_and_sane() {
    let converter = Converter::named("some.name_0");
    assert_eq!(converter.rx.get("name"), "some.name_0");
    assert_eq!(converter.tx.get("name"), "some.name_0-tx");
    let mkdir = |name: &str| {
        let result = fs::create_dir(Path::new(FOLDER).join(name));
        result.map_err(|why| Errno::from_io_error(&why).unwrap())
    };
    assert_eq!(mkdir("vconv0"), Err(Errno::EXIST), "the module's own");
    assert_eq!(mkdir("some.name_0"), Err(Errno::EXIST));
    for name in ["a b", "name-tx", "-tx", "é", &"x".repeat(32)] {
        assert_eq!(mkdir(name), Err(Errno::INVAL), "{name}");
    }
    drop(Converter::named(&"x".repeat(31)));
}

#[test]
#[ignore = "needs the lab"]
fn module_makes_as_many_as_it_is_told() {
    converter::load();
    wait_until("the module to go", || modprobe(&["-r", "vconv"]).is_ok());
    for count in [0, 3, rounds(64, 12)] {
        modprobe(&["vconv", &format!("converters={count}")]).unwrap();
        let names = fs::read_dir("/sys/bus/iio/devices").unwrap().flatten();
        let names = names.filter_map(|entry| fs::read_to_string(entry.path().join("name")).ok());
        assert_eq!(names.filter(|name| name.starts_with("vconv")).count() as u64, 2 * count);
        modprobe(&["-r", "vconv"]).unwrap();
    }
    assert!(modprobe(&["vconv", "converters=65"]).is_err());
    modprobe(&["vconv"]).unwrap();
}

// -- Reports of blocks that have ended --

/// The next `count` reports, and no more.
#[track_caller]
fn reports(buffer: &OwnedFd, count: usize) -> Vec<Ended> {
    let mut all = Vec::new();
    while all.len() < count {
        wait_until("a report", || is_ready(buffer));
        let mut some = [Ended::default(); 3];
        let taken = iio::dequeue(buffer, &mut some).unwrap();
        assert!(taken > 0, "poll says that there is one");
        all.extend(&some[..taken]);
    }
    assert_eq!(all.len(), count);
    assert!(!is_ready(buffer));
    all
}

/// Whether the file of a buffer is readable or writable.
fn is_ready(buffer: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(buffer, PollFlags::IN | PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
}

#[test]
#[ignore = "needs the lab"]
fn blocks_are_reported_in_order_with_their_times() {
    let converter = Converter::new();
    for (device, channels) in
        [(&converter.rx, RX_VOLTAGES.as_slice()), (&converter.tx, TX_VOLTAGES.as_slice())]
    {
        device.channels(channels);
        let buffer = device.buffer();
        let blocks = attached(&buffer, 5, LEN);
        for (index, block) in blocks.iter().enumerate() {
            // The middle one is not to be reported.
            let flags = if index == 2 { 0 } else { REPORT };
            iio::enqueue(&buffer, block, LEN as u64, flags).unwrap();
        }
        assert!(!is_ready(&buffer));
        let before = monotonic_ns();
        device.enable();
        for round in 0..3 {
            let ended = reports(&buffer, 4);
            let wanted = [0, 1, 3, 4].map(|index| blocks[index].number());
            assert!(ended.iter().map(|it| it.fd).eq(wanted), "round {round}: {ended:?}");
            assert!(ended.iter().all(|it| it.error == 0));
            let times = ended.iter().map(|it| it.timestamp_ns);
            let all: Vec<_> = [before].into_iter().chain(times).chain([monotonic_ns()]).collect();
            assert!(all.is_sorted(), "{all:?}");
            for index in [0, 1, 3, 4] {
                iio::enqueue(&buffer, &blocks[index], LEN as u64, REPORT).unwrap();
            }
        }
        device.disable();
    }
}

#[test]
#[ignore = "needs the lab"]
fn blocks_of_a_disabled_buffer_are_reported() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    rx.set("sampling_frequency", 1);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 2, LEN);
    rx.enable();
    enqueue_all(&buffer, &blocks, LEN, REPORT);
    rx.disable();
    let ended = reports(&buffer, 2);
    assert!(ended.iter().map(|it| it.fd).eq(blocks.iter().map(Block::number)));
    assert!(ended.iter().all(|it| it.error == -Errno::INTR.raw_os_error()), "{ended:?}");
    // Blocks that wait for the buffer to be enabled when the device goes.
    enqueue_all(&buffer, &blocks, LEN, REPORT);
    converter.remove().unwrap();
    let ended = reports(&buffer, 2);
    assert!(ended.iter().all(|it| it.error == -Errno::NODEV.raw_os_error()), "{ended:?}");
}

#[test]
#[ignore = "needs the lab"]
fn a_block_that_is_detached_is_not_reported() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    let buffer = rx.buffer();
    let blocks = attached(&buffer, 3, LEN);
    // One that has ended, and one that is detached before it ends.
    iio::enqueue(&buffer, &blocks[0], LEN as u64, REPORT).unwrap();
    rx.enable();
    assert!(blocks[0].done_within(Duration::from_secs(60)));
    wait_until("a report", || is_ready(&buffer));
    iio::detach(&buffer, &blocks[0]).unwrap();
    assert!(!is_ready(&buffer));
    rx.disable();
    iio::enqueue(&buffer, &blocks[1], LEN as u64, REPORT).unwrap();
    iio::enqueue(&buffer, &blocks[2], LEN as u64, REPORT).unwrap();
    iio::detach(&buffer, &blocks[1]).unwrap();
    rx.enable();
    assert_eq!(reports(&buffer, 1)[0].fd, blocks[2].number());
    // The same DMABUF again.
    iio::attach(&buffer, &blocks[0]).unwrap();
    iio::enqueue(&buffer, &blocks[0], LEN as u64, REPORT).unwrap();
    assert_eq!(reports(&buffer, 1)[0].fd, blocks[0].number());
}

#[test]
#[ignore = "needs the lab"]
fn reports_end_with_the_file_of_the_buffer() {
    let converter = Converter::new();
    let rx = &converter.rx;
    rx.channels(&RX_VOLTAGES);
    for _ in 0..rounds(50, 5) {
        let buffer = rx.buffer();
        // Some have ended when the file is closed, others have not.
        let blocks = attached(&buffer, 16, LEN);
        enqueue_all(&buffer, &blocks, LEN, REPORT);
        rx.enable();
        wait_until("a report", || is_ready(&buffer));
        drop(buffer);
        rx.disable();
        let buffer = rx.buffer();
        assert_eq!(iio::dequeue(&buffer, &mut [Ended::default(); 3]), Ok(0));
        assert!(!is_ready(&buffer));
    }
    // Nothing holds the converter.
    converter.remove().unwrap();
}
