//! Headers of frames.

use super::field::{bad, require};
use crate::block::Bytes;
use crate::stream::crc::crc32c;
use crate::stream::format::Lost;
use crate::{Error, Result};

/// Bytes of a header.
pub const HEADER_LEN: usize = 56;
/// Bytes of the longest block that a frame can carry.
pub const MAX_DATA: u32 = 256 << 20;
/// Bytes of the longest [`Hello`](super::Hello), as JSON.
pub const MAX_HELLO: u32 = 64 << 10;
/// The largest sequence that a frame can have.
pub const MAX_SEQUENCE: u64 = 1 << 48;
/// Bytes of the longest reason of a refusal.
pub const MAX_REFUSAL: u32 = 1 << 10;

const MAGIC: [u8; 4] = *b"BBst";
const VERSION: u8 = 1;
const CHECKED: u32 = 1;
const UNKNOWN: u64 = u64::MAX;
/// Offset of the check sum of the header.
pub(super) const CHECK_AT: usize = HEADER_LEN - 4;

/// The kind of a frame. The sender sends the first three and the last, the receiver the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The sender's first frame: the description of the stream as JSON. `sequence` is that of the first
    /// block that the sender still has.
    Hello,
    /// One block. `sequence` counts the blocks of the stream from 0, without a gap.
    Data,
    /// The end of the stream. `sequence` is the number of blocks; `lost` is what was lost after the last
    /// one.
    End,
    /// The receiver's answer to a hello: `sequence` is the first block that it does not have.
    Welcome,
    /// The receiver has taken over all blocks before `sequence`. One more than the number of blocks: the
    /// end as well.
    Ack,
    /// The receiver does not take the stream; the payload is the reason as text. `sequence` is 0, unless
    /// the receiver has as many blocks as it wants: then it has all blocks before `sequence`, and a sender
    /// that has no others has succeeded.
    Refusal,
    /// The sender has nothing to send, and is still there. `sequence` is that of the next block.
    Alive,
}

impl Kind {
    pub(super) const ALL: [Self; 7] =
        [Self::Hello, Self::Data, Self::End, Self::Welcome, Self::Ack, Self::Refusal, Self::Alive];

    fn code(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Data => 2,
            Self::End => 3,
            Self::Welcome => 4,
            Self::Ack => 5,
            Self::Refusal => 6,
            Self::Alive => 7,
        }
    }

    /// The shortest and the longest payload.
    pub(super) fn lengths(self) -> (u32, u32) {
        match self {
            Self::Hello => (2, MAX_HELLO),
            Self::Data => (1, MAX_DATA),
            Self::Refusal => (1, MAX_REFUSAL),
            Self::End | Self::Welcome | Self::Ack | Self::Alive => (0, 0),
        }
    }

    /// Whether `lost` is used.
    pub(super) fn has_loss(self) -> bool {
        matches!(self, Self::Data | Self::End)
    }

    pub(super) fn has_time(self) -> bool {
        self == Self::Data
    }

    /// Whether the payload needs a check sum.
    pub(super) fn needs_check(self) -> bool {
        matches!(self, Self::Hello | Self::Refusal)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// A random number that the sender has chosen for the stream.
    pub stream: u64,
    /// See [`Kind`].
    pub sequence: u64,
    /// When the block was complete, as [`Meta::time`](crate::stream::Meta::time), in nanoseconds since 1970.
    /// 0 in frames other than [`Kind::Data`].
    pub time: i64,
    /// Samples that are missing between the end of the block before and the end of this one, as
    /// [`Meta::lost`](crate::stream::Meta::lost), or after the last block. 0 samples in frames other than
    /// [`Kind::Data`] and [`Kind::End`].
    pub lost: Lost,
    /// Bytes of the payload.
    pub len: u32,
    /// CRC-32C of the payload.
    pub check: Option<u32>,
}

impl Header {
    /// A frame without a payload.
    #[must_use]
    pub fn new(kind: Kind, stream: u64, sequence: u64) -> Self {
        let lost = Lost::Samples(0);
        Self { kind, stream, sequence, time: 0, lost, len: 0, check: None }
    }

    /// The header of a block of `len` bytes.
    ///
    /// # Errors
    ///
    /// Bad input if the block is empty or longer than [`MAX_DATA`].
    pub fn data(stream: u64, sequence: u64, len: usize) -> Result<Self> {
        let len = Self::payload_len(Kind::Data, len)?;
        Ok(Self { len, ..Self::new(Kind::Data, stream, sequence) })
    }

    /// The header of a frame with a payload, with the check sum of the payload.
    ///
    /// # Errors
    ///
    /// Bad input if frames of this kind have no payload of that length.
    pub fn with_payload(kind: Kind, stream: u64, sequence: u64, payload: &[u8]) -> Result<Self> {
        let len = Self::payload_len(kind, payload.len())?;
        Ok(Self { len, ..Self::new(kind, stream, sequence) }.checked(payload))
    }

    /// The same header with the check sum of the payload.
    #[must_use]
    pub fn checked(self, payload: &[u8]) -> Self {
        Self { check: Some(crc32c::crc32c(payload)), ..self }
    }

