//! Questions and answers of a stream, without waiting.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::LONGEST_LINE;

/// The socket of a stream, and the line that is being received. An error is the reason why the stream is over.
#[derive(Debug)]
pub(super) struct Talk<S> {
    pub socket: S,
    line: Vec<u8>,
}

impl<S: AsFd> Talk<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, line: Vec::new() }
    }

    /// Sends a question. There is room: all before it were answered.
    pub(super) fn ask(&self, question: &str) -> Result<(), String> {
        let bytes = question.as_bytes();
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)
        });
        match sent {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err("the server takes no requests".into()),
            Err(errno) => Err(errno.to_string()),
        }
    }

    /// The next line; `None` if it has not come yet.
    pub(super) fn line(&mut self) -> Result<Option<String>, String> {
        loop {
            let mut byte = [0];
            let received = rustix::net::recv(&self.socket, &mut byte, RecvFlags::empty());
            match received.map(|(_, count)| count) {
                Ok(0) => return Err("the server has closed the connection".into()),
                Ok(_) if byte[0] == b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
                }
                Ok(_) if self.line.len() >= LONGEST_LINE => return Err(unknown()),
                Ok(_) => self.line.push(byte[0]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.to_string()),
            }
        }
    }

    /// The number on the next line; `None` if it has not come yet.
    pub(super) fn number(&mut self) -> Result<Option<i64>, String> {
        let line = self.line()?;
        line.map(|line| line.parse().map_err(|_| unknown())).transpose()
    }
}

/// The reason why the stream is over, if the server has refused something.
pub(super) fn says(errno: Errno) -> String {
    format!("the server says: {errno}")
}

fn unknown() -> String {
    "the server's answer is not of the protocol".into()
}
