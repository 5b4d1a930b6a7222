//! Writes recordings.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::datatype::Datatype;
use super::losses::Losses;
use super::meta::{Capture, Extension, Global, Meta, VERSION};
use super::paths::{BEGUN, beside, paths};
use super::time;
use crate::block;
use crate::poll::{self, later};
use crate::stream::format::{Format, Lost};
use crate::stream::samples::Samples;
use crate::{Error, Result};

/// How often the metadata is updated.
const UPDATE: Duration = Duration::from_secs(1);
/// Updates take at most one part in this many of the time.
const SHARE: u32 = 20;

/// Writes a recording.
///
/// Both files exist from the beginning on, and the metadata is updated each second. So a recording that a crash or a power
/// cut has ended can be read, and says from which sample on losses may be missing ([`Recording::is_complete`]).
/// `NAME.sigmf-meta.begun`, the metadata of the beginning, is there until the end: it takes the place of metadata whose
/// content a power cut has lost.
///
/// After an error of [`write`](Self::write), the block is not in the recording, and nothing of it in the file: write it
/// again, or the next one with what was lost. Dropping a recorder does not wait for the disk, and does not say that the
/// recording is complete.
///
/// [`Recording::is_complete`]: super::Recording::is_complete
#[derive(Debug)]
pub struct Recorder {
    pub(super) data: File,
    data_path: PathBuf,
    meta_path: PathBuf,
    begun_path: PathBuf,
    global: Global,
    /// The first capture.
    begin: Option<Capture>,
    losses: Losses,
    sample_len: usize,
    rate: Option<f64>,
    samples: u64,
    lost: u64,
    copied: u64,
    /// The file may have a part of a block that is not in the recording.
    is_torn: bool,
    /// The last update has failed.
    is_overdue: bool,
    stage: Stage,
    pub(super) next_update: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its files are not complete.
    New,
    Recording,
    Ended,
}

impl Recorder {
    /// Begins the recording `path` of samples of `format` from the hardware `hw`.
    ///
    /// # Errors
    ///
    /// As [`Datatype::of`]; `AlreadyExists` if one of its files exists, or `NAME.sigmf-meta.partial` or `.begun`: no file
    /// is overwritten. If it fails, it leaves no file.
    pub fn create(path: impl AsRef<Path>, format: &Format, hw: Option<&str>) -> Result<Self> {
        let (datatype, num_channels) = Datatype::of(format)?;
        let (data_path, meta_path) = paths(path.as_ref());
        let mut made = Made::default();
        let data = made.create(&data_path)?;
        // Made now so that it is not overwritten; an update replaces it.
        made.create(&meta_path)?;
        let begun_path = beside(&meta_path, BEGUN);
        let begun = made.create(&begun_path)?;
        let first = format.channels.first();
        let global = Global {
            datatype: datatype.to_string(),
            version: VERSION.into(),
            num_channels,
            sample_rate: format.rate,
            recorder: Some(concat!("busbar ", env!("CARGO_PKG_VERSION")).into()),
            hw: hw.map(str::to_owned),
            extensions: vec![Extension {
                name: "busbar".into(),
                version: "1.0.0".into(),
                optional: true,
            }],
            channels: Some(format.channels.iter().map(|channel| channel.name.clone()).collect()),
            bits: first.filter(|first| first.bits < first.storage_bits).map(|first| first.bits),
            ..Global::default()
        };
        let mut recorder = Self {
            data,
            data_path,
            meta_path,
            begun_path,
            global,
            begin: None,
            losses: Losses::default(),
            sample_len: format.sample_len,
            rate: format.rate,
            samples: 0,
            lost: 0,
            copied: 0,
            is_torn: false,
            is_overdue: false,
            stage: Stage::New,
            next_update: Instant::now(),
        };
        recorder.update()?;
        (&begun)
            .write_all(&recorder.text()?)
            .map_err(|why| Error::new("write", recorder.begun_path.display().to_string(), why))?;
        recorder.keep_begun(begun)?;
        recorder.stage = Stage::Recording;
        made.keep();
        Ok(recorder)
    }

    /// Has the first metadata on the disk soon. To wait for a disk would hold up the samples.
    fn keep_begun(&self, begun: File) -> Result<()> {
        let folder = self.folder().to_owned();
        poll::spawn("busbar-sync", move || {
            // What fails here costs something only if the power fails, too.
            let _ = begun.sync_all().and_then(|()| sync_folder(&folder));
        })
    }

    /// Appends a block.
    ///
    /// # Errors
    ///
    /// As `write(2)`, such as `ENOSPC`; as [`Samples::parts`].
    pub fn write(&mut self, samples: &Samples) -> Result<()> {
        self.write_as(samples, samples.meta().lost)
    }

    /// As [`write`](Self::write), with another loss before the block.
    pub(crate) fn write_as(&mut self, samples: &Samples, lost: Lost) -> Result<()> {
        self.mend()?;
        let meta = samples.meta();
        let count = (meta.len / self.sample_len) as u64;
        let parts = samples.parts()?;
        if let Err(why) = block::write_all(&self.data, &parts.iter().collect::<Vec<_>>()) {
            self.is_torn = self.cut().is_err();
            return Err(self.failed(why));
        }
        self.note(lost, count, meta.time);
        self.copied += meta.len as u64;
        self.samples += count;
        if Instant::now() >= self.next_update {
            // The block is in the recording; the next call tries again, and returns the error.
            self.is_overdue = self.update().is_err();
        }
        Ok(())
    }

    /// Repairs what an error has left, before anything else is done.
    fn mend(&mut self) -> Result<()> {
        if self.is_torn {
            self.cut().map_err(|why| self.failed(why))?;
            self.is_torn = false;
        }
        if self.is_overdue {
            self.update()?;
            self.is_overdue = false;
        }
        Ok(())
    }

