//! Many messages by one call.

use busbar_uapi::rpmsg::{self, Message, Room};
use rustix::event::PollFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::{Endpoint, HEADER_LIMIT, MAX_MESSAGE, again};
use crate::poll::{self, Deadline, Pause};
use crate::{Error, Result};

/// Most messages of one system call. More gain little: the kernel handles them in groups of 16.
const GROUP: usize = 64;

/// Received messages, with memory for a fixed number of them.
///
/// ```no_run
/// # fn receive(echo: &busbar::endpoint::Endpoint) -> busbar::Result<()> {
/// use busbar::endpoint::Messages;
///
/// let mut messages = Messages::new(16)?;
/// echo.recv_many(&mut messages)?;
/// for message in messages.iter() {
///     println!("{message:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Bytes for each message.
    size: usize,
    /// The messages that are there, in bytes.
    lengths: Vec<usize>,
    capacity: usize,
}

impl Messages {
    /// Memory for `capacity` messages of up to [`MAX_MESSAGE`] bytes.
    ///
    /// # Errors
    ///
    /// If `capacity` is not 1 to 64.
    pub fn new(capacity: usize) -> Result<Self> {
        Self::with_size(capacity, MAX_MESSAGE)
    }

    /// Memory for `capacity` messages of up to `size` bytes, for other buses than virtio.
    ///
    /// # Errors
    ///
    /// If `capacity` is not 1 to 64, or `size` not 1 to 65535.
    pub fn with_size(capacity: usize, size: usize) -> Result<Self> {
        if !(1..=GROUP).contains(&capacity) {
            return Err(Error::invalid("the number of messages", capacity, "1 to 64"));
        }
        if !(1..=HEADER_LIMIT).contains(&size) {
            return Err(Error::invalid("the size of messages", size, "1 to 65535 bytes"));
        }
        let bytes = vec![0; capacity * size];
        Ok(Self { bytes, size, lengths: Vec::with_capacity(capacity), capacity })
    }

    /// How many messages there is memory for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many messages are there.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether no message is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The message at `index`, the oldest at 0.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let length = *self.lengths.get(index)?;
        self.bytes.get(index * self.size..)?.get(..length)
    }

    /// The messages, the oldest first.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let rooms = self.bytes.chunks_exact(self.size);
        rooms.zip(&self.lengths).map(|(room, length)| &room[..*length])
    }

    /// Removes all messages.
    pub fn clear(&mut self) {
        self.lengths.clear();
    }
}

impl Endpoint {
    /// Sends messages in order, and returns how many were sent: all, unless one failed after others were
    /// sent. Sending that one again returns its error. Waits for free buffers without a time limit.
    ///
    /// 64 messages are one system call with `rpmsg_eptfd`; with the in-tree driver it is one for each.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), if the first message was not sent.
    pub fn send_many<M: AsRef<[u8]>>(&self, messages: &[M]) -> Result<usize> {
        self.send_while(messages, true)
    }

    /// Sends messages in order until no buffer is free, and returns how many were sent.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send), if the first message was not sent.
    pub fn try_send_many<M: AsRef<[u8]>>(&self, messages: &[M]) -> Result<usize> {
        self.send_while(messages, false)
    }

    /// Waits for a message, and takes it and those that have come behind it, as many as there is memory
    /// for. They replace what was in `messages`. Returns how many there are, at least 1.
    ///
    /// This is one system call with `rpmsg_eptfd`. With the in-tree driver one message is taken.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv). No error loses a message that was received before it.
    pub fn recv_many(&self, messages: &mut Messages) -> Result<usize> {
        poll::forever(|deadline| match self.recv_group(messages, true)? {
            0 => poll::wait(self, PollFlags::IN, deadline.remaining())
                .map(|_| None)
                .map_err(|errno| self.failed("wait for", errno)),
            count => Ok(Some(count)),
        })
    }

    /// Takes the messages that are there, as many as there is memory for. They replace what was in
    /// `messages`. Returns how many there are, 0 if none.
    ///
    /// # Errors
    ///
    /// As [`try_recv`](Self::try_recv). No error loses a message that was received before it.
    pub fn try_recv_many(&self, messages: &mut Messages) -> Result<usize> {
        self.recv_group(messages, false)
    }

    fn send_while<M: AsRef<[u8]>>(&self, messages: &[M], wait: bool) -> Result<usize> {
        let mut pause = Pause::default();
        let mut sent = 0;
        while sent < messages.len() {
            match self.send_group(&messages[sent..], wait) {
                Ok(count) => {
                    sent += count;
                    pause = Pause::default();
                }
                Err(Errno::AGAIN) if wait => pause
                    .until_writable(self, Deadline::NEVER)
                    .map_err(|errno| self.failed("wait for", errno))?,
                Err(Errno::AGAIN) => break,
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(self.failed("send to", errno)),
            }
        }
        Ok(sent)
    }

    /// Sends the first messages, at least one.
    fn send_group<M: AsRef<[u8]>>(&self, messages: &[M], wait: bool) -> Result<usize, Errno> {
        if !self.takes_many() {
            let first = messages[0].as_ref();
            let sent = if wait { self.write(first) } else { self.write_now(first) };
            return sent.map(|()| 1);
        }
        let mut group = [Message::new(&[]); GROUP];
        let filled = group.iter_mut().zip(messages);
        let count = filled.map(|(message, bytes)| *message = Message::new(bytes.as_ref())).count();
        again(|| rpmsg::send_many(self, &group[..count], wait))
    }

    /// Receives as many messages as there is memory for; 0 if there is none.
    fn recv_group(&self, messages: &mut Messages, wait: bool) -> Result<usize> {
        messages.lengths.clear();
        let read = if self.takes_many() { Self::read_many } else { Self::read_one };
        match read(self, messages, wait) {
            Ok(()) => Ok(messages.len()),
            Err(Errno::AGAIN) => Ok(0),
            Err(errno) => Err(self.failed("receive from", errno)),
        }
    }

    fn read_many(&self, messages: &mut Messages, wait: bool) -> Result<(), Errno> {
        let mut room = messages.bytes.chunks_exact_mut(messages.size);
        let mut rooms: [_; GROUP] =
            std::array::from_fn(|_| Room::new(room.next().unwrap_or_default()));
        let rooms = &mut rooms[..messages.capacity];
        let count = again(|| rpmsg::recv_many(self, rooms, wait))?;
        messages.lengths.extend(rooms.iter().take(count).map(Room::len));
        Ok(())
    }

    fn read_one(&self, messages: &mut Messages, wait: bool) -> Result<(), Errno> {
        let room = &mut messages.bytes[..messages.size];
        let length =
            if wait { self.read(room, ReadWriteFlags::empty()) } else { self.read_now(room) };
        messages.lengths.push(length?);
        Ok(())
    }

    /// Whether the driver has the calls. The in-tree one answers `EINVAL`, a filter of system calls anything.
    fn takes_many(&self) -> bool {
        // `EBADF`: it cannot be read.
        let asked = || rpmsg::recv_many(self, &mut [], false);
        *self.many.get_or_init(|| matches!(asked(), Ok(_) | Err(Errno::BADF)))
    }
}
