//! Stages.

use super::config::{Gate, Work};
use super::edge::{Item, NOTHING, sum};
use super::shape::Shape;
use crate::block::{Block, Bytes, BytesMut};
use crate::stream::net::Pool;
use crate::stream::{Channel, Format, Lost, Samples};
use crate::{Error, Result};

/// Blocks of a stage that makes blocks of its own, in addition to those that edges hold.
const SPARE: usize = 2;

/// A stage, once the shape of its input is known.
#[derive(Debug)]
pub(super) enum Stage {
    Decimate(Decimate),
    Select(Select),
    Gate(GateState),
    Checksum,
}

/// The result of a stage for a block.
#[derive(Debug)]
pub(super) enum Made {
    Item(Item),
    /// No block: its samples are missing before the next one.
    Nothing,
    /// There is no free block now.
    NoRoom(Item),
}

impl Stage {
    /// Opens a stage for samples of shape `input`; edges behind it may hold `queued` blocks. Also returns
    /// the shape of its output. What its blocks take is taken from `room`, in bytes.
    pub(super) fn open(
        work: &Work,
        input: &Shape,
        queued: usize,
        room: &mut usize,
    ) -> Result<(Self, Shape)> {
        let mut pool = |shape: &Shape| {
            shape.take(queued + SPARE, room)?;
            let blocks = Block::several(queued + SPARE, shape.block_len, &shape.memory)?;
            Ok::<_, Error>(Workshop { pool: Pool::new(blocks)?, copied: 0 })
        };
        match work {
            Work::Decimate(by) => {
                let rate = input.format.rate.map(|rate| rate / f64::from(*by));
                let shape =
                    Shape { format: Format { rate, ..input.format.clone() }, ..input.clone() };
                let stage = Decimate {
                    by: u64::from(*by),
                    at: 0,
                    sample_len: input.format.sample_len,
                    lost: NOTHING,
                    shop: pool(&shape)?,
                };
                Ok((Self::Decimate(stage), shape))
            }
            Work::Select(names) => {
                let (pieces, format) = select(&input.format, names)?;
                let samples = input.block_len / input.format.sample_len;
                let block_len = samples * format.sample_len;
                let shape = Shape { format: format.clone(), block_len, ..input.clone() };
                let (from_len, to_len) = (input.format.sample_len, format.sample_len);
                let stage = Select { pieces, from_len, to_len, shop: pool(&shape)? };
                Ok((Self::Select(stage), shape))
            }
            Work::Gate(gate) => Ok((Self::Gate(GateState::new(gate)), input.clone())),
            Work::Checksum => Ok((Self::Checksum, input.clone())),
        }
    }

    pub(super) fn make(&mut self, item: Item) -> Result<Made> {
        match self {
            Self::Decimate(stage) => stage.make(item),
            Self::Select(stage) => stage.make(item),
            Self::Gate(stage) => Ok(stage.make(item)),
            Self::Checksum => {
                let check = item.samples.parts()?.crc32c();
                Ok(Made::Item(item.checked(check)))
            }
        }
    }

    /// What was lost at the end of the output, where `lost` was lost at the end of the input.
    pub(super) fn finish(&mut self, lost: Lost) -> Lost {
        match self {
            Self::Decimate(stage) => {
                let lost = stage.skip(lost);
                sum(std::mem::replace(&mut stage.lost, NOTHING), lost)
            }
            Self::Gate(gate) => sum(std::mem::replace(&mut gate.kept, NOTHING), lost),
            Self::Select(_) | Self::Checksum => lost,
        }
    }

    pub(super) fn copied(&self) -> u64 {
        match self {
            Self::Decimate(Decimate { shop, .. }) | Self::Select(Select { shop, .. }) => {
                shop.copied
            }
            Self::Gate(_) | Self::Checksum => 0,
        }
    }

    /// The pool of its blocks, readable when one comes back.
    pub(super) fn pool(&self) -> Option<&Pool> {
        match self {
            Self::Decimate(Decimate { shop, .. }) | Self::Select(Select { shop, .. }) => {
                Some(&shop.pool)
            }
            Self::Gate(_) | Self::Checksum => None,
        }
    }
}

