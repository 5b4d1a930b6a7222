//! Whatever a USB device sends, a host receives whole blocks in their order, within its memory, or says why not; and it
//! takes nothing as delivered that was not acknowledged.

#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use busbar::stream::frame::{HEADER_LEN, Header, Hello, Kind};
use busbar::stream::net::Options;
use busbar::stream::usb::script::{Script, Step, format, receive, send};
use busbar::stream::Lost;
use libfuzzer_sys::fuzz_target;

const MEMORY: usize = 1 << 20;
const KINDS: [Kind; 6] =
    [Kind::Hello, Kind::Welcome, Kind::Data, Kind::Ack, Kind::End, Kind::Refusal];

#[derive(Arbitrary, Debug)]
struct Input {
    devices: Vec<Vec<Act>>,
    block_len: u16,
    /// The lengths of blocks to send.
    blocks: Vec<u16>,
}

#[derive(Arbitrary, Debug)]
enum Act {
    Bytes(Vec<u8>),
    /// A frame whose header is right but for these bytes.
    Frame {
        kind: u8,
        stream: u8,
        sequence: u8,
        len: u16,
        lost: bool,
        changes: Vec<(u8, u8)>,
    },
    /// The first frame of a sender.
    Hello {
        stream: u8,
        sequence: u8,
        block_len: u32,
    },
    Wait,
    Fail,
}

fuzz_target!(|input: Input| {
    let options = Options::new().memory_limit(MEMORY).patience(Duration::from_secs(3600));
    let devices = || input.devices.iter().take(4).map(|acts| script(acts)).collect();
    if let Ok(outcome) = receive(devices(), &options) {
        let mut next = None;
        for (meta, bytes) in &outcome.blocks {
            assert!(bytes.len() == meta.len && !bytes.is_empty() && bytes.len() <= MEMORY);
            let follows = next.is_none_or(|next| meta.sequence == next);
            assert!(follows || meta.lost == Lost::Unknown);
            next = Some(meta.sequence + 1);
        }
    }
    let block_len = usize::from(input.block_len.max(2) & !1);
    let zeroes = vec![0; block_len];
    let blocks: Vec<_> = input
        .blocks
        .iter()
        .take(8)
        .map(|len| &zeroes[..(usize::from(*len) % block_len).max(2) & !1])
        .collect();
    let is_answer = |act: &Act| match act {
        Act::Frame { kind, .. } => {
            matches!(KINDS[usize::from(*kind) % KINDS.len()], Kind::Ack | Kind::Refusal)
        }
        // Whoever forges check sums may acknowledge by single bytes.
        Act::Bytes(bytes) => !bytes.is_empty(),
        _ => false,
    };
    if let Ok(outcome) = send(&blocks, block_len, devices(), &options) {
        let answers = input.devices.iter().flatten().any(is_answer);
        assert!(answers || !outcome.is_finished, "nobody has said that it has the blocks");
    }
});

fn script(acts: &[Act]) -> Script {
    let mut script = Script::new();
    for act in acts.iter().take(32) {
        match act {
            Act::Bytes(bytes) => script.push(Step::Send(bytes.clone())),
            Act::Frame { kind, stream, sequence, len, lost, changes } => {
                let kind = KINDS[usize::from(*kind) % KINDS.len()];
                let mut header = Header::new(kind, (*stream).into(), (*sequence).into());
                header.len = (*len).into();
                if *lost {
                    header.lost = Lost::Unknown;
                }
                let mut bytes = header.encode();
                for (at, change) in changes {
                    bytes[usize::from(*at) % HEADER_LEN] ^= change;
                }
                script.push(Step::Send(bytes.to_vec()));
            }
            Act::Hello { stream, sequence, block_len } => {
                let hello = Hello { format: format(), block_len: block_len & !1 };
                let Ok(payload) = hello.encode() else { continue };
                let (stream, sequence) = ((*stream).into(), (*sequence).into());
                let header = Header::with_payload(Kind::Hello, stream, sequence, &payload).unwrap();
                script.push(Step::Send([&header.encode()[..], &payload].concat()));
            }
            Act::Wait => script.push(Step::Wait),
            Act::Fail => script.push(Step::Fail),
        }
    }
    script
}
