//! The layout of a sample: the types of the channels in sysfs, and the kernel's rules of alignment
//! (`iio_compute_scan_bytes`).

use super::format::Channel;

/// Bytes of the longest sample: more than any scan has.
const MAX_SAMPLE: usize = 64 << 10;

/// The content of a channel's file `type`: `[be|le]:[s|u]bits/storage[Xrepeat][>>shift]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub big_endian: bool,
    pub signed: bool,
    pub bits: u8,
    pub storage_bits: u8,
    pub repeat: u8,
    pub shift: u8,
}

impl Type {
    /// `None` if `text` is no such type, or its bits do not fit into the storage.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (endian, rest) = text.trim_end().split_once(':')?;
        let big_endian = match endian {
            "be" => true,
            "le" => false,
            _ => return None,
        };
        // A capital letter means that all bits are valid; `bits` says so as well.
        let (signed, rest) = match rest.split_at_checked(1)? {
            ("s" | "S", rest) => (true, rest),
            ("u" | "U", rest) => (false, rest),
            _ => return None,
        };
        let (rest, shift) = match rest.split_once(">>") {
            Some((rest, shift)) => (rest, number(shift)?),
            None => (rest, 0),
        };
        let (rest, repeat) = match rest.split_once('X') {
            Some((rest, repeat)) => (rest, number(repeat)?),
            None => (rest, 1),
        };
        let (bits, storage_bits) = rest.split_once('/')?;
        let found = Self {
            big_endian,
            signed,
            bits: number(bits)?,
            storage_bits: number(storage_bits)?,
            repeat,
            shift,
        };
        found.is_sound().then_some(found)
    }

    pub(super) fn of(channel: &Channel) -> Self {
        let Channel { signed, bits, storage_bits, shift, big_endian, repeat, .. } = *channel;
        Self { big_endian, signed, bits, storage_bits, repeat, shift }
    }

    /// As in sysfs, with this letter for the sign.
    pub(super) fn text(self, sign: char) -> String {
        let Self { big_endian, bits, storage_bits, repeat, shift, .. } = self;
        let endian = if big_endian { 'b' } else { 'l' };
        let repeat = if repeat > 1 { format!("X{repeat}") } else { String::new() };
        format!("{endian}e:{sign}{bits}/{storage_bits}{repeat}>>{shift}")
    }

    fn is_sound(self) -> bool {
        let fits = u16::from(self.bits) + u16::from(self.shift) <= u16::from(self.storage_bits);
        let whole = self.storage_bits >= 8 && self.storage_bits.is_power_of_two();
        // The kernel aligns to the length, in a way that is right for powers of two only.
        self.bits > 0 && fits && whole && self.repeat.is_power_of_two()
    }

    fn len(self) -> usize {
        usize::from(self.storage_bits) / 8 * usize::from(self.repeat)
    }
}

