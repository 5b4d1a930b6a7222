//! `busbar endpoint cat`.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use busbar::endpoint::{Endpoint, MAX_MESSAGE};
use busbar::{Error, Reason, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::{MAX_SIZE, RETRY, Route, wait};
use crate::print::{complain, stdout_failed};
use crate::progress::interruption;
use crate::quantity::seconds;

#[derive(clap::Args)]
#[command(after_help = "\
Example, a line as a message, a file as blocks, and messages until Ctrl-C:
  echo start | busbar endpoint cat control
  busbar endpoint cat loader --size 496 < firmware.bin
  busbar endpoint cat events --linger forever < /dev/null")]
pub struct Args {
    #[command(flatten)]
    route: Route,

    /// Send blocks of so many bytes, 1 to 496, instead of lines, and print messages without line ends
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..=MAX_SIZE))]
    size: Option<u16>,

    /// Seconds to go on printing after the end of the input, or `forever`
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = linger)]
    linger: Linger,
}

/// How long to go on; `None` is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Linger(Option<Duration>);

fn linger(text: &str) -> Result<Linger, String> {
    match text {
        "forever" => Ok(Linger(None)),
        text => seconds(text).map(|time| Linger(Some(time))),
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let stop = interruption(true)?;
    let connection = args.route.connect()?;
    let mut cat = Cat {
        endpoint: &connection.endpoint,
        input: Splitter::new(args.size),
        pending: None,
        is_raw: args.size.is_some(),
        ended: None,
        failure: None,
    };
    loop {
        cat.send()?;
        cat.print()?;
        if cat.is_over(args.linger) {
            return cat.failure.map_or(Ok(ExitCode::SUCCESS), Err);
        }
        let stdin = io::stdin();
        let mut fds = vec![
            PollFd::new(&stop, PollFlags::IN),
            PollFd::new(&connection.endpoint, cat.awaited()),
        ];
        if cat.takes_input() {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        wait(&mut fds, cat.timeout(args.linger))?;
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        if is_ready(0) {
            return Ok(ExitCode::SUCCESS);
        }
        if is_ready(2) {
            cat.read(stdin.as_fd());
        }
    }
}

struct Cat<'a> {
    endpoint: &'a Endpoint,
    input: Splitter,
    /// The message that no buffer was free for.
    pending: Option<Vec<u8>>,
    is_raw: bool,
    /// When the input ended and all of it was sent.
    ended: Option<Instant>,
    /// Why the input ended early; messages that arrive until the end are printed nevertheless.
    failure: Option<Error>,
}

impl Cat<'_> {
    fn send(&mut self) -> Result<()> {
        while let Some(message) = self.next_message() {
            if !self.endpoint.try_send(&message)? {
                self.pending = Some(message);
                return Ok(());
            }
        }
        if self.input.is_closed && self.ended.is_none() {
            self.ended = Some(Instant::now());
        }
        Ok(())
    }

    fn next_message(&mut self) -> Option<Vec<u8>> {
        if let Some(message) = self.pending.take() {
            return Some(message);
        }
        self.input.next().unwrap_or_else(|error| {
            self.fail(error);
            None
        })
    }

    fn fail(&mut self, error: Error) {
        self.failure = Some(error);
        self.input = Splitter { is_closed: true, ..Splitter::new(None) };
    }

    fn print(&self) -> Result<()> {
        let mut buffer = [0; MAX_MESSAGE];
        let mut out = io::stdout().lock();
        loop {
            match self.endpoint.try_recv(&mut buffer) {
                Ok(Some(length)) => {
                    out.write_all(&buffer[..length]).map_err(stdout_failed)?;
                    if !self.is_raw {
                        out.write_all(b"\n").map_err(stdout_failed)?;
                    }
                }
                Ok(None) => return out.flush().map_err(stdout_failed),
                Err(error) if error.reason() == Reason::Lost => {
                    complain(&format!("busbar: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self, stdin: impl AsFd) {
        let mut buffer = [0; 4096];
        match rustix::io::read(stdin, &mut buffer) {
            Ok(0) => self.input.is_closed = true,
            Ok(length) => self.input.push(&buffer[..length]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => self.fail(Error::new("read", "standard input", errno)),
        }
    }

    fn awaited(&self) -> PollFlags {
        match self.pending {
            Some(_) => PollFlags::IN | PollFlags::OUT,
            None => PollFlags::IN,
        }
    }

    fn takes_input(&self) -> bool {
        self.pending.is_none() && !self.input.is_closed
    }

    fn timeout(&self, linger: Linger) -> Option<Duration> {
        if self.pending.is_some() {
            return Some(RETRY);
        }
        Some(linger.0?.saturating_sub(self.ended?.elapsed()))
    }

    fn is_over(&self, linger: Linger) -> bool {
        let over = |(ended, linger): (Instant, Duration)| ended.elapsed() >= linger;
        self.ended.zip(linger.0).is_some_and(over)
    }
}

/// Cuts the input into messages.
#[derive(Debug)]
struct Splitter {
    block: Option<usize>,
    bytes: Vec<u8>,
    line: usize,
    is_closed: bool,
}

impl Splitter {
    fn new(block: Option<u16>) -> Self {
        Self { block: block.map(usize::from), bytes: Vec::new(), line: 1, is_closed: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message that is complete.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        match self.block {
            Some(size) => Ok(self.next_block(size)),
            None => self.next_line(),
        }
    }

    fn next_block(&mut self, size: usize) -> Option<Vec<u8>> {
        if self.bytes.len() >= size {
            return Some(self.take(size, size));
        }
        self.rest()
    }

    fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.bytes.len()) > MAX_MESSAGE {
            let field = format!("line {} of standard input", self.line);
            let allowed = "0 to 496 bytes; --size sends blocks";
            return Err(Error::invalid(field, "more than 496 bytes", allowed));
        }
        let Some(end) = end else { return Ok(self.rest()) };
        self.line += 1;
        Ok(Some(self.take(end, end + 1)))
    }

    /// The rest after the last line or block, once the input has ended.
    fn rest(&mut self) -> Option<Vec<u8>> {
        (self.is_closed && !self.bytes.is_empty()).then(|| std::mem::take(&mut self.bytes))
    }

    /// Returns the first `length` bytes, and drops `used`.
    fn take(&mut self, length: usize, used: usize) -> Vec<u8> {
        let mut message: Vec<u8> = self.bytes.drain(..used).collect();
        message.truncate(length);
        message
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(splitter: &mut Splitter) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| splitter.next().unwrap()).collect()
    }

    #[test]
    fn lines_are_messages_empty_ones_and_the_last_one_too() {
        let mut splitter = Splitter::new(None);
        splitter.push(b"one\n\ntw");
        assert_eq!(all(&mut splitter), [b"one".to_vec(), b"".to_vec()]);
        splitter.push(b"o\nthree");
        assert_eq!(all(&mut splitter), [b"two".to_vec()]);
        splitter.is_closed = true;
        assert_eq!(all(&mut splitter), [b"three".to_vec()]);
        assert!(all(&mut splitter).is_empty());
    }

    #[test]
    fn a_line_too_long_is_named() {
        let mut splitter = Splitter::new(None);
        splitter.push(b"one\n");
        splitter.push(&[b'x'; MAX_MESSAGE]);
        assert_eq!(all(&mut splitter), [b"one".to_vec()]);
        splitter.push(b"x");
        let text = splitter.next().unwrap_err().to_string();
        assert!(text.contains("line 2 of standard input"), "{text}");
        assert!(text.contains("allowed: 0 to 496 bytes"), "{text}");
    }

    #[test]
    fn linger_is_a_time_or_forever() {
        assert_eq!(linger("forever"), Ok(Linger(None)));
        assert_eq!(linger("0.5"), Ok(Linger(Some(Duration::from_millis(500)))));
        assert!(linger("inf").is_err());
    }

    proptest! {
        #[test]
        fn blocks_are_the_input_however_it_comes(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            size in 1u16..=496,
        ) {
            let mut splitter = Splitter::new(Some(size));
            let mut blocks = Vec::new();
            for chunk in &chunks {
                splitter.push(chunk);
                blocks.extend(all(&mut splitter));
            }
            splitter.is_closed = true;
            blocks.extend(all(&mut splitter));
            prop_assert_eq!(blocks.concat(), chunks.concat());
            let (last, whole) = blocks.split_last().map_or((None, &[][..]), |(l, w)| (Some(l), w));
            prop_assert!(whole.iter().all(|block| block.len() == usize::from(size)));
            prop_assert!(last.is_none_or(|block| (1..=usize::from(size)).contains(&block.len())));
        }

        #[test]
        fn lines_are_the_input_however_it_comes(
            chunks in prop::collection::vec("[a-c\n]{0,40}", 0..20),
        ) {
            let mut splitter = Splitter::new(None);
            let mut lines = Vec::new();
            for chunk in &chunks {
                splitter.push(chunk.as_bytes());
                lines.extend(all(&mut splitter));
            }
            splitter.is_closed = true;
            lines.extend(all(&mut splitter));
            let text = chunks.concat();
            let expected: Vec<_> = text.lines().map(|line| line.as_bytes().to_vec()).collect();
            prop_assert_eq!(lines, expected);
        }
    }
}
