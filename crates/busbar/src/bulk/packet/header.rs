//! The header of a packet.

use busbar_uapi::rpmsg_bulk::{DATA, HEADER_SIZE, LONG_HEADER_SIZE, PREAMBLE, SHORT_MAX};

use super::crc;

/// Which header a packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The six bytes of the STM32MP1 example; the answer has two.
    Short,
    /// Sixteen bytes; the answer is a status packet.
    Long,
}

impl Form {
    /// The form of the header for a block of `length` bytes.
    #[must_use]
    pub fn of(length: u32) -> Self {
        if length > SHORT_MAX || short_size(length) == PREAMBLE { Self::Long } else { Self::Short }
    }

    /// Length of the header.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Short => HEADER_SIZE,
            Self::Long => LONG_HEADER_SIZE,
        }
    }
}

/// The length field of a short header for a block of `length` bytes, at most `SHORT_MAX`.
pub(super) fn short_size(length: u32) -> u16 {
    u16::try_from(length + 6).unwrap_or(u16::MAX)
}

/// A header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) form: Form,
    pub(super) crc: u16,
    /// `DATA` for the short form.
    pub(super) kind: u16,
    /// The length of the block, for `DATA`.
    pub(super) length: u32,
    pub(super) value: u32,
}

/// What the first bytes of a packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A header, perhaps with more behind it.
    Header(Header),
    /// Too short to decide.
    More,
    /// Not a header.
    Bad,
}

impl Header {
    /// The header of a block of `length` bytes which have the check sum `crc`.
    pub(super) fn of_block(length: u32, crc: u16) -> Self {
        let form = Form::of(length);
        let mut header = Self { form, crc, kind: DATA, length, value: 0 };
        if form == Form::Long {
            header.crc = crc::combine(crc::crc16(&header.covered()), crc, u64::from(length));
        }
        header
    }

    /// A long header that nothing follows.
    pub(super) fn alone(kind: u16, length: u32, value: u32) -> Self {
        let mut header = Self { form: Form::Long, crc: 0, kind, length, value };
        header.crc = crc::crc16(&header.covered());
        header
    }

    /// The part of a long header that the check sum covers.
    fn covered(&self) -> [u8; LONG_HEADER_SIZE - HEADER_SIZE] {
        let mut bytes = [0; LONG_HEADER_SIZE - HEADER_SIZE];
        bytes[..2].copy_from_slice(&self.kind.to_le_bytes());
        bytes[2..6].copy_from_slice(&self.length.to_le_bytes());
        bytes[6..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// The check sum of the part of the header that the check sum covers.
    pub(super) fn covered_crc(&self) -> u16 {
        match self.form {
            Form::Short => 0,
            Form::Long => crc::crc16(&self.covered()),
        }
    }

    /// The bytes on the wire, of which the first [`Form::size`] are the header.
    pub(super) fn encode(&self) -> [u8; LONG_HEADER_SIZE] {
        let mut bytes = [0; LONG_HEADER_SIZE];
        bytes[..2].copy_from_slice(&PREAMBLE.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.crc.to_le_bytes());
        match self.form {
            Form::Short => bytes[2..4].copy_from_slice(&short_size(self.length).to_le_bytes()),
            Form::Long => bytes[HEADER_SIZE..].copy_from_slice(&self.covered()),
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Parsed {
        Self::try_parse(bytes).unwrap_or(Parsed::More)
    }

    /// `None` if `bytes` is too short.
    fn try_parse(bytes: &[u8]) -> Option<Parsed> {
        if u16_at(bytes, 0)? != PREAMBLE {
            return Some(Parsed::Bad);
        }
        let (size, crc) = (u16_at(bytes, 2)?, u16_at(bytes, 4)?);
        Some(match size {
            0 => Parsed::Header(Self {
                form: Form::Long,
                crc,
                kind: u16_at(bytes, 6)?,
                length: u32_at(bytes, 8)?,
                value: u32_at(bytes, 12)?,
            }),
            1..6 => Parsed::Bad,
            6.. => Parsed::Header(Self {
                form: Form::Short,
                crc,
                kind: DATA,
                length: u32::from(size) - 6,
                value: 0,
            }),
        })
    }

    /// Whether the header of a block is as the format requires.
    pub(super) fn is_proper(&self) -> bool {
        let ambiguous = self.form == Form::Short && Form::of(self.length) == Form::Long;
        self.value == 0 && !ambiguous
    }
}

/// The field at `at`, or `None` if `bytes` is too short.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

/// The field at `at`, or `None` if `bytes` is too short.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// The field at `at`, or `None` if `bytes` is too short.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_laid_out_like_the_structures() {
        let short = Header::of_block(3, 0x1234);
        assert_eq!(short.encode()[..6], [0xcd, 0xab, 9, 0, 0x34, 0x12]);
        let long = Header { crc: 0x1234, ..Header::alone(2, 0x0102_0304, 0x0506_0708) };
        let expected = [0xcd, 0xab, 0, 0, 0x34, 0x12, 2, 0, 4, 3, 2, 1, 8, 7, 6, 5];
        assert_eq!(long.encode(), expected);
    }

    #[test]
    fn form_changes_where_the_short_length_ends_or_looks_like_a_preamble() {
        for (length, form) in [
            (0, Form::Short),
            (SHORT_MAX, Form::Short),
            (SHORT_MAX + 1, Form::Long),
            (0xabcd - 6, Form::Long),
            (0xabcd - 7, Form::Short),
            (u32::MAX, Form::Long),
        ] {
            assert_eq!(Form::of(length), form, "{length}");
            let Parsed::Header(parsed) = Header::parse(&Header::of_block(length, 5).encode())
            else {
                panic!("no header for {length}");
            };
            assert_eq!((parsed.form, parsed.length), (form, length));
            assert!(parsed.is_proper());
        }
    }

    #[test]
    fn what_is_cut_short_may_become_a_header_and_what_is_wrong_may_not() {
        let long = Header::alone(1, 2, 0).encode();
        assert!((0..16).all(|size| Header::parse(&long[..size]) == Parsed::More));
        for bad in [[0xcd, 0xac, 9, 0, 0, 0], [0xcd, 0xab, 5, 0, 0, 0], [0; 6]] {
            assert_eq!(Header::parse(&bad), Parsed::Bad);
        }
    }
}
