//! Blocks of samples that are handed out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::crc::crc32c;
use super::format::Meta;
use crate::Result;
use crate::block::{Block, Bytes, Reading};
use crate::receive::Piece;

/// A block of samples. Dropping it gives the block back to the driver, from any thread and in any order.
///
/// A clone is another reference to the same block, which goes back when the last reference is dropped. It
/// may outlive its [`Source`](super::Source).
#[derive(Clone, Debug)]
pub struct Samples {
    held: Arc<Held>,
    meta: Meta,
}

/// Takes a block back.
pub(crate) type Back = Arc<dyn Fn(Block) + Send + Sync>;

/// What the blocks of one pool share: it exists as long as the pool or one of its blocks does.
pub(crate) type Home = Arc<()>;

/// Called when parts are dropped, after their memory was freed.
pub(crate) type Done = Box<dyn Fn() + Send + Sync>;

/// The memory of samples.
enum Held {
    Block {
        /// Taken only when it is dropped.
        block: Option<Block>,
        total: usize,
        home: Home,
        back: Back,
    },
    Parts {
        parts: Vec<Piece>,
        /// Counts the bytes that are copied together.
        copied: Arc<AtomicU64>,
        done: Done,
    },
}

impl Samples {
    /// A block of a pool of `total` blocks; `back` gets it when it is dropped.
    pub(crate) fn pooled(block: Block, meta: Meta, total: usize, home: Home, back: Back) -> Self {
        Self { held: Arc::new(Held::Block { block: Some(block), total, home, back }), meta }
    }

    /// Samples that stay where the network has put them, in parts of any length, [`Meta::len`] bytes in all.
    /// Bytes that are copied together are added to `copied`.
    pub(crate) fn scattered(
        parts: Vec<Piece>,
        meta: Meta,
        copied: &Arc<AtomicU64>,
        done: Done,
    ) -> Self {
        Self { held: Arc::new(Held::Parts { parts, copied: Arc::clone(copied), done }), meta }
    }

    /// What is known of the block.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The bytes of the samples: [`Meta::len`]. Samples in several parts are copied together;
    /// [`parts`](Self::parts) avoids the copy.
    ///
    /// # Errors
    ///
    /// As [`Block::read`].
    pub fn read(&self) -> Result<SamplesRead<'_>> {
        match &*self.held {
            Held::Block { block: Some(block), .. } => {
                Ok(SamplesRead(Place::There(block.read()?.of(0..self.meta.len))))
            }
            Held::Block { block: None, .. } => Ok(SamplesRead(Place::Together(Vec::new()))),
            Held::Parts { copied, .. } => {
                let mut together = Vec::with_capacity(self.meta.len);
                self.parts()?.iter().for_each(|part| part.append_to(&mut together));
                copied.fetch_add(together.len() as u64, Ordering::Relaxed);
                Ok(SamplesRead(Place::Together(together)))
            }
        }
    }

    /// The bytes in place: in one part, unless the network has put them into several. A part may end within
    /// a sample.
    ///
    /// # Errors
    ///
    /// As [`Block::read`].
    pub fn parts(&self) -> Result<Parts<'_>> {
        match &*self.held {
            Held::Block { block, .. } => {
                let reading = block.as_ref().map(Block::read).transpose()?;
                Ok(Parts { reading, pieces: &[], len: self.meta.len })
            }
            Held::Parts { parts, .. } => Parts::of(parts, self.meta.len),
        }
    }

    /// The whole block, to pass its descriptor to another device or process. The samples are its first
    /// [`Meta::len`] bytes. The driver fills it again once this guard and all its clones are dropped. `None`
    /// for samples in parts.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        match &*self.held {
            Held::Block { block, .. } => block.as_ref(),
            Held::Parts { .. } => None,
        }
    }

    /// Whether this can be upgraded tells whether the source, or any of its blocks, still exists.
    pub(crate) fn home(&self) -> Option<Weak<()>> {
        match &*self.held {
            Held::Block { home, .. } => Some(Arc::downgrade(home)),
            Held::Parts { .. } => None,
        }
    }

    /// How many blocks its source has.
    pub(crate) fn total(&self) -> usize {
        match &*self.held {
            Held::Block { total, .. } => *total,
            Held::Parts { .. } => usize::MAX,
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { block, total, .. } => {
                f.debug_struct("Block").field("block", block).field("total", total).finish()
            }
            Self::Parts { parts, .. } => f.debug_tuple("Parts").field(&parts.len()).finish(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self {
            Self::Block { block, back, .. } => {
                if let Some(block) = block.take() {
                    back(block);
                }
            }
            Self::Parts { parts, done, .. } => {
                Piece::drop_all(std::mem::take(parts));
                done();
            }
        }
    }
}

/// The bytes of [`Samples`], in place.
#[derive(Debug)]
pub struct Parts<'a> {
    reading: Option<Reading<'a>>,
    /// Parts of the block that is read; empty if the samples are one part.
    pieces: &'a [Piece],
    len: usize,
}

impl<'a> Parts<'a> {
    /// The bytes of pieces, `len` in all, of one receiver and thus of one block.
    pub(super) fn of(pieces: &'a [Piece], len: usize) -> Result<Self> {
        let block = pieces.iter().find_map(|piece| match piece {
            Piece::View(view) => Some(view.block()),
            Piece::Bytes(_) => None,
        });
        Ok(Self { reading: block.map(Block::read).transpose()?, pieces, len })
    }

    /// The CRC-32C of all parts.
    pub(crate) fn crc32c(&self) -> u32 {
        self.iter().fold(0, crc32c)
    }

    /// All parts, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Bytes<'_>> {
        let block = self.reading.as_ref().map(Reading::bytes).unwrap_or_default();
        let whole = self.pieces.is_empty().then(|| block.slice(..self.len));
        whole.into_iter().chain(self.pieces.iter().map(move |piece| match piece {
            Piece::View(view) => block.slice(view.range()),
            Piece::Bytes(bytes) => Bytes::from(&bytes[..]),
        }))
    }
}

/// The bytes of [`Samples`].
#[derive(Debug)]
pub struct SamplesRead<'a>(Place<'a>);

#[derive(Debug)]
enum Place<'a> {
    There(Reading<'a>),
    Together(Vec<u8>),
}

impl SamplesRead<'_> {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        match &self.0 {
            Place::There(reading) => reading.bytes(),
            Place::Together(bytes) => Bytes::from(&bytes[..]),
        }
    }
}
