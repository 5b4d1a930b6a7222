//! The command `busbar serve` for clients of the binary protocol of libiio 1.x, on any host.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use support::iiod::{Binary, Server, op};
use support::wait_until;

/// Bytes of a sample of the four voltages.
const FRAME: usize = 8;
const MASK: u32 = 0xf;
/// Attributes of a device with a rate, by name.
const LOST: i32 = 0;
const REPORT: i32 = 1;
const UNKNOWN: i32 = 2;
const RATE: i32 = 3;
/// The lower half of a number: the transfer was not begun.
const NOT_BEGUN: i32 = 1 << 16;

fn u64s(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The number after the last sample, of samples that follow each other.
fn assert_counts(bytes: &[u8], first: u64) -> u64 {
    let numbers = u64s(bytes);
    assert_eq!(numbers[0], first);
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "a gap");
    first + numbers.len() as u64
}

fn attribute(client: &mut Binary, device: u8, number: i32) -> String {
    let value = client.value(op::READ, device, number << 16, &[]).unwrap();
    String::from_utf8(value).unwrap().trim_end_matches('\0').to_owned()
}

#[test]
fn attributes_are_read_and_written_by_their_numbers() {
    let server = Server::start(&["adc=synth:counter?rate=1M", "sine=synth:sine?rate=48k"]);
    let mut client = Binary::connect(server.port);
    let xml = client.value(op::PRINT, 0, 0, &[]).unwrap();
    // Only this one may have the attributes of events.
    let body = |xml: Vec<u8>| {
        let xml = String::from_utf8(xml).unwrap();
        xml.split_once("]>").unwrap().1.to_owned()
    };
    assert_eq!(body(xml), body(server.connect().value("PRINT").unwrap()));
    assert_eq!(attribute(&mut client, 0, RATE), "1000000");
    assert_eq!(attribute(&mut client, 1, RATE), "48000");
    assert_eq!(client.write(0, REPORT, b"1\0"), 2);
    assert_eq!(client.write(0, REPORT, b"2"), -22);
    assert_eq!(attribute(&mut client, 0, REPORT), "1");
    assert_eq!(client.write(0, RATE, b"5"), -13);
    assert_eq!(client.write(0, 99, b"5"), -22);
    assert_eq!(client.write(0, REPORT, &vec![b'1'; 70_000]), -12);
    // Again what it has sent at the beginning, as a new client at a serial line does.
    client.send(b"BINARY\r\n");
    assert_eq!(client.bytes(3), b"0\r\n");
    // What no server has asked for.
    client.command(1, 0, 0, 5, b"hello");
    client.command(1, 0, 0, -5, b"");
    assert_eq!(client.ask(op::NOTHING, 0, 0, &[]), 0);
}

