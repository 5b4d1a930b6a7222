use std::io;

use proptest::prelude::*;

use super::header::CHECK_AT;
use super::*;
use crate::block::Bytes;
use crate::stream::{Channel, Format, Lost};

fn kinds() -> impl Strategy<Value = Kind> {
    (0..Kind::ALL.len()).prop_map(|index| Kind::ALL[index])
}

fn losses() -> impl Strategy<Value = Lost> {
    prop_oneof![Just(Lost::Unknown), (0..u64::MAX).prop_map(Lost::Samples)]
}

prop_compose! {
    /// Any header that a sender or receiver can write.
    fn headers()(
        kind in kinds(),
        (stream, sequence, time) in any::<(u64, u64, i64)>(),
        lost in losses(),
        (len, check) in any::<(u32, Option<u32>)>(),
    ) -> Header {
        let (least, most) = kind.lengths();
        let len = least + len % (most - least + 1);
        let check = if kind.needs_check() { Some(check.unwrap_or(1)) } else { check };
        Header {
            kind,
            stream,
            sequence: sequence % (MAX_SEQUENCE + 1),
            time: if kind.has_time() { time } else { 0 },
            lost: if kind.has_loss() { lost } else { Lost::Samples(0) },
            len,
            check: check.filter(|_| len > 0),
        }
    }
}

prop_compose! {
    fn channels(sample_len: usize)(
        name in "[!-~]{1,64}",
        (signed, big_endian) in any::<(bool, bool)>(),
        (bytes, bits, shift, repeat, offset) in any::<(u8, u8, u8, u8, usize)>(),
    ) -> Channel {
        let bytes = 1 + usize::from(bytes) % sample_len.min(16);
        let repeats = sample_len / bytes;
        let repeat = u8::try_from(1 + usize::from(repeat) % repeats.min(255)).unwrap();
        let storage_bits = u8::try_from(8 * bytes).unwrap();
        let bits = 1 + bits % storage_bits;
        let shift = shift % (storage_bits - bits + 1);
        let offset = offset % (sample_len - bytes * usize::from(repeat) + 1);
        Channel { name, signed, bits, storage_bits, shift, big_endian, repeat, offset }
    }
}

prop_compose! {
    fn hellos()(sample_len in 1usize..=64)(
        channels in prop::collection::vec(channels(sample_len), 1..10),
        rate in prop::option::of(1e-3..1e12),
        samples in 1u32..1_000_000,
        sample_len in Just(sample_len),
    ) -> Hello {
        let block_len = samples * u32::try_from(sample_len).unwrap();
        Hello { format: Format { channels, sample_len, rate }, block_len }
    }
}

