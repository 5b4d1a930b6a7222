//! A coprocessor's pattern: byte i of a block is `i & 0xff`.

/// Longest message that a channel can have.
pub(super) const MESSAGE_MAX: usize = 1 << 16;

/// One period more than the longest slice, which may begin anywhere in the first.
static PATTERN: [u8; MESSAGE_MAX + 256] = {
    let mut bytes = [0; MESSAGE_MAX + 256];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = at.to_le_bytes()[0];
        at += 1;
    }
    bytes
};

/// Up to 65 536 of the bytes `i & 0xff`, from byte `from` on.
#[must_use]
pub fn pattern(from: u64, length: usize) -> &'static [u8] {
    let from = usize::from(from.to_le_bytes()[0]);
    &PATTERN[from..][..length.min(MESSAGE_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_begins_anywhere_and_is_never_longer_than_asked() {
        assert_eq!(pattern(0x1_0000_00fe, 4), [0xfe, 0xff, 0, 1]);
        assert_eq!(pattern(0xff, usize::MAX).len(), MESSAGE_MAX);
    }
}