/// The blocks that a stage makes.
#[derive(Debug)]
pub(super) struct Workshop {
    pool: Pool,
    copied: u64,
}

impl Workshop {
    /// Makes a block from the samples of `item`. `fill` writes them and returns the number of bytes.
    fn make(
        &mut self,
        item: Item,
        sample_len: usize,
        lost: Lost,
        fill: impl FnOnce(&Samples, BytesMut<'_>) -> Result<usize>,
    ) -> Result<Made> {
        // Makes the pool not readable.
        self.pool.returned(|_| {});
        let Some(mut block) = self.pool.take() else { return Ok(Made::NoRoom(item)) };
        let filled = block.write().and_then(|mut to| fill(&item.samples, to.bytes_mut()));
        let len = match filled {
            Ok(len) => len,
            Err(error) => {
                self.pool.put(block);
                return Err(error);
            }
        };
        self.copied += len as u64;
        let mut meta = *item.samples.meta();
        (meta.lost, meta.len) = (lost, len);
        let total = item.samples.total();
        let samples = self.pool.hand_out(block, meta, total, 0);
        Ok(Made::Item(item.made(samples, lost, (len / sample_len) as u64)))
    }
}

/// Every Nth sample, counted with those that were lost.
#[derive(Debug)]
pub(super) struct Decimate {
    by: u64,
    /// The position of the next sample, from 0 to N - 1.
    at: u64,
    sample_len: usize,
    /// What is missing before the next block that has a sample.
    lost: Lost,
    shop: Workshop,
}

impl Decimate {
    /// Skips `lost` samples. Returns how many of those would have been kept.
    fn skip(&mut self, lost: Lost) -> Lost {
        let Lost::Samples(lost) = lost else { return Lost::Unknown };
        let kept = kept(self.at, lost, self.by);
        self.at = (self.at + lost % self.by) % self.by;
        Lost::Samples(kept)
    }

    fn make(&mut self, item: Item) -> Result<Made> {
        let before = (self.at, self.lost);
        let lost = self.skip(item.lost);
        self.lost = sum(self.lost, lost);
        let count = item.count;
        let wanted = kept(self.at, count, self.by);
        let first = (self.by - self.at) % self.by;
        self.at = (self.at + count % self.by) % self.by;
        if wanted == 0 {
            return Ok(Made::Nothing);
        }
        let len = self.sample_len;
        // A start or step that saturates is beyond every block.
        let bytes =
            |samples: u64| usize::try_from(samples).unwrap_or(usize::MAX).saturating_mul(len);
        let (first, step) = (bytes(first), bytes(self.by));
        let made = self.shop.make(item, len, self.lost, |samples, mut to| {
            let mut picked = vec![0; to.len().min(bytes(wanted))];
            let count = pick(samples.parts()?.iter(), first, step, len, &mut picked);
            to.slice(..count).copy_from(&picked[..count]);
            Ok(count)
        })?;
        match made {
            Made::NoRoom(_) => (self.at, self.lost) = before,
            Made::Item(_) | Made::Nothing => self.lost = NOTHING,
        }
        Ok(made)
    }
}

/// Copies `len` bytes from `first` on and every `step` bytes further, across the ends of parts. Returns the
/// number of bytes.
fn pick<'a>(
    parts: impl Iterator<Item = Bytes<'a>>,
    first: usize,
    step: usize,
    len: usize,
    to: &mut [u8],
) -> usize {
    // The next byte to copy, the bytes copied, and the beginning of the part.
    let (mut next, mut at, mut begin) = (first, 0, 0);
    for part in parts {
        let end = begin + part.len();
        while next < end && at < to.len() {
            let count = (len - at % len).min(end - next);
            let from = next - begin;
            part.slice(from..from + count).copy_to(&mut to[at..at + count]);
            (next, at) = (next + count, at + count);
            if at.is_multiple_of(len) {
                next = next.saturating_add(step - len);
            }
        }
        begin = end;
    }
    at
}

