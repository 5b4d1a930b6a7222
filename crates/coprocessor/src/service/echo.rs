//! Answers each message with itself.

use busbar::Result;

use super::{Port, Service};

/// Answers each message with itself.
///
/// This serves to measure round trips, and is all that the clients in Linux's tree need: the
/// `rpmsg_client_sample` module wants any answer to each of its messages, `rpmsg_tty` and the
/// default endpoint of `rpmsg_char` want to read something back.
#[derive(Clone, Debug)]
pub struct Echo {
    name: String,
}

impl Echo {
    /// An echo that is announced as `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

impl Service for Echo {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        port.send(from, data)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Bench;
    use super::*;
    use crate::message::MTU;

    #[test]
    fn answers_the_sender_with_the_same_bytes() {
        let mut bench = Bench::new(Echo::new("echo"));
        for data in [&b""[..], b"hello world!", &[0xa5; MTU]] {
            assert_eq!(bench.message(77, data).unwrap(), [(77, data.to_vec())]);
        }
    }
}
