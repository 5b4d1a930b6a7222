//! Sequences as files.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use busbar::{Error, Result};

use crate::sequence::Sequence;

/// So many of the last sequences are there after a crash.
const LAST: usize = 8;
/// Sequences to begin with, which get through where chance would take long.
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

/// A folder of them.
#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    count: usize,
    /// Files of the last sequences, open: each access to the host takes its time. And their lengths.
    last: Vec<(File, usize)>,
}

impl Corpus {
    /// In this folder, which is made if it is not there.
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

    /// The seeds, and what was kept that still is as the descriptions say.
    pub fn load(&self) -> Result<Vec<Sequence>> {
        let mut all: Vec<_> = seeds().into_iter().map(|(_, sequence)| sequence).collect();
        let folder = self.folder.join("kept");
        let entries = fs::read_dir(&folder).map_err(at("read", &folder))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        all.extend(paths.iter().filter_map(|path| read(path).ok()));
        Ok(all)
    }

    /// Keeps one.
    pub fn keep(&self, sequence: &Sequence) -> Result<()> {
        let text = sequence.to_string();
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        write(&self.folder.join(format!("kept/{:016x}.seq", hasher.finish())), &text)
    }

    /// Notes what runs now, for whoever looks after a crash.
    pub fn running(&mut self, sequence: &Sequence) -> Result<()> {
        self.count += 1;
        let mut text = format!("# number {}\n{sequence}", self.count).into_bytes();
        let (file, len) = &mut self.last[self.count % LAST];
        // Empty lines take the place of what was there.
        text.resize(text.len().max(*len), b'\n');
        *len = text.len();
        file.write_all_at(&text, 0).map_err(at("write", &self.folder.join("last")))
    }

    /// Keeps a report of the kernel and what ran last, newest first; returns where.
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

    /// Writes a file of the folder.
    pub fn note(&self, name: &str, text: &str) -> Result<()> {
        write(&self.folder.join(name), text)
    }
}

/// The sequence in a file.
pub fn read(path: &Path) -> Result<Sequence> {
    let text = fs::read_to_string(path).map_err(at("read", path))?;
    Sequence::parse(&text).map_err(|why| Error::invalid("sequence", path.display(), why))
}

/// The sequences to begin with, and their names.
fn seeds() -> Vec<(&'static str, Sequence)> {
    // A test parses each.
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
        let all = Corpus::open(folder.path()).unwrap().load().unwrap();
        assert_eq!((all.len(), all.last()), (SEEDS.len() + 1, Some(&sequence)));
        let first = corpus.report("BUG", std::slice::from_ref(&sequence)).unwrap();
        let second = corpus.report("BUG", &[]).unwrap();
        assert_ne!(first, second);
        assert_eq!(read(&first.join("0.seq")).unwrap(), sequence);
    }
}
