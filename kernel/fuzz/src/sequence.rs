//! Sequences of calls and their text format.
//!
//! One line per call: the thread that makes it, the allocation or copy that fails in it (0: none), the
//! name and the arguments. `r3` is the resource of call 3, `'0aff'` are bytes, `( … )` are the parts of a
//! structure, of an array or of memory that an address points to, `2:…` is the third of several possible
//! types, and `_` is the default of the description. Lines that start with `#` are comments.

use std::fmt::{self, Write as _};

use crate::calls;
use crate::describe::{Call, Type};

/// Most threads of a sequence.
pub const THREADS: usize = 3;
/// Most calls of a sequence.
pub const CALLS: usize = 24;
/// Most repetitions of the concurrent part of a sequence.
pub const ROUNDS: u32 = 8;

/// The value of a [`Type`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The default of the description.
    Auto,
    /// This number; for an address, an invalid one.
    Number(u64),
    /// The resource that this call returned.
    Given(usize),
    /// These bytes.
    Bytes(Vec<u8>),
    /// The values of parts.
    Group(Vec<Value>),
    /// The type with this index, and its value.
    Pick(usize, Box<Value>),
}

/// One call of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The thread that makes it.
    pub thread: usize,
    /// Number of the allocation or copy that fails, from 1; 0 for none.
    pub fault: u32,
    /// Index in [`calls::all`].
    pub call: usize,
    /// One value per argument.
    pub values: Vec<Value>,
}

impl Step {
    /// Returns its description.
    #[must_use]
    pub fn description(&self) -> &'static Call {
        calls::all()[self.call]
    }
}

/// A sequence. Thread 0 starts alone; from the first call of another thread on, all run concurrently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Number of repetitions of the concurrent part, at least 1.
    pub rounds: u32,
    /// The calls; each thread makes its calls in this order.
    pub steps: Vec<Step>,
}

impl Sequence {
    /// Returns the number of calls that thread 0 makes alone.
    #[must_use]
    pub fn alone(&self) -> usize {
        self.steps.iter().position(|step| step.thread != 0).unwrap_or(self.steps.len())
    }

    /// Does every value agree with its description, and refer to earlier calls only?
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_valid = |(index, step): (usize, &Step)| {
            let types = step.description().arguments;
            step.thread < THREADS
                && step.values.len() == types.len()
                && types.iter().zip(&step.values).all(|(of, value)| self.fits(of, value, index))
        };
        (1..=ROUNDS).contains(&self.rounds)
            && self.steps.len() <= CALLS
            && self.steps.iter().enumerate().all(is_valid)
    }

    fn fits(&self, of: &Type, value: &Value, before: usize) -> bool {
        match (of, value) {
            (Type::Given(kind), Value::Given(call)) => {
                let gives = self.steps[..before].get(*call).and_then(|it| it.description().gives);
                gives.is_some_and(|(given, _)| given.is_file() == kind.is_file())
            }
            (Type::Inside(kind, offsets), Value::Group(parts)) => match &parts[..] {
                [base, Value::Number(offset)] => {
                    offsets.contains(offset) && self.fits(&Type::Given(*kind), base, before)
                }
                _ => false,
            },
            (Type::Length(_) | Type::Count(_), Value::Auto | Value::Number(_))
            | (Type::Is(_) | Type::Found(_), Value::Auto)
            | (
                Type::Given(_) | Type::To(_) | Type::Any | Type::Flags(_) | Type::OneOf(_),
                Value::Number(_),
            ) => true,
            (Type::UpTo(most), Value::Number(number)) => number <= most,
            (Type::Room(most), Value::Number(number)) => *number <= *most as u64,
            (Type::Bytes(most), Value::Bytes(bytes)) => bytes.len() <= *most,
            (Type::Text(texts), Value::Number(index)) => *index < texts.len() as u64,
            (Type::To(of) | Type::Attribute(_, of) | Type::Message(of), Value::Group(parts)) => {
                matches!(&parts[..], [part] if self.fits(of, part, before))
            }
            (Type::Struct(fields), Value::Group(parts)) => {
                fields.len() == parts.len()
                    && fields.iter().zip(parts).all(|(it, part)| self.fits(&it.1, part, before))
            }
            (Type::Array(of, most), Value::Group(parts)) => {
                parts.len() <= *most && parts.iter().all(|part| self.fits(of, part, before))
            }
            (Type::AnyOf(types, most), Value::Group(parts)) => {
                let fits = |part: &Value| match part {
                    Value::Pick(index, part) => {
                        types.get(*index).is_some_and(|of| self.fits(of, part, before))
                    }
                    _ => false,
                };
                parts.len() <= *most && parts.iter().all(fits)
            }
            _ => false,
        }
    }

    /// Returns the sequence without the call at `index`; references to it become invalid numbers.
    #[must_use]
    pub fn without(&self, index: usize) -> Self {
        let mut rest = self.clone();
        rest.steps.remove(index);
        rest.renumber(|call| match call {
            _ if call == index => None,
            _ => Some(call - usize::from(call > index)),
        });
        rest
    }

    /// Inserts a call at `index`; its values may refer to earlier calls.
    pub fn insert(&mut self, index: usize, step: Step) {
        self.renumber(|call| Some(call + usize::from(call >= index)));
        self.steps.insert(index, step);
    }

    /// Renumbers references to calls; references without a new number become an invalid descriptor.
    pub fn renumber(&mut self, new: impl Fn(usize) -> Option<usize>) {
        for value in self.steps.iter_mut().flat_map(|step| &mut step.values) {
            value.visit(&mut |value| {
                if let Value::Given(call) = value {
                    *value = new(*call).map_or(Value::Number(u64::MAX), Value::Given);
                }
            });
        }
    }

    /// Parses a sequence.
    ///
    /// # Errors
    /// The text is malformed or does not agree with the descriptions.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let first = lines.next().ok_or("an empty sequence")?;
        let rounds = first.strip_prefix("rounds ").and_then(|it| it.parse().ok());
        let rounds = rounds.ok_or_else(|| format!("{first}: no number of rounds"))?;
        let steps = lines.map(parse_step).collect::<Result<_, _>>()?;
        let sequence = Self { rounds, steps };
        if sequence.is_valid() {
            Ok(sequence)
        } else {
            Err("the values do not agree with the descriptions of the calls".into())
        }
    }
}