#[test]
fn commands_are_answered_with_the_numbers_of_iiod() {
    let server = Server::start(&["adc=synth:counter", "--read-only"]);
    let mut client = Binary::connect(server.port);
    let len = |len: u64| len.to_le_bytes();
    for (op, device, code, more, answer) in [
        (op::TIMEOUT, 0, 500, &[][..], 0),
        (op::READ, 0, 3 << 16, &[], -22),
        (op::READ, 1, 0, &[], -22),
        (op::READ_DEBUG, 0, 0, &[], -22),
        (op::READ_CHANNEL, 0, 0, &[], -22),
        (op::READ_CHANNEL, 0, 99, &[], -22),
        (op::READ_EVENTS, 0, 0, &[], -22),
        (op::READ_CHANNEL_EVENTS, 0, 0, &[], -22),
        (op::WRITE, 0, 0, &[&len(3)[..], b"abc"].concat(), -1),
        (op::WRITE, 9, 0, &[&len(3)[..], b"abc"].concat(), -22),
        (op::GET_TRIGGER, 0, 0, &[], -2),
        (op::GET_TRIGGER, 1, 0, &[], -22),
        (op::SET_TRIGGER, 0, -1, &[], -1),
        (op::SET_TRIGGER, 0, 99, &[], -22),
        (op::CREATE_EVENTS, 0, 0, &[], -19),
        (op::CREATE_EVENTS, 1, 0, &[], -22),
        (op::FREE_EVENTS, 0, 0, &[], -9),
        (op::READ_EVENT, 0, 0, &[], -9),
        (op::READ_REGISTER, 0, 1, &[], -1),
        (op::READ_REGISTER, 1, 1, &[], -19),
        (op::WRITE_REGISTER, 0, 1, &[0; 4], -1),
        (op::FORMAT, 0, 6, &[], -22),
        (op::FORMAT, 1, 0, &[], -19),
        (op::OPEN, 0, 0, &[0; 4], -22),
        (op::OPEN, 0, 1, &[15, 0, 0, 0], -19),
        (op::OPEN, 1, 0, &[], -22),
        (op::CLOSE, 0, 0, &[], -9),
        (op::ENABLE, 0, 0, &[], -9),
        (op::DISABLE, 0, 0, &[], -9),
        (op::CREATE, 0, 0, &len(4096), -9),
        (op::FREE, 0, 0, &[], -9),
        (op::TRANSFER, 0, 0, &len(4096), -9),
        (op::RETRY, 0, 0, &[], -9),
    ] {
        assert_eq!(client.ask(op, device, code, more), answer, "{op} {device} {code}");
    }
    assert_eq!(client.value(op::FORMAT, 0, 0, &[]).unwrap(), b"le:s16/16>>0");
    assert_eq!(client.value(op::FORMAT, 0, 4, &[]).unwrap(), b"le:u64/64>>0");
    // Bits without a channel are none.
    assert_eq!(client.value(op::OPEN, 0, 0, &[15, 0, 0, 0x80]).unwrap(), MASK.to_le_bytes());
    assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), -22);
    assert_eq!(client.ask(op::CLOSE, 0, 0, &[]), 0);
    client.open(0, MASK, 2, 4096);
    for (op, code, more, answer) in [
        (op::OPEN, 0, &[15, 0, 0, 0][..], -17),
        (op::CREATE, 1 << 16, &len(4096), -17),
        (op::CREATE, 2 << 16, &len(7), -22),
        (op::CREATE, 2 << 16, &len(1 << 30), -12),
        (op::CREATE, 2 << 16, &len(u64::MAX), -12),
        (op::CREATE, 2 << 16, &len(4096), 0),
        (op::FREE, 2 << 16, &[], 0),
        (op::FREE, 2 << 16, &[], -9),
        (op::ENABLE, 0, &[], 0),
        (op::ENABLE, 0, &[], -16),
        (op::CREATE, 2 << 16, &len(8192), -16),
        (op::TRANSFER, 2 << 16, &len(4096), -9),
    ] {
        assert_eq!(client.ask(op, 0, code, more), answer, "{op} {code}");
    }
    for (op, bytes, answer) in [
        (op::TRANSFER, 0, -22),
        (op::TRANSFER, 4097, -22 * NOT_BEGUN),
        (op::TRANSFER, 7, -22 * NOT_BEGUN),
        (op::CYCLIC, 4096, -NOT_BEGUN),
    ] {
        client.command(101, op, 0, 1 << 16, &len(bytes));
        assert_eq!(client.answer(), (101, answer), "{op} {bytes}");
    }
    client.command(101, op::RETRY, 0, 1 << 16, &[]);
    assert_eq!(client.answer(), (101, -1));
    // Less than a block, whole samples.
    client.transfer(0, 1, 4095);
    assert_eq!(client.samples(1).unwrap().len(), 4088);
    assert_eq!(client.ask(op::DISABLE, 0, 0, &[]), 0);
    assert_eq!(client.ask(op::CLOSE, 0, 0, &[]), 0);
    assert_eq!(client.ask(op::CLOSE, 0, 0, &[]), -9);
    // No command: it cannot be known what follows.
    client.command(5, 33, 0, 0, &[]);
    assert_eq!(client.answer(), (5, -22));
    assert!(client.is_closed());
}

