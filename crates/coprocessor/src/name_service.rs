//! The name service: how each side tells the other which channels it has.
//!
//! An announcement is a message to address [`ADDRESS`] with [`SIZE`] bytes of data:
//!
//! | bytes | field |
//! |---|---|
//! | 0–31 | name, ended and filled up with NUL bytes |
//! | 32–35 | address of the channel on the sender's side, little-endian |
//! | 36–39 | flags, little-endian: bit 0 set withdraws the channel |
//!
//! Source: `struct rpmsg_ns_msg` in `include/linux/rpmsg/ns.h`.

use std::fmt;

use busbar::{Error, Result};
use busbar_uapi::rpmsg::NAME_SIZE;

use crate::wire::{Fields, u32_at};

/// The address at which each side listens for announcements.
pub const ADDRESS: u32 = 53;
/// Bytes of an announcement.
pub const SIZE: usize = NAME_SIZE + 8;
/// Most channels of Linux that are remembered.
pub const MAX_CHANNELS: usize = 1024;

const FLAG_WITHDRAW: u32 = 1 << 0;

/// The name of a channel: 1 to 31 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name([u8; NAME_SIZE]);

impl Name {
    /// A name of this side: 1 to 31 printable ASCII characters without blanks.
    pub fn new(name: &str) -> Result<Self> {
        let fits = (1..NAME_SIZE).contains(&name.len());
        if !fits || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            let allowed = format!("1 to {} printable ASCII characters", NAME_SIZE - 1);
            return Err(Error::invalid("service name", name.escape_debug(), allowed));
        }
        let mut bytes = [0; NAME_SIZE];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self(bytes))
    }

    /// A name from the other side, cut at the first NUL byte and after 31 bytes like Linux does.
    fn from_wire(wire: &[u8; NAME_SIZE]) -> Result<Self> {
        let end = wire.iter().position(|byte| *byte == 0).unwrap_or(NAME_SIZE).min(NAME_SIZE - 1);
        if end == 0 {
            return Err(Error::invalid("announced name", "", "at least one byte"));
        }
        let mut bytes = [0; NAME_SIZE];
        bytes[..end].copy_from_slice(&wire[..end]);
        Ok(Self(bytes))
    }

    /// The bytes of the name without the NUL bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A channel of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Name of the channel.
    pub name: Name,
    /// Its address on that side.
    pub address: u32,
}

/// Announces or withdraws a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The channel.
    pub channel: Channel,
    /// It is withdrawn.
    pub withdrawn: bool,
}

impl Announcement {
    /// The encoded announcement.
    #[must_use]
    pub fn encode(&self) -> [u8; SIZE] {
        let flags = if self.withdrawn { FLAG_WITHDRAW } else { 0 };
        Fields::new()
            .put(&self.channel.name.0)
            .put(&self.channel.address.to_le_bytes())
            .put(&flags.to_le_bytes())
            .finish()
    }

    /// Fails where `data` is not of [`SIZE`] bytes or the name is empty.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let malformed = || Error::invalid("announcement size", data.len(), format!("{SIZE} bytes"));
        let wire: &[u8; SIZE] = data.try_into().map_err(|_| malformed())?;
        let name = wire.first_chunk().ok_or_else(malformed)?;
        let address = u32_at(wire, NAME_SIZE).ok_or_else(malformed)?;
        let flags = u32_at(wire, NAME_SIZE + 4).ok_or_else(malformed)?;
        let channel = Channel { name: Name::from_wire(name)?, address };
        Ok(Self { channel, withdrawn: flags & FLAG_WITHDRAW != 0 })
    }
}

/// What an announcement did to a [`Directory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The channel is new.
    Added,
    /// The channel was known already.
    Duplicate,
    /// The channel is gone.
    Removed,
    /// A channel was withdrawn that was not announced.
    Unknown,
    /// There is no room for another channel; it was ignored.
    Full,
}

