//! Coverage of calls by KCOV (`Documentation/dev-tools/kcov.rst`).

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use busbar::{Error, Result};

use crate::unsafe_calls::{ioctl_number, shared_numbers};

/// Most places that are recorded for one thread of a sequence.
const SIZE: usize = 128 << 10;
const INIT_TRACE: u32 = 0x8008_6301;
const ENABLE: u32 = 0x6364;
const DISABLE: u32 = 0x6365;
/// Lowest address of the kernel, on x86-64 and arm64.
const KERNEL: u64 = 1 << 63;

/// A set of places: addresses in the kernel's code.
pub type Places = HashSet<u64, BuildHasherDefault<PlaceHasher>>;

/// A fast hash: a multiplication spreads addresses well enough, and there are many.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

/// The record of one thread, which a forked process writes and this one reads.
#[derive(Debug)]
pub struct Trace {
    file: File,
    area: &'static [AtomicU64],
}

impl Trace {
    /// Opens a new record.
    pub fn open() -> Result<Self> {
        let path = "/sys/kernel/debug/kcov";
        let failed = |why| {
            Error::new("open", path, why)
                .help("run it in the debug kernel: make fuzz-kernel; debugfs must be mounted")
        };
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        ioctl_number(&file, INIT_TRACE, SIZE as u64).map_err(failed)?;
        let area = shared_numbers(Some(&file), SIZE).map_err(failed)?;
        Ok(Self { file, area })
    }

    /// Records places of the calling thread until it ends or calls [`stop`](Self::stop).
    pub fn start(&self) -> bool {
        self.clear();
        ioctl_number(&self.file, ENABLE, 0).is_ok()
    }

    /// Stops recording.
    pub fn stop(&self) {
        // An error means that recording was not started.
        let _ = ioctl_number(&self.file, DISABLE, 0);
    }

    /// Clears the record.
    pub fn clear(&self) {
        self.area[0].store(0, Ordering::Relaxed);
    }

    /// Returns the recorded places.
    pub fn places(&self) -> impl Iterator<Item = u64> {
        let count = usize::try_from(self.area[0].load(Ordering::Relaxed)).unwrap_or(0);
        let noted = self.area[1..].iter().take(count).map(|place| place.load(Ordering::Relaxed));
        noted.filter(|place| *place >= KERNEL)
    }
}

/// The functions of the kernel, for names of places.
#[derive(Debug)]
pub struct Symbols(Vec<(u64, String, String)>);

impl Symbols {
    /// Reads the functions of the running kernel.
    pub fn read() -> Result<Self> {
        let path = "/proc/kallsyms";
        let text = fs::read_to_string(path).map_err(|why| Error::new("read", path, why))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut all: Vec<_> = text.lines().filter_map(symbol).collect();
        all.sort();
        Self(all)
    }

    /// Returns module (`vmlinux` for the kernel itself) and function of a place.
    pub fn name(&self, place: u64) -> (&str, &str) {
        match self.0.partition_point(|(address, ..)| *address <= place).checked_sub(1) {
            Some(index) => (&self.0[index].1, &self.0[index].2),
            None => ("", ""),
        }
    }

    /// Counts places by module.
    pub fn by_module(&self, places: &Places) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for place in places {
            *counts.entry(self.name(*place).0).or_default() += 1;
        }
        counts
    }

    /// Counts places by module and function, as text.
    pub fn by_function(&self, places: &Places) -> String {
        let mut counts: BTreeMap<_, usize> = BTreeMap::new();
        for place in places {
            *counts.entry(self.name(*place)).or_default() += 1;
        }
        let line = |((module, function), count)| format!("{module} {function} {count}\n");
        counts.into_iter().map(line).collect()
    }
}

/// Parses address, module and name of a function.
fn symbol(line: &str) -> Option<(u64, String, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    words.next().filter(|kind| matches!(*kind, "t" | "T" | "w" | "W"))?;
    let name = words.next()?.to_owned();
    let module = words.next().map_or("vmlinux", |module| module.trim_matches(['[', ']']));
    Some((address, module.to_owned(), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_in_the_function_that_begins_before_it() {
        let text = "ffffffff81000010 T second\nffffffff81000000 t first\n\
                    ffffffff81000018 D data\nffffffffc0000000 t third\t[vnic]\n";
        let symbols = Symbols::parse(text);
        assert_eq!(symbols.name(0xffff_ffff_8100_000f), ("vmlinux", "first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0020), ("vmlinux", "second"));
        assert_eq!(symbols.name(0xffff_ffff_c000_0004), ("vnic", "third"));
        assert_eq!(symbols.name(5), ("", ""));
        let places = Places::from_iter([0xffff_ffff_8100_0000, 0xffff_ffff_c000_0001]);
        assert_eq!(symbols.by_module(&places), BTreeMap::from([("vmlinux", 1), ("vnic", 1)]));
        assert_eq!(symbols.by_function(&places), "vmlinux first 1\nvnic third 1\n");
    }
}