#[test]
fn two_buffers_by_one_connection_give_every_sample_of_each() {
    let server = Server::start(&["one=synth:counter", "two=synth:counter"]);
    for len in [FRAME, 4096, 1 << 20] {
        let mut client = Binary::connect(server.port);
        client.open(0, MASK, 4, len);
        client.open(1, MASK, 4, len);
        for block in 0..4 {
            client.transfer(0, block, len);
            client.transfer(1, block, len);
        }
        // An answer to one is as good as one to the other: they are told apart by what they count.
        assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
        let mut next = 0;
        for block in 0..4 {
            next = assert_counts(&client.samples(block).unwrap(), next);
        }
        assert_eq!(client.ask(op::ENABLE, 1, 0, &[]), 0);
        next = 0;
        for round in 0..40 {
            let block = round % 4;
            next = assert_counts(&client.samples(block).unwrap(), next);
            client.transfer(1, block, len);
        }
        // The next one begins anew.
        client.close(0);
        client.close(1);
    }
    let summary = server.finish().pop().unwrap();
    let sent = summary["sent"].as_u64().unwrap();
    // Short blocks are copied, as that is cheaper, and one that is asked for before those before it are known to be read.
    assert!(summary["copied"].as_u64() < Some(sent / 4), "{summary}");
}

#[test]
fn streams_of_one_connection_do_not_wait_for_each_other() {
    let server = Server::start(&["slow=synth:counter?rate=1k", "fast=synth:counter"]);
    let mut client = Binary::connect(server.port);
    let len = (200 * FRAME as u64).to_le_bytes();
    for device in [0, 1] {
        assert_eq!(client.value(op::OPEN, device, 0, &MASK.to_le_bytes()).unwrap().len(), 4);
        for block in 0..4 {
            let (to, code) = (100 * u16::from(device) + block, i32::from(block) << 16);
            client.command(to, op::CREATE, device, code, &len);
            assert_eq!(client.answer(), (to, 0));
            client.command(to, op::TRANSFER, device, code, &len);
        }
    }
    client.command(600, op::ENABLE, 0, 0, &[]);
    client.command(601, op::ENABLE, 1, 0, &[]);
    // 800 samples of the slow one take 0.8 s; attributes are read meanwhile.
    client.command(500, op::READ, 1, LOST << 16, &[]);
    let mut came = Vec::new();
    while came.len() < 11 {
        let (id, len) = client.answer();
        client.bytes(usize::try_from(len).unwrap());
        came.push(id);
    }
    let at = |id: u16| came.iter().position(|it| *it == id).unwrap();
    assert!((100..104).chain([500]).all(|id| at(id) < at(3)), "{came:?}");
    assert!((0..3).all(|id| at(id) < at(id + 1)), "{came:?}");
}

#[test]
fn a_transfer_that_takes_too_long_fails_and_is_asked_for_again() {
    let server = Server::start(&["adc=synth:counter?rate=2k"]);
    let mut client = Binary::connect(server.port);
    assert_eq!(client.ask(op::TIMEOUT, 0, 50, &[]), 0);
    client.open(0, MASK, 2, 500 * FRAME);
    client.transfer(0, 0, 500 * FRAME);
    client.transfer(0, 1, 500 * FRAME);
    assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
    assert_eq!(client.samples(0), Err(-110));
    client.transfer(0, 0, 500 * FRAME);
    assert_eq!(client.samples(0), Err(-NOT_BEGUN));
    assert_eq!(client.ask(op::TIMEOUT, 0, -1, &[]), 0);
    // What follows waits as well, as its samples are the next ones.
    client.command(100, op::RETRY, 0, 0, &[]);
    let next = assert_counts(&client.samples(0).unwrap(), 0);
    assert_counts(&client.samples(1).unwrap(), next);
}

