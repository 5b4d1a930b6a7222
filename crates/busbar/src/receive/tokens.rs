//! Returning tokens to the kernel.

use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use busbar_uapi::devmem::{self, MAX_RANGES, MAX_TOKENS, Range};
use rustix::io::Errno;

use super::memory::Memory;

/// Bits of the page index in a token. A range must not continue into the next binding.
const PAGE_BITS: u32 = 24;

/// The tokens of a connection that its views do not need any more.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Kept open until the last view is dropped: the kernel takes tokens back only by the same socket.
    socket: Arc<TcpStream>,
    memory: Arc<Memory>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    tokens: Vec<u32>,
    /// No call receives at the moment, which would return them.
    is_idle: bool,
}

impl Tokens {
    pub(super) fn new(socket: Arc<TcpStream>, memory: Arc<Memory>) -> Self {
        Self { socket, memory, queue: Mutex::default() }
    }

    /// Returns a token, now or with later ones.
    pub(super) fn give(&self, token: u32) {
        let mut queue = self.queue();
        queue.tokens.push(token);
        // While much memory is free, a token can wait.
        let most = if queue.is_idle { 1 } else { (self.memory.free().1 / 4).min(MAX_TOKENS) };
        if queue.tokens.len() >= most {
            let tokens = std::mem::take(&mut queue.tokens);
            drop(queue);
            // The drop of a view cannot report an error; refused tokens are counted.
            let _ = self.return_all(tokens);
        }
    }

    /// Returns all tokens now. With `is_idle`, later ones are returned at once.
    pub(super) fn flush(&self, is_idle: bool) -> Result<(), Errno> {
        let mut queue = self.queue();
        queue.is_idle = is_idle;
        let tokens = std::mem::take(&mut queue.tokens);
        drop(queue);
        self.return_all(tokens)
    }

    /// Returns the tokens that `body` gives in one call, even if no call receives.
    pub(super) fn together(&self, body: impl FnOnce()) {
        let was_idle = std::mem::replace(&mut self.queue().is_idle, false);
        body();
        if was_idle {
            // As when a view is dropped.
            let _ = self.flush(true);
        }
    }

    /// Lets tokens wait: a call receives, and will flush.
    pub(super) fn gather(&self) {
        self.queue().is_idle = false;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code panics while it is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn return_all(&self, mut tokens: Vec<u32>) -> Result<(), Errno> {
        tokens.sort_unstable();
        let mut result = Ok(());
        for call in calls(&ranges(&tokens)) {
            let given: u32 = call.iter().map(|range| range.count).sum();
            let taken = devmem::dont_need(&*self.socket, call);
            let refused = given.saturating_sub(*taken.as_ref().unwrap_or(&0));
            let counts = &self.memory.counts;
            counts.returns.fetch_add(1, Ordering::Relaxed);
            counts.refused.fetch_add(refused.into(), Ordering::Relaxed);
            result = result.and(taken.map(drop));
        }
        result
    }
}

/// Sorted tokens as ranges, each short enough for one call.
fn ranges(tokens: &[u32]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for token in tokens {
        match ranges.last_mut() {
            Some(Range { start, count })
                if start.checked_add(*count) == Some(*token)
                    && *start >> PAGE_BITS == *token >> PAGE_BITS
                    && (*count as usize) < MAX_TOKENS =>
            {
                *count += 1;
            }
            _ => ranges.push(Range { start: *token, count: 1 }),
        }
    }
    ranges
}

/// The ranges of each call, as many as it accepts.
fn calls(ranges: &[Range]) -> impl Iterator<Item = &[Range]> {
    let mut rest = ranges;
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = |range: &&Range| {
            tokens += range.count as usize;
            tokens <= MAX_TOKENS
        };
        let count = rest.iter().take(MAX_RANGES).take_while(fits).count();
        let (call, after) = rest.split_at(count);
        rest = after;
        (!call.is_empty()).then_some(call)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u32, count: u32) -> Range {
        Range { start, count }
    }

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(ranges(&[1, 2, 3, 7, 8, 20]), [range(1, 3), range(7, 2), range(20, 1)]);
        // A page that is in use twice has two tokens.
        assert_eq!(ranges(&[5, 5, 6]), [range(5, 1), range(5, 2)]);
        assert_eq!(ranges(&[u32::MAX - 1, u32::MAX]), [range(u32::MAX - 1, 2)]);
        let last = (0x80 << PAGE_BITS) | 0xff_ffff;
        assert_eq!(ranges(&[last, last + 1]), [range(last, 1), range(last + 1, 1)]);
        assert_eq!(ranges(&[]), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_token_goes_back_once_and_no_call_is_too_long(
            mut tokens in prop::collection::vec(
                prop_oneof![0u32..4000, any::<u32>(), Just(u32::MAX)], 0..3000)
        ) {
            tokens.sort_unstable();
            let ranges = ranges(&tokens);
            let mut returned = Vec::new();
            for call in calls(&ranges) {
                prop_assert!(call.len() <= MAX_RANGES);
                let before = returned.len();
                for Range { start, count } in call {
                    returned.extend((0..*count).map(|index| start + index));
                }
                prop_assert!(returned.len() - before <= MAX_TOKENS);
            }
            prop_assert_eq!(returned, tokens);
        }
    }
}
