//! Which blocks were taken over: they come back in any order.

use std::collections::VecDeque;

/// Bits of a tag that identify the sender.
const ERA: u32 = 8;

/// The blocks that were taken over: all before one, and some after it.
#[derive(Debug)]
pub(super) struct Taken {
    next: u64,
    /// In their order.
    ahead: VecDeque<u64>,
    /// Identifies the sender: blocks of earlier senders still come back.
    era: u64,
}

impl Taken {
    pub(super) fn new(next: u64) -> Self {
        Self { next, ahead: VecDeque::new(), era: 0 }
    }

    /// The first block that is not taken over.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The tag of a block that is handed out.
    pub(super) fn expect(&self, sequence: u64) -> u64 {
        sequence << ERA | self.era
    }

    /// A block with this tag came back.
    pub(super) fn add(&mut self, tag: u64) {
        if tag & ((1 << ERA) - 1) != self.era {
            return;
        }
        let sequence = tag >> ERA;
        let place = self.ahead.partition_point(|other| *other < sequence);
        self.ahead.insert(place, sequence);
        while self.ahead.front() == Some(&self.next) {
            self.ahead.pop_front();
            self.next += 1;
        }
    }

    /// Another sender begins with `next`.
    pub(super) fn restart(&mut self, next: u64) {
        let era = (self.era + 1) % (1 << ERA);
        *self = Self { next, ahead: VecDeque::new(), era };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_out_of_order_counts_when_the_gap_is_closed() {
        let mut taken = Taken::new(5);
        let tags: Vec<_> = (5..9).map(|sequence| taken.expect(sequence)).collect();
        taken.add(tags[1]);
        taken.add(tags[2]);
        assert_eq!(taken.next(), 5);
        taken.add(tags[0]);
        assert_eq!(taken.next(), 8);
        taken.restart(0);
        taken.add(tags[3]);
        assert_eq!(taken.next(), 0);
        taken.add(taken.expect(0));
        assert_eq!(taken.next(), 1);
    }
}
