//! Crashes on request, to test how Linux handles it.

use busbar::Result;

use super::{Port, Service};

const HELP: &[u8] = b"send `crash` to report a crash, or `exit` to end the process\n";

/// Crashes on request.
///
/// After the message `crash` the process reports a crash and runs on: Linux recovers. After the message
/// `exit` it aborts, which looks like a process that was killed. A line feed may
/// follow. Anything else is answered with what is allowed.
#[derive(Clone, Debug)]
pub struct Crash {
    name: String,
}

impl Crash {
    /// A crash service that is announced as `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

impl Service for Crash {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_message(&mut self, port: &mut Port<'_>, from: u32, data: &[u8]) -> Result<()> {
        match data.trim_ascii_end() {
            b"crash" => port.crash(format!("{from:#x} asked for it")),
            b"exit" => std::process::abort(),
            _ => return port.send(from, HELP),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Bench;
    use super::*;

    #[test]
    fn crashes_only_when_told_to() {
        let mut bench = Bench::new(Crash::new("crash"));
        assert_eq!(bench.message(5, b"crush").unwrap(), [(5, HELP.to_vec())]);
        assert_eq!(bench.crash, None);
        assert_eq!(bench.message(5, b"crash\n").unwrap(), []);
        assert_eq!(bench.crash.as_deref(), Some("0x5 asked for it"));
    }
}
