//! rpmsg messages: a header of 16 bytes and up to [`MTU`] bytes of data.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | source address |
//! | 4–7 | destination address |
//! | 8–11 | reserved, 0 |
//! | 12–13 | bytes of data |
//! | 14–15 | flags, 0 |
//!
//! Numbers are little-endian: the device offers no `VIRTIO_F_VERSION_1`, so that Linux uses its
//! native order, and Busbar runs on little-endian machines. Source: `struct rpmsg_hdr` in
//! `drivers/rpmsg/virtio_rpmsg_bus.c`.

use busbar::{Error, Result};

use crate::wire::{Fields, u16_at, u32_at};

/// Bytes of the header.
pub const HEADER_SIZE: usize = 16;
/// Bytes of one buffer of Linux's rpmsg bus.
pub const BUFFER_SIZE: usize = 512;
/// Most bytes of data in one message.
pub const MTU: usize = BUFFER_SIZE - HEADER_SIZE;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Address of the sender.
    pub source: u32,
    /// Address of the receiver.
    pub destination: u32,
    /// Bytes of data that follow.
    pub length: u16,
    /// Reserved.
    pub flags: u16,
}

impl Header {
    /// The header in its encoded form.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        Fields::new()
            .put(&self.source.to_le_bytes())
            .put(&self.destination.to_le_bytes())
            .put(&[0; 4])
            .put(&self.length.to_le_bytes())
            .put(&self.flags.to_le_bytes())
            .finish()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            source: u32_at(bytes, 0)?,
            destination: u32_at(bytes, 4)?,
            length: u16_at(bytes, 12)?,
            flags: u16_at(bytes, 14)?,
        })
    }
}

/// Splits the content of a buffer into header and data.
///
/// Bytes behind the data are ignored. Fails where `bytes` is shorter than a header or than the
/// header says.
pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8])> {
    let header = Header::decode(bytes).ok_or_else(|| {
        Error::invalid("message size", bytes.len(), format!("at least {HEADER_SIZE} bytes"))
    })?;
    let room = bytes.len() - HEADER_SIZE;
    let data = bytes[HEADER_SIZE..].get(..usize::from(header.length)).ok_or_else(|| {
        Error::invalid("message length field", header.length, format!("at most {room} here"))
    })?;
    Ok((header, data))
}

/// A message on its way to Linux.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: [u8; BUFFER_SIZE],
    size: usize,
}

impl Message {
    /// Fails where `data` is longer than [`MTU`].
    pub fn new(source: u32, destination: u32, data: &[u8]) -> Result<Self> {
        let too_long =
            || Error::invalid("message data", data.len(), format!("at most {MTU} bytes"));
        if data.len() > MTU {
            return Err(too_long());
        }
        let length = u16::try_from(data.len()).map_err(|_| too_long())?;
        let header = Header { source, destination, length, flags: 0 };
        let size = HEADER_SIZE + data.len();
        let mut bytes = [0; BUFFER_SIZE];
        bytes[..HEADER_SIZE].copy_from_slice(&header.encode());
        bytes[HEADER_SIZE..size].copy_from_slice(data);
        Ok(Self { bytes, size })
    }

    /// Header and data.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_is_laid_out_like_struct_rpmsg_hdr() {
        let header = Header { source: 0x0102_0304, destination: 0x35, length: 0x0a0b, flags: 1 };
        let expected = [4, 3, 2, 1, 0x35, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0a, 1, 0];
        assert_eq!(header.encode(), expected);
    }

    #[test]
    fn length_beyond_the_buffer_is_refused() {
        let mut bytes = Message::new(1, 2, b"four").unwrap().as_bytes().to_vec();
        bytes.pop();
        let error = parse(&bytes).unwrap_err().to_string();
        assert!(error.contains("length field") && error.contains("at most 3"), "{error}");
    }

    #[test]
    fn data_beyond_the_mtu_is_refused() {
        assert!(Message::new(1, 2, &[0; MTU]).is_ok());
        let error = Message::new(1, 2, &[0; MTU + 1]).unwrap_err().to_string();
        assert!(error.contains("497") && error.contains("496"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_built_parses(
            source: u32,
            destination: u32,
            data in prop::collection::vec(any::<u8>(), 0..=MTU),
            behind in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let message = Message::new(source, destination, &data).unwrap();
            let bytes = [message.as_bytes(), &behind].concat();
            let (header, parsed) = parse(&bytes).unwrap();
            prop_assert_eq!((header.source, header.destination), (source, destination));
            prop_assert_eq!(parsed, &data);
        }

        #[test]
        fn arbitrary_bytes_parse_within_themselves(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            match parse(&bytes) {
                Ok((header, data)) => {
                    prop_assert_eq!(usize::from(header.length), data.len());
                    prop_assert!(data.len() + HEADER_SIZE <= bytes.len());
                }
                Err(_) => prop_assert!(
                    bytes.len() < HEADER_SIZE
                        || usize::from(u16_at(&bytes, 12).unwrap()) > bytes.len() - HEADER_SIZE
                ),
            }
        }
    }
}
