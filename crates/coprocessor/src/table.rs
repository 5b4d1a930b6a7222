//! The resource table: what the firmware asks of Linux, and what Linux answers.
//!
//! The table is the whole firmware image of a `vcoproc` coprocessor ([`Image`]). Linux loads it,
//! fills in addresses, notify ids, granted features and the status, and the process reads it
//! back ([`parse`]). All numbers are little-endian. Source: `include/linux/remoteproc.h`.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | version, 1 |
//! | 4–7 | number of entries |
//! | 8–15 | reserved, 0 |
//! | 16–… | offset of each entry |
//!
//! The entry of the rpmsg device, from its offset on:
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | type, 3 (`RSC_VDEV`) |
//! | 4–7 | virtio id, 7 (`VIRTIO_ID_RPMSG`) |
//! | 8–11 | notify id |
//! | 12–15 | features offered |
//! | 16–19 | features granted |
//! | 20–23 | bytes of configuration behind the vrings |
//! | 24 | status |
//! | 25 | number of vrings |
//! | 26–27 | reserved, 0 |
//! | 28–… | for each vring: address, alignment, entries, notify id, reserved |

use busbar::{Error, Result};

use crate::wire::{Fields, u32_at};

/// Feature: Linux takes name-service announcements (`VIRTIO_RPMSG_F_NS`).
pub const FEATURE_NAME_SERVICE: u32 = 1 << 0;
/// Feature: each side says at which entry it wants to be kicked (`VIRTIO_RING_F_EVENT_IDX`).
pub const FEATURE_EVENT_INDEX: u32 = 1 << 29;
/// Status bit: Linux's driver has set up the rings (`VIRTIO_CONFIG_S_DRIVER_OK`).
pub const STATUS_DRIVER_OK: u8 = 1 << 2;

/// Index of the vring on which Linux receives.
pub const RECEIVE: usize = 0;
/// Index of the vring on which Linux transmits.
pub const TRANSMIT: usize = 1;

const VERSION: u32 = 1;
const TYPE_VDEV: u32 = 3;
const VIRTIO_ID_RPMSG: u32 = 7;
const ANY: u32 = u32::MAX;
const HEADER_SIZE: usize = 16;
const VRINGS: usize = 2;
const VRINGS_AT: usize = 28;
const VRING_SIZE: usize = 20;
const IMAGE_SIZE: usize = HEADER_SIZE + 4 + VRINGS_AT + VRINGS * VRING_SIZE;
/// Most entries: the table is one page, which has no room for more.
const MAX_ENTRIES: u32 = 1024;
/// Notify ids are bits of a mask of 32.
const MAX_NOTIFY_ID: u32 = 31;

/// What the firmware asks for: one rpmsg device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    entries: u16,
    event_index: bool,
}

impl Default for Image {
    fn default() -> Self {
        Self { entries: Self::MAX_ENTRIES, event_index: false }
    }
}

impl Image {
    /// Most entries of a vring: Linux has no more than 256 buffers for each direction.
    pub const MAX_ENTRIES: u16 = 256;

    /// Entries of each vring, and so buffers for each direction: a power of two, 2 to 256.
    ///
    /// Both vrings have as many, as Linux's bus demands.
    pub fn entries(self, entries: u16) -> Result<Self> {
        if !entries.is_power_of_two() || !(2..=Self::MAX_ENTRIES).contains(&entries) {
            let allowed = format!("a power of two from 2 to {}", Self::MAX_ENTRIES);
            return Err(Error::invalid("number of buffers", entries, allowed));
        }
        Ok(Self { entries, ..self })
    }

    /// Whether to offer [`FEATURE_EVENT_INDEX`], which saves kicks. By default it is not: the
    /// device role of `OpenAMP` accepts it and then loses kicks.
    #[must_use]
    pub fn event_index(self, offer: bool) -> Self {
        Self { event_index: offer, ..self }
    }

    /// Entries of each vring.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.entries
    }

    /// The image: the file that Linux loads.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let event_index = if self.event_index { FEATURE_EVENT_INDEX } else { 0 };
        let first = u32::try_from(HEADER_SIZE + 4).unwrap_or_default();
        let mut fields = Fields::<IMAGE_SIZE>::new();
        for word in [VERSION, 1, 0, 0, first, TYPE_VDEV, VIRTIO_ID_RPMSG, 0] {
            fields = fields.put(&word.to_le_bytes());
        }
        for word in [FEATURE_NAME_SERVICE | event_index, 0, 0] {
            fields = fields.put(&word.to_le_bytes());
        }
        fields = fields.put(&[0, 2, 0, 0]);
        for word in [ANY, 4096, u32::from(self.entries), ANY, 0].repeat(VRINGS) {
            fields = fields.put(&word.to_le_bytes());
        }
        fields.finish().to_vec()
    }
}

