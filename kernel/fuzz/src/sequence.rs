//! A sequence of calls, and its text.
//!
//! One line for each call: the thread that makes it, which of its allocations or copies fails (0: none),
//! the name, the arguments. `r3` is what call 3 was given, `'0aff'` are bytes, `( … )` are the parts of a
//! structure, an array or what an address leads to, `2:…` is the third of several things that could be
//! there, `_` what the description says. Lines that start with `#` are not calls.

use std::fmt::{self, Write as _};

use crate::calls;
use crate::describe::{Call, Type};

/// Threads of a sequence.
pub const THREADS: usize = 3;
/// Calls of a sequence.
pub const CALLS: usize = 24;
/// Most rounds of what threads do side by side.
pub const ROUNDS: u32 = 8;

/// What is said for a [`Type`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// As the description says.
    Auto,
    /// This number; for an address one that leads nowhere.
    Number(u64),
    /// What this call was given.
    Given(usize),
    /// These bytes.
    Bytes(Vec<u8>),
    /// Parts.
    Group(Vec<Value>),
    /// The one with this index.
    Pick(usize, Box<Value>),
}

/// One call of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which thread makes it.
    pub thread: usize,
    /// Which of its allocations or copies fails, from 1; 0 for none.
    pub fault: u32,
    /// Index in [`calls::all`].
    pub call: usize,
    /// One for each argument.
    pub values: Vec<Value>,
}

impl Step {
    /// Its description.
    #[must_use]
    pub fn description(&self) -> &'static Call {
        calls::all()[self.call]
    }
}

/// A sequence. Thread 0 starts alone; from the first call of another one on all go on side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// How often threads do what they do side by side, at least once.
    pub rounds: u32,
    /// The calls; each thread keeps their order.
    pub steps: Vec<Step>,
}

impl Sequence {
    /// How many calls thread 0 makes alone.
    #[must_use]
    pub fn alone(&self) -> usize {
        self.steps.iter().position(|step| step.thread != 0).unwrap_or(self.steps.len())
    }

    /// Whether every value is one that its description allows, and names only earlier calls.
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

    /// The sequence without the call at `index`: who was given something by it is given nothing.
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

    /// With another call at `index`; its values name calls before that.
    pub fn insert(&mut self, index: usize, step: Step) {
        self.renumber(|call| Some(call + usize::from(call >= index)));
        self.steps.insert(index, step);
    }

    /// Changes the names of calls; what has none any more becomes the number of no file.
    pub fn renumber(&mut self, new: impl Fn(usize) -> Option<usize>) {
        for value in self.steps.iter_mut().flat_map(|step| &mut step.values) {
            value.visit(&mut |value| {
                if let Value::Given(call) = value {
                    *value = new(*call).map_or(Value::Number(u64::MAX), Value::Given);
                }
            });
        }
    }

    /// The sequence of a text.
    ///
    /// # Errors
    /// What cannot be understood, or is not as the descriptions say.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let first = lines.next().ok_or("an empty sequence")?;
        let rounds = first.strip_prefix("rounds ").and_then(|it| it.parse().ok());
        let rounds = rounds.ok_or_else(|| format!("{first}: not the number of rounds"))?;
        let steps = lines.map(parse_step).collect::<Result<_, _>>()?;
        let sequence = Self { rounds, steps };
        if sequence.is_valid() {
            Ok(sequence)
        } else {
            Err("not as the descriptions of the calls say".into())
        }
    }
}

impl Value {
    /// Shows `with` this value and all in it.
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
    // Deeper than any description.
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
