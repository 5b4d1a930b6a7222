//! Converts the values of a call to its arguments and its memory.

use std::collections::HashMap;

use crate::describe::{Found, Kind, Type};
use crate::sequence::{Step, Value};

/// Numbers that were determined in the guest.
pub type Numbers = HashMap<Found, u64>;

/// Placeholder for an address in the last bytes of a thread's memory, so that accesses fail half way.
pub const EDGE: u64 = 0xed6e;
/// Number of bytes between the address for [`EDGE`] and the end of the memory.
const EDGE_ROOM: u64 = 4;
/// Alignment of memory within the memory.
const ALIGN: usize = 8;

/// The image of a call: everything needed to make it.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// The arguments.
    pub words: [u64; 6],
    /// The bytes at the start of the thread's memory.
    pub bytes: Vec<u8>,
}

/// Turns values into bytes.
pub struct Maker<'a> {
    /// Address and size of the thread's memory.
    pub memory: (u64, usize),
    /// Numbers that were determined in the guest.
    pub numbers: &'a Numbers,
    /// Returns the resource of an earlier call.
    pub given: &'a dyn Fn(usize) -> u64,
}

impl Maker<'_> {
    /// Makes the image of a step, or returns `None` if it does not fit into the memory.
    pub fn make(&self, step: &Step) -> Option<Image> {
        let types = step.description().arguments;
        let mut image = Image { words: [0; 6], bytes: Vec::new() };
        let mut sizes = Vec::new();
        for (of, value) in types.iter().zip(&step.values) {
            let (word, size) = self.number(of, value, &mut image.bytes);
            image.words[sizes.len()] = word;
            sizes.push(size);
        }
        for (index, (of, value)) in types.iter().zip(&step.values).enumerate() {
            if let Some(number) = measured(of, value, &sizes, &step.values) {
                image.words[index] = number;
            }
        }
        (image.bytes.len() <= self.memory.1).then_some(image)
    }

    /// Returns a number, and the size of the memory that it points to.
    fn number(&self, of: &Type, value: &Value, memory: &mut Vec<u8>) -> (u64, usize) {
        match (of, value) {
            (Type::Found(found), _) => (self.numbers.get(found).copied().unwrap_or(0), 0),
            (Type::To(of), Value::Group(parts)) => {
                let bytes = self.bytes(of, &parts[0], memory);
                memory.resize(memory.len().next_multiple_of(ALIGN), 0);
                let at = memory.len();
                memory.extend(&bytes);
                (self.memory.0 + at as u64, bytes.len())
            }
            (Type::To(_), Value::Number(EDGE)) => {
                (self.memory.0 + self.memory.1 as u64 - EDGE_ROOM, 0)
            }
            (Type::Inside(kind, _), Value::Group(parts)) => {
                let (base, _) = self.number(&Type::Given(*kind), &parts[0], memory);
                let (offset, _) = self.number(&Type::Any, &parts[1], memory);
                (base.wrapping_add(offset), 0)
            }
            (Type::Given(kind), Value::Given(call)) => match (self.given)(*call) {
                // The mapping does not exist: use an invalid address.
                u64::MAX if *kind == Kind::Mapping => (0, 0),
                given => (given, 0),
            },
            (Type::Is(number), _) | (_, Value::Number(number)) => (*number, 0),
            _ => (0, 0),
        }
    }

    /// Returns the bytes of a value that is memory.
    fn bytes(&self, of: &Type, value: &Value, memory: &mut Vec<u8>) -> Vec<u8> {
        match (of, value) {
            (Type::Text(texts), Value::Number(index)) => {
                let text = texts.get(usize::try_from(*index).unwrap_or(0)).unwrap_or(&"");
                [text.as_bytes(), b"\0"].concat()
            }
            (Type::Bytes(_), Value::Bytes(bytes)) => bytes.clone(),
            (Type::Room(_), Value::Number(len)) => vec![0; usize::try_from(*len).unwrap_or(0)],
            (Type::Struct(fields), Value::Group(parts)) => self.fields(fields, parts, memory),
            (Type::Array(of, _), Value::Group(parts)) => {
                parts.iter().flat_map(|part| self.bytes(of, part, memory)).collect()
            }
            (Type::AnyOf(types, _), Value::Group(parts)) => {
                let one = |part: &Value| match part {
                    Value::Pick(index, part) => self.bytes(&types[*index], part, memory),
                    _ => Vec::new(),
                };
                parts.iter().flat_map(one).collect()
            }
            (Type::Attribute(kind, of), Value::Group(parts)) => {
                let content = self.bytes(of, &parts[0], memory);
                let len = u16::try_from(content.len() + 4).unwrap_or(u16::MAX);
                let mut bytes = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &content].concat();
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                bytes
            }
            (Type::Message(of), Value::Group(parts)) => {
                let content = self.bytes(of, &parts[0], memory);
                let len = u32::try_from(content.len() + 4).unwrap_or(u32::MAX);
                [&len.to_ne_bytes()[..], &content].concat()
            }
            _ => Vec::new(),
        }
    }

    fn fields(
        &self,
        fields: &[crate::describe::Field],
        parts: &[Value],
        memory: &mut Vec<u8>,
    ) -> Vec<u8> {
        let mut sizes = Vec::new();
        let mut contents = Vec::new();
        for (field, part) in fields.iter().zip(parts) {
            let (content, size) = if is_memory(&field.1) {
                let mut bytes = self.bytes(&field.1, part, memory);
                if field.0 > 0 {
                    bytes.resize(field.0, 0);
                }
                let size = bytes.len();
                (bytes, size)
            } else {
                let (number, size) = self.number(&field.1, part, memory);
                (number.to_le_bytes()[..field.0].to_vec(), size)
            };
            contents.push(content);
            sizes.push(size);
        }
        for (index, (field, part)) in fields.iter().zip(parts).enumerate() {
            if let Some(number) = measured(&field.1, part, &sizes, parts) {
                contents[index] = number.to_le_bytes()[..field.0].to_vec();
            }
        }
        contents.concat()
    }
}