/// A vring of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vring {
    /// Device address of the descriptor table, which the ring starts with.
    pub address: u32,
    /// Alignment of the used ring in bytes, a power of two of at least 4.
    pub align: u32,
    /// Entries, a power of two up to 32 768.
    pub entries: u16,
    /// Which bit of a kick mask stands for the vring, 0 to 31.
    pub notify_id: u32,
}

/// The rpmsg device in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Features that the firmware offers.
    pub offered: u32,
    /// Features that Linux has accepted.
    pub granted: u32,
    /// Virtio status.
    pub status: u8,
    /// Offset of the status byte in the table.
    pub status_at: usize,
    /// The vrings [`RECEIVE`] and [`TRANSMIT`], as the table has them: before
    /// [`STATUS_DRIVER_OK`] they are what the firmware asked for.
    vrings: [[u32; 4]; VRINGS],
}

impl Device {
    /// Whether Linux has set up the rings.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status & STATUS_DRIVER_OK != 0
    }

    /// Whether Linux has accepted `feature`.
    #[must_use]
    pub fn has(&self, feature: u32) -> bool {
        self.granted & feature != 0
    }

    /// A vring, [`RECEIVE`] or [`TRANSMIT`].
    ///
    /// Fails where a field has an invalid value. Whether the vring lies in memory is
    /// checked by the caller that maps it.
    pub fn vring(&self, index: usize) -> Result<Vring> {
        let [address, align, entries, notify_id] = self.vrings[index];
        let field = |name| format!("{name} of vring {index} in the resource table");
        let size = u16::try_from(entries).ok().filter(|n| n.is_power_of_two() && *n <= 1 << 15);
        let Some(entries) = size else {
            return Err(Error::invalid(field("entries"), entries, "a power of two up to 32768"));
        };
        if !align.is_power_of_two() || align < 4 {
            return Err(Error::invalid(field("alignment"), align, "a power of two from 4"));
        }
        if notify_id > MAX_NOTIFY_ID {
            let allowed = format!("0 to {MAX_NOTIFY_ID}");
            return Err(Error::invalid(field("notify id"), notify_id, allowed));
        }
        Ok(Vring { address, align, entries, notify_id })
    }
}

/// Finds the rpmsg device in a resource table, of which `table` may be longer.
///
/// Entries of other types and devices are skipped. Fails where the table is not well-formed or
/// has no rpmsg device with two vrings.
pub fn parse(table: &[u8]) -> Result<Device> {
    let truncated = || malformed("size", table.len(), "all that the table refers to");
    let word = |at| u32_at(table, at).ok_or_else(truncated);
    let version = word(0)?;
    if version != VERSION {
        return Err(malformed("version", version, "1"));
    }
    let entries = word(4)?;
    if entries > MAX_ENTRIES {
        return Err(malformed("number of entries", entries, MAX_ENTRIES));
    }
    if (word(8)?, word(12)?) != (0, 0) {
        return Err(malformed("reserved field", "not 0", "0"));
    }
    for entry in 0..entries as usize {
        let at = word(HEADER_SIZE + 4 * entry)? as usize;
        if word(at)? == TYPE_VDEV && word(at.saturating_add(4))? == VIRTIO_ID_RPMSG {
            return parse_device(table, at);
        }
    }
    Err(malformed("entries", entries, "one rpmsg device among them"))
}

fn parse_device(table: &[u8], at: usize) -> Result<Device> {
    let truncated = || malformed("size", table.len(), "a whole rpmsg device");
    let word = |offset: usize| u32_at(table, at + offset).ok_or_else(truncated);
    let byte = |offset: usize| table.get(at + offset).copied().ok_or_else(truncated);
    let count = byte(25)?;
    if usize::from(count) != VRINGS {
        return Err(malformed("number of vrings", count, VRINGS));
    }
    if (byte(26)?, byte(27)?) != (0, 0) {
        return Err(malformed("reserved field of the rpmsg device", "not 0", "0"));
    }
    let end = (at + VRINGS_AT + VRINGS * VRING_SIZE).checked_add(word(20)? as usize);
    if end.is_none_or(|end| end > table.len()) {
        return Err(truncated());
    }
    let mut vrings = [[0; 4]; VRINGS];
    for (index, vring) in vrings.iter_mut().enumerate() {
        for (field, value) in vring.iter_mut().enumerate() {
            *value = word(VRINGS_AT + index * VRING_SIZE + 4 * field)?;
        }
    }
    let (offered, granted, status) = (word(12)?, word(16)?, byte(24)?);
    Ok(Device { offered, granted, status, status_at: at + 24, vrings })
}

