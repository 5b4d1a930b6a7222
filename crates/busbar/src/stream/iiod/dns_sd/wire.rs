//! Messages of multicast DNS, as far as a responder and a short search need them: RFC 1035 and 6762.

/// Most bytes of a label, and of a name as it is sent.
pub(super) const MOST_LABEL: usize = 63;
const MOST_NAME: usize = 255;
/// Most pointers of a name that is received. Each leads to more labels in what others send.
const MOST_POINTERS: usize = 16;
/// Most bytes of all names of a message that is received, without pointers.
const MOST_NAMES: usize = 32 << 10;
/// Most bytes of a message.
pub(super) const MOST_MESSAGE: usize = 9000;

pub(super) const A: u16 = 1;
pub(super) const PTR: u16 = 12;
pub(super) const TXT: u16 = 16;
pub(super) const AAAA: u16 = 28;
pub(super) const SRV: u16 = 33;
pub(super) const ANY: u16 = 255;

const IN: u16 = 1;
/// Of a record: others of its name and kind are out of date.
const ONLY: u16 = 0x8000;
/// An answer, by who is responsible.
const ANSWER: u16 = 0x8400;

/// A name as it is sent without pointers: labels of at most 63 bytes, each behind its length, and a zero. Upper and lower
/// case are the same.
#[derive(Clone, Debug)]
pub(super) struct Name(Vec<u8>);

impl Name {
    /// A label before a name such as `_iio._tcp.local`.
    pub(super) fn new(label: &str, rest: &str) -> Self {
        let labels = Some(label).filter(|it| !it.is_empty()).into_iter().chain(rest.split('.'));
        let mut bytes = Vec::new();
        for label in labels {
            let label = &label.as_bytes()[..label.len().min(MOST_LABEL)];
            bytes.push(u8::try_from(label.len()).unwrap_or(0));
            bytes.extend_from_slice(label);
        }
        bytes.push(0);
        Self(bytes)
    }

    pub(super) fn of(text: &str) -> Self {
        Self::new("", text)
    }

    /// The first label.
    pub(super) fn label(&self) -> &[u8] {
        let len = self.0.first().map_or(0, |it| usize::from(*it));
        self.0.get(1..=len).unwrap_or_default()
    }
}

impl PartialEq for Name {
    /// Lengths are no letters, so the case of letters alone is ignored.
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

#[derive(Debug)]
pub(super) struct Question {
    pub(super) name: Name,
    pub(super) kind: u16,
}

/// A record that was received.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: Name,
    /// Seconds for which it is valid.
    pub(super) ttl: u32,
    pub(super) data: Data,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Address(std::net::IpAddr),
    Name(Name),
    Service { port: u16, host: Name },
    Other,
}

#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u16,
    pub(super) is_answer: bool,
    pub(super) questions: Vec<Question>,
    /// Answers, those of the authority section, and additional ones.
    pub(super) records: Vec<Record>,
}

