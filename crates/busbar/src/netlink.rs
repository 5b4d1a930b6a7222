//! A generic netlink socket: one request at a time, answers found by their number.

use std::mem;
use std::os::fd::OwnedFd;
use std::time::Duration;

use busbar_uapi::netlink::{self, control};
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

/// Length of the header of a message, in bytes.
const NETLINK_HEADER_LEN: usize = 16;
/// How long to wait for the answer to a request that the kernel has taken. It executes a request while it
/// takes it, so the answer is there already.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);
/// Larger than any datagram that the kernel sends.
const DATAGRAM: usize = 64 << 10;

/// A request with its attributes.
#[derive(Debug)]
pub(crate) struct Request<'a> {
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
    U8([u8; 1]),
    U16([u8; 2]),
    U32([u8; 4]),
    Bytes(&'a [u8]),
    Nest(Vec<u8>),
}

impl<'a> Request<'a> {
    pub(crate) fn new(command: u8) -> Self {
        Self { command, attributes: Vec::new() }
    }

    /// Attributes without a command, for [`nest`](Self::nest).
    pub(crate) fn nested() -> Self {
        Self::new(0)
    }

    pub(crate) fn u8(self, kind: u16, value: u8) -> Self {
        self.with(kind, Value::U8([value]))
    }

    pub(crate) fn u16(self, kind: u16, value: u16) -> Self {
        self.with(kind, Value::U16(value.to_ne_bytes()))
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, Value::U32(value.to_ne_bytes()))
    }

    pub(crate) fn bytes(self, kind: u16, value: &'a [u8]) -> Self {
        self.with(kind, Value::Bytes(value))
    }

    /// Adds all attributes of another request as one nested attribute.
    pub(crate) fn nest(self, kind: u16, inner: &Request<'_>) -> Self {
        let mut bytes = vec![0; inner.buffer_len()];
        inner.emit(&mut bytes);
        self.with(kind, Value::Nest(bytes))
    }

    fn with(mut self, kind: u16, value: Value<'a>) -> Self {
        self.attributes.push(Attribute { kind, value });
        self
    }
}

