//! The number of views that hold each page of a block.

use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// More pages than are claimed at a time.
const SPARE: usize = 128;

/// A count for each page.
#[derive(Debug)]
pub(super) struct Pages {
    counts: Box<[AtomicU32]>,
    page: usize,
    held: AtomicUsize,
    /// Where to look for a free page.
    cursor: AtomicUsize,
}

impl Pages {
    /// For a block of `len` bytes; bytes after the last whole page are not used. Fails if there is no memory for it.
    pub(super) fn new(len: usize, page: usize) -> Result<Self, TryReserveError> {
        let (count, mut counts) = (len / page, Vec::new());
        counts.try_reserve_exact(count)?;
        counts.resize_with(count, AtomicU32::default);
        let (held, cursor) = Default::default();
        Ok(Self { counts: counts.into(), page, held, cursor })
    }

    pub(super) fn page(&self) -> usize {
        self.page
    }

    /// The number of pages.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// The number of pages that are held.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Adds a view of these bytes.
    pub(super) fn hold(&self, bytes: &Range<usize>) {
        let is_first = |count: &&AtomicU32| count.fetch_add(1, Ordering::Relaxed) == 0;
        let taken = self.of(bytes).iter().filter(is_first).count();
        self.held.fetch_add(taken, Ordering::Relaxed);
    }

    /// Removes a view of these bytes.
    pub(super) fn release(&self, bytes: &Range<usize>) {
        // Ordered with a receiver that finds nothing free, see `Memory::claim`.
        let is_last = |count: &&AtomicU32| count.fetch_sub(1, Ordering::SeqCst) == 1;
        let freed = self.of(bytes).iter().filter(is_last).count();
        self.held.fetch_sub(freed, Ordering::Relaxed);
    }

    /// Takes adjacent free pages, at most `most`. Returns their range of bytes.
    ///
    /// No more of the block is gone through than twice what is held, so that it stays in the processor's cache.
    pub(super) fn claim(&self, most: usize) -> Option<Range<usize>> {
        let (len, cursor) = (self.len(), self.cursor.load(Ordering::Relaxed));
        let start = if cursor < 2 * self.held() + SPARE { cursor } else { 0 };
        let first = (0..len).map(|step| (start + step) % len).find(|page| self.take(*page))?;
        let mut end = first + 1;
        while end < len && end - first < most && self.take(end) {
            end += 1;
        }
        self.held.fetch_add(end - first, Ordering::Relaxed);
        self.cursor.store(end % len, Ordering::Relaxed);
        Some(first * self.page..end * self.page)
    }

    /// Gives back claimed pages after the first `used` bytes. Returns the range of these bytes.
    pub(super) fn trim(&self, claimed: &Range<usize>, used: usize) -> Range<usize> {
        let end = claimed.start + used;
        let rest = end.next_multiple_of(self.page)..claimed.end;
        if !rest.is_empty() {
            self.release(&rest);
            self.cursor.store(rest.start / self.page, Ordering::Relaxed);
        }
        claimed.start..end
    }

    fn take(&self, page: usize) -> bool {
        let order = Ordering::SeqCst;
        self.counts[page].compare_exchange(0, 1, order, order).is_ok()
    }

    fn of(&self, bytes: &Range<usize>) -> &[AtomicU32] {
        let pages = bytes.start / self.page..bytes.end.div_ceil(self.page);
        self.counts.get(pages).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_held_until_its_last_view_is_gone() {
        let pages = Pages::new(4 * 100, 100).unwrap();
        let (first, second) = (0..100, 50..250);
        pages.hold(&first);
        pages.hold(&second);
        assert_eq!(pages.held(), 3);
        pages.release(&second);
        assert_eq!(pages.held(), 1);
        pages.release(&first);
        assert_eq!(pages.held(), 0);
    }

    #[test]
    fn only_free_pages_are_claimed() {
        let pages = Pages::new(450, 100).unwrap();
        assert_eq!(pages.len(), 4);
        let first = pages.claim(3).unwrap();
        assert_eq!(first, 0..300);
        let used = pages.trim(&first, 150);
        assert_eq!((used.clone(), pages.held()), (0..150, 2));
        // The next one follows, as far as the end.
        let second = pages.claim(3).unwrap();
        assert_eq!((second.clone(), pages.claim(3)), (200..400, None));
        pages.release(&used);
        assert_eq!(pages.claim(1), Some(0..100));
        assert_eq!(pages.trim(&second, 0), 200..200);
        assert_eq!(pages.held(), 1);
        assert_eq!(pages.claim(9), Some(200..400));
    }

    #[test]
    fn few_pages_are_gone_through_while_few_are_held() {
        let pages = Pages::new(100 * SPARE, 1).unwrap();
        let kept = pages.claim(8).unwrap();
        let mut last = 0;
        for _ in 0..1_000 {
            let claimed = pages.claim(8).unwrap();
            last = claimed.end.max(last);
            pages.release(&claimed);
        }
        assert!(last <= 2 * 16 + SPARE, "{last}");
        // All are used if all others are held.
        let all: Vec<_> = std::iter::from_fn(|| pages.claim(8)).flatten().collect();
        assert_eq!((all.len(), pages.held()), (100 * SPARE - 8, 100 * SPARE));
        pages.release(&kept);
        assert_eq!(pages.claim(8), Some(kept));
    }

    #[test]
    fn no_page_is_claimed_twice_at_the_same_time() {
        let pages = Pages::new(64, 1).unwrap();
        let owners: Vec<_> = (0..64).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..5_000 {
                        let Some(claimed) = pages.claim(1 + round % 16) else { continue };
                        for owner in &owners[claimed.clone()] {
                            assert_eq!(owner.fetch_add(1, Ordering::SeqCst), 0);
                        }
                        for owner in &owners[claimed.clone()] {
                            owner.fetch_sub(1, Ordering::SeqCst);
                        }
                        let used = pages.trim(&claimed, claimed.len() / 2);
                        pages.release(&used);
                    }
                });
            }
        });
        assert_eq!(pages.held(), 0);
    }
}
