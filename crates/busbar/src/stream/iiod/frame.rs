//! The commands of the binary protocol of libiio 1.x: eight bytes each, some with more behind them.
//!
//! Numbers are little-endian. libiio writes them as its own machine has them, which is the same on all machines that it
//! is used on.

/// Bytes of a command without what follows it, and of an answer.
pub(super) const HEAD: usize = 8;

/// A command. What is in it is not checked against the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// To whom the answer is, among those who share the connection.
    pub id: u16,
    /// The place of the device in the context.
    pub device: usize,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// An answer, which a server has not asked for. So many bytes follow.
    Answer(u32),
    Print,
    /// Milliseconds; negative: no limit.
    Timeout(i32),
    Read(Place),
    /// The value of so many bytes follows.
    Write(Place, u64),
    GetTrigger,
    /// The place of the trigger in the context; -1: none.
    SetTrigger(i32),
    /// A bit for each channel.
    Open(u16, Vec<u32>),
    Close(u16),
    Enable(u16),
    Disable(u16),
    Create(Block, u64),
    Free(Block),
    /// So many bytes are to be received. If the device transmits, they follow.
    Transfer {
        block: Block,
        bytes: u64,
        cyclic: bool,
    },
    /// Waits again for a transfer that has failed.
    Retry(Block),
    CreateEvents,
    /// The stream of the client of this id.
    FreeEvents(u16),
    /// Whether to wait for one.
    ReadEvent(bool),
    ReadRegister(u32),
    WriteRegister {
        address: u32,
        value: u32,
    },
    /// The type of a channel.
    Format(u16),
    Nothing,
    /// `BINARY`, once more.
    Begin,
}

/// The place of an attribute: what it belongs to, and its number among the attributes of that, sorted by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub of: Of,
    pub number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Device,
    Debug,
    Buffer(u16),
    Channel(u16),
    DeviceEvents,
    ChannelEvents(u16),
}

/// A block of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub buffer: u16,
    pub number: u16,
}

/// What the bytes that have come are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The beginning of a command.
    More,
    /// A command, and its bytes. The value of an attribute and samples are not among them.
    Command(Command, usize),
    /// No command.
    Wrong,
}

impl Command {
    /// The command at the beginning of `bytes`; `words` tells the number of 32-bit words in a mask of a device.
    pub(super) fn parse(bytes: &[u8], words: impl FnOnce(usize) -> usize) -> Parsed {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Parsed::More };
        if head == b"BINARY\r\n" {
            return Parsed::Command(Self { id: 0, device: 0, what: What::Begin }, HEAD);
        }
        let [id0, id1, op, device, low0, low1, high0, high1] = *head;
        let (id, device) = (u16::from_le_bytes([id0, id1]), usize::from(device));
        let (low, high) = (u16::from_le_bytes([low0, low1]), u16::from_le_bytes([high0, high1]));
        let code = i32::from_le_bytes([low0, low1, high0, high1]);
        let place = |of| Place { of, number: high };
        let block = Block { buffer: low, number: high };
        let mut rest = Rest { bytes: rest, used: HEAD };
        let what = match op {
            0 => Some(What::Answer(u32::try_from(code).unwrap_or(0))),
            1 => Some(What::Print),
            2 => Some(What::Timeout(code)),
            3 => Some(What::Read(place(Of::Device))),
            4 => Some(What::Read(place(Of::Debug))),
            5 => Some(What::Read(place(Of::Buffer(low)))),
            6 => Some(What::Read(place(Of::Channel(low)))),
            7 => Some(What::Read(place(Of::DeviceEvents))),
            8 => Some(What::Read(place(Of::ChannelEvents(low)))),
            9 => rest.u64().map(|len| What::Write(place(Of::Device), len)),
            10 => rest.u64().map(|len| What::Write(place(Of::Debug), len)),
            11 => rest.u64().map(|len| What::Write(place(Of::Buffer(low)), len)),
            12 => rest.u64().map(|len| What::Write(place(Of::Channel(low)), len)),
            13 => rest.u64().map(|len| What::Write(place(Of::DeviceEvents), len)),
            14 => rest.u64().map(|len| What::Write(place(Of::ChannelEvents(low)), len)),
            15 => Some(What::GetTrigger),
            16 => Some(What::SetTrigger(code)),
            17 => rest.words(words(device)).map(|mask| What::Open(low, mask)),
            18 => Some(What::Close(low)),
            19 => Some(What::Enable(low)),
            20 => Some(What::Disable(low)),
            21 => rest.u64().map(|size| What::Create(block, size)),
            22 => Some(What::Free(block)),
            23 | 24 => rest.u64().map(|bytes| What::Transfer { block, bytes, cyclic: op == 24 }),
            25 => Some(What::Retry(block)),
            26 => Some(What::CreateEvents),
            27 => Some(What::FreeEvents(low)),
            28 => Some(What::ReadEvent(code == 0)),
            29 => Some(What::ReadRegister(code.cast_unsigned())),
            30 => {
                let address = code.cast_unsigned();
                rest.u32().map(|value| What::WriteRegister { address, value })
            }
            31 => Some(What::Format(low)),
            32 => Some(What::Nothing),
            _ => return Parsed::Wrong,
        };
        what.map_or(Parsed::More, |what| Parsed::Command(Self { id, device, what }, rest.used))
    }
}

