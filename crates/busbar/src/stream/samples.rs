//! Blocks of samples that are handed out.

use std::fmt;
use std::ops::Range;
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
    /// Taken only when it is dropped.
    held: Option<Arc<Held>>,
    meta: Meta,
}

/// Hands blocks out and takes them back.
pub(crate) trait Home: Send + Sync {
    /// Takes back a block that was handed out with `tag`, and its shell, if that can be used again.
    fn take_back(&self, block: Block, tag: u64, shell: Option<Shell>);
}

/// What the blocks of one home share: it exists as long as the home or one of its blocks does.
pub(crate) type Kin = Arc<()>;

/// The allocation of a block that came back, for the next one: handing out a block need not allocate.
#[derive(Debug)]
pub(crate) struct Shell(Arc<Held>);

/// Called when parts are dropped, after their memory was freed.
pub(crate) type Done = Box<dyn Fn() + Send + Sync>;

/// The memory of samples.
enum Held {
    Block {
        /// Taken only when it is dropped.
        block: Option<Block>,
        total: usize,
        kin: Kin,
        home: Arc<dyn Home>,
        tag: u64,
    },
    Parts {
        parts: Vec<Piece>,
        /// Counts the bytes that are copied together.
        copied: Arc<AtomicU64>,
        done: Done,
    },
    /// A block that has gone back.
    Nothing,
}

/// What a home knows of the blocks that it hands out.
pub(crate) struct Origin {
    pub home: Arc<dyn Home>,
    pub kin: Kin,
    /// How many blocks it has.
    pub total: usize,
    /// Identifies the block when it comes back.
    pub tag: u64,
    /// Of an earlier block.
    pub shell: Option<Shell>,
}

impl Samples {
    /// A block that goes back to its home when it is dropped.
    pub(crate) fn pooled(block: Block, meta: Meta, from: Origin) -> Self {
        let Origin { home, kin, total, tag, shell } = from;
        let held = Held::Block { block: Some(block), total, kin, home, tag };
        let held = match shell {
            Some(shell) => shell.fill(held),
            None => Arc::new(held),
        };
        Self { held: Some(held), meta }
    }

    /// Samples that stay where the network has put them, in parts of any length, [`Meta::len`] bytes in all.
    /// Bytes that are copied together are added to `copied`.
    pub(crate) fn scattered(
        parts: Vec<Piece>,
        meta: Meta,
        copied: &Arc<AtomicU64>,
        done: Done,
    ) -> Self {
        let held = Held::Parts { parts, copied: Arc::clone(copied), done };
        Self { held: Some(Arc::new(held)), meta }
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
        match self.held.as_deref() {
            Some(Held::Block { block: Some(block), .. }) => {
                Ok(SamplesRead(Place::There(block.read()?.of(0..self.meta.len))))
            }
            Some(Held::Block { block: None, .. } | Held::Nothing) | None => {
                Ok(SamplesRead(Place::Together(Vec::new())))
            }
            Some(Held::Parts { copied, .. }) => {
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
        if let Some(Held::Parts { parts, .. }) = self.held.as_deref() {
            return Parts::of(parts, self.meta.len);
        }
        let reading = self.block().map(Block::read).transpose()?;
        Ok(Parts { reading, pieces: &[], len: self.meta.len })
    }

    /// The whole block, to pass its descriptor to another device or process. The samples are its first
    /// [`Meta::len`] bytes. The driver fills it again once this guard and all its clones are dropped. `None`
    /// for samples in parts.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        match self.held.as_deref() {
            Some(Held::Block { block, .. }) => block.as_ref(),
            _ => None,
        }
    }

    /// Whether both are references to the same block.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.held.as_ref().zip(other.held.as_ref()).is_some_and(|(one, two)| Arc::ptr_eq(one, two))
    }

    /// Whether this can be upgraded tells whether the source, or any of its blocks, still exists.
    pub(crate) fn kin(&self) -> Option<Weak<()>> {
        match self.held.as_deref() {
            Some(Held::Block { kin, .. }) => Some(Arc::downgrade(kin)),
            _ => None,
        }
    }

    /// How many blocks its source has.
    pub(crate) fn total(&self) -> usize {
        match self.held.as_deref() {
            Some(Held::Block { total, .. }) => *total,
            _ => usize::MAX,
        }
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // If two threads drop the last two references at the same time, neither is the last one here; then
        // `Held` gives the block back.
        let Some(mut held) = self.held.take() else { return };
        let Some(last) = Arc::get_mut(&mut held) else { return };
        let Held::Block { block, home, tag, .. } = last else { return };
        let (block, home, tag) = (block.take(), Arc::clone(home), *tag);
        *last = Held::Nothing;
        if let Some(block) = block {
            home.take_back(block, tag, Some(Shell(held)));
        }
    }
}

impl Shell {
    fn fill(mut self, held: Held) -> Arc<Held> {
        match Arc::get_mut(&mut self.0) {
            Some(shell) => *shell = held,
            None => return Arc::new(held),
        }
        self.0
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block { block, total, .. } => {
                f.debug_struct("Block").field("block", block).field("total", total).finish()
            }
            Self::Parts { parts, .. } => f.debug_tuple("Parts").field(&parts.len()).finish(),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        match self {
            Self::Block { block, home, tag, .. } => {
                if let Some(block) = block.take() {
                    home.take_back(block, *tag, None);
                }
            }
            Self::Nothing => {}
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

    /// The parts that these bytes are, none of them empty.
    pub(super) fn within(&self, range: Range<usize>) -> impl Iterator<Item = Bytes<'_>> {
        let (mut skip, mut left) = (range.start, range.len());
        let wanted = self.iter().map(move |part| {
            let (gone, rest) = part.split_at(skip.min(part.len()));
            skip -= gone.len();
            let (wanted, _) = rest.split_at(left.min(rest.len()));
            left -= wanted.len();
            wanted
        });
        wanted.filter(|part| !part.is_empty())
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
