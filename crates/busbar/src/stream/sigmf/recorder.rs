//! Writes recordings.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::datatype::Datatype;
use super::losses::Losses;
use super::meta::{Capture, Extension, Global, Meta, VERSION};
use super::paths::paths;
use super::time;
use crate::block;
use crate::poll::later;
use crate::stream::format::{Format, Lost};
use crate::stream::samples::Samples;
use crate::{Error, Result};

/// How often the metadata is updated.
const UPDATE: Duration = Duration::from_secs(1);
/// Updates take at most one part in this many of the time.
const SHARE: u32 = 20;

/// Writes a recording.
///
/// Both files exist from the beginning on, and the metadata is updated each second. So a recording that a
/// crash has cut off can be read.
#[derive(Debug)]
pub struct Recorder {
    data: File,
    data_path: PathBuf,
    meta_path: PathBuf,
    global: Global,
    /// The first capture.
    begin: Option<Capture>,
    losses: Losses,
    sample_len: usize,
    rate: Option<f64>,
    samples: u64,
    lost: u64,
    copied: u64,
    is_stale: bool,
    next_update: Instant,
}

impl Recorder {
    /// Begins the recording `path` of samples of `format` from the hardware `hw`.
    ///
    /// # Errors
    ///
    /// As [`Datatype::of`]; `AlreadyExists` if one of its files exists, or `NAME.sigmf-meta.partial`: no file is
    /// overwritten. If it fails, it leaves no file.
    pub fn create(path: impl AsRef<Path>, format: &Format, hw: Option<&str>) -> Result<Self> {
        let (datatype, num_channels) = Datatype::of(format)?;
        let (data_path, meta_path) = paths(path.as_ref());
        let mut made = Made::default();
        let data = made.create(&data_path)?;
        // Made now so that it is not overwritten; an update replaces it.
        made.create(&meta_path)?;
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
            global,
            begin: None,
            losses: Losses::default(),
            sample_len: format.sample_len,
            rate: format.rate,
            samples: 0,
            lost: 0,
            copied: 0,
            is_stale: true,
            next_update: Instant::now(),
        };
        recorder.update()?;
        made.keep();
        Ok(recorder)
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
        let meta = samples.meta();
        let count = (meta.len / self.sample_len) as u64;
        self.note(lost, count, meta.time);
        let parts = samples.parts()?;
        block::write_all(&self.data, &parts.iter().collect::<Vec<_>>())
            .map_err(|why| Error::new("write", self.data_path.display().to_string(), why))?;
        self.copied += meta.len as u64;
        self.samples += count;
        if self.is_stale && Instant::now() >= self.next_update {
            self.update()?;
        }
        Ok(())
    }

    /// Ends the recording; `lost` is what was lost after its last sample.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn finish(mut self, lost: Lost) -> Result<()> {
        if lost != Lost::Samples(0) {
            // No capture begins after it.
            self.losses.add(lost, self.samples, 0, None);
        }
        self.data
            .sync_data()
            .map_err(|why| Error::new("write", self.data_path.display().to_string(), why))?;
        self.update()
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
        self.is_stale |= at == 0 || lost != Lost::Samples(0);
    }

    /// The time of the first of `count` samples, the last of which was taken at `end`.
    fn begin(&self, count: u64, end: SystemTime) -> SystemTime {
        #[allow(clippy::cast_precision_loss)] // of a block
        let lasted = self.rate.map_or(0.0, |rate| count as f64 / rate);
        let lasted = Duration::try_from_secs_f64(lasted).unwrap_or_default();
        end.checked_sub(lasted).unwrap_or(end)
    }

    /// Replaces the metadata file atomically.
    fn update(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut partial = self.meta_path.clone().into_os_string();
        partial.push(".partial");
        let meta = Meta {
            global: self.global.clone(),
            captures: self.begin.iter().cloned().chain(self.losses.captures()).collect(),
            annotations: self.losses.annotations().collect(),
        };
        let failed = |why| Error::new("write", self.meta_path.display().to_string(), why);
        let text = serde_json::to_vec_pretty(&meta).map_err(|why| failed(why.into()))?;
        // Neither overwrites a file nor follows a link.
        let mut made = Made::default();
        let mut file = made.create(Path::new(&partial))?;
        file.write_all(&text)
            .and_then(|()| fs::rename(&partial, &self.meta_path))
            .map_err(failed)?;
        made.keep();
        self.is_stale = false;
        self.next_update = later(began, UPDATE.max(began.elapsed() * SHARE));
        Ok(())
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
