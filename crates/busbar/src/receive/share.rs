//! How connections share a block.
//!
//! Frames that wait for an earlier one hold memory. If they held all of it, there would never be any for the
//! earlier one. So the kernel may keep data of all connections only in a part of the block.

use std::fs;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use busbar_uapi::devmem;
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::{Error, Result};

/// Bytes that the kernel keeps for a socket by default, unless the administrator has changed that.
const USUAL: usize = 6 << 20;

/// The connections of a receiver whose data a device puts into the block.
#[derive(Debug)]
pub(super) struct Shares {
    /// Bytes for all of them together.
    bytes: usize,
    sockets: Mutex<Vec<Weak<TcpStream>>>,
}

impl Shares {
    /// In a block of `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        Self { bytes: len / 4 * 3, sockets: Mutex::default() }
    }

    /// Bytes that remain for views if the kernel keeps as much as it may.
    pub(super) fn left(&self, len: usize) -> usize {
        len - self.bytes
    }

    /// Adds a connection.
    pub(super) fn add(&self, socket: &Arc<TcpStream>) -> Result<()> {
        // No code panics while it is locked.
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.push(Arc::downgrade(socket));
        let share = self.bytes / sockets.len();
        sockets.iter().filter_map(Weak::upgrade).try_for_each(|socket| limit(&*socket, share))
    }

    /// Limits a listener, or a socket that is not connected yet: the scale of its window is set at the start.
    pub(super) fn begin(&self, socket: impl AsFd) -> Result<()> {
        limit(socket, self.bytes)
    }
}

/// Makes the kernel keep at most `bytes` for a socket.
fn limit(socket: impl AsFd, bytes: usize) -> Result<()> {
    let failed = |errno: Errno| Error::new("limit the receive buffer of", "a socket", errno);
    let now = sockopt::socket_recv_buffer_size(&socket).map_err(failed)?;
    if bytes >= now.max(most_kept()) {
        return Ok(());
    }
    // The kernel doubles the value.
    let half = bytes / 2;
    devmem::force_receive_buffer(&socket, u32::try_from(half).unwrap_or(u32::MAX))
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, half))
        .map_err(failed)
}

/// Bytes that the kernel keeps for a socket without a limit.
fn most_kept() -> usize {
    let limits = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
    limits.split_whitespace().nth(2).and_then(|most| most.parse().ok()).unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connections_have_equal_shares_and_what_is_less_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let kept = |socket: &TcpStream| sockopt::socket_recv_buffer_size(socket).unwrap();
        let shares = Shares::new(1 << 20);
        let sockets = [connect(), connect(), connect()];
        for socket in &sockets {
            shares.add(socket).unwrap();
        }
        assert!(
            sockets.iter().all(|socket| kept(socket) <= (1 << 20) / 4),
            "{}",
            kept(&sockets[0])
        );
        drop(sockets);
        let last = connect();
        shares.add(&last).unwrap();
        assert!(((1 << 20) / 4..=(1 << 20) / 4 * 3).contains(&kept(&last)), "{}", kept(&last));
        // Enough for whatever the kernel would keep.
        let (large, free) = (Shares::new(1 << 30), connect());
        let before = kept(&free);
        large.add(&free).unwrap();
        assert_eq!(kept(&free), before);
    }
}
