use proptest::prelude::*;

use super::fits;
use super::script::{Script, Step, format, receive, send};
use super::wire::MOST_EMPTY;
use crate::stream::Lost;
use crate::stream::frame::{HEADER_LEN, Header, Hello, Kind};
use crate::stream::net::{FrameSender, Options};
use crate::stream::usb::{PACKET, padding};

const BLOCK_LEN: usize = 1500;

fn blocks() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let samples = prop::collection::vec(any::<i16>(), 1..=BLOCK_LEN / 2);
    let bytes = |samples: Vec<i16>| samples.into_iter().flat_map(i16::to_le_bytes).collect();
    prop::collection::vec(samples.prop_map(bytes), 0..6)
}

/// The bytes of a stream, from the hello to the end.
fn stream(id: u64, blocks: &[Vec<u8>]) -> Vec<u8> {
    let block_len = u32::try_from(BLOCK_LEN).unwrap();
    let hello = Hello { format: format(), block_len }.encode().unwrap();
    let mut bytes = Header::with_payload(Kind::Hello, id, 0, &hello).unwrap().encode().to_vec();
    bytes.extend(&hello);
    let mut sequence = 0;
    for block in blocks {
        bytes.extend(Header::data(id, sequence, block.len()).unwrap().encode());
        bytes.extend(block);
        bytes.resize(bytes.len() + padding(block.len(), BLOCK_LEN), 0);
        sequence += 1;
    }
    bytes.extend(Header::new(Kind::End, id, sequence).encode());
    bytes
}

/// The same by a device that ends transfers anywhere, also with none of its bytes.
fn cut(bytes: &[u8], cuts: &[prop::sample::Index]) -> Script {
    let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|ends| Step::Send(bytes[ends[0]..ends[1]].to_vec())).collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..8)
}

#[test]
fn packets_that_do_not_fit_are_refused() {
    // A device may describe any: the kernel corrects some, and a library divides by them.
    assert!([64, 512, 1024].into_iter().all(fits));
    assert!(![0, 500, 1023, 2047].into_iter().any(fits));
}

#[test]
fn a_device_that_sends_nothing_all_the_time_keeps_nobody() {
    let empty = |_| Step::Send(Vec::new());
    let mut script: Script = (0..1000).map(empty).collect();
    script.extend(cut(&stream(1, &[vec![1; 100]]), &[]));
    let outcome = receive(vec![script], &Options::new()).unwrap();
    assert!(outcome.is_finished);
    assert!(outcome.turns >= 1000 / MOST_EMPTY, "{} turns", outcome.turns);
}

#[test]
fn blocks_that_linux_does_not_take_at_once_are_refused() {
    let address = "1209:0001".parse().unwrap();
    let open = |len| FrameSender::open_usb(&address, &format(), len, None, &Options::new());
    assert!(open(12 << 20).is_ok());
    let text = open((12 << 20) + 2).unwrap_err().to_string();
    assert!(text.contains("`12582914`") && text.contains("up to 12582912 bytes"), "{text}");
}

proptest! {
    #[test]
    fn frames_are_received_however_they_are_cut(blocks in blocks(), cuts in cuts()) {
        let outcome = receive(vec![cut(&stream(1, &blocks), &cuts)], &Options::new()).unwrap();
        prop_assert!(outcome.troubles.is_empty(), "{:?}", outcome.troubles);
        let received: Vec<_> = outcome.blocks.into_iter().map(|(_, bytes)| bytes).collect();
        prop_assert_eq!(received, blocks);
        prop_assert!(outcome.is_finished);
    }

    /// A device fails, or sends a byte that was changed, and another one takes its place.
    #[test]
    fn blocks_of_a_device_that_fails_are_whole_and_the_next_device_is_received(
        (first, second) in (blocks(), blocks()),
        (at, change, cuts) in (any::<prop::sample::Index>(), any::<Option<u8>>(), cuts()),
    ) {
        let mut bytes = stream(1, &first);
        let at = at.index(bytes.len());
        if let Some(change) = change {
            bytes[at] ^= change;
        } else {
            bytes.truncate(at);
        }
        let mut script = cut(&bytes, &cuts);
        script.push(Step::Fail);
        let outcome = receive(vec![script, cut(&stream(2, &second), &[])], &Options::new()).unwrap();
        let begun = outcome.blocks.iter().take_while(|(meta, _)| meta.lost == Lost::Samples(0)).count();
        prop_assert!(begun >= outcome.blocks.len().saturating_sub(second.len()));
        if change.is_none() {
            prop_assert!(outcome.is_finished);
            let received: Vec<_> = outcome.blocks.iter().map(|(_, bytes)| bytes).collect();
            let left = received.len() - second.len();
            prop_assert_eq!(&received[..left], &first.iter().take(left).collect::<Vec<_>>()[..]);
            prop_assert_eq!(&received[left..], &second.iter().collect::<Vec<_>>()[..]);
        }
    }

    #[test]
    fn a_device_takes_over_blocks_however_its_frames_are_cut(
        (blocks, cuts) in (blocks(), cuts()), acknowledged in any::<prop::sample::Index>(),
    ) {
        let blocks: Vec<_> = blocks.iter().map(Vec::as_slice).collect();
        let count = blocks.len() as u64;
        let welcome = Header::new(Kind::Welcome, 1, 0).encode();
        let mut answers = Header::new(Kind::Ack, 1, acknowledged.index(blocks.len() + 1) as u64).encode().to_vec();
        answers.extend(Header::new(Kind::Ack, 1, count + 1).encode());
        let mut script = cut(&welcome, &cuts);
        script.extend([Step::Wait, Step::Wait]);
        script.extend(cut(&answers, &cuts));
        let outcome = send(&blocks, BLOCK_LEN, vec![script], &Options::new()).unwrap();
        prop_assert!(outcome.is_finished && outcome.troubles.is_empty(), "{:?}", outcome.troubles);
        // Each frame with samples is one transfer, since any transfer may fail.
        let frames: Vec<_> = outcome.sent.iter().filter(|sent| sent.len() >= 2 * PACKET).collect();
        prop_assert_eq!(frames.len(), blocks.len());
        for (index, (frame, block)) in frames.iter().zip(&blocks).enumerate() {
            let header = Header::decode(frame[..HEADER_LEN].try_into().unwrap()).unwrap();
            prop_assert_eq!((header.kind, header.sequence), (Kind::Data, index as u64));
            prop_assert_eq!(frame.len(), PACKET + BLOCK_LEN.next_multiple_of(PACKET));
            let (samples, rest) = frame[PACKET..].split_at(block.len());
            prop_assert!(samples == *block && rest.iter().all(|byte| *byte == 0));
        }
    }
}
