//! The result of an attempt to receive, by a device or by copying.

/// The result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    Some,
    Nothing,
    /// The peer has stopped sending.
    End,
}