#[test]
fn a_loss_is_told_by_an_error_if_that_is_asked_for() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let mut client = Binary::connect(server.port);
    let mut other = Binary::connect(server.port);
    client.open(0, MASK, 4, 1000 * FRAME);
    assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
    assert_eq!(other.write(0, REPORT, b"1"), 1);
    sleep(Duration::from_millis(50));
    let (mut next, mut missed) = (None, 0);
    while missed == 0 {
        client.transfer(0, 0, 1000 * FRAME);
        match client.samples(0) {
            Ok(bytes) => next = Some(assert_counts(&bytes, next.unwrap_or(u64s(&bytes)[0]))),
            Err(errno) => {
                assert_eq!(errno, -105);
                client.command(100, op::RETRY, 0, 0, &[]);
                let first = u64s(&client.samples(0).unwrap())[0];
                missed = first - next.unwrap();
            }
        }
    }
    let told: u64 = attribute(&mut other, 0, LOST).parse().unwrap();
    assert!(told >= missed, "{told} told, {missed} missed");
    assert_eq!(attribute(&mut other, 0, UNKNOWN), "0");
}

#[test]
fn clients_of_both_protocols_share_a_device() {
    let server = Server::start(&["adc=synth:counter"]);
    let mut text = server.connect();
    assert_eq!(text.ask("OPEN adc 256 0000000f"), 0);
    let mut client = Binary::connect(server.port);
    // It gets all channels that the other one has, and is told so.
    assert_eq!(client.value(op::OPEN, 0, 0, &[1, 0, 0, 0]).unwrap(), MASK.to_le_bytes());
    for block in 0..2 {
        client.create(0, block, 1000 * FRAME);
        client.transfer(0, block, 1000 * FRAME);
    }
    assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
    // Its blocks are longer than those of the device, which waits for both.
    let has_ended = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&has_ended);
    let reader = spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let _ = text.read("adc", 1024 * FRAME);
        }
    });
    let mut next = None;
    for round in 0..200 {
        let bytes = client.samples(round % 2).unwrap();
        next = Some(assert_counts(&bytes, next.unwrap_or(u64s(&bytes)[0])));
        client.transfer(0, round % 2, 1000 * FRAME);
    }
    has_ended.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    // It cannot be told that there are further channels.
    let mut third = server.connect();
    assert_eq!(third.ask("OPEN adc 256 0000003f"), -16);
    assert_eq!(Binary::connect(server.port).ask(op::OPEN, 0, 0, &[0x3f, 0, 0, 0]), -16);
    client.close(0);
    assert_eq!(third.ask("OPEN adc 256 0000003f"), 0);
}

#[test]
fn a_buffer_is_freed_by_another_connection_of_its_machine_or_with_its_own() {
    let server = Server::start(&["adc=synth:counter?rate=1M"]);
    let (mut main, mut other) = (Binary::connect(server.port), Binary::connect(server.port));
    assert_eq!(main.ask(op::FREE, 0, 0, &[]), -9);
    let before = server.descriptors();
    for _ in 0..20 {
        let mut client = Binary::connect(server.port);
        client.open(0, MASK, 4, 65536 * FRAME);
        for block in 0..4 {
            client.transfer(0, block, 65536 * FRAME);
        }
        assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
        // Its samples are not read.
        assert_eq!(main.ask(op::FREE, 0, 0, &[]), 0);
        assert_eq!(main.ask(op::CLOSE, 0, 0, &[]), 0);
    }
    wait_until("the descriptors are closed", || server.descriptors() == before);
    assert_eq!(other.ask(op::CLOSE, 0, 0, &[]), -9);
}

