//! A generic netlink socket: one request at a time, answers found by their number.

use std::os::fd::OwnedFd;

use netlink_packet_core::{
    DecodeError, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    Nla, NlasIterator, ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

use crate::poll::{self, Deadline};

/// More than the kernel puts into one datagram.
const DATAGRAM: usize = 64 << 10;

/// A request with its attributes.
#[derive(Debug)]
pub(super) struct Request<'a> {
    command: u8,
    attributes: Vec<Attribute<'a>>,
}

#[derive(Debug)]
struct Attribute<'a> {
    kind: u16,
    value: Value<'a>,
}

#[derive(Debug)]
enum Value<'a> {
    U16([u8; 2]),
    U32([u8; 4]),
    Bytes(&'a [u8]),
}

impl<'a> Request<'a> {
    pub(super) fn new(command: u8) -> Self {
        Self { command, attributes: Vec::new() }
    }

    pub(super) fn u16(self, kind: u16, value: u16) -> Self {
        self.with(kind, Value::U16(value.to_ne_bytes()))
    }

    pub(super) fn u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, Value::U32(value.to_ne_bytes()))
    }

    pub(super) fn bytes(self, kind: u16, value: &'a [u8]) -> Self {
        self.with(kind, Value::Bytes(value))
    }

    fn with(mut self, kind: u16, value: Value<'a>) -> Self {
        self.attributes.push(Attribute { kind, value });
        self
    }
}

impl Attribute<'_> {
    fn bytes(&self) -> &[u8] {
        match &self.value {
            Value::U16(bytes) => bytes,
            Value::U32(bytes) => bytes,
            Value::Bytes(bytes) => bytes,
        }
    }
}

impl Nla for Attribute<'_> {
    fn value_len(&self) -> usize {
        self.bytes().len()
    }

    fn kind(&self) -> u16 {
        self.kind
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(self.bytes());
    }
}

impl GenlFamily for Request<'_> {
    fn family_name() -> &'static str {
        busbar_uapi::rpmsg_netlink::FAMILY
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        busbar_uapi::rpmsg_netlink::VERSION
    }
}

impl Emitable for Request<'_> {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

/// What came: a reply or a notification.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) command: u8,
    all: Vec<(u16, Vec<u8>)>,
}

impl Attributes {
    pub(super) fn bytes(&self, kind: u16) -> Option<&[u8]> {
        self.all.iter().find(|(found, _)| *found == kind).map(|(_, value)| value.as_slice())
    }