/// Reads bytes from a position on.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bytes of names that may still be read.
    names_left: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, names_left: MOST_NAMES }
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let found = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(found)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|it| u16::from_be_bytes([it[0], it[1]]))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    /// A name. The end of it may be that of one before it.
    fn name(&mut self) -> Option<Name> {
        let (mut name, mut pointers, mut after) = (Vec::new(), 0, None);
        let mut part = self.at;
        loop {
            let head = self.take(1)?[0];
            match head >> 6 {
                0 => {
                    name.push(head);
                    if head == 0 {
                        break;
                    }
                    name.extend_from_slice(self.take(head.into())?);
                    if name.len() >= MOST_NAME {
                        return None;
                    }
                }
                3 => {
                    let to = usize::from(head & 0x3f) << 8 | usize::from(self.take(1)?[0]);
                    after.get_or_insert(self.at);
                    pointers += 1;
                    // Each part begins before the one that points to it, so that this ends.
                    if to >= part || pointers > MOST_POINTERS {
                        return None;
                    }
                    (self.at, part) = (to, to);
                }
                _ => return None,
            }
        }
        self.at = after.unwrap_or(self.at);
        self.names_left = self.names_left.checked_sub(name.len())?;
        Some(Name(name))
    }

    fn record(&mut self) -> Option<Record> {
        let (name, kind, _) = (self.name()?, self.u16()?, self.u16()?);
        let (ttl, len) = (self.u32()?, usize::from(self.u16()?));
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len())?;
        let data = match (kind, len) {
            (A, 4) => self
                .take(4)
                .and_then(|it| <[u8; 4]>::try_from(it).ok())
                .map(|it| Data::Address(it.into())),
            (AAAA, 16) => self
                .take(16)
                .and_then(|it| <[u8; 16]>::try_from(it).ok())
                .map(|it| Data::Address(it.into())),
            (PTR, _) => self.name().map(Data::Name),
            (SRV, 6..) => {
                self.at += 4;
                let port = self.u16()?;
                self.name().map(|host| Data::Service { port, host })
            }
            _ => Some(Data::Other),
        };
        self.at = end;
        Some(Record { name, ttl, data: data? })
    }
}

/// Reads a message. What comes after something that is not understood is left out.
pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
    let mut reader = Reader::new(&bytes[..bytes.len().min(MOST_MESSAGE)]);
    let (id, flags) = (reader.u16()?, reader.u16()?);
    let questions = reader.u16()?;
    let records = (0..3).map(|_| reader.u16().map(u32::from)).sum::<Option<u32>>()?;
    let question = |reader: &mut Reader<'_>| {
        let (name, kind, _) = (reader.name()?, reader.u16()?, reader.u16()?);
        Some(Question { name, kind })
    };
    let questions: Vec<_> = (0..questions).map_while(|_| question(&mut reader)).collect();
    let records = (0..records).map_while(|_| reader.record()).collect();
    Some(Message { id, is_answer: flags & 0x8000 != 0, questions, records })
}

