//! Edges: blocks on their way from one node to the next.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use super::config::{self, WhenFull};
use crate::stream::{Lost, Samples};

pub(super) const NOTHING: Lost = Lost::Samples(0);

/// A block on its way.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub samples: Samples,
    /// What is missing before it: the loss of the block, and what the pipeline has dropped.
    pub lost: Lost,
    /// Number of samples.
    pub count: u64,
    /// CRC-32C, if a stage has computed it.
    pub check: Option<u32>,
    /// When it came into the pipeline, and how old it was then.
    came: Instant,
    age: Duration,
}

impl Item {
    pub(super) fn new(samples: Samples, sample_len: usize) -> Self {
        let meta = *samples.meta();
        // 0 if the clock was set back meanwhile.
        let age = SystemTime::now().duration_since(meta.time).unwrap_or_default();
        let count = (meta.len / sample_len.max(1)) as u64;
        Self { samples, lost: meta.lost, count, check: None, came: Instant::now(), age }
    }

    /// Adds the check sum.
    pub(super) fn checked(self, check: u32) -> Self {
        Self { check: Some(check), ..self }
    }

    /// A block of other samples, made from this one.
    pub(super) fn made(&self, samples: Samples, lost: Lost, count: u64) -> Self {
        Self { samples, lost, count, check: None, ..*self }
    }

    /// The time since the block was complete.
    pub(super) fn latency(&self) -> Duration {
        self.age.saturating_add(self.came.elapsed())
    }
}

/// The next thing on an edge.
#[derive(Debug)]
pub(super) enum Next {
    Block(Item),
    /// The end, with what was lost after the last block.
    End(Lost),
}

/// The blocks that wait before a node.
#[derive(Debug)]
pub(super) struct Edge {
    when_full: WhenFull,
    /// Most blocks that it can hold, including those under way.
    capacity: usize,
    waiting: VecDeque<Item>,
    end: Option<Lost>,
    /// What was dropped since the last block that was taken in.
    dropped: Lost,
    pub counts: EdgeCounts,
}

/// Totals of an edge.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EdgeCounts {
    pub dropped_blocks: u64,
    pub dropped_samples: u64,
}

/// The sum of two losses.
pub(super) fn sum(one: Lost, other: Lost) -> Lost {
    match (one, other) {
        (Lost::Samples(one), Lost::Samples(other)) => Lost::Samples(one.saturating_add(other)),
        _ => Lost::Unknown,
    }
}

impl Edge {
    pub(super) fn new(config: &config::Edge, capacity: usize) -> Self {
        Self {
            when_full: config.when_full,
            capacity,
            waiting: VecDeque::new(),
            end: None,
            dropped: NOTHING,
            counts: EdgeCounts::default(),
        }
    }

    /// Number of blocks that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Most blocks that it can hold, including those under way.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Most blocks that a sink may have under way, so that there is room for others to wait.
    pub(super) fn window(&self) -> usize {
        self.capacity.div_ceil(2)
    }

    /// Whether the node before it may send a block; `under_way` blocks are in the node behind it.
    pub(super) fn has_room(&self, under_way: usize) -> bool {
        self.when_full != WhenFull::Block || !self.is_full(under_way)
    }

    fn is_full(&self, under_way: usize) -> bool {
        self.waiting.len() + under_way >= self.capacity
    }

    /// Takes a block in, or drops one: the next block says so.
    pub(super) fn push(&mut self, mut item: Item, under_way: usize) {
        let is_full = self.is_full(under_way);
        let drops_oldest = self.when_full == WhenFull::DropOldest;
        if is_full && (!drops_oldest || self.waiting.is_empty()) {
            self.dropped = sum(self.dropped, self.drop(&item));
            return;
        }
        item.lost = sum(item.lost, std::mem::replace(&mut self.dropped, NOTHING));
        self.waiting.push_back(item);
        if is_full && let Some(oldest) = self.waiting.pop_front() {
            let lost = self.drop(&oldest);
            self.lose(lost);
        }
    }

    fn drop(&mut self, item: &Item) -> Lost {
        self.counts.dropped_blocks += 1;
        self.counts.dropped_samples += item.count;
        sum(item.lost, Lost::Samples(item.count))
    }

    /// Adds the end, after all blocks that wait.
    pub(super) fn finish(&mut self, lost: Lost) {
        self.end.get_or_insert(lost);
    }