fn malformed(field: &str, value: impl std::fmt::Display, allowed: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{field} of the resource table"), value, allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEVICE_AT: usize = 20;

    fn set(table: &mut [u8], at: usize, word: u32) {
        table[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    #[test]
    fn image_is_laid_out_like_struct_resource_table() {
        let image = Image::default().build();
        assert_eq!(image.len(), 88);
        assert_eq!(image[..20], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0]);
        assert_eq!(image[20..32], [3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(image[32..48], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
        let vring = [255, 255, 255, 255, 0, 16, 0, 0, 0, 1, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(image[48..68], vring);
        assert_eq!(image[68..], vring);
    }

    #[test]
    fn what_linux_filled_in_is_read_back() {
        let mut table = Image::default().entries(16).unwrap().build();
        set(&mut table, DEVICE_AT + 16, FEATURE_NAME_SERVICE);
        table[DEVICE_AT + 24] = 7;
        for (vring, address) in [0x10_0000, 0x10_2000].into_iter().enumerate() {
            set(&mut table, DEVICE_AT + 28 + 20 * vring, address);
            set(&mut table, DEVICE_AT + 28 + 20 * vring + 12, u32::try_from(vring).unwrap());
        }
        table.resize(4096, 0);
        let device = parse(&table).unwrap();
        assert!(device.is_ready());
        assert!(device.has(FEATURE_NAME_SERVICE) && !device.has(FEATURE_EVENT_INDEX));
        assert_eq!(table[device.status_at], 7);
        let expected = Vring { address: 0x10_2000, align: 4096, entries: 16, notify_id: 1 };
        assert_eq!(device.vring(TRANSMIT).unwrap(), expected);
    }

    #[test]
    fn each_bad_field_is_named() {
        let cases: [(usize, u32, &str); 8] = [
            (0, 2, "version"),
            (4, 2000, "number of entries"),
            (4, 0, "entries"),
            (8, 1, "reserved"),
            (16, 4000, "size"),
            (20, 1, "entries"),
            (DEVICE_AT + 20, 1, "size"),
            (DEVICE_AT + 24, 0x300, "number of vrings"),
        ];
        for (at, word, field) in cases {
            let mut table = Image::default().build();
            set(&mut table, at, word);
            let error = parse(&table).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
    }

    #[test]
    fn each_bad_field_of_a_vring_is_named() {
        for (field, word, name) in [
            (4, 3, "alignment"),
            (4, 2, "alignment"),
            (8, 0, "entries"),
            (8, 1 << 16, "entries"),
            (12, 32, "notify id"),
        ] {
            let mut table = Image::default().build();
            set(&mut table, DEVICE_AT + 28 + 12, 0);
            set(&mut table, DEVICE_AT + 28 + field, word);
            let error = parse(&table).unwrap().vring(RECEIVE).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn number_of_buffers_is_a_power_of_two_that_the_bus_can_use() {
        for bad in [0, 1, 3, 255, 512] {
            let error = Image::default().entries(bad).unwrap_err().to_string();
            assert!(error.contains("2 to 256"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_built_parses(exponent in 1u32..=8, event_index: bool) {
            let image = Image::default().entries(1 << exponent).unwrap().event_index(event_index);
            let mut table = image.build();
            for vring in 0..VRINGS {
                set(&mut table, DEVICE_AT + 28 + 20 * vring + 12, 0);
            }
            let device = parse(&table).unwrap();
            prop_assert!(!device.is_ready());
            prop_assert_eq!(device.offered & FEATURE_EVENT_INDEX != 0, event_index);
            for vring in [RECEIVE, TRANSMIT] {
                prop_assert_eq!(device.vring(vring).unwrap().entries, 1 << exponent);
            }
        }

        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(
            table in prop::collection::vec(any::<u8>(), 0..128),
        ) {
            let _ = parse(&table);
        }

        #[test]
        fn a_damaged_table_is_parsed_or_refused(
            at in 0usize..22, word in prop_oneof![any::<u32>(), 0u32..100],
        ) {
            let mut table = Image::default().build();
            set(&mut table, at * 4, word);
            if let Ok(device) = parse(&table) {
                prop_assert!(device.status_at < table.len());
                let _ = (device.vring(RECEIVE), device.vring(TRANSMIT));
            }
        }

        #[test]
        fn a_cut_table_is_refused(length in 0usize..88) {
            prop_assert!(parse(&Image::default().build()[..length]).is_err());
        }
    }
}