    pub(super) fn u32(&self, kind: u16) -> Option<u32> {
        self.bytes(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Text ends with a NUL byte.
    pub(super) fn text(&self, kind: u16) -> Option<String> {
        let text = self.bytes(kind)?.split(|byte| *byte == 0).next()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Attributes {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let attribute = |found: Result<netlink_packet_core::NlaBuffer<&[u8]>, _>| {
            found.map(|it| (it.kind(), it.value().to_vec()))
        };
        let all = NlasIterator::new(buffer).map(attribute).collect::<Result<_, _>>()?;
        Ok(Self { command: header.cmd, all })
    }
}

/// What a datagram has for a request.
enum Answer<T> {
    Message(T),
    /// It was refused, or acknowledged.
    Refused(Result<(), Errno>),
    /// The end of a dump.
    Done,
}

/// A socket of one family.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    family: u16,
    sequence: u32,
    /// The last request.
    request: Vec<u8>,
    /// The last datagram.
    buffer: Vec<u8>,
}

impl Socket {
    pub(super) fn open(family: &str) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))?;
        // Nobody but the kernel is heard.
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        let (request, buffer) = (Vec::new(), vec![0; DATAGRAM]);
        let mut socket = Self { fd, family: 0, sequence: 0, request, buffer };
        socket.family = socket.resolve(family)?;
        Ok(socket)
    }

    /// The number of a family.
    fn resolve(&mut self, family: &str) -> Result<u16, Errno> {
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(family.into())],
        });
        self.transmit(request, 0)?;
        loop {
            for answer in self.receive::<GenlCtrl>(Deadline::NEVER)?.unwrap_or_default() {
                match answer {
                    Answer::Message(found) => {
                        let id = found.nlas.iter().find_map(|attribute| match attribute {
                            GenlCtrlAttrs::FamilyId(id) => Some(*id),
                            _ => None,
                        });
                        return id.ok_or(Errno::PROTO);
                    }
                    Answer::Refused(result) => result?,
                    Answer::Done => {}
                }
            }
        }
    }

    /// Makes a request, and waits for the message with its number; nothing if that took too long.
    pub(super) fn ask(
        &mut self,
        request: Request<'_>,
        deadline: Deadline,
    ) -> Result<Option<Attributes>, Errno> {
        self.transmit(self.message(request), 0)?;
        loop {
            let Some(answers) = self.receive(deadline)? else { return Ok(None) };
            for answer in answers {
                match answer {
                    Answer::Message(found) => return Ok(Some(found)),
                    Answer::Refused(result) => result?,
                    Answer::Done => {}
                }
            }
        }
    }

    /// Makes a request, and waits until the kernel has done it; `false` if that took too long.
    pub(super) fn acknowledged(
        &mut self,
        request: Request<'_>,
        deadline: Deadline,
    ) -> Result<bool, Errno> {
        self.transmit(self.message(request), NLM_F_ACK)?;
        loop {
            let Some(answers) = self.receive::<Attributes>(deadline)? else { return Ok(false) };
            for answer in answers {
                if let Answer::Refused(result) = answer {
                    return result.map(|()| true);
                }
            }
        }
    }

    /// All that a command has to tell.
    pub(super) fn dump(&mut self, command: u8) -> Result<Vec<Attributes>, Errno> {
        self.transmit(self.message(Request::new(command)), NLM_F_DUMP)?;
        let mut all = Vec::new();
        loop {
            for answer in self.receive(Deadline::NEVER)?.unwrap_or_default() {
                match answer {
                    Answer::Message(found) => all.push(found),
                    Answer::Refused(result) => result?,
                    Answer::Done => return Ok(all),
                }
            }
        }
    }

    fn message<'a>(&self, request: Request<'a>) -> GenlMessage<Request<'a>> {
        let mut message = GenlMessage::from_payload(request);
        message.set_resolved_family_id(self.family);
        message
    }

    fn transmit<T>(&mut self, message: GenlMessage<T>, flags: u16) -> Result<(), Errno>
    where
        T: GenlFamily + Emitable + std::fmt::Debug,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        self.request.resize(message.buffer_len(), 0);
        message.serialize(&mut self.request);
        loop {
            match send(&self.fd, &self.request, SendFlags::empty()) {
                Err(Errno::INTR) => {}
                done => return done.map(drop),
            }
        }
    }

    /// What the next datagram has for the last request; nothing if none came in time.
    fn receive<T>(&mut self, deadline: Deadline) -> Result<Option<Vec<Answer<T>>>, Errno>
    where
        T: ParseableParametrized<[u8], GenlHeader> + std::fmt::Debug,
    {
        let length = loop {
            // First: answers take their time.
            let ready = poll::wait(&self.fd, PollFlags::IN, deadline.remaining())?;
            if ready.is_empty() && deadline.has_passed() {
                return Ok(None);
            }
            match recv(&self.fd, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => break length,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        };
        let mut answers = Vec::new();
        let mut rest = &self.buffer[..length];
        while !rest.is_empty() {
            let message =
                NetlinkMessage::<GenlMessage<T>>::deserialize(rest).map_err(|_| Errno::PROTO)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length.max(16)..).unwrap_or_default();
            if message.header.sequence_number == self.sequence {
                answers.extend(answer(message.payload));
            }
        }
        Ok(Some(answers))
    }
}

fn answer<T>(payload: NetlinkPayload<GenlMessage<T>>) -> Option<Answer<T>>
where
    T: std::fmt::Debug,
{
    match payload {
        NetlinkPayload::InnerMessage(message) => Some(Answer::Message(message.into_parts().1)),
        NetlinkPayload::Error(error) => Some(Answer::Refused(match error.code {
            None => Ok(()),
            Some(code) => Err(Errno::from_raw_os_error(code.get().saturating_abs())),
        })),
        NetlinkPayload::Done(_) => Some(Answer::Done),
        _ => None,
    }
}