/// The header with one field overwritten, and its check sum made right again.
fn forged(header: &Header, at: usize, bytes: &[u8]) -> [u8; HEADER_LEN] {
    let mut encoded = header.encode();
    encoded[at..at + bytes.len()].copy_from_slice(bytes);
    let check = crc32c::crc32c(&encoded[..CHECK_AT]);
    encoded[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
    encoded
}

fn refusal(encoded: &[u8; HEADER_LEN]) -> String {
    let error = Header::decode(encoded).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    error.to_string()
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let payload = [1, 2, 3, 4];
    let header = Header::data(0x0102_0304_0506_0708, 9, 4).unwrap().checked(&payload);
    let header = Header { time: -1, lost: Lost::Unknown, ..header };
    let expected = [
        &b"BBst"[..],
        &[1, 2, 56, 0],
        &[1, 0, 0, 0, 4, 0, 0, 0],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[9, 0, 0, 0, 0, 0, 0, 0],
        &[0xff; 16],
        &0x2930_8cf4_u32.to_le_bytes(),
    ]
    .concat();
    let encoded = header.encode();
    assert_eq!(encoded[..CHECK_AT], expected);
    // CRC-32C as RFC 3720 has it.
    assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(encoded[CHECK_AT..], crc32c::crc32c(&expected).to_le_bytes());
}

#[test]
fn each_field_that_cannot_be_is_named() {
    let data = Header::data(1, 2, 100).unwrap();
    let ack = Header::new(Kind::Ack, 1, 2);
    let cases: [(&Header, usize, &[u8], &str); 15] = [
        (&data, 0, b"HTTP", "magic"),
        (&data, 4, &[2], "version"),
        (&data, 5, &[0], "kind"),
        (&data, 5, &[8], "kind"),
        (&data, 6, &[57, 0], "header length"),
        (&data, 8, &[2, 0, 0, 0], "flags"),
        (&data, 12, &[0; 4], "payload length"),
        (&data, 12, &[0xff; 4], "payload length"),
        (&data, 30, &[2], "sequence"),
        (&data, 48, &[1, 0, 0, 0], "payload check"),
        (&ack, 12, &[1, 0, 0, 0], "payload length"),
        (&ack, 32, &[1], "time"),
        (&ack, 40, &[1], "lost"),
        (&ack, 40, &[0xff; 8], "lost"),
        (&ack, 8, &[1, 0, 0, 0], "flags"),
    ];
    for (header, at, bytes, field) in cases {
        let text = refusal(&forged(header, at, bytes));
        assert!(text.contains(&format!("`{field}`")), "{field} at {at}: {text}");
    }
    let mut hello = Header::new(Kind::Hello, 1, 0);
    hello.len = 2;
    assert!(refusal(&hello.encode()).contains("`flags`"), "a hello has a check sum");
}

#[test]
fn lengths_are_bounded() {
    assert_eq!(Header::data(0, 0, MAX_DATA as usize).unwrap().len, MAX_DATA);
    for len in [0, MAX_DATA as usize + 1, usize::MAX] {
        assert_eq!(Header::data(0, 0, len).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    assert!(Header::payload_len(Kind::Hello, MAX_HELLO as usize + 1).is_err());
}

#[test]
fn hellos_that_no_sample_can_be_are_refused() {
    let good = r#"{"block_len":8,"sample_len":4,"rate":1e6,"channels":[{"name":"voltage0_i",
        "signed":true,"bits":12,"storage_bits":16,"shift":4,"big_endian":false,"repeat":1,"offset":2}]}"#;
    assert_eq!(Hello::decode(good.as_bytes()).unwrap().format.channels[0].offset, 2);
    let last = format!(r#""offset":{}"#, usize::MAX);
    let cases = [
        (r#""block_len":8"#, r#""block_len":0"#, "block_len"),
        (r#""block_len":8"#, r#""block_len":9"#, "block_len"),
        (r#""block_len":8"#, r#""block_len":268435460"#, "block_len"),
        (r#""block_len":8"#, r#""block_len":-1"#, "hello"),
        (r#""sample_len":4"#, r#""sample_len":0"#, "sample_len"),
        (r#""sample_len":4"#, r#""sample_len":4097"#, "sample_len"),
        ("1e6", "-1e6", "rate"),
        ("1e6", "0", "rate"),
        ("1e6", "1e999", "hello"),
        (r#""offset":2"#, r#""offset":3"#, "offset"),
        (r#""offset":2"#, &last, "offset"),
        (r#""storage_bits":16"#, r#""storage_bits":0"#, "storage_bits"),
        (r#""storage_bits":16"#, r#""storage_bits":12"#, "storage_bits"),
        (r#""storage_bits":16"#, r#""storage_bits":255"#, "storage_bits"),
        (r#""repeat":1"#, r#""repeat":0"#, "repeat"),
        (r#""repeat":1"#, r#""repeat":2"#, "offset"),
        (r#""bits":12"#, r#""bits":0"#, "bits"),
        (r#""bits":12"#, r#""bits":17"#, "bits"),
        (r#""shift":4"#, r#""shift":5"#, "shift"),
        ("voltage0_i", "", "name"),
        ("voltage0_i", "volt age", "name"),
        (r#""signed":true,"#, "", "hello"),
        (r#""signed":true,"#, r#""signed":true,"more":1,"#, "hello"),
    ];
    for (from, to, field) in cases {
        assert!(good.contains(from), "{from}");
        let error = Hello::decode(good.replace(from, to).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(&format!("`{field}`")), "{to}: {error}");
    }
    let none = r#"{"block_len":8,"sample_len":4,"rate":null,"channels":[]}"#;
    assert!(Hello::decode(none.as_bytes()).unwrap_err().to_string().contains("`channels`"));
}

proptest! {
    #[test]
    fn a_header_comes_back_as_it_was(header in headers()) {
        prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
    }

    #[test]
    fn one_flipped_bit_of_a_header_is_seen(header in headers(), bit in 0..8 * HEADER_LEN) {
        let mut bytes = header.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Header::decode(&bytes).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn any_bytes_are_no_header(bytes in any::<[u8; 32]>(), rest in any::<[u8; 24]>()) {
        let bytes: [u8; HEADER_LEN] = [&bytes[..], &rest].concat().try_into().unwrap();
        prop_assert!(Header::decode(&bytes).is_err());
    }

    #[test]
    fn what_is_taken_of_a_forgery_is_written_the_same(
        header in headers(),
        at in 0..CHECK_AT,
        byte in any::<u8>(),
    ) {
        let forged = forged(&header, at, &[byte]);
        if let Ok(taken) = Header::decode(&forged) {
            prop_assert_eq!(taken.encode(), forged);
        }
    }

    #[test]
    fn one_flipped_bit_of_a_payload_is_seen(
        mut payload in prop::collection::vec(any::<u8>(), 1..2000),
        bit in any::<usize>(),
    ) {
        let header = Header::data(1, 2, payload.len()).unwrap().checked(&payload);
        let parts = |payload: &[u8]| {
            let (head, tail) = payload.split_at(payload.len() / 3);
            header.check_parts([head, tail].into_iter().map(Bytes::from))
        };
        prop_assert!(header.check(&payload).is_ok() && parts(&payload).is_ok());
        let bit = bit % (8 * payload.len());
        payload[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(header.check(&payload).is_err() && parts(&payload).is_err());
        prop_assert!(header.check(&payload[1..]).is_err() && parts(&payload[1..]).is_err());
    }

    #[test]
    fn a_hello_comes_back_as_it_was(hello in hellos()) {
        prop_assert_eq!(Hello::decode(&hello.encode().unwrap()).unwrap(), hello);
    }

    #[test]
    fn a_damaged_hello_is_refused_or_describes_a_sample(
        hello in hellos(),
        cut in any::<usize>(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = hello.encode().unwrap();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(1 + cut % (2 * bytes.len()));
        if let Ok(taken) = Hello::decode(&bytes) {
            prop_assert!(taken.encode().is_ok());
        }
    }
}
