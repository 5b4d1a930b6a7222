//! Flow control: a coprocessor sends no more than Linux has room for.

use super::control::Control;

/// Grants credit, so that at most a window of bytes is on its way.
///
/// A block that is shorter than the window needs no more credit.
#[derive(Clone, Debug)]
pub struct Window {
    size: u32,
    taken: u32,
}

impl Window {
    /// `bytes` has to be more than one message; otherwise the coprocessor would wait for ever.
    #[must_use]
    pub fn new(bytes: u32) -> Self {
        Self { size: bytes, taken: 0 }
    }

    /// Starts again, and returns the credit of the request.
    #[must_use]
    pub fn open(&mut self) -> u32 {
        self.taken = 0;
        self.size
    }

    /// A message of `bytes` was received. Returns the credit to send if half of the window is used.
    pub fn take(&mut self, bytes: usize) -> Option<Control> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.taken = self.taken.saturating_add(bytes);
        if self.taken < self.size / 2 {
            return None;
        }
        Some(Control::Credit { bytes: std::mem::take(&mut self.taken) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_taken_is_granted_again_in_halves() {
        let mut window = Window::new(1000);
        assert_eq!(window.open(), 1000);
        assert_eq!(window.take(496), None);
        assert_eq!(window.take(496), Some(Control::Credit { bytes: 992 }));
        assert_eq!(window.take(500), Some(Control::Credit { bytes: 500 }));
        assert_eq!(window.take(499), None);
        assert_eq!(window.open(), 1000);
        assert_eq!(window.take(499), None);
    }
}