impl Attribute<'_> {
    fn bytes(&self) -> &[u8] {
        match &self.value {
            Value::U8(bytes) => bytes,
            Value::U16(bytes) => bytes,
            Value::U32(bytes) => bytes,
            Value::Bytes(bytes) => bytes,
            Value::Nest(bytes) => bytes,
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

    fn is_nested(&self) -> bool {
        matches!(self.value, Value::Nest(_))
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(self.bytes());
    }
}

impl GenlFamily for Request<'_> {
    /// Not used: families are addressed by their numbers.
    fn family_name() -> &'static str {
        ""
    }

    fn command(&self) -> u8 {
        self.command
    }

    /// The version of every family that this library uses.
    fn version(&self) -> u8 {
        1
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

/// A message that was received: a reply or a notification.
#[derive(Debug)]
pub(crate) struct Attributes {
    pub(crate) command: u8,
    all: Vec<(u16, Vec<u8>)>,
}

impl Attributes {
    pub(crate) fn bytes(&self, kind: u16) -> Option<&[u8]> {
        self.all.iter().find(|(found, _)| *found == kind).map(|(_, value)| value.as_slice())
    }

    pub(crate) fn u32(&self, kind: u16) -> Option<u32> {
        self.bytes(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// An integer of variable length (`NLA_UINT`).
    pub(crate) fn uint(&self, kind: u16) -> Option<u64> {
        let bytes = self.bytes(kind)?;
        let short = || Some(u32::from_ne_bytes(bytes.try_into().ok()?).into());
        bytes.try_into().ok().map(u64::from_ne_bytes).or_else(short)
    }

    /// The attributes that are nested in it.
    pub(crate) fn nest(&self, kind: u16) -> Option<Self> {
        let all = attributes(self.bytes(kind)?).ok()?;
        Some(Self { command: self.command, all })
    }

    /// Text, without its NUL byte.
    pub(crate) fn text(&self, kind: u16) -> Option<String> {
        let text = self.bytes(kind)?.split(|byte| *byte == 0).next()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Attributes {
    fn parse_with_param(buffer: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let all = attributes(buffer)?;
        Ok(Self { command: header.cmd, all })
    }
}

/// Kind and value of each attribute.
fn attributes(buffer: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, DecodeError> {
    let attribute = |found: Result<netlink_packet_core::NlaBuffer<&[u8]>, _>| {
        found.map(|it| (it.kind(), it.value().to_vec()))
    };
    NlasIterator::new(buffer).map(attribute).collect()
}

/// What the kernel says about a refusal besides the error number.
#[derive(Debug, Default, PartialEq, Eq)]
struct Explanation {
    text: Option<String>,
    /// It names an attribute of the request as the reason.
    has_culprit: bool,
}

/// What a datagram says about a request.
enum Answer<T> {
    Message(T),
    /// The request was refused, perhaps with an explanation, or acknowledged.
    Refused(Result<(), Errno>, Explanation),
    /// The end of a dump.
    Done,
}

/// A socket of one family.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    family: u16,
    sequence: u32,
    /// The last request.
    request: Vec<u8>,
    /// The last datagram.
    buffer: Vec<u8>,
    /// The kernel's explanation of the last refusal.
    explanation: Explanation,
}

impl Socket {
    pub(crate) fn open(family: &str) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))?;
        // Only messages of the kernel are received.
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        // Without this, a refusal is only an error number.
        let _ = netlink::explain(&fd);
        let (request, buffer) = (Vec::new(), vec![0; DATAGRAM]);
        let explanation = Explanation::default();
        let mut socket = Self { fd, family: 0, sequence: 0, request, buffer, explanation };
        socket.family = socket.resolve(family)?;
        Ok(socket)
    }

    /// A socket on which nothing answers.
    #[cfg(test)]
    pub(crate) fn deaf() -> (Self, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let (fd, other) = pair.unwrap();
        let (request, buffer) = (Vec::new(), vec![0; DATAGRAM]);
        let explanation = Explanation::default();
        (Self { fd, family: 1, sequence: 0, request, buffer, explanation }, other)
    }

    /// The number of a family.
    fn resolve(&mut self, family: &str) -> Result<u16, Errno> {
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(family.into())],
        });
        self.transmit(request, 0)?;
        let deadline = Deadline::after(ANSWER);
        loop {
            for answer in self.receive::<GenlCtrl>(deadline)?.ok_or(Errno::TIMEDOUT)? {
                match answer {
                    Answer::Message(found) => {
                        let id = found.nlas.iter().find_map(|attribute| match attribute {
                            GenlCtrlAttrs::FamilyId(id) => Some(*id),
                            _ => None,
                        });
                        return id.ok_or(Errno::PROTO);
                    }
                    Answer::Refused(result, _) => result?,
                    Answer::Done => {}
                }
            }
        }
    }

    /// Makes a request, and waits for the message with its number; `None` after the deadline.
    pub(crate) fn ask(
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
                    Answer::Refused(result, _) => result?,
                    Answer::Done => {}
                }
            }
        }
    }

    /// Makes a request, and waits until the kernel has done it; `false` after the deadline.
    pub(crate) fn acknowledged(
        &mut self,
        request: Request<'_>,
        deadline: Deadline,
    ) -> Result<bool, Errno> {
        self.transmit(self.message(request), NLM_F_ACK)?;
        loop {
            let Some(answers) = self.receive::<Attributes>(deadline)? else { return Ok(false) };
            for answer in answers {
                if let Answer::Refused(result, _) = answer {
                    return result.map(|()| true);
                }
            }
        }
    }

    /// All messages of a dump.
    pub(crate) fn dump(&mut self, request: Request<'_>) -> Result<Vec<Attributes>, Errno> {
        self.collect(self.message(request))
    }

    /// Whether a command of the family has this attribute, as a flag.
    pub(crate) fn takes_flag(&mut self, command: u8, attribute: u16) -> Result<bool, Errno> {
        let request = Request::new(control::GET_POLICY)
            .u16(control::FAMILY_ID, self.family)
            .u32(control::COMMAND, command.into());
        let mut message = GenlMessage::from_payload(request);
        message.set_resolved_family_id(control::FAMILY);
        let answers = self.collect(message)?;
        let number = |answer: &Attributes| {
            answer.nest(control::COMMAND_POLICY)?.nest(command.into())?.u32(control::DO)
        };
        let Some(policy) = answers.iter().find_map(number) else { return Ok(false) };
        let policy = u16::try_from(policy).map_err(|_| Errno::PROTO)?;
        let kind = |answer: &Attributes| {
            answer.nest(control::POLICY)?.nest(policy)?.nest(attribute)?.u32(control::TYPE)
        };
        Ok(answers.iter().any(|answer| kind(answer) == Some(control::FLAG)))
    }

    /// The kernel's explanation of the refusal of the last request.
    pub(crate) fn explanation(&self) -> Option<&str> {
        self.explanation.text.as_deref()
    }

    /// Whether the kernel refused the last request because of one of its attributes.
    pub(crate) fn has_culprit(&self) -> bool {
        self.explanation.has_culprit
    }

    fn collect(&mut self, message: GenlMessage<Request<'_>>) -> Result<Vec<Attributes>, Errno> {
        self.transmit(message, NLM_F_DUMP)?;
        let mut all = Vec::new();
        loop {
            // The limit is for each part.
            for answer in self.receive(Deadline::after(ANSWER))?.ok_or(Errno::TIMEDOUT)? {
                match answer {
                    Answer::Message(found) => all.push(found),
                    Answer::Refused(result, _) => result?,
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
        self.explanation = Explanation::default();
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

    /// What the next datagram says about the last request; `None` after the deadline.
    fn receive<T>(&mut self, deadline: Deadline) -> Result<Option<Vec<Answer<T>>>, Errno>
    where
        T: ParseableParametrized<[u8], GenlHeader> + std::fmt::Debug,
    {
        let length = loop {
            // Wait first: an answer may take a while.
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
                let is_explained = message.header.flags & netlink::EXPLAINED != 0;
                answers.extend(answer(message.payload, is_explained));
            }
        }
        for answer in &mut answers {
            if let Answer::Refused(Err(_), explanation) = answer {
                self.explanation = mem::take(explanation);
            }
        }
        Ok(Some(answers))
    }
}

fn answer<T>(payload: NetlinkPayload<GenlMessage<T>>, is_explained: bool) -> Option<Answer<T>>
where
    T: std::fmt::Debug,
{
    match payload {
        NetlinkPayload::InnerMessage(message) => Some(Answer::Message(message.into_parts().1)),
        NetlinkPayload::Error(error) => {
            let result = error
                .code
                .map_or(Ok(()), |code| Err(Errno::from_raw_os_error(code.get().saturating_abs())));
            let explanation = is_explained.then(|| explanation(&error.header));
            Some(Answer::Refused(result, explanation.unwrap_or_default()))
        }
        // A dump that fails also ends with `NLMSG_DONE`.
        NetlinkPayload::Done(done) if done.code < 0 => {
            let errno = Errno::from_raw_os_error(-done.code);
            Some(Answer::Refused(Err(errno), Explanation::default()))
        }
        NetlinkPayload::Done(_) => Some(Answer::Done),
        _ => None,
    }
}

/// The explanation, which follows the header of the refused request.
fn explanation(refusal: &[u8]) -> Explanation {
    let all = refusal.get(NETLINK_HEADER_LEN..).and_then(|rest| attributes(rest).ok());
    let all = all.unwrap_or_default();
    let find = |wanted| all.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let text = find(netlink::TEXT).and_then(|text| text.split(|byte| *byte == 0).next());
    let text = text.map(|text| String::from_utf8_lossy(text).into_owned());
    Explanation {
        text: text.filter(|text| !text.is_empty()),
        has_culprit: find(netlink::CULPRIT).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_tell_the_attributes_of_a_command() {
        // `nlctrl`, the family of families, is in every kernel.
        let mut socket = Socket::open("nlctrl").unwrap();
        assert_eq!(socket.family, control::FAMILY);
        for attribute in [control::FAMILY_ID, control::COMMAND, 99] {
            assert_eq!(socket.takes_flag(control::GET_POLICY, attribute), Ok(false));
        }
        assert_eq!(socket.takes_flag(200, 1), Err(Errno::NOENT));
        assert_eq!(Socket::open("busbar-none").map(drop), Err(Errno::NOENT));
    }

    #[test]
    fn nested_attributes_are_found_again() {
        let inner = Request::nested().u32(1, 7).u8(2, 3);
        let request = Request::new(9).nest(5, &inner).bytes(6, b"text\0");
        let mut bytes = vec![0; request.buffer_len()];
        request.emit(&mut bytes);
        let found = Attributes { command: 9, all: attributes(&bytes).unwrap() };
        let nested = found.nest(5).unwrap();
        assert_eq!((nested.u32(1), nested.uint(1), nested.uint(2)), (Some(7), Some(7), None));
        assert_eq!(found.text(6).as_deref(), Some("text"));
        assert!(found.nest(6).is_none() && found.nest(7).is_none());
    }

    #[test]
    fn refusals_are_explained() {
        let text =
            Request::new(0).u32(netlink::CULPRIT, 20).bytes(netlink::TEXT, b"no such queue\0");
        let mut bytes = vec![0; NETLINK_HEADER_LEN + text.buffer_len()];
        text.emit(&mut bytes[NETLINK_HEADER_LEN..]);
        let found = explanation(&bytes);
        assert_eq!((found.text.as_deref(), found.has_culprit), (Some("no such queue"), true));
        // The attribute without a text: its header and number are the first eight bytes.
        let found = explanation(&bytes[..NETLINK_HEADER_LEN + 8]);
        assert_eq!((found.text, found.has_culprit), (None, true));
        assert_eq!(explanation(&bytes[..NETLINK_HEADER_LEN]), Explanation::default());
        assert_eq!(explanation(&[]), Explanation::default());
    }
}
