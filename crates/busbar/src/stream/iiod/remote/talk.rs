//! Questions and answers of a stream, without waiting.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::LONGEST_LINE;

/// Bytes that are looked at to find the end of a line: most lines are shorter.
const PART: usize = 64;

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
        let mut bytes = [0; PART];
        loop {
            // Samples may follow the line: only the line is taken out of the socket.
            let Some(seen) = self.receive(&mut bytes, RecvFlags::PEEK)? else { return Ok(None) };
            let end = bytes[..seen].iter().position(|byte| *byte == b'\n');
            let most = end.map_or(seen, |end| end + 1);
            let taken = self.receive(&mut bytes[..most], RecvFlags::empty())?.unwrap_or_default();
            let is_whole = end.is_some() && taken == most;
            self.line.extend_from_slice(&bytes[..taken - usize::from(is_whole)]);
            if self.line.len() > LONGEST_LINE {
                return Err(unknown());
            }
            if is_whole {
                let line = std::mem::take(&mut self.line);
                return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
            }
        }
    }

    /// How many bytes came; `None` if there are none yet.
    fn receive(&self, to: &mut [u8], flags: RecvFlags) -> Result<Option<usize>, String> {
        let received =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut *to, flags));
        match received.map(|(_, count)| count) {
            Ok(0) => Err("the server has closed the connection".into()),
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.to_string()),
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn talk() -> (Talk<UnixStream>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Talk::new(near), far)
    }

    #[test]
    fn a_line_is_taken_out_of_the_socket_without_what_follows() {
        let (mut talk, mut far) = talk();
        far.write_all(b"12").unwrap();
        assert_eq!(talk.number(), Ok(None));
        far.write_all(b"34\n00000003\nsamples").unwrap();
        assert_eq!(talk.number(), Ok(Some(1234)));
        assert_eq!(talk.line(), Ok(Some("00000003".into())));
        let mut rest = [0; 7];
        talk.socket.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"samples");
        assert_eq!(talk.line(), Ok(None));
        drop(far);
        assert!(talk.line().is_err());
    }

    #[test]
    fn a_line_has_a_longest_length() {
        let (mut talk, mut far) = talk();
        let long = "7".repeat(LONGEST_LINE);
        far.write_all(format!("{long}\n").as_bytes()).unwrap();
        assert_eq!(talk.line(), Ok(Some(long)));
        far.write_all(&[b'7'; LONGEST_LINE + 1]).unwrap();
        assert!(talk.line().is_err());
    }
}
