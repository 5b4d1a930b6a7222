//! The corpus: sequences in files.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use busbar::{Error, Result};

use crate::sequence::Sequence;

/// Number of last sequences that are preserved across a crash.
const LAST: usize = 8;
/// Initial sequences, for code that random sequences reach slowly.
const SEEDS: [(&str, &str); 8] = [
    ("converter", include_str!("../seeds/converter.seq")),
    ("core", include_str!("../seeds/core.seq")),
    ("devmem", include_str!("../seeds/devmem.seq")),
    ("endpoint", include_str!("../seeds/endpoint.seq")),
    ("epoll", include_str!("../seeds/epoll.seq")),
    ("in-tree", include_str!("../seeds/in_tree.seq")),
    ("netlink", include_str!("../seeds/netlink.seq")),
    ("nic", include_str!("../seeds/nic.seq")),
];

/// A folder of sequences.
#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    count: usize,
    /// Files of the last sequences, kept open because each access to the host is slow, and their lengths.
    last: Vec<(File, usize)>,
}

impl Corpus {
    /// Opens this folder and creates it if necessary.
    pub fn open(folder: &Path) -> Result<Self> {
        for part in ["kept", "last"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).map_err(at("create", &part))?;
        }
        let open = |n| {
            let path = folder.join(format!("last/{n}.seq"));
            Ok((File::create(&path).map_err(at("create", &path))?, 0))
        };
        let last = (0..LAST).map(open).collect::<Result<_>>()?;
        Ok(Self { folder: folder.into(), count: 0, last })
    }

    /// Loads the seeds, and the kept sequences that agree with the current descriptions.
    pub fn load(&self) -> Result<(Vec<Sequence>, Vec<Sequence>)> {
        let seeds = seeds().into_iter().map(|(_, sequence)| sequence).collect();
        let folder = self.folder.join("kept");
        let entries = fs::read_dir(&folder).map_err(at("read", &folder))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let kept = paths.iter().filter_map(|path| read(path).ok()).collect();
        Ok((seeds, kept))
    }

    /// Adds a sequence to the corpus.
    pub fn keep(&self, sequence: &Sequence) -> Result<()> {
        let text = sequence.to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        write(&self.folder.join(format!("kept/{:016x}.seq", hasher.finish())), &text)
    }

    /// Records the sequence that runs now, for analysis after a crash.
    pub fn running(&mut self, sequence: &Sequence) -> Result<()> {
        self.count += 1;
        let mut text = format!("# number {}\n{sequence}", self.count).into_bytes();
        let (file, len) = &mut self.last[self.count % LAST];
        // Empty lines overwrite the rest of the previous text.
        text.resize(text.len().max(*len), b'\n');
        *len = text.len();
        file.write_all_at(&text, 0).map_err(at("write", &self.folder.join("last")))
    }

    /// Saves a report of the kernel and the last sequences, newest first; returns the folder.
    pub fn report(&self, report: &str, last: &[Sequence]) -> Result<PathBuf> {
        let mut number = 0;
        while self.folder.join(format!("report-{number}")).exists() {
            number += 1;
        }
        let folder = self.folder.join(format!("report-{number}"));
        fs::create_dir_all(&folder).map_err(at("create", &folder))?;
        write(&folder.join("console.txt"), report)?;
        for (index, sequence) in last.iter().enumerate() {
            write(&folder.join(format!("{index}.seq")), &sequence.to_string())?;
        }
        Ok(folder)
    }

    /// Writes a file in the folder.
    pub fn note(&self, name: &str, text: &str) -> Result<()> {
        write(&self.folder.join(name), text)
    }
}

/// Reads the sequence in a file.
pub fn read(path: &Path) -> Result<Sequence> {
    let text = fs::read_to_string(path).map_err(at("read", path))?;
    Sequence::parse(&text).map_err(|why| Error::invalid("sequence", path.display(), why))
}

/// Returns the seeds with their names.
fn seeds() -> Vec<(&'static str, Sequence)> {
    // A test checks that each can be parsed.
    SEEDS.iter().filter_map(|(name, text)| Some((*name, Sequence::parse(text).ok()?))).collect()
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(at("write", path))
}

fn at(tried: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |why| Error::new(tried, &path, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::Mutator;

    #[test]
    fn every_seed_is_as_the_descriptions_say() {
        for (name, text) in SEEDS {
            Sequence::parse(text).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        assert_eq!(seeds().len(), SEEDS.len());
    }

    #[test]
    fn what_is_kept_is_there_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut corpus = Corpus::open(folder.path()).unwrap();
        let sequence = Mutator::new(1).create();
        corpus.keep(&sequence).unwrap();
        corpus.keep(&sequence).unwrap();
        for _ in 0..LAST {
            corpus.running(&Mutator::new(2).create()).unwrap();
        }
        corpus.running(&sequence).unwrap();
        fs::write(folder.path().join("kept/broken.seq"), "rounds 1\n0 0 no_such_call").unwrap();
        assert_eq!(read(&folder.path().join("last/1.seq")).unwrap(), sequence);
        let (seeds, kept) = Corpus::open(folder.path()).unwrap().load().unwrap();
        assert_eq!((seeds.len(), kept), (SEEDS.len(), vec![sequence.clone()]));
        let first = corpus.report("BUG", std::slice::from_ref(&sequence)).unwrap();
        let second = corpus.report("BUG", &[]).unwrap();
        assert_ne!(first, second);
        assert_eq!(read(&first.join("0.seq")).unwrap(), sequence);
    }
}