fn number(text: &str) -> Option<u8> {
    // `parse` accepts a sign, which the kernel does not write.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The channels of a sample, and its length, from the index, name and type of each channel. `None` without
/// channels, if an index occurs twice, or if the sample is too long.
pub(super) fn layout(mut scan: Vec<(u32, String, Type)>) -> Option<(Vec<Channel>, usize)> {
    // The timestamp is last, whatever its index.
    scan.sort_by_key(|(index, name, _)| (name == "timestamp", *index));
    if scan.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return None;
    }
    let (mut channels, mut end) = (Vec::new(), 0_usize);
    for (_, name, found) in &scan {
        let offset = end.next_multiple_of(found.len());
        end = offset + found.len();
        if end > MAX_SAMPLE {
            return None;
        }
        channels.push(Channel {
            name: name.clone(),
            signed: found.signed,
            bits: found.bits,
            storage_bits: found.storage_bits,
            shift: found.shift,
            big_endian: found.big_endian,
            repeat: found.repeat,
            offset,
        });
    }
    let largest = channels.iter().map(Channel::len).max()?;
    Some((channels, end.next_multiple_of(largest)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(text: &str) -> Type {
        Type::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn types_are_read_as_the_kernel_prints_them() {
        let expected = Type {
            big_endian: false,
            signed: true,
            bits: 12,
            storage_bits: 16,
            repeat: 1,
            shift: 4,
        };
        assert_eq!(Type::parse("le:s12/16>>4\n"), Some(expected));
        assert_eq!(Type::parse("le:s12/16X1>>4"), Some(expected));
        let expected = Type {
            big_endian: true,
            signed: false,
            bits: 32,
            storage_bits: 32,
            repeat: 4,
            shift: 0,
        };
        assert_eq!(Type::parse("be:u32/32X4>>0\n"), Some(expected));
        assert_eq!(Type::parse("be:u32/32X4"), Some(expected));
    }

    #[test]
    fn what_is_no_type_is_refused() {
        let texts = [
            "",
            ":",
            "le",
            "le:",
            "le:s",
            "me:s16/16",
            "le:f16/16",
            "le:s16",
            "le:s/16",
            "le:s16/",
            "le:s0/16",
            "le:s17/16",
            "le:s16/16>>1",
            "le:s16/24",
            "le:s4/4",
            "le:s16/0",
            "le:s256/256",
            "le:s16/16X0",
            "le:s16/16X3",
            "le:s16/16X",
            "le:s16/16>>",
            "le:s+16/16",
            "le:s-1/16",
            "le:s16/16>>0>>0",
            "le:s16/16 x",
            "le:é16/16",
        ];
        for text in texts {
            assert_eq!(Type::parse(text), None, "{text}");
        }
    }

    fn offsets(scan: &[(u32, &str, &str)]) -> (Vec<(String, usize)>, usize) {
        let scan = scan.iter().map(|(index, name, text)| (*index, (*name).into(), kind(text)));
        let (channels, len) = layout(scan.collect()).unwrap();
        (channels.into_iter().map(|one| (one.name, one.offset)).collect(), len)
    }

    #[test]
    fn channels_are_aligned_to_their_length_and_the_sample_to_the_largest() {
        let scan = [
            (4, "timestamp", "le:s64/64"),
            (0, "a", "le:s8/8"),
            (1, "b", "be:u12/16>>4"),
            (2, "c", "le:u24/32"),
        ];
        let expected = [("a", 0), ("b", 2), ("c", 4), ("timestamp", 8)];
        let (found, len) = offsets(&scan);
        assert_eq!(found, expected.map(|(name, offset)| (name.to_owned(), offset)));
        assert_eq!(len, 16);
        assert_eq!(offsets(&[(0, "a", "le:s32/32"), (1, "b", "le:s8/8")]).1, 8);
        assert_eq!(offsets(&[(0, "q", "le:s16/32X4"), (1, "b", "le:s8/8")]).1, 32);
    }

    #[test]
    fn the_time_is_last_whatever_its_index() {
        let (found, _) = offsets(&[(0, "timestamp", "le:s64/64"), (7, "a", "le:s16/16")]);
        assert_eq!(found, [("a".to_owned(), 0), ("timestamp".to_owned(), 8)]);
    }

    #[test]
    fn nothing_and_the_same_index_twice_are_no_sample() {
        assert_eq!(layout(Vec::new()), None);
        let twice = ["a", "b"].map(|name| (3, name.to_owned(), kind("le:s16/16")));
        assert_eq!(layout(twice.into()), None);
        let long = (0..5000).map(|index| (index, "x".to_owned(), kind("le:s64/64X2")));
        assert_eq!(layout(long.collect()), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*|[bl]e:[su][0-9]{0,4}/[0-9]{0,4}(X[0-9]{0,4})?(>>[0-9]{0,4})?") {
            if let Some(found) = Type::parse(&text) {
                prop_assert!(found.bits + found.shift <= found.storage_bits);
                prop_assert!(found.len() >= 1);
            }
        }

        #[test]
        fn what_is_printed_is_read(
            big_endian: bool, signed: bool, size in 3_u32..8, repeat in 0_u32..8, bits in 1_u8..=128, shift in 0_u8..128,
        ) {
            let storage_bits = 1_u8 << size;
            let (bits, repeat) = ((bits - 1) % storage_bits + 1, 1 << repeat);
            let shift = shift % (storage_bits - bits + 1);
            let printed = Type { big_endian, signed, bits, storage_bits, repeat, shift };
            let text = format!(
                "{}:{}{bits}/{storage_bits}X{repeat}>>{shift}\n",
                if big_endian { "be" } else { "le" }, if signed { 's' } else { 'u' },
            );
            prop_assert_eq!(Type::parse(&text), Some(printed));
        }

        #[test]
        fn channels_never_overlap(sizes in prop::collection::vec((3_u32..7, 0_u32..3), 1..40)) {
            let scan = sizes.iter().zip(0..).map(|(&(size, repeat), index)| {
                let text = format!("le:u8/{}X{}>>0", 1 << size, 1 << repeat);
                (index, format!("c{index}"), kind(&text))
            });
            let (channels, len) = layout(scan.collect()).unwrap();
            let mut end = 0;
            for channel in &channels {
                prop_assert!(channel.offset >= end && channel.offset % channel.len() == 0);
                end = channel.offset + channel.len();
            }
            prop_assert!(len >= end && channels.iter().all(|one| len % one.len() == 0));
        }
    }
}
