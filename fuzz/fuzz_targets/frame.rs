//! Any frame is accepted or refused, and an accepted one has the fields that were written.

#![no_main]

use std::io::ErrorKind;

use arbitrary::Arbitrary;
use busbar::stream::frame::{HEADER_LEN, Header, Hello, MAX_DATA, MAX_HELLO};
use busbar::stream::{Channel, Format};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    header: [u8; 32],
    rest: [u8; 24],
    /// The checksum of the header is corrected, so that the fields are checked.
    forged: bool,
    /// So are the fields before those that differ.
    begun: bool,
    payload: Vec<u8>,
    hello: Sample,
    changes: Vec<(u16, u8)>,
}

#[derive(Arbitrary, Debug)]
struct Sample {
    channels: Vec<(String, [bool; 2], [u8; 4], u16)>,
    sample_len: u16,
    block_len: u32,
    rate: Option<f64>,
}

fuzz_target!(|input: Input| {
    header(&input);
    if let Ok(hello) = Hello::decode(&input.payload) {
        consistent(&hello);
    }
    damaged(&input.hello, &input.changes);
});

fn header(input: &Input) {
    let mut bytes = [0; HEADER_LEN];
    bytes[..32].copy_from_slice(&input.header);
    bytes[32..].copy_from_slice(&input.rest);
    if input.begun {
        bytes[..8].copy_from_slice(&[b'B', b'B', b's', b't', 1, 1 + input.header[5] % 6, 56, 0]);
    }
    if input.forged {
        let check = crc32c(&bytes[..HEADER_LEN - 4]);
        bytes[HEADER_LEN - 4..].copy_from_slice(&check.to_le_bytes());
    }
    match Header::decode(&bytes) {
        Ok(header) => {
            assert_eq!(header.encode(), bytes);
            assert!(header.len <= MAX_DATA);
            let fits = usize::try_from(header.len) == Ok(input.payload.len());
            let right = header.check.is_none_or(|check| check == crc32c(&input.payload));
            assert_eq!(header.check(&input.payload).is_ok(), fits && right);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidData),
    }
}

/// An index into a sample with this stays within it.
fn consistent(hello: &Hello) {
    let Format { channels, sample_len, .. } = &hello.format;
    assert!(*sample_len > 0 && hello.block_len as usize % sample_len == 0 && !channels.is_empty());
    for channel in channels {
        assert!(!channel.is_empty() && channel.offset + channel.len() <= *sample_len);
        assert!(channel.bits > 0 && channel.bits + channel.shift <= channel.storage_bits);
    }
    let encoded = hello.encode().unwrap();
    assert!(encoded.len() <= MAX_HELLO as usize);
    assert_eq!(Hello::decode(&encoded).unwrap(), *hello);
}

fn damaged(sample: &Sample, changes: &[(u16, u8)]) {
    let channel = |(name, flags, numbers, offset): &(String, [bool; 2], [u8; 4], u16)| Channel {
        name: name.clone(),
        signed: flags[0],
        big_endian: flags[1],
        bits: numbers[0],
        storage_bits: numbers[1],
        shift: numbers[2],
        repeat: numbers[3],
        offset: usize::from(*offset),
    };
    let format = Format {
        channels: sample.channels.iter().map(channel).collect(),
        sample_len: usize::from(sample.sample_len),
        rate: sample.rate,
    };
    let Ok(mut bytes) = (Hello { format, block_len: sample.block_len }).encode() else { return };
    consistent(&Hello::decode(&bytes).unwrap());
    for (at, byte) in changes {
        let at = usize::from(*at) % bytes.len();
        bytes[at] = *byte;
    }
    if let Ok(hello) = Hello::decode(&bytes) {
        consistent(&hello);
    }
}

/// Bit by bit: slow, but not the code under test.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
