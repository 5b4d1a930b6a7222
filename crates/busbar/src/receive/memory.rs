//! The block of a receiver, and which parts of it are in use.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::Statistics;
use super::pages::Pages;
use super::share::Shares;
use crate::block::Block;
use crate::poll::Bell;
use crate::{Error, Result};

/// As many as index tokens can name: 64 GiB of pages of 4 KiB. A block whose memory nobody has touched may be longer.
const MOST_PAGES: usize = 1 << 24;

/// Shared by a receiver, its connections and their views.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) block: Block,
    pages: Pages,
    /// Rung when pages are free again after a shortage.
    bell: Bell,
    is_starved: AtomicBool,
    pub(super) counts: Counts,
    pub(super) shares: Shares,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) bytes: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) returns: AtomicU64,
    pub(super) refused: AtomicU64,
    views: AtomicUsize,
    shortages: AtomicU64,
}

impl Memory {
    pub(super) fn new(block: Block) -> Result<Self> {
        let page = rustix::param::page_size();
        if !(1..=MOST_PAGES).contains(&(block.len() / page)) {
            let allowed = format!("{page} to {} bytes", MOST_PAGES.saturating_mul(page));
            return Err(Error::invalid("the length of the block", block.len(), allowed));
        }
        let pages = Pages::new(block.len(), page)
            .map_err(|_| Error::new("count the pages of", "the block", Errno::NOMEM))?;
        let bell = Bell::new()?;
        let (is_starved, counts) = (AtomicBool::new(false), Counts::default());
        let shares = Shares::new(block.len());
        Ok(Self { block, pages, bell, is_starved, counts, shares })
    }

    /// The length of a page, and the number of pages that no view holds.
    pub(super) fn free(&self) -> (usize, usize) {
        (self.pages.page(), self.pages.len().saturating_sub(self.pages.held()))
    }

    /// Bytes that views hold, in whole pages.
    pub(super) fn held(&self) -> usize {
        self.pages.held() * self.pages.page()
    }

    /// Accounts for a view that is cut in two at `middle`: both parts hold the page there.
    pub(super) fn split(&self, middle: usize) {
        if !middle.is_multiple_of(self.pages.page()) {
            self.pages.hold(&(middle..middle + 1));
        }
        self.counts.views.fetch_add(1, Ordering::Relaxed);
    }

    /// Accounts for a view of bytes that the device has filled.
    pub(super) fn hold(&self, bytes: &Range<usize>) {
        self.pages.hold(bytes);
        self.counts.views.fetch_add(1, Ordering::Relaxed);
    }

    /// Free pages to fill, from one to `most`. If there are none, the bell rings when there are.
    pub(super) fn claim(&self, most: usize) -> Option<Range<usize>> {
        if let Some(claimed) = self.pages.claim(most) {
            return Some(claimed);
        }
        if !self.is_starved.swap(true, Ordering::SeqCst) {
            self.counts.shortages.fetch_add(1, Ordering::Relaxed);
        }
        // A view may have released some since, without having seen `is_starved`.
        self.pages.claim(most)
    }

    /// Accounts for a view of the first `used` of the claimed bytes, if there are any.
    pub(super) fn keep(&self, claimed: &Range<usize>, used: usize) -> Range<usize> {
        let kept = self.pages.trim(claimed, used);
        if used > 0 {
            self.counts.views.fetch_add(1, Ordering::Relaxed);
        }
        self.ring();
        kept
    }

    /// Accounts for a view that was dropped.
    pub(super) fn release(&self, bytes: &Range<usize>) {
        self.pages.release(bytes);
        self.counts.views.fetch_sub(1, Ordering::Relaxed);
        self.ring();
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(&self) {
        let order = Ordering::SeqCst;
        if self.is_starved.load(order) && self.is_starved.swap(false, order) {
            let _ = self.bell.ring();
        }
    }

    pub(super) fn statistics(&self) -> Statistics {
        let Counts { bytes, copied, returns, refused, views, shortages } = &self.counts;
        let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Statistics {
            bytes: number(bytes),
            copied: number(copied),
            views: views.load(Ordering::Relaxed),
            held: self.held(),
            memory: self.block.len(),
            shortages: Some(number(shortages)),
            returns: number(returns),
            refused: number(refused),
        }
    }
}