impl Value {
    /// Calls `with` for this value and all values in it.
    pub fn visit(&mut self, with: &mut dyn FnMut(&mut Value)) {
        with(self);
        match self {
            Self::Group(parts) => parts.iter_mut().for_each(|part| part.visit(with)),
            Self::Pick(_, part) => part.visit(with),
            _ => {}
        }
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rounds {}", self.rounds)?;
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.thread, self.fault, self.description().name)?;
        self.values.iter().try_for_each(|value| write!(f, " {value}"))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("_"),
            Self::Number(number) => write!(f, "{number:#x}"),
            Self::Given(call) => write!(f, "r{call}"),
            Self::Bytes(bytes) => {
                f.write_char('\'')?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_char('\'')
            }
            Self::Group(parts) => {
                f.write_char('(')?;
                parts.iter().try_for_each(|part| write!(f, " {part}"))?;
                f.write_str(" )")
            }
            Self::Pick(index, part) => write!(f, "{index}:{part}"),
        }
    }
}

fn parse_step(line: &str) -> Result<Step, String> {
    let mut words = line.split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
    let head = number().zip(number()).ok_or_else(|| format!("{line}: no thread and fault"))?;
    let name = words.next().unwrap_or_default();
    let call = calls::all().iter().position(|call| call.name == name);
    let call = call.ok_or_else(|| format!("{name}: no such call"))?;
    let mut values = Vec::new();
    while let Some(word) = words.next() {
        values.push(parse_value(word, &mut words, 0).ok_or_else(|| format!("{line}: at {word}"))?);
    }
    Ok(Step { thread: head.0 as usize, fault: head.1, call, values })
}

fn parse_value<'a>(
    word: &str,
    rest: &mut impl Iterator<Item = &'a str>,
    depth: u32,
) -> Option<Value> {
    // No description is nested as deeply.
    if depth > 20 {
        return None;
    }
    if let Some(number) = word.strip_prefix("0x") {
        return u64::from_str_radix(number, 16).ok().map(Value::Number);
    }
    match word.as_bytes().first()? {
        b'_' => Some(Value::Auto),
        b'r' => word[1..].parse().ok().map(Value::Given),
        b'\'' => parse_bytes(word.strip_prefix('\'')?.strip_suffix('\'')?).map(Value::Bytes),
        b'(' => {
            let mut parts = Vec::new();
            loop {
                match rest.next()? {
                    ")" => return Some(Value::Group(parts)),
                    word => parts.push(parse_value(word, rest, depth + 1)?),
                }
            }
        }
        _ => {
            let (index, part) = word.split_once(':')?;
            let part = parse_value(part, rest, depth + 1)?;
            Some(Value::Pick(index.parse().ok()?, Box::new(part)))
        }
    }
}

fn parse_bytes(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
