//! Generates and mutates sequences.

use fastrand::Rng;

use crate::calls;
use crate::describe::{Kind, Type};
use crate::image::EDGE;
use crate::sequence::{CALLS, ROUNDS, Sequence, Step, THREADS, Value};

/// Addresses that are invalid, or at the edge of valid memory.
const AWAY: [u64; 6] = [0, 8, EDGE, 1 << 63, 0xffff_8880_0000_0000, u64::MAX];
/// Numbers at the limits of types and ranges.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0xff,
    0x1000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 62,
    1 << 63,
    u64::MAX,
];
/// Descriptors that refer to no file.
const NO_FILE: [u64; 3] = [u64::MAX, 0xf_ffff, 0xffff_ff9c];
/// Faults are injected into one of this number of allocations and copies of a call.
const FAULTS: u32 = 30;

/// A random source of sequences.
#[derive(Debug)]
pub struct Mutator {
    random: Rng,
}

impl Mutator {
    /// Creates a source; the same seed yields the same sequences.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed) }
    }

    /// Chooses one of several elements.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.random.usize(..of.len())]
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    /// Generates a new sequence.
    pub fn create(&mut self) -> Sequence {
        let mut sequence = Sequence { rounds: 1, steps: Vec::new() };
        for _ in 0..self.random.usize(2..=8) {
            self.add(&mut sequence);
        }
        if self.one_in(3) {
            self.spread(&mut sequence);
        }
        sequence
    }

    /// Returns a mutation of a sequence; calls may be taken from `other`.
    pub fn change(&mut self, sequence: &Sequence, other: &Sequence) -> Sequence {
        let mut changed = sequence.clone();
        for _ in 0..self.random.usize(1..=4) {
            match self.random.u32(..12) {
                0..=2 => self.add(&mut changed),
                3 => self.remove(&mut changed),
                4 => self.repeat(&mut changed),
                5 => self.join(&mut changed, other),
                6 => self.spread(&mut changed),
                7 => self.fail(&mut changed),
                _ => self.change_values(&mut changed),
            }
        }
        if changed.steps.is_empty() { self.create() } else { changed }
    }

    /// Adds a call at the end or anywhere, preceded by calls that return the resources it needs.
    fn add(&mut self, sequence: &mut Sequence) {
        let end = sequence.steps.len();
        let at = if self.random.bool() { end } else { self.random.usize(..=end) };
        let call = self.random.usize(..calls::all().len());
        self.insert(sequence, at, call, 0);
    }

    /// Inserts a call if there is room; returns its index.
    fn insert(
        &mut self,
        sequence: &mut Sequence,
        at: usize,
        call: usize,
        depth: u32,
    ) -> Option<usize> {
        let before = sequence.steps.len();
        let types = calls::all()[call].arguments;
        let values = self.values(types.iter(), sequence, at, depth);
        if sequence.steps.len() >= CALLS {
            return None;
        }
        let at = at + sequence.steps.len() - before;
        let thread = sequence.steps.get(at).map_or_else(
            || sequence.steps.last().map_or(0, |step| step.thread),
            |step| step.thread,
        );
        sequence.insert(at, Step { thread, fault: 0, call, values });
        Some(at)
    }

    /// Generates a value; also returns the number of calls that were added before `at` for it.
    fn value(
        &mut self,
        of: &Type,
        sequence: &mut Sequence,
        at: usize,
        depth: u32,
    ) -> (Value, usize) {
        let before = sequence.steps.len();
        let value = match of {
            Type::Is(_) | Type::Found(_) => Value::Auto,
            Type::Length(_) | Type::Count(_) if !self.one_in(20) => Value::Auto,
            Type::Length(_) | Type::Count(_) | Type::Any => Value::Number(self.number()),
            Type::OneOf(_) | Type::Flags(_) if self.one_in(30) => Value::Number(self.number()),
            Type::OneOf(numbers) => Value::Number(*self.choose(numbers)),
            Type::Flags(flags) => {
                let all = flags.iter().filter(|_| self.one_in(3));
                Value::Number(all.fold(0, |all, flag| all | flag))
            }
            Type::UpTo(most) => Value::Number(self.random.u64(..=*most)),
            Type::Given(kind) => self.given(*kind, sequence, at, depth),
            Type::Inside(kind, offsets) => {
                let base = self.given(*kind, sequence, at, depth);
                Value::Group(vec![base, Value::Number(*self.choose(offsets))])
            }
            Type::To(_) if self.one_in(40) => Value::Number(*self.choose(&AWAY)),
            Type::To(of) | Type::Attribute(_, of) | Type::Message(of) => {
                Value::Group(vec![self.value(of, sequence, at, depth).0])
            }
            Type::Text(texts) => Value::Number(self.random.u64(..texts.len() as u64)),
            Type::Bytes(most) => Value::Bytes(self.bytes(*most)),
            Type::Room(most) => Value::Number(self.up_to(*most) as u64),
            Type::Struct(fields) => {
                let types = fields.iter().map(|field| &field.1);
                Value::Group(self.values(types, sequence, at, depth))
            }
            Type::Array(of, most) => {
                let len = if self.one_in(4) { *most } else { 4.min(*most) };
                let types = vec![*of; self.random.usize(..=len)];
                Value::Group(self.values(types.into_iter(), sequence, at, depth))
            }
            Type::AnyOf(types, most) => self.any_of(types, *most, sequence, at, depth),
        };
        (value, sequence.steps.len() - before)
    }

    /// Generates several values; calls that a value needs are inserted before those of earlier values.
    fn values<'a>(
        &mut self,
        types: impl Iterator<Item = &'a Type>,
        sequence: &mut Sequence,
        mut at: usize,
        depth: u32,
    ) -> Vec<Value> {
        let make = |of| {
            let (value, added) = self.value(of, sequence, at, depth);
            at += added;
            value
        };
        types.map(make).collect()
    }

    /// Generates elements: mostly all types in their order, as in most requests.
    fn any_of(
        &mut self,
        types: &[Type],
        most: usize,
        sequence: &mut Sequence,
        mut at: usize,
        depth: u32,
    ) -> Value {
        let keep = self.random.u32(2..=4);
        let mut picks: Vec<usize> =
            (0..types.len()).filter(|_| !self.one_in(keep)).take(most).collect();
        if self.one_in(8) && !picks.is_empty() {
            let again = *self.choose(&picks);
            picks.push(again);
            self.random.shuffle(&mut picks);
            picks.truncate(most);
        }
        let mut parts = Vec::new();
        for index in picks {
            let (part, added) = self.value(&types[index], sequence, at, depth);
            at += added;
            parts.push(Value::Pick(index, Box::new(part)));
        }
        Value::Group(parts)
    }

    /// Chooses the resource of an earlier call; often adds a new call that returns one.
    fn given(&mut self, kind: Kind, sequence: &mut Sequence, at: usize, depth: u32) -> Value {
        if self.one_in(60) {
            return Value::Number(*self.choose(&NO_FILE));
        }
        let any = kind == Kind::File || (kind.is_file() && self.one_in(40));
        let fits = |given: Kind| if any { given.is_file() } else { given == kind };
        let there: Vec<usize> = (0..at).filter(|&index| gives(sequence, index, fits)).collect();
        if !there.is_empty() && !self.one_in(8) {
            return Value::Given(*self.choose(&there));
        }
        let makers: Vec<usize> = (0..calls::all().len())
            .filter(|&call| calls::all()[call].gives.is_some_and(|(given, _)| fits(given)))
            .collect();
        if depth < 4 && !makers.is_empty() && sequence.steps.len() + 1 < CALLS {
            let maker = *self.choose(&makers);
            if let Some(index) = self.insert(sequence, at, maker, depth + 1) {
                return Value::Given(index);
            }
        }
        there.last().map_or(Value::Number(u64::MAX), |&index| Value::Given(index))
    }

    fn number(&mut self) -> u64 {
        match self.random.u32(..4) {
            0 => self.random.u64(..),
            1 => self.random.u64(..16),
            _ => *self.choose(&EDGES),
        }
    }

    /// Chooses a number: the maximum, a small one, or one between.
    fn up_to(&mut self, most: usize) -> usize {
        match self.random.u32(..4) {
            0 => self.random.usize(..=most),
            1 => self.random.usize(..=most.min(16)),
            _ => most,
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let most = if most > 64 && !self.one_in(6) { 64 } else { most };
        let mut bytes = vec![0; self.up_to(most)];
        match self.random.u32(..3) {
            0 => self.random.fill(&mut bytes),
            1 => bytes.fill(0xff),
            _ => {}
        }
        bytes
    }

    fn remove(&mut self, sequence: &mut Sequence) {
        if !sequence.steps.is_empty() {
            *sequence = sequence.without(self.random.usize(..sequence.steps.len()));
        }
    }

    /// Repeats a call a little later.
    fn repeat(&mut self, sequence: &mut Sequence) {
        if let Some(from) = self.any_index(sequence).filter(|_| sequence.steps.len() < CALLS) {
            let step = sequence.steps[from].clone();
            sequence.insert(self.random.usize(from + 1..=sequence.steps.len()), step);
        }
    }

    /// Inserts the start of another sequence before this one.
    fn join(&mut self, sequence: &mut Sequence, other: &Sequence) {
        let room = CALLS - sequence.steps.len();
        let count = self.random.usize(..=other.steps.len().min(room));
        sequence.renumber(|call| Some(call + count));
        sequence.steps.splice(..0, other.steps[..count].iter().cloned());
    }

    /// Distributes calls over several threads from some point on.
    fn spread(&mut self, sequence: &mut Sequence) {
        if self.one_in(4) {
            sequence.steps.iter_mut().for_each(|step| step.thread = 0);
            sequence.rounds = 1;
            return;
        }
        let from = self.random.usize(..=sequence.steps.len());
        for step in &mut sequence.steps[from..] {
            step.thread = self.random.usize(..THREADS);
        }
        sequence.rounds = self.random.u32(1..=ROUNDS);
    }

    fn fail(&mut self, sequence: &mut Sequence) {
        if let Some(index) = self.any_index(sequence) {
            let fault = if self.one_in(4) { 0 } else { self.random.u32(1..=FAULTS) };
            sequence.steps[index].fault = fault;
        }
    }

    fn any_index(&mut self, sequence: &Sequence) -> Option<usize> {
        (!sequence.steps.is_empty()).then(|| self.random.usize(..sequence.steps.len()))
    }

    /// Changes the values of a call: replaces one argument or a part of it.
    fn change_values(&mut self, sequence: &mut Sequence) {
        let Some(index) = self.any_index(sequence) else { return };
        let types = sequence.steps[index].description().arguments;
        if types.is_empty() {
            return;
        }
        let argument = self.random.usize(..types.len());
        let before = sequence.steps.len();
        // For a structure, mostly one part is changed.
        let mut value = sequence.steps[index].values[argument].clone();
        let depth = self.random.u32(..6);
        self.change_value(&types[argument], &mut value, sequence, index, depth);
        let moved = sequence.steps.len() - before;
        sequence.steps[index + moved].values[argument] = value;
    }

    /// Descends `depth` levels and generates the value there anew.
    fn change_value(
        &mut self,
        of: &Type,
        value: &mut Value,
        sequence: &mut Sequence,
        at: usize,
        depth: u32,
    ) {
        match (of, &mut *value) {
            (Type::To(of) | Type::Attribute(_, of) | Type::Message(of), Value::Group(parts)) => {
                self.change_value(of, &mut parts[0], sequence, at, depth);
            }
            (Type::Struct(fields), Value::Group(parts)) if depth > 0 && !parts.is_empty() => {
                let index = self.random.usize(..parts.len());
                self.change_value(&fields[index].1, &mut parts[index], sequence, at, depth - 1);
            }
            (Type::Array(of, _), Value::Group(parts)) if depth > 0 && !parts.is_empty() => {
                let index = self.random.usize(..parts.len());
                self.change_value(of, &mut parts[index], sequence, at, depth - 1);
            }
            (Type::AnyOf(types, _), Value::Group(parts)) if depth > 0 && !parts.is_empty() => {
                let index = self.random.usize(..parts.len());
                if let Value::Pick(kind, part) = &mut parts[index] {
                    self.change_value(&types[*kind], part, sequence, at, depth - 1);
                }
            }
            (Type::Bytes(_), Value::Bytes(bytes)) if depth > 0 && !bytes.is_empty() => {
                let index = self.random.usize(..bytes.len());
                bytes[index] = self.random.u8(..);
            }
            _ => *value = self.value(of, sequence, at, 0).0,
        }
    }
}

fn gives(sequence: &Sequence, index: usize, fits: impl Fn(Kind) -> bool) -> bool {
    sequence.steps[index].description().gives.is_some_and(|(kind, _)| fits(kind))
}