/// The bytes behind the head of a command.
struct Rest<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl Rest<'_> {
    fn chunk<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (chunk, rest) = self.bytes.split_first_chunk()?;
        (self.bytes, self.used) = (rest, self.used + LEN);
        Some(*chunk)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    fn words(&mut self, count: usize) -> Option<Vec<u32>> {
        (0..count).map(|_| self.u32()).collect()
    }
}

/// An answer: a number, or the length of what follows it.
pub(super) fn answer(id: u16, code: i32) -> [u8; HEAD] {
    let ([id0, id1], [a, b, c, d]) = (id.to_le_bytes(), code.to_le_bytes());
    [id0, id1, 0, 0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A device has two words of a mask.
    fn parse(bytes: &[u8]) -> Parsed {
        Command::parse(bytes, |_| 2)
    }

    #[test]
    fn each_command_has_its_arguments_and_takes_its_bytes() {
        let block = Block { buffer: 0x0201, number: 0x0403 };
        let place = |of| Place { of, number: 0x0403 };
        for (op, more, expected) in [
            (0, 0, What::Answer(0x0403_0201)),
            (1, 0, What::Print),
            (2, 0, What::Timeout(0x0403_0201)),
            (3, 0, What::Read(place(Of::Device))),
            (4, 0, What::Read(place(Of::Debug))),
            (5, 0, What::Read(place(Of::Buffer(0x0201)))),
            (6, 0, What::Read(place(Of::Channel(0x0201)))),
            (7, 0, What::Read(place(Of::DeviceEvents))),
            (8, 0, What::Read(place(Of::ChannelEvents(0x0201)))),
            (9, 8, What::Write(place(Of::Device), 5)),
            (10, 8, What::Write(place(Of::Debug), 5)),
            (11, 8, What::Write(place(Of::Buffer(0x0201)), 5)),
            (12, 8, What::Write(place(Of::Channel(0x0201)), 5)),
            (13, 8, What::Write(place(Of::DeviceEvents), 5)),
            (14, 8, What::Write(place(Of::ChannelEvents(0x0201)), 5)),
            (15, 0, What::GetTrigger),
            (16, 0, What::SetTrigger(0x0403_0201)),
            (17, 8, What::Open(0x0201, vec![5, 0])),
            (18, 0, What::Close(0x0201)),
            (19, 0, What::Enable(0x0201)),
            (20, 0, What::Disable(0x0201)),
            (21, 8, What::Create(block, 5)),
            (22, 0, What::Free(block)),
            (23, 8, What::Transfer { block, bytes: 5, cyclic: false }),
            (24, 8, What::Transfer { block, bytes: 5, cyclic: true }),
            (25, 0, What::Retry(block)),
            (26, 0, What::CreateEvents),
            (27, 0, What::FreeEvents(0x0201)),
            (28, 0, What::ReadEvent(false)),
            (29, 0, What::ReadRegister(0x0403_0201)),
            (30, 4, What::WriteRegister { address: 0x0403_0201, value: 5 }),
            (31, 0, What::Format(0x0201)),
            (32, 0, What::Nothing),
        ] {
            let mut bytes = vec![7, 1, op, 9, 1, 2, 3, 4, 5];
            bytes.resize(HEAD + more.max(1), 0);
            let used = HEAD + more;
            let command = Command { id: 0x0107, device: 9, what: expected };
            assert_eq!(parse(&bytes[..used - 1]), Parsed::More, "{op}");
            assert_eq!(parse(&bytes), Parsed::Command(command, used), "{op}");
        }
    }

    #[test]
    fn what_is_no_command_is_wrong_and_a_second_beginning_is_known() {
        for op in 33..=255 {
            assert_eq!(parse(&[0, 0, op, 0, 0, 0, 0, 0]), Parsed::Wrong, "{op}");
        }
        let begin = Command { id: 0, device: 0, what: What::Begin };
        assert_eq!(parse(b"BINARY\r\nx"), Parsed::Command(begin, HEAD));
        let none = Command { id: 0, device: 0, what: What::Answer(0) };
        assert_eq!(parse(&[0, 0, 0, 0, 0, 0, 0, 0x80]), Parsed::Command(none, HEAD));
    }

    proptest! {
        /// A command is the same whatever follows it, and never longer than what has come.
        #[test]
        fn any_bytes_are_taken_exactly(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            op in 0..40_u8,
            more in any::<[u8; 4]>(),
        ) {
            let mut bytes = bytes;
            if let Some(byte) = bytes.get_mut(2) {
                *byte = op;
            }
            match parse(&bytes) {
                Parsed::Command(command, used) => {
                    prop_assert!(used <= bytes.len());
                    prop_assert_eq!(parse(&bytes[..used - 1]), Parsed::More);
                    bytes.truncate(used);
                    bytes.extend(more);
                    prop_assert_eq!(parse(&bytes), Parsed::Command(command, used));
                }
                Parsed::More => prop_assert!(bytes.len() < HEAD + 8),
                Parsed::Wrong => prop_assert!(bytes.len() >= HEAD && op > 32),
            }
        }

        #[test]
        fn an_answer_is_read_as_one(id in any::<u16>(), code in 0..i32::MAX) {
            let command = Command { id, device: 0, what: What::Answer(code.cast_unsigned()) };
            prop_assert_eq!(parse(&answer(id, code)), Parsed::Command(command, HEAD));
        }
    }
}