#[test]
fn clients_that_mean_harm_hurt_no_others() {
    let server = Server::start(&[
        "adc=synth:counter",
        "paced=synth:counter?rate=1M",
        "--memory-limit",
        "8M",
    ]);
    let mut watcher = Binary::connect(server.port);
    let before = server.descriptors();
    let mut harmful = Vec::new();
    for round in 0..50_u16 {
        let mut client = Binary::connect(server.port);
        match round % 6 {
            // Samples that are never read.
            0 => {
                client.open(1, MASK, 4, 4096);
                client.ask(op::ENABLE, 1, 0, &[]);
                (0..4).for_each(|block| client.transfer(1, block, 4096));
            }
            // A value that never comes, and one that is endless.
            1 => client.command(0, op::WRITE, 0, 0, &u64::MAX.to_le_bytes()),
            2 => client.command(0, op::WRITE, 0, REPORT << 16, &1000_u64.to_le_bytes()),
            // Half a command.
            3 => client.send(&[0, 0, op::OPEN, 0, 0, 0, 0, 0, 15]),
            // More blocks than there may be.
            4 => {
                client.open(0, MASK, 1024, 4096);
                let code = 2000 << 16;
                assert_eq!(client.ask(op::CREATE, 0, code, &4096_u64.to_le_bytes()), -12);
                assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
            }
            // Anything.
            _ => {
                let noise =
                    (0..4000_u32).map(|it| it.wrapping_mul(2_654_435_761).to_le_bytes()[3] % 34);
                client.send(&noise.collect::<Vec<_>>());
            }
        }
        harmful.push(client);
    }
    // Those who take nothing for a second have lost some.
    watcher.value(op::READ, 0, LOST << 16, &[]).unwrap();
    watcher.open(0, MASK, 4, 4096);
    (0..4).for_each(|block| watcher.transfer(0, block, 4096));
    assert_eq!(watcher.ask(op::ENABLE, 0, 0, &[]), 0);
    for round in 0..100 {
        let bytes = watcher.samples(round % 4).unwrap();
        assert_counts(&bytes, u64s(&bytes)[0]);
        watcher.transfer(0, round % 4, 4096);
    }
    drop(harmful);
    watcher.close(0);
    wait_until("the descriptors are closed", || server.descriptors() == before);
}

#[test]
fn blocks_that_were_begun_do_not_stay_after_their_buffer() {
    let server = Server::start(&["adc=synth:counter"]);
    let mut client = Binary::connect(server.port);
    client.open(0, MASK, 1, 1 << 20);
    let before = server.memory();
    for _ in 0..100 {
        assert_eq!(client.ask(op::ENABLE, 0, 0, &[]), 0);
        client.transfer(0, 0, FRAME);
        assert_counts(&client.samples(0).unwrap(), 0);
        assert_eq!(client.ask(op::DISABLE, 0, 0, &[]), 0);
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 50 << 20, "{grown}");
}

#[test]
fn there_may_be_more_transfers_than_blocks_of_the_device() {
    let len = 64 << 10;
    let server = Server::start(&["adc=synth:counter", "paced=synth:counter?rate=1M"]);
    let mut client = Binary::connect(server.port);
    for device in [0, 1] {
        client.open(device, MASK, 1, len);
        assert_eq!(client.ask(op::ENABLE, device, 0, &[]), 0);
        (1..4).for_each(|block| client.create(device, block, len));
        (0..4).for_each(|block| client.transfer(device, block, len));
        // Nothing more is said until all have come.
        let mut next = None;
        for block in 0..4 {
            let bytes = client.samples(block).unwrap();
            next = Some(assert_counts(&bytes, next.unwrap_or(u64s(&bytes)[0])));
        }
        client.close(device);
    }
    // Text clients have as many blocks as ever.
    let mut text = server.connect();
    assert_eq!(text.ask("OPEN adc 8192 0000000f"), 0);
    assert_counts(&text.read("adc", 2 * len).unwrap(), 0);
}
