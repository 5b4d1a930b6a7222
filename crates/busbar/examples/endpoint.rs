//! An endpoint client: sends each line of standard input to a service of a coprocessor, and prints
//! the answers.
//!
//! `cargo run --example endpoint -- /dev/rpmsg_ctrl0 echo`

use std::io::{self, BufRead, Write};
use std::time::Duration;

use busbar::Reason;
use busbar::endpoint::{Controller, MAX_MESSAGE};

/// How long to wait until the coprocessor takes a message, and for its answer.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(controller), Some(service)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: endpoint CONTROL-DEVICE SERVICE"));
    };
    talk(&controller, &service, io::stdin().lock(), io::stdout().lock())
}

/// Sends the lines of `input`, and writes the answers to `output`.
pub fn talk(
    controller: &str,
    service: &str,
    input: impl BufRead,
    mut output: impl Write,
) -> io::Result<()> {
    let endpoint = Controller::open(controller)?.endpoint(service).create()?;
    let mut answer = [0; MAX_MESSAGE];
    for line in input.lines() {
        if !endpoint.send_timeout(line?.as_bytes(), PATIENCE)? {
            writeln!(output, "the coprocessor accepts no messages")?;
            continue;
        }
        match endpoint.recv_timeout(&mut answer, PATIENCE) {
            Ok(Some(len)) => writeln!(output, "{}", String::from_utf8_lossy(&answer[..len]))?,
            Ok(None) => writeln!(output, "no answer")?,
            // The next message can still be received.
            Err(error) if error.reason() == Reason::Lost => writeln!(output, "{error}")?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
