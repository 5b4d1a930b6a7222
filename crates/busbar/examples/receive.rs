//! A TCP receiver: serves many connections in one loop, and counts their bytes without copying them.
//!
//! `cargo run --example receive -- 127.0.0.1:5201`. With a network device that supports device-memory TCP,
//! replace `Receiver::host` by `Receiver::open`: then the data is in device memory.

use std::collections::HashMap;
use std::io::{self, Write};

use busbar::block::{Block, Memory};
use busbar::receive::{Connection, Listener, Receiver};
use busbar::wait::{Events, Interest, Poller};

/// The listener's key; the keys of connections begin at 1.
const LISTENER: u64 = 0;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:5201".into());
    let receiver = Receiver::host(Block::with(16 << 20, &Memory::Memfd)?)?;
    let listener = receiver.listen(address.parse().map_err(io::Error::other)?)?;
    count(&listener, usize::MAX, io::stdout().lock())
}

/// Serves this many connections to their end, and writes a line about each.
pub fn count(listener: &Listener, mut connections: usize, mut out: impl Write) -> io::Result<()> {
    let (poller, mut events) = (Poller::new()?, Events::new(64)?);
    poller.add(listener, LISTENER, Interest::READABLE)?;
    let mut open: HashMap<u64, (Connection, usize)> = HashMap::new();
    let mut last = LISTENER;
    while connections > 0 {
        poller.wait(&mut events)?;
        for event in events.iter() {
            if event.key() == LISTENER {
                while let Some(connection) = listener.try_accept()? {
                    last += 1;
                    poller.add(&connection, last, Interest::READABLE)?;
                    open.insert(last, (connection, 0));
                }
            } else if let Some((connection, bytes)) = open.get_mut(&event.key()) {
                // Dropping a view frees its memory.
                while let Some(piece) = connection.try_next()? {
                    *bytes += piece.len();
                }
                if connection.is_finished() {
                    writeln!(out, "connection {}: {bytes} bytes", event.key())?;
                    poller.remove(connection)?;
                    open.remove(&event.key());
                    connections -= 1;
                }
            }
        }
    }
    Ok(())
}