/// A message that is written.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    fn new(id: u16, flags: u16) -> Self {
        let words = [id, flags, 0, 0, 0, 0];
        Self(words.into_iter().flat_map(u16::to_be_bytes).collect())
    }

    pub(super) fn answer(id: u16) -> Self {
        Self::new(id, ANSWER)
    }

    pub(super) fn query() -> Self {
        Self::new(0, 0)
    }

    /// Counts one more question (0), answer (1) or record of authority (2).
    fn count(&mut self, section: usize) {
        let at = 4 + 2 * section;
        let count = u16::from_be_bytes([self.0[at], self.0[at + 1]]) + 1;
        self.0[at..at + 2].copy_from_slice(&count.to_be_bytes());
    }

    fn words(&mut self, words: &[u16]) {
        self.0.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    }

    pub(super) fn question(&mut self, name: &Name, kind: u16) {
        self.count(0);
        self.0.extend_from_slice(&name.0);
        self.words(&[kind, IN]);
    }

    /// A record of a section. `is_only`: others of its name and kind are out of date.
    pub(super) fn record(
        &mut self,
        section: usize,
        (name, kind, is_only): (&Name, u16, bool),
        ttl: u32,
        data: &[u8],
    ) {
        self.count(section);
        self.0.extend_from_slice(&name.0);
        self.words(&[kind, if is_only { IN | ONLY } else { IN }]);
        self.0.extend_from_slice(&ttl.to_be_bytes());
        self.words(&[u16::try_from(data.len()).unwrap_or(0)]);
        self.0.extend_from_slice(data);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The data of a record that is a name.
pub(super) fn name_data(name: &Name) -> Vec<u8> {
    name.0.clone()
}

/// The data of `SRV`.
pub(super) fn service_data(port: u16, host: &Name) -> Vec<u8> {
    [&[0; 4], &port.to_be_bytes()[..], &host.0].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (name, host) = (Name::new("a.b", "_iio._tcp.local"), Name::of("vm.local"));
        let mut writer = Writer::answer(7);
        writer.question(&name, ANY);
        writer.record(1, (&name, SRV, true), 120, &service_data(4000, &host));
        writer.record(1, (&host, A, true), 120, &[10, 0, 0, 1]);
        writer.record(2, (&Name::of("_iio._tcp.local"), PTR, false), 0, &name_data(&name));
        let message = parse(&writer.finish()).unwrap();
        assert_eq!((message.id, message.is_answer), (7, true));
        assert!(message.questions[0].name == name && message.questions[0].kind == ANY);
        let data: Vec<_> = message.records.into_iter().map(|it| it.data).collect();
        let address = Data::Address([10, 0, 0, 1].into());
        assert_eq!(data, [Data::Service { port: 4000, host }, address, Data::Name(name)]);
    }

    #[test]
    fn a_name_may_end_like_one_before_it_and_never_like_itself() {
        let read = |bytes: &[u8], at| Reader { at, ..Reader::new(bytes) }.name();
        assert_eq!(read(b"\x01a\x01b\0\x01c\xc0\x02", 5), Some(Name::of("c.b")));
        assert_eq!(read(b"\xc0\x00", 0), None);
        assert_eq!(read(b"\x01a\xc0\x00", 0), None);
        assert_eq!(read(b"\x01a\xc0\x02", 0), None);
        assert_eq!(read(b"\x40a\0", 0), None);
        assert_eq!(read(&[b"\x3f".as_slice(), &[b'x'; 63]].concat().repeat(5), 0), None);
    }

    /// Questions whose names end at a place before them.
    fn questions(before: &[u8], end: usize) -> Vec<u8> {
        let mut writer = Writer::query();
        writer.0[4..6].copy_from_slice(&u16::MAX.to_be_bytes());
        writer.0.extend_from_slice(before);
        let [high, low] = u16::try_from(end).unwrap().to_be_bytes();
        let question = [0xc0 | high, low, 0, 1, 0, 1];
        writer.0.extend(question.iter().cycle().take(MOST_MESSAGE - writer.0.len()));
        writer.finish()
    }

    #[test]
    fn pointers_do_not_make_a_message_greater_than_it_is() {
        // A name of 253 bytes, and many more of the same.
        let long = [&b"\x01a".repeat(126)[..], b"\0\0\x01\0\x01"].concat();
        let found = parse(&questions(&long, 12)).unwrap();
        assert_eq!(found.questions.len(), MOST_NAMES / 253);
        // A root, and pointers to each other behind it, from the last of which all questions begin.
        let chain = |pointers: u16| {
            let mut bytes = b"\0\0\x01\0\x01".to_vec();
            for index in 0..pointers {
                let to = if index == 0 { 12 } else { 12 + 5 + 6 * (index - 1) };
                bytes.extend_from_slice(&(0xc000 | to).to_be_bytes());
                bytes.extend_from_slice(&[0, 1, 0, 1]);
            }
            let last = 12 + 5 + 6 * (usize::from(pointers) - 1);
            parse(&questions(&bytes, last)).unwrap().questions.len()
        };
        let all = 1 + (MOST_MESSAGE - 12 - 5) / 6;
        assert_eq!(chain(15), all);
        // The question with the seventeenth pointer is the first that is not read.
        assert_eq!(chain(100), 1 + 16);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600),
            count in 0..8_u8,
        ) {
            if bytes.len() > 12 {
                for at in [4, 6, 8, 10] {
                    bytes[at..at + 2].copy_from_slice(&[0, count]);
                }
            }
            if let Some(message) = parse(&bytes) {
                let names = message.questions.iter().map(|it| &it.name);
                for name in names.chain(message.records.iter().map(|it| &it.name)) {
                    prop_assert!(name.0.len() <= MOST_NAME);
                }
            }
        }
    }
}