    /// Adds a loss of blocks under way to the next block.
    pub(super) fn lose(&mut self, lost: Lost) {
        match self.waiting.front_mut() {
            Some(first) => first.lost = sum(first.lost, lost),
            None => self.dropped = sum(self.dropped, lost),
        }
    }

    /// Takes the next block, or returns the end; `None` if there is neither.
    pub(super) fn next(&mut self) -> Option<Next> {
        if let Some(item) = self.waiting.pop_front() {
            return Some(Next::Block(item));
        }
        let end = sum(self.end?, std::mem::replace(&mut self.dropped, NOTHING));
        self.end = Some(end);
        Some(Next::End(end))
    }

    /// Whether there is a block or the end.
    pub(super) fn has_next(&self) -> bool {
        !self.waiting.is_empty() || self.end.is_some()
    }

    /// Whether no more blocks will come, if some may still wait.
    pub(super) fn will_end(&self) -> bool {
        self.end.is_some()
    }

    /// Whether no block waits and none will come.
    pub(super) fn has_ended(&self) -> bool {
        self.waiting.is_empty() && self.end.is_some()
    }

    /// Puts back a block that could not be used yet.
    pub(super) fn put_back(&mut self, item: Item) {
        self.waiting.push_front(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Source, StreamSetup};

    fn items(count: u64) -> Vec<Item> {
        let setup = StreamSetup { blocks: Some(32), block_len: 800, ..StreamSetup::default() };
        let source = Source::open("synth:counter", &setup).unwrap();
        let item = |_| Item::new(source.next().unwrap(), 8);
        (0..count).map(item).collect()
    }

    fn edge(queue: usize, when_full: WhenFull) -> Edge {
        Edge::new(&config::Edge { when_full, ..config::Edge::new("a") }, queue)
    }

    fn fill(edge: &mut Edge, count: u64, under_way: usize) {
        for item in items(count) {
            edge.push(item, under_way);
        }
    }

    /// Sequence and loss of all that comes out, and what is lost at the end.
    fn out(edge: &mut Edge) -> (Vec<(u64, Lost)>, Lost) {
        let mut all = Vec::new();
        edge.finish(NOTHING);
        loop {
            match edge.next().unwrap() {
                Next::Block(item) => all.push((item.samples.meta().sequence, item.lost)),
                Next::End(lost) => return (all, lost),
            }
        }
    }

    #[test]
    fn what_is_dropped_is_told_by_what_comes_behind_it() {
        let lost = Lost::Samples;
        let mut oldest = edge(2, WhenFull::DropOldest);
        fill(&mut oldest, 5, 0);
        assert_eq!(out(&mut oldest), (vec![(3, lost(300)), (4, lost(0))], lost(0)));
        assert_eq!((oldest.counts.dropped_blocks, oldest.counts.dropped_samples), (3, 300));

        let mut newest = edge(2, WhenFull::DropNewest);
        fill(&mut newest, 4, 0);
        assert!(matches!(newest.next(), Some(Next::Block(_))));
        let later = items(5).pop().unwrap();
        newest.push(later, 0);
        assert_eq!(out(&mut newest), (vec![(1, lost(0)), (4, lost(200))], lost(0)));

        let mut all_under_way = edge(2, WhenFull::DropOldest);
        fill(&mut all_under_way, 3, 2);
        assert_eq!(out(&mut all_under_way), (vec![], lost(300)));
    }

    #[test]
    fn what_is_lost_under_way_is_told_by_what_waits() {
        let mut edge = edge(4, WhenFull::Block);
        edge.lose(Lost::Samples(7));
        fill(&mut edge, 2, 0);
        edge.lose(Lost::Samples(5));
        assert_eq!(out(&mut edge).0[0].1, Lost::Samples(12));
        edge.lose(Lost::Unknown);
        assert_eq!(out(&mut edge).1, Lost::Unknown);
    }

    #[test]
    fn only_an_edge_that_blocks_has_others_wait() {
        for (when_full, waits) in
            [(WhenFull::Block, true), (WhenFull::DropOldest, false), (WhenFull::DropNewest, false)]
        {
            let mut edge = edge(3, when_full);
            assert!(edge.has_room(2));
            fill(&mut edge, 1, 2);
            assert_eq!(edge.has_room(2), !waits);
        }
    }
}
