//! Clients by USB: a function whose pipes a host opens, as `iiod` has it.
//!
//! The interface has the name `IIO`, and pairs of bulk endpoints, each of which is a pipe for one client. The host opens
//! and closes them by requests on endpoint 0.

mod pipe;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use busbar_uapi::functionfs::{EVENT_LEN, Endpoint, Event, Requests};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

pub(super) use self::pipe::Pipe;
use crate::poll::{self, Bell, later};
use crate::stream::usb::Gadget;
use crate::stream::usb::gadget::{Function, Shape, refuse};
use crate::{Error, Result};

/// `bmRequestType` of all requests: to the device, of the vendor's own, for an interface.
const TO_INTERFACE: u8 = 0x41;
/// The kernel numbers the endpoints of both directions from 1 to 15.
pub(super) const MOST_PIPES: u8 = 7;
/// How long the end may take.
const LINGER: Duration = Duration::from_millis(500);
/// Between attempts to read an event that is about to come.
const PAUSE: Duration = Duration::from_millis(1);

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// To close all pipes.
    Reset,
    /// It has come, or has left.
    Left,
    Open(u8),
    Close(u8),
}

impl Request {
    /// The request of these eight bytes, for a function with so many pipes.
    fn parse(setup: [u8; 8], pipes: u8) -> Option<Self> {
        let [kind, request, value @ .., _, _, len_low, len_high] = setup;
        if (kind, len_low, len_high) != (TO_INTERFACE, 0, 0) {
            return None;
        }
        let pipe = u8::try_from(u16::from_le_bytes(value)).ok().filter(|pipe| *pipe < pipes);
        match request {
            0 => Some(Self::Reset),
            1 => pipe.map(Self::Open),
            2 => pipe.map(Self::Close),
            _ => None,
        }
    }
}

/// The server's answer to a request.
struct Verdict {
    is_granted: bool,
    /// Pipes that were closed. The end of their requests takes some 10 ms, which the server does not wait for.
    closed: Vec<Pipe>,
}

/// The function, and a thread for endpoint 0: the answer to a request waits until the host takes it.
#[derive(Debug)]
pub(super) struct Usb {
    requests: Receiver<Request>,
    /// `None` once the thread is to end.
    verdicts: Option<SyncSender<Verdict>>,
    asked: Arc<Bell>,
    stop: Arc<Bell>,
    // Last: the gadget can be removed once the files are closed.
    function: Function,
}

impl Usb {
    pub(super) fn open(gadget: &Gadget, pipes: u8) -> Result<Self> {
        if !(1..=MOST_PIPES).contains(&pipes) {
            return Err(Error::invalid(
                "a number of USB pipes",
                pipes,
                format!("1 to {MOST_PIPES}"),
            ));
        }
        // Fails now, not when the host opens a pipe, if there can be no requests.
        Requests::new(1).map_err(|errno| Error::new("use", "asynchronous I/O", errno))?;
        let (function, control) = Function::open(gadget, Shape::iio(pipes))?;
        let (asks, requests) = sync_channel(1);
        let (verdicts, granted) = sync_channel(1);
        let (asked, stop) = (Arc::new(Bell::new()?), Arc::new(Bell::new()?));
        let thread = Answering {
            control,
            pipes,
            asks,
            granted,
            asked: Arc::clone(&asked),
            stop: Arc::clone(&stop),
        };
        poll::spawn("busbar-usb", move || thread.run())?;
        Ok(Self { requests, verdicts: Some(verdicts), asked, stop, function })
    }

    /// The next request, each of which has to be [answered](Self::answer). `None`: not yet.
    pub(super) fn next(&self) -> Option<Request> {
        self.asked.clear();
        self.requests.try_recv().ok()
    }

    pub(super) fn answer(&self, is_granted: bool, closed: Vec<Pipe>) {
        // Without the thread, there is nobody to answer.
        let verdict = Verdict { is_granted, closed };
        let _ = self.verdicts.as_ref().map(|verdicts| verdicts.try_send(verdict));
    }

    /// Opens a pipe, whose former client has to be gone.
    pub(super) fn pipe(&self, number: u8) -> Result<Pipe> {
        let endpoints = self.function.pair(number)?;
        Pipe::new(endpoints).map_err(|errno| Error::new("use", format!("USB pipe {number}"), errno))
    }
}