    /// `len` as the payload length of a frame of this kind.
    pub(in crate::stream) fn payload_len(kind: Kind, len: usize) -> Result<u32> {
        let (least, most) = kind.lengths();
        u32::try_from(len).ok().filter(|len| (least..=most).contains(len)).ok_or_else(|| {
            let allowed = format!("from {least} to {most} bytes");
            Error::invalid(format!("the payload of a {kind:?} frame"), len, allowed)
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut out = Put(&mut bytes);
        out.put(MAGIC).put([VERSION, self.kind.code()]);
        out.put(u16::try_from(HEADER_LEN).unwrap_or(0).to_le_bytes());
        out.put(self.check.map_or(0, |_| CHECKED).to_le_bytes()).put(self.len.to_le_bytes());
        out.put(self.stream.to_le_bytes()).put(self.sequence.to_le_bytes());
        out.put(self.time.to_le_bytes()).put(encode_lost(self.lost).to_le_bytes());
        out.put(self.check.unwrap_or(0).to_le_bytes());
        let check = crc32c::crc32c(&bytes[..CHECK_AT]);
        bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](std::io::ErrorKind::InvalidData), naming the first invalid field.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self> {
        let mut rest = Take(bytes);
        let magic = rest.take();
        require("magic", magic == MAGIC, || format!("{magic:02x?}"))?;
        let [version, code] = rest.take();
        require("version", version == VERSION, || version)?;
        let check = u32::from_le_bytes(Take(&bytes[CHECK_AT..]).take());
        let computed = crc32c::crc32c(&bytes[..CHECK_AT]);
        require("header check", check == computed, || format!("{check:#010x}"))?;
        let length = u16::from_le_bytes(rest.take());
        require("header length", usize::from(length) == HEADER_LEN, || length)?;
        let flags = u32::from_le_bytes(rest.take());
        require("flags", flags & !CHECKED == 0, || format!("{flags:#x}"))?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.code() == code);
        let kind = kind.ok_or_else(|| bad("kind", code))?;
        Self {
            kind,
            len: u32::from_le_bytes(rest.take()),
            stream: u64::from_le_bytes(rest.take()),
            sequence: u64::from_le_bytes(rest.take()),
            time: i64::from_le_bytes(rest.take()),
            lost: decode_lost(u64::from_le_bytes(rest.take())),
            check: decode_check(flags, u32::from_le_bytes(rest.take()))?,
        }
        .verified()
    }

    /// Refuses fields that contradict each other.
    fn verified(self) -> Result<Self> {
        let Self { kind, len, sequence, .. } = self;
        require("sequence", sequence <= MAX_SEQUENCE, || sequence)?;
        let (least, most) = kind.lengths();
        require("payload length", (least..=most).contains(&len), || len)?;
        require("time", kind.has_time() || self.time == 0, || self.time)?;
        let nothing = self.lost == Lost::Samples(0);
        require("lost", kind.has_loss() || nothing, || format!("{:?}", self.lost))?;
        let fits = match (len, self.check) {
            (0, check) => check.is_none(),
            (_, None) => !kind.needs_check(),
            (_, Some(_)) => true,
        };
        require("flags", fits, || format!("payload check {:?}", self.check))?;
        Ok(self)
    }

    /// Verifies the length of a payload, and its check sum if the header has one.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](std::io::ErrorKind::InvalidData) if one of them differs.
    pub fn check(&self, payload: &[u8]) -> Result<()> {
        self.check_parts(std::iter::once(Bytes::from(payload)))
    }

    /// As [`check`](Self::check), for a payload in parts.
    pub(in crate::stream) fn check_parts<'a>(
        &self,
        parts: impl Iterator<Item = Bytes<'a>>,
    ) -> Result<()> {
        let sum = |check, part| if self.check.is_some() { crc32c(check, part) } else { 0 };
        let (len, computed) =
            parts.fold((0, 0), |(len, check), part| (len + part.len(), sum(check, part)));
        let same = usize::try_from(self.len) == Ok(len);
        require("payload length", same, || self.len)?;
        self.check_sum(computed)
    }

    /// Verifies the check sum of a payload, which is `computed`, if the header has one.
    pub(in crate::stream) fn check_sum(&self, computed: u32) -> Result<()> {
        let right = self.check.is_none_or(|check| check == computed);
        require("payload check", right, || format!("{:#010x}", self.check.unwrap_or_default()))
    }
}

/// The field `lost`. The largest number means unknown.
fn encode_lost(lost: Lost) -> u64 {
    match lost {
        Lost::Samples(count) => count,
        Lost::Unknown => UNKNOWN,
    }
}

fn decode_lost(lost: u64) -> Lost {
    if lost == UNKNOWN { Lost::Unknown } else { Lost::Samples(lost) }
}

fn decode_check(flags: u32, check: u32) -> Result<Option<u32>> {
    let checked = flags & CHECKED != 0;
    require("payload check", checked || check == 0, || format!("{check:#010x}"))?;
    Ok(checked.then_some(check))
}

/// Writes bytes one after another.
struct Put<'a>(&'a mut [u8]);

impl Put<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        let (head, rest) = std::mem::take(&mut self.0).split_at_mut(N);
        head.copy_from_slice(&bytes);
        self.0 = rest;
        self
    }
}

/// Reads bytes one after another; zeros after the last one.
struct Take<'a>(&'a [u8]);

impl Take<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((head, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *head
    }
}