/// How many of `count` samples from place `at` on are kept: those at place 0 of each `by`.
fn kept(at: u64, count: u64, by: u64) -> u64 {
    let first = (by - at) % by;
    if count > first { (count - first - 1) / by + 1 } else { 0 }
}

/// Samples that are read at a time.
const SOME: usize = 1024;

/// Offset in the input, offset in the output, and length.
type Move = (usize, usize, usize);

/// Some of the channels.
#[derive(Debug)]
pub(super) struct Select {
    pieces: Vec<Move>,
    from_len: usize,
    to_len: usize,
    shop: Workshop,
}

impl Select {
    fn make(&mut self, item: Item) -> Result<Made> {
        let (pieces, from_len, to_len) = (&self.pieces, self.from_len, self.to_len);
        let lost = item.lost;
        self.shop.make(item, to_len, lost, |samples, mut to| {
            let read = samples.read()?;
            let from = read.bytes();
            let count = (from.len() / from_len).min(to.len() / to_len);
            let mut packed = vec![0; SOME * to_len];
            for first in (0..count).step_by(SOME) {
                let end = count.min(first + SOME);
                let whole = from.slice(first * from_len..end * from_len).to_vec();
                let packed = &mut packed[..(end - first) * to_len];
                let samples = whole.chunks_exact(from_len).zip(packed.chunks_exact_mut(to_len));
                samples.for_each(|(from, to)| select_one(pieces, from, to));
                to.slice(first * to_len..end * to_len).copy_from(packed);
            }
            Ok(count * to_len)
        })
    }
}

/// Copies the channels of one sample.
fn select_one(pieces: &[Move], from: &[u8], to: &mut [u8]) {
    for (start, at, len) in pieces {
        to[*at..at + len].copy_from_slice(&from[*start..start + len]);
    }
}

/// The moves of the channels `names`, and the format of the output.
fn select(format: &Format, names: &[String]) -> Result<(Vec<Move>, Format)> {
    let mut pieces = Vec::new();
    let mut channels: Vec<Channel> = Vec::new();
    let mut end = 0_usize;
    for name in names {
        let found = format.channels.iter().find(|channel| channel.name == *name);
        let channel = found.filter(|_| channels.iter().all(|it| it.name != *name));
        let channel = channel.ok_or_else(|| {
            let all: Vec<_> = format.channels.iter().map(|it| it.name.as_str()).collect();
            Error::invalid("a channel to select", name, format!("each once of {}", all.join(", ")))
        })?;
        // As in IIO, the offset of a value is a multiple of its length.
        let offset = end.next_multiple_of(align(channel));
        pieces.push((channel.offset, offset, channel.len()));
        end = offset + channel.len();
        channels.push(Channel { offset, ..channel.clone() });
    }
    let widest = channels.iter().map(align).max().unwrap_or(1);
    let sample_len = end.next_multiple_of(widest);
    Ok((pieces, Format { channels, sample_len, rate: format.rate }))
}

fn align(channel: &Channel) -> usize {
    (usize::from(channel.storage_bits) / 8).max(1)
}

/// A gate and its state.
#[derive(Debug)]
pub(super) struct GateState {
    gate: Gate,
    is_open: bool,
    /// Samples until it closes.
    left: Option<u64>,
    /// What was kept back since the last block that passed.
    kept: Lost,
    /// Samples that were kept back in all, and how often it was opened.
    pub counts: (u64, u64),
}

impl GateState {
    fn new(gate: &Gate) -> Self {
        let left = gate.samples.filter(|_| gate.is_open);
        Self { gate: gate.clone(), is_open: gate.is_open, left, kept: NOTHING, counts: (0, 0) }
    }

    /// Handles an event of a control.
    pub(super) fn hear(&mut self, control: &str, event: &str) {
        if self.gate.control != control {
            return;
        }
        if self.gate.close_on.as_deref() == Some(event) {
            self.is_open = false;
        }
        if self.gate.open_on == event {
            self.counts.1 += u64::from(!self.is_open);
            (self.is_open, self.left) = (true, self.gate.samples);
        }
    }

