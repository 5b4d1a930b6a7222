//! The sender's side: cuts packets into messages.

use busbar_uapi::rpmsg_bulk::LONG_HEADER_SIZE;

use super::crc;
use super::header::Header;
use super::pattern::{MESSAGE_MAX, pattern};
use crate::{Error, Result};

/// The block in a packet.
///
/// All byte slices implement it. A [`Sealed`] one has its check sum already; a [`Pattern`] needs no memory
/// either.
pub trait Content {
    /// Length of the block in bytes.
    fn length(&self) -> u64;
    /// The check sum of the block. It is called once.
    fn crc(&self) -> u16;
    /// `length` bytes from byte `from` on, all within the block, `length` at most 65 536.
    fn bytes(&self, from: u64, length: usize) -> &[u8];
}

impl<T: AsRef<[u8]>> Content for T {
    fn length(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn crc(&self) -> u16 {
        crc::crc16(self.as_ref())
    }

    fn bytes(&self, from: u64, length: usize) -> &[u8] {
        slice(self.as_ref(), from, length)
    }
}

fn slice(bytes: &[u8], from: u64, length: usize) -> &[u8] {
    let from = usize::try_from(from).ok();
    let end = from.and_then(|from| from.checked_add(length));
    from.zip(end).and_then(|(from, end)| bytes.get(from..end)).unwrap_or_default()
}

/// Bytes whose check sum is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed<T> {
    bytes: T,
    crc: u16,
}

impl<T: AsRef<[u8]>> Sealed<T> {
    /// `crc` is not verified.
    pub fn new(bytes: T, crc: u16) -> Self {
        Self { bytes, crc }
    }

    /// The bytes.
    pub fn bytes(&self) -> &T {
        &self.bytes
    }
}

impl<T: AsRef<[u8]>> Content for Sealed<T> {
    fn length(&self) -> u64 {
        self.bytes.as_ref().len() as u64
    }

    fn crc(&self) -> u16 {
        self.crc
    }

    fn bytes(&self, from: u64, length: usize) -> &[u8] {
        slice(self.bytes.as_ref(), from, length)
    }
}

/// A block of this length in which byte i is `i & 0xff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(pub u32);

impl Content for Pattern {
    fn length(&self) -> u64 {
        u64::from(self.0)
    }

    fn crc(&self) -> u16 {
        crc::pattern_crc(self.length())
    }

    fn bytes(&self, from: u64, length: usize) -> &[u8] {
        pattern(from, length)
    }
}

/// One message of a packet: `head`, then `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The header in the first message, empty in all others.
    pub head: &'a [u8],
    /// Bytes of the block.
    pub body: &'a [u8],
}

impl Piece<'_> {
    /// Length of the message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether the message has no bytes, which no message of a packet is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the content of `buffer` by the message.
    pub fn write_to(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(self.head);
        buffer.extend_from_slice(self.body);
    }
}

/// Cuts a packet into messages, one at a time.
#[derive(Clone, Debug)]
pub struct Cutter<C> {
    content: C,
    head: [u8; LONG_HEADER_SIZE],
    head_size: usize,
    limit: usize,
    size: u64,
    at: u64,
}

impl<C: Content> Cutter<C> {
    /// A packet of `content` in messages of at most `limit` bytes, which is 496 on virtio.
    ///
    /// Fails if the content is longer than a packet can be, 4 GiB less one byte, or if
    /// `limit` is not from 16 to 65 536.
    pub fn new(content: C, limit: usize) -> Result<Self> {
        let length = content.length();
        let Ok(length) = u32::try_from(length) else {
            return Err(Error::invalid("length of a block", length, "less than 4 GiB"));
        };
        if !(LONG_HEADER_SIZE..=MESSAGE_MAX).contains(&limit) {
            return Err(Error::invalid("message size", limit, "16 to 65536 bytes"));
        }
        let header = Header::of_block(length, content.crc());
        let head_size = header.form.size();
        let size = u64::from(length) + head_size as u64;
        Ok(Self { content, head: header.encode(), head_size, limit, size, at: 0 })
    }

    /// Length of the packet, header included.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the packet that are still to be sent.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.size - self.at
    }

    /// Length of the next message, 0 once all are sent.
    #[must_use]
    pub fn piece_size(&self) -> usize {
        usize::try_from(self.left()).map_or(self.limit, |left| left.min(self.limit))
    }

    /// Offset in the block at which the next message begins.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at.saturating_sub(self.head_size as u64)
    }

    /// The next message, the same until [`Self::advance`]; `None` once all are sent.
    #[must_use]
    pub fn piece(&self) -> Option<Piece<'_>> {
        let size = self.piece_size();
        let head = if self.at == 0 { &self.head[..self.head_size] } else { &[] };
        let body = size.checked_sub(head.len()).filter(|_| size != 0)?;
        Some(Piece { head, body: self.content.bytes(self.position(), body) })
    }

    /// The next message was sent.
    pub fn advance(&mut self) {
        self.at += self.piece_size() as u64;
    }

    /// The content.
    #[must_use]
    pub fn content(&self) -> &C {
        &self.content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a packet.
    fn cut(content: impl Content, limit: usize) -> Vec<Vec<u8>> {
        let mut cutter = Cutter::new(content, limit).unwrap();
        let mut messages = Vec::new();
        while let Some(piece) = cutter.piece() {
            assert_eq!(piece.len(), cutter.piece_size());
            messages.push([piece.head, piece.body].concat());
            cutter.advance();
        }
        assert_eq!((cutter.left(), cutter.piece_size()), (0, 0));
        assert_eq!(messages.iter().map(Vec::len).sum::<usize>() as u64, cutter.size());
        messages
    }

    #[test]
    fn messages_are_full_but_for_the_last() {
        for (length, sizes) in [
            (0, vec![6]),
            (1, vec![7]),
            (490, vec![496]),
            (491, vec![496, 1]),
            (986, vec![496, 496]),
            (1000, vec![496, 496, 14]),
        ] {
            let messages = cut(vec![1; length], 496);
            assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{length}");
        }
    }

    #[test]
    fn pattern_is_cut_like_its_bytes() {
        for length in [0, 1, 255, 1000, 0xabcd - 6, 65_529, 65_530, 200_000] {
            let bytes: Vec<u8> = (0..length).map(|i: u32| i.to_le_bytes()[0]).collect();
            assert_eq!(cut(Pattern(length), 496), cut(&bytes, 496), "{length}");
            let sealed = Sealed::new(&bytes, crc::crc16(&bytes));
            assert_eq!(cut(sealed, 65_536), cut(Pattern(length), 65_536));
        }
    }

    #[test]
    fn example_of_the_stm32mp1_is_cut_as_there() {
        let messages = cut(Pattern(32768), 496);
        assert_eq!(messages[0][..8], [0xcd, 0xab, 0x06, 0x80, 0x18, 0x18, 0, 1]);
        assert_eq!(messages[1][..2], [0xea, 0xeb]);
    }

    #[test]
    fn what_no_packet_can_be_is_refused() {
        struct Huge;
        impl Content for Huge {
            fn length(&self) -> u64 {
                1 << 32
            }
            fn crc(&self) -> u16 {
                0
            }
            fn bytes(&self, _: u64, _: usize) -> &[u8] {
                &[]
            }
        }
        let error = Cutter::new(Huge, 496).err().unwrap().to_string();
        assert!(error.contains("4 GiB"), "{error}");
        for limit in [0, 15, 65_537] {
            assert!(Cutter::new(b"", limit).is_err());
        }
    }
}