/// Readable when there is a request.
impl AsFd for Usb {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }
}

impl Drop for Usb {
    fn drop(&mut self) {
        self.verdicts = None;
        // An eventfd that exists can be rung.
        let _ = self.stop.ring();
        let until = later(Instant::now(), LINGER);
        // The thread waits for a host that takes no answer. It ends when the gadget is removed.
        while let Some(left) = until.checked_duration_since(Instant::now())
            && self.requests.recv_timeout(left) != Err(RecvTimeoutError::Disconnected)
        {}
    }
}

/// What the thread has.
struct Answering {
    control: Endpoint,
    pipes: u8,
    granted: Receiver<Verdict>,
    asked: Arc<Bell>,
    stop: Arc<Bell>,
    // Last: its end tells that endpoint 0 is closed.
    asks: SyncSender<Request>,
}

impl Answering {
    fn run(self) {
        while self.turn().is_some() {}
    }

    /// Handles the next event; `None` at the end.
    fn turn(&self) -> Option<()> {
        let mut fds =
            [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        if !fds[1].revents().is_empty() {
            return None;
        }
        let mut bytes = [0; EVENT_LEN];
        match rustix::io::read(&self.control, &mut bytes) {
            Ok(EVENT_LEN) => self.take(&bytes),
            // The function is no more.
            Err(Errno::BADFD) => None,
            // A request was withdrawn, or there is no event.
            Err(Errno::INTR | Errno::IDRM | Errno::AGAIN) => Some(()),
            // The host has left before it had its answer. An event follows.
            _ => {
                std::thread::sleep(PAUSE);
                Some(())
            }
        }
    }

    fn take(&self, bytes: &[u8; EVENT_LEN]) -> Option<()> {
        match Event::decode(bytes) {
            Some(Event::Enable | Event::Disable | Event::Unbind) => {
                self.ask(Request::Left)?;
            }
            Some(Event::Setup(setup)) => {
                let request = Request::parse(setup, self.pipes);
                if let Some(Request::Open(pipe)) = request {
                    // The requests of the client before have ended when the next one comes.
                    self.ask(Request::Close(pipe))?;
                }
                let is_granted = request.map_or(Some(false), |request| self.ask(request))?;
                if is_granted {
                    // A read of no bytes tells the host. It fails if the host has left.
                    let _ = rustix::io::read(&self.control, &mut [0_u8; 0]);
                } else {
                    refuse(&self.control, setup[0]);
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Whether the server grants a request; `None` if there is none any more.
    fn ask(&self, request: Request) -> Option<bool> {
        self.asks.send(request).ok()?;
        self.asked.ring().ok()?;
        let Verdict { is_granted, closed } = self.granted.recv().ok()?;
        drop(closed);
        Some(is_granted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_those_of_libiio() {
        let parse = |kind, request, value: u16| {
            let [low, high] = value.to_le_bytes();
            Request::parse([kind, request, low, high, 0, 0, 0, 0], 3)
        };
        assert_eq!(parse(0x41, 0, 0), Some(Request::Reset));
        assert_eq!(parse(0x41, 1, 2), Some(Request::Open(2)));
        assert_eq!(parse(0x41, 2, 0), Some(Request::Close(0)));
        for (kind, request, value) in [
            (0x41, 1, 3),
            (0x41, 1, 0x100),
            (0x41, 2, 0xffff),
            (0x41, 3, 0),
            (0xc1, 0, 0),
            (0x40, 0, 0),
            (0x42, 1, 0),
        ] {
            assert_eq!(parse(kind, request, value), None, "{kind:x} {request} {value}");
        }
        // With data.
        assert_eq!(Request::parse([0x41, 0, 0, 0, 0, 0, 1, 0], 3), None);
    }

    proptest! {
        #[test]
        fn any_request_is_of_a_pipe_that_exists(setup: [u8; 8], pipes in 1_u8..=MOST_PIPES) {
            match Request::parse(setup, pipes) {
                Some(Request::Open(pipe) | Request::Close(pipe)) => prop_assert!(pipe < pipes),
                Some(Request::Reset) => prop_assert_eq!(setup[..2].to_vec(), [0x41, 0]),
                Some(Request::Left) => prop_assert!(false, "no request says so"),
                None => {}
            }
        }
    }
}