/// The channels that Linux has announced.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    channels: Vec<Channel>,
}

impl Directory {
    /// Records an announcement.
    pub fn apply(&mut self, announcement: &Announcement) -> Change {
        let channel = announcement.channel;
        let known = self.channels.iter().position(|other| *other == channel);
        match (announcement.withdrawn, known) {
            (true, Some(at)) => {
                self.channels.remove(at);
                Change::Removed
            }
            (true, None) => Change::Unknown,
            (false, Some(_)) => Change::Duplicate,
            (false, None) if self.channels.len() == MAX_CHANNELS => Change::Full,
            (false, None) => {
                self.channels.push(channel);
                Change::Added
            }
        }
    }

    /// All channels, the oldest first.
    #[must_use]
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn channel(name: &str, address: u32) -> Channel {
        Channel { name: Name::new(name).unwrap(), address }
    }

    #[test]
    fn announcement_is_laid_out_like_struct_rpmsg_ns_msg() {
        let wire = Announcement { channel: channel("echo", 0x400), withdrawn: true }.encode();
        assert_eq!(&wire[..8], b"echo\0\0\0\0");
        assert_eq!(&wire[32..], [0, 4, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn name_without_an_end_is_cut_like_linux_does() {
        let mut wire = [b'x'; SIZE];
        wire[36..].fill(0);
        let name = Announcement::decode(&wire).unwrap().channel.name;
        assert_eq!(name.as_bytes(), [b'x'; 31]);
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in ["", "has blank", "tab\t", "nul\0", &"x".repeat(32), "é"] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new(&"x".repeat(31)).is_ok());
        assert!(Announcement::decode(&[0; SIZE]).is_err());
        assert!(Announcement::decode(&[b'x'; SIZE - 1]).is_err());
        assert!(Announcement::decode(&[b'x'; SIZE + 1]).is_err());
    }

    #[test]
    fn a_full_directory_ignores_more_and_takes_again_after_a_withdrawal() {
        let mut directory = Directory::default();
        let announce =
            |address, withdrawn| Announcement { channel: channel("c", address), withdrawn };
        for address in 0..1024 {
            assert_eq!(directory.apply(&announce(address, false)), Change::Added);
        }
        assert_eq!(directory.apply(&announce(5000, false)), Change::Full);
        assert_eq!(directory.apply(&announce(7, true)), Change::Removed);
        assert_eq!(directory.apply(&announce(5000, false)), Change::Added);
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(name in "[!-~]{1,31}", address: u32, withdrawn: bool) {
            let announcement = Announcement { channel: channel(&name, address), withdrawn };
            prop_assert_eq!(Announcement::decode(&announcement.encode()).unwrap(), announcement);
        }

        #[test]
        fn arbitrary_bytes_decode_to_what_encodes_to_the_same(
            wire in prop::array::uniform32(any::<u8>()), tail: [u8; 8],
        ) {
            if let Ok(first) = Announcement::decode(&[&wire[..], &tail].concat()) {
                prop_assert_eq!(Announcement::decode(&first.encode()).unwrap(), first);
            }
        }

        #[test]
        fn directory_is_the_set_of_what_was_announced_and_not_withdrawn(
            steps in prop::collection::vec((0u32..4, 0u32..4, any::<bool>()), 0..64),
        ) {
            let mut directory = Directory::default();
            let mut model = BTreeSet::new();
            for (name, address, withdrawn) in steps {
                let channel = channel(&format!("n{name}"), address);
                let change = directory.apply(&Announcement { channel, withdrawn });
                let expected = match withdrawn {
                    true if model.remove(&(name, address)) => Change::Removed,
                    true => Change::Unknown,
                    false if model.insert((name, address)) => Change::Added,
                    false => Change::Duplicate,
                };
                prop_assert_eq!(change, expected);
            }
            prop_assert_eq!(directory.channels().len(), model.len());
        }
    }
}
