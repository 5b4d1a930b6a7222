//! Little-endian fields of messages and tables.

/// The field at `at`, or nothing where `bytes` is too short.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

/// The field at `at`, or nothing where `bytes` is too short.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// The field at `at`, or nothing where `bytes` is too short.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// Writes a message of fixed size field by field.
pub(crate) struct Fields<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fields<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    /// The fields of all calls together are `N` bytes, which [`Self::finish`] checks.
    pub(crate) fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    pub(crate) fn finish(self) -> [u8; N] {
        debug_assert_eq!(self.at, N, "every field is written");
        self.bytes
    }
}