/// Computes a length or a count, unless the value specifies another number.
fn measured(of: &Type, value: &Value, sizes: &[usize], values: &[Value]) -> Option<u64> {
    match (of, value) {
        (Type::Length(index), Value::Auto) => Some(sizes[*index] as u64),
        (Type::Count(index), Value::Auto) => match &values[*index] {
            Value::Group(parts) => match parts.first() {
                Some(Value::Group(parts)) => Some(parts.len() as u64),
                _ => Some(0),
            },
            _ => Some(0),
        },
        _ => None,
    }
}

/// Is this type memory and not a number?
pub fn is_memory(of: &Type) -> bool {
    matches!(
        of,
        Type::Text(_)
            | Type::Bytes(_)
            | Type::Room(_)
            | Type::Struct(_)
            | Type::Array(..)
            | Type::AnyOf(..)
            | Type::Attribute(..)
            | Type::Message(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Sequence;

    const BASE: u64 = 0x10_0000;

    /// Returns the image of a sequence's last call, where call N returned the resource 100 + N.
    fn image(text: &str) -> Image {
        let sequence = Sequence::parse(&format!("rounds 1\n{text}")).unwrap();
        let numbers = Numbers::from([(Found::RpmsgFamily, 0x1c)]);
        let maker =
            Maker { memory: (BASE, 4096), numbers: &numbers, given: &|call| 100 + call as u64 };
        maker.make(sequence.steps.last().unwrap()).unwrap()
    }

    #[test]
    fn addresses_lead_to_what_is_there_and_lengths_are_measured() {
        let image = image("0 0 eventfd 0x0 0x0\n0 0 write r0 ( '0102030405' ) _\n");
        assert_eq!(image.words, [100, BASE, 5, 0, 0, 0]);
        assert_eq!(image.bytes, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_batch_is_as_long_as_it_says() {
        let command = "( 0x0 0x1 r1 0x5 0x7 0x8 0x0 )";
        let text = format!(
            "0 0 epoll_create 0x0\n0 0 eventfd 0x0 0x0\n\
             0 0 epoll_ctl_batch r0 0x0 _ ( ( {command} {command} ) )\n"
        );
        let image = image(&text);
        assert_eq!(image.words, [100, 0, 2, BASE, 0, 0]);
        let mut wanted = Vec::new();
        for number in [0u32, 1, 101, 5, 7, 0, 8, 0].repeat(2) {
            wanted.extend(number.to_ne_bytes());
        }
        assert_eq!(image.bytes, wanted);
    }

    #[test]
    fn memory_in_memory_lies_before_what_leads_to_it() {
        let text = "0 0 epoll_create 0x0\n\
             0 0 epoll_pwait1 r0 0x0 ( 0xc ) 0x1 ( ( 0x1 0x0 ( ( 0x2 0x3 ) ) 0x0 0x8 ( ) ) ) _\n";
        let image = image(text);
        // Room for an event, padded; the time; the structure with the address of the time.
        assert_eq!(image.words, [100, 0, BASE, 1, BASE + 32, 32]);
        assert_eq!(image.bytes[16..32], [2u64.to_ne_bytes(), 3u64.to_ne_bytes()].concat());
        assert_eq!(image.bytes[40..48], (BASE + 16).to_ne_bytes());
        assert_eq!(image.bytes.len(), 64);
    }

    #[test]
    fn messages_of_netlink_have_their_lengths() {
        let text = "0 0 generic_socket _ 0x3 _\n0 0 rpmsg_request r0 \
             ( ( ( _ 0x5 0x2 _ 0x4 _ _ ( 0:( ( 0x1 ) ) 6:( 'aabbcc' ) ) ) ) ) _ 0x0 _ _\n";
        let image = image(text);
        let wanted = [
            36, 0, 0, 0, 0x1c, 0, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 8, 0, 1, 0, 1, 0, 0, 0,
            7, 0, 7, 0, 0xaa, 0xbb, 0xcc, 0,
        ];
        assert_eq!(image.bytes, wanted);
        assert_eq!(image.words[2], 36);
    }

    #[test]
    fn texts_are_cut_to_their_field_and_addresses_may_lead_nowhere() {
        let text = "0 0 open_control _ ( 0x0 ) 0x2\n\
                    0 0 create_ept_fd r0 _ ( ( 0x4 0x500 0x400 0x2 _ ) )\n";
        let image = image(text);
        assert_eq!(image.bytes.len(), 48);
        assert_eq!(&image.bytes[..32], b"a-name-that-is-longer-than-thirt");
        let edge = super::tests::image("0 0 write 0x5 0xed6e 0x8\n");
        assert_eq!(edge.words[1], BASE + 4096 - 4);
        assert_eq!(super::tests::image("0 0 write 0x5 0x8 0x8\n").words[1], 8);
    }
}