    fn make(&mut self, mut item: Item) -> Made {
        if !self.is_open {
            self.counts.0 += item.count;
            self.kept = sum(self.kept, sum(item.lost, Lost::Samples(item.count)));
            return Made::Nothing;
        }
        item.lost = sum(item.lost, std::mem::replace(&mut self.kept, NOTHING));
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(item.count);
            self.is_open = *left > 0;
        }
        Made::Item(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Memory;
    use crate::stream::{Source, StreamSetup};

    fn source(samples: usize) -> Source {
        let setup =
            StreamSetup { blocks: Some(8), block_len: 8 * samples, ..StreamSetup::default() };
        Source::open("synth:counter", &setup).unwrap()
    }

    fn shape(source: &Source) -> Shape {
        let (format, block_len) = (source.format().clone(), source.block_len());
        Shape { format, block_len, memory: Memory::Memfd }
    }

    fn item(source: &Source, lost: Lost) -> Item {
        let mut item = Item::new(source.next().unwrap(), 8);
        item.lost = lost;
        item
    }

    fn made(stage: &mut Stage, item: Item) -> Option<Item> {
        match stage.make(item).unwrap() {
            Made::Item(item) => Some(item),
            Made::Nothing => None,
            Made::NoRoom(_) => panic!("there is room"),
        }
    }

    fn numbers(item: &Item) -> Vec<u64> {
        let bytes = item.samples.read().unwrap().bytes().to_vec();
        bytes.chunks_exact(8).map(|one| u64::from_le_bytes(one.try_into().unwrap())).collect()
    }

    #[test]
    fn every_nth_sample_is_kept_across_blocks_and_losses() {
        let source = source(10);
        let (mut stage, _) =
            Stage::open(&Work::Decimate(4), &shape(&source), 4, &mut { usize::MAX }).unwrap();
        let first = made(&mut stage, item(&source, NOTHING)).unwrap();
        assert_eq!((numbers(&first), first.count), (vec![0, 4, 8], 3));
        let second = made(&mut stage, item(&source, NOTHING)).unwrap();
        assert_eq!(numbers(&second), [12, 16]);
        // 20 to 25 are lost, so that the next block begins where 26 would be: 28 is its third.
        let third = made(&mut stage, item(&source, Lost::Samples(6))).unwrap();
        assert_eq!((numbers(&third), third.lost), (vec![22, 26], Lost::Samples(2)));
        assert_eq!(stage.finish(Lost::Samples(8)), Lost::Samples(2));
        assert_eq!(stage.copied(), 7 * 8);
    }

    #[test]
    fn what_falls_between_kept_samples_is_carried_on() {
        let source = source(2);
        let (mut stage, _) =
            Stage::open(&Work::Decimate(5), &shape(&source), 4, &mut { usize::MAX }).unwrap();
        assert_eq!(numbers(&made(&mut stage, item(&source, NOTHING)).unwrap()), [0]);
        assert!(made(&mut stage, item(&source, NOTHING)).is_none());
        assert!(made(&mut stage, item(&source, Lost::Samples(3))).is_none());
        let next = made(&mut stage, item(&source, NOTHING)).unwrap();
        assert_eq!((next.count, next.lost), (1, Lost::Samples(1)));
    }

    #[test]
    fn a_stage_without_memory_takes_nothing() {
        let source = source(2);
        let (mut stage, _) =
            Stage::open(&Work::Decimate(1), &shape(&source), 0, &mut { usize::MAX }).unwrap();
        let held: Vec<_> = (0..SPARE).map(|_| made(&mut stage, item(&source, NOTHING))).collect();
        let Made::NoRoom(back) = stage.make(item(&source, Lost::Samples(1))).unwrap() else {
            panic!("there is none");
        };
        drop(held);
        let item = made(&mut stage, back).unwrap();
        assert_eq!((numbers(&item), item.lost), (vec![4, 5], Lost::Samples(1)));
    }

    #[test]
    fn selected_channels_are_packed_as_iio_has_them() {
        let setup = StreamSetup {
            channels: ["voltage0_i", "voltage1_q", "count0"].map(Into::into).into(),
            block_len: 160,
            ..StreamSetup::default()
        };
        let source = Source::open("synth:counter", &setup).unwrap();
        let names = ["count0", "voltage1_q"].map(String::from);
        let (mut stage, out) =
            Stage::open(&Work::Select(names.into()), &shape(&source), 2, &mut { usize::MAX })
                .unwrap();
        assert_eq!((out.format.sample_len, out.format.channels[1].offset), (16, 8));
        let item = Item::new(source.next().unwrap(), 16);
        let item = made(&mut stage, item).unwrap();
        let bytes = item.samples.read().unwrap().bytes().to_vec();
        assert_eq!((item.count, bytes.len(), bytes[16], bytes[24]), (10, 160, 1, 0));
        for bad in [vec!["voltage9"], vec!["count0", "count0"]] {
            let names = bad.into_iter().map(Into::into).collect();
            assert!(
                Stage::open(&Work::Select(names), &shape(&source), 1, &mut { usize::MAX }).is_err()
            );
        }
    }

    #[test]
    fn samples_are_picked_wherever_parts_end() {
        let bytes: Vec<u8> = (0..=255).collect();
        for part in [1, 2, 3, 5, 64, 256] {
            let mut to = [0; 40];
            let mut pick = |first, step| {
                let parts = bytes.chunks(part).map(Bytes::from);
                pick(parts, first, step, 4, &mut to)
            };
            assert_eq!((pick(248, 100), pick(256, 100), pick(4, 20)), (4, 0, 40));
            assert_eq!(to[..8], [4, 5, 6, 7, 24, 25, 26, 27], "{part}");
        }
    }

    #[test]
    fn a_block_that_fills_whole_pages_is_narrowed_as_a_whole() {
        let source = source(4096);
        let names = ["voltage0_i", "voltage0_q"].map(String::from);
        let (mut stage, _) =
            Stage::open(&Work::Select(names.into()), &shape(&source), 1, &mut { usize::MAX })
                .unwrap();
        let item = made(&mut stage, item(&source, NOTHING)).unwrap();
        assert_eq!((item.count, item.samples.meta().len), (4096, 4 * 4096));
    }

    #[test]
    fn a_gate_obeys_its_events_and_tells_what_it_kept_back() {
        let source = source(10);
        let gate = Gate {
            control: "core".into(),
            open_on: "trigger".into(),
            close_on: Some("quiet".into()),
            samples: Some(15),
            is_open: false,
        };
        let (mut stage, _) =
            Stage::open(&Work::Gate(gate), &shape(&source), 1, &mut { usize::MAX }).unwrap();
        let hear = |stage: &mut Stage, control, event| {
            let Stage::Gate(gate) = stage else { panic!("it is one") };
            gate.hear(control, event);
        };
        assert!(made(&mut stage, item(&source, Lost::Samples(2))).is_none());
        hear(&mut stage, "other", "trigger");
        hear(&mut stage, "core", "overload");
        assert!(made(&mut stage, item(&source, NOTHING)).is_none());
        hear(&mut stage, "core", "trigger");
        assert_eq!(made(&mut stage, item(&source, NOTHING)).unwrap().lost, Lost::Samples(22));
        assert_eq!(made(&mut stage, item(&source, NOTHING)).unwrap().lost, NOTHING);
        assert!(made(&mut stage, item(&source, NOTHING)).is_none(), "15 samples are through");
        hear(&mut stage, "core", "trigger");
        hear(&mut stage, "core", "quiet");
        assert!(made(&mut stage, item(&source, NOTHING)).is_none());
        assert_eq!(stage.finish(Lost::Samples(1)), Lost::Samples(21));
    }

    #[test]
    fn kept_samples_are_counted_as_they_are_picked() {
        for (at, count, by) in (0..5).flat_map(|at| (0..20).map(move |count| (at, count, 5))) {
            let picked = (at..at + count).filter(|place| place % by == 0).count() as u64;
            assert_eq!(kept(at, count, by), picked, "{count} from {at}");
        }
    }
}
