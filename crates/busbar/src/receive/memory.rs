//! The block of a receiver, and what is known of it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::Statistics;
use super::pages::Pages;
use super::share::Shares;
use crate::block::Block;
use crate::{Error, Result};

/// Shared by a receiver, its connections and their views.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) block: Block,
    pages: Pages,
    /// Rung when pages are free again for somebody who found none.
    bell: OwnedFd,
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
        let pages = Pages::new(block.len(), page);
        if pages.len() == 0 {
            let allowed = format!("{page} bytes or more");
            return Err(Error::invalid("the length of the block", block.len(), allowed));
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::new("make", "an eventfd", errno))?;
        let (is_starved, counts) = (AtomicBool::new(false), Counts::default());
        let shares = Shares::new(block.len());
        Ok(Self { block, pages, bell, is_starved, counts, shares })
    }

    /// Bytes of a page, and pages that no view holds.
    pub(super) fn free(&self) -> (usize, usize) {
        (self.pages.page(), self.pages.len().saturating_sub(self.pages.held()))
    }

    /// Bytes that views hold, in whole pages.
    pub(super) fn held(&self) -> usize {
        self.pages.held() * self.pages.page()
    }

    /// A view is cut in two at `middle`, where each of them holds the page.
    pub(super) fn split(&self, middle: usize) {
        if !middle.is_multiple_of(self.pages.page()) {
            self.pages.hold(&(middle..middle + 1));
        }
        self.counts.views.fetch_add(1, Ordering::Relaxed);
    }

    /// A view of bytes that the device has filled.
    pub(super) fn hold(&self, bytes: &Range<usize>) {
        self.pages.hold(bytes);
        self.counts.views.fetch_add(1, Ordering::Relaxed);
    }

    /// Free pages to fill, as few as one and at most `most`. If there are none, the bell rings when
    /// there are.
    pub(super) fn claim(&self, most: usize) -> Option<Range<usize>> {
        if let Some(claimed) = self.pages.claim(most) {
            return Some(claimed);
        }
        if !self.is_starved.swap(true, Ordering::SeqCst) {
            self.counts.shortages.fetch_add(1, Ordering::Relaxed);
        }
        // Perhaps there are some since, of a view that did not see that somebody is starved.
        self.pages.claim(most)
    }

    /// A view of the first `used` bytes of what was claimed, if there are any.
    pub(super) fn keep(&self, claimed: &Range<usize>, used: usize) -> Range<usize> {
        let kept = self.pages.trim(claimed, used);
        if used > 0 {
            self.counts.views.fetch_add(1, Ordering::Relaxed);
        }
        self.ring();
        kept
    }

    /// The view is gone.
    pub(super) fn release(&self, bytes: &Range<usize>) {
        self.pages.release(bytes);
        self.counts.views.fetch_sub(1, Ordering::Relaxed);
        self.ring();
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    fn ring(&self) {
        let order = Ordering::SeqCst;
        if self.is_starved.load(order) && self.is_starved.swap(false, order) {
            // Fails only after 2^64 times.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
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