    /// Removes what is behind the last sample of the recording.
    fn cut(&self) -> io::Result<()> {
        let len = self.samples.saturating_mul(self.sample_len as u64);
        self.data.set_len(len)?;
        (&self.data).seek(SeekFrom::Start(len)).map(drop)
    }

    fn failed(&self, why: io::Error) -> Error {
        Error::new("write", self.data_path.display().to_string(), why)
    }

    /// Ends the recording; `lost` is what was lost after its last sample. Waits until all of it is on the disk.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn finish(mut self, lost: Lost) -> Result<()> {
        self.end(lost)?;
        self.data.sync_data().map_err(|why| self.failed(why))?;
        // Only now, so that metadata that says so is never without its samples.
        self.replace(File::sync_all)?;
        sync_folder(self.folder()).map_err(|why| self.failed(why))?;
        self.remove_begun()
    }

    /// As [`finish`](Self::finish), without waiting for the disk. The metadata names all samples when it returns; a thread
    /// says that the recording is complete once its samples are on the disk.
    pub(crate) fn finish_later(mut self) -> Result<()> {
        self.mend()?;
        self.update()?;
        poll::spawn("busbar-sync", move || drop(self.finish(Lost::Samples(0))))
    }

    fn end(&mut self, lost: Lost) -> Result<()> {
        self.stage = Stage::Ended;
        if self.is_torn {
            self.cut().map_err(|why| self.failed(why))?;
        }
        if lost != Lost::Samples(0) {
            // No capture begins after it.
            self.losses.add(lost, self.samples, 0, None);
        }
        Ok(())
    }

    fn remove_begun(&self) -> Result<()> {
        fs::remove_file(&self.begun_path)
            .map_err(|why| Error::new("remove", self.begun_path.display().to_string(), why))
    }

    /// The folder of the files.
    fn folder(&self) -> &Path {
        let folder = self.meta_path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }

    /// Bytes that were copied into the page cache.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Notes the loss before a block of `count` samples that was complete at `end`.
    fn note(&mut self, lost: Lost, count: u64, end: SystemTime) {
        let at = self.samples;
        let gap = match lost {
            Lost::Samples(lost) => lost,
            Lost::Unknown => 0,
        };
        self.lost = self.lost.saturating_add(gap);
        let capture = (at == 0 || gap > 0).then(|| Capture {
            sample_start: at,
            global_index: Some(at.saturating_add(self.lost)),
            header_bytes: None,
            datetime: Some(time::format(self.begin(count, end))),
        });
        let capture = if at == 0 { capture.and_then(|it| self.begin.replace(it)) } else { capture };
        if lost != Lost::Samples(0) {
            self.losses.add(lost, at, count, capture);
        }
    }

    /// The time of the first of `count` samples, the last of which was taken at `end`.
    fn begin(&self, count: u64, end: SystemTime) -> SystemTime {
        #[allow(clippy::cast_precision_loss)] // of a block
        let lasted = self.rate.map_or(0.0, |rate| count as f64 / rate);
        let lasted = Duration::try_from_secs_f64(lasted).unwrap_or_default();
        end.checked_sub(lasted).unwrap_or(end)
    }

    fn update(&mut self) -> Result<()> {
        let began = Instant::now();
        self.replace(|_| Ok(()))?;
        self.next_update = later(began, UPDATE.max(began.elapsed() * SHARE));
        Ok(())
    }

    /// Replaces the metadata file at once, after `sync` of the new one.
    fn replace(&self, sync: impl FnOnce(&File) -> io::Result<()>) -> Result<()> {
        let partial = beside(&self.meta_path, ".partial");
        let text = self.text()?;
        // Neither overwrites a file nor follows a link.
        let mut made = Made::default();
        let mut file = made.create(&partial)?;
        file.write_all(&text)
            .and_then(|()| sync(&file))
            .and_then(|()| fs::rename(&partial, &self.meta_path))
            .map_err(|why| Error::new("write", self.meta_path.display().to_string(), why))?;
        made.keep();
        Ok(())
    }

    /// The metadata.
    fn text(&self) -> Result<Vec<u8>> {
        let recorded = (self.stage != Stage::Ended).then_some(self.samples);
        let meta = Meta {
            global: Global { recorded, ..self.global.clone() },
            captures: self.begin.iter().cloned().chain(self.losses.captures()).collect(),
            annotations: self.losses.annotations().collect(),
        };
        serde_json::to_vec_pretty(&meta).map_err(|why| {
            Error::new("write", self.meta_path.display().to_string(), io::Error::from(why))
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.stage == Stage::Recording {
            // No caller is left to handle an error. What is missing in the metadata is not said to be there.
            let _ = self.update();
        }
    }
}

/// Files that were made. Dropping it removes them.
#[derive(Debug, Default)]
struct Made(Vec<PathBuf>);

impl Made {
    fn create(&mut self, path: &Path) -> Result<File> {
        let file = create_new(path)?;
        self.0.push(path.to_owned());
        Ok(file)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            // The error that led to this is returned.
            let _ = fs::remove_file(path);
        }
    }
}

/// Has the names in a folder on the disk. Where a file system cannot do that, they are so without it.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(why) if why.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn create_new(path: &Path) -> Result<File> {
    File::create_new(path).map_err(|why| {
        let exists = why.kind() == io::ErrorKind::AlreadyExists;
        let error = Error::new("make", path.display().to_string(), why);
        if !exists {
            return error;
        }
        error.help("a recording is never overwritten: choose another name, or remove its files")
    })
}
