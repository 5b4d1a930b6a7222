//! A pair where the kernel uses bounce buffers for all DMA (`swiotlb=force`): it receives into ordinary memory only.

#[path = "../../../../crates/busbar/tests/pair/mod.rs"]
mod pair;

use busbar::block::{Block, Memory};
use busbar::receive::Receiver;
use pair::{Check, DEVICE, Pair, Place, send, settings, take_all};

const LEN: usize = 1 << 20;

#[test]
#[ignore = "needs the lab"]
fn nothing_is_bound() {
    let pair = Pair::new();
    let before = settings();
    let block = Block::with(LEN, &Memory::Pages).unwrap();
    let refused = Receiver::open(DEVICE, block, &pair.setup).unwrap_err().to_string();
    // The second, if pages of the block follow each other in memory: a bounce buffer has 256 KiB at most.
    let reasons = ["Operation not supported", "Failed to map dmabuf attachment"];
    assert!(reasons.iter().any(|it| refused.contains(it)), "{refused}");
    assert_eq!(settings(), before);
}

#[test]
#[ignore = "needs the lab"]
fn ordinary_memory_gets_every_byte() {
    let pair = Pair::new();
    let receiver = Receiver::host(Block::with(LEN, &Memory::Memfd).unwrap()).unwrap();
    let (mut connection, sender) = pair.connect(&receiver);
    let sending = send(sender, 1, 4 << 20);
    let mut check = Check::new(1);
    take_all(&mut connection, &mut check);
    sending.join().unwrap();
    assert_eq!(check.at, 4 << 20);
}
