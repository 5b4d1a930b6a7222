//! Writing a recording.

use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::losses::Losses;
use super::meta::{Capture, Extension, Global, Meta, VERSION};
use super::{Datatype, paths, time};
use crate::stream::{Format, Lost, Samples};
use crate::{Error, Result};

/// How often the metadata is brought up to date, and no more than one part in so many of the time.
const UPDATE: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;
/// Parts of one write: the kernel takes up to 1024.
const MOST_PARTS: usize = 256;

/// Writes a recording.
///
/// Both files are there and belong together from the beginning on, and again after each second: what
/// is cut off by a crash can be read, too.
#[derive(Debug)]
pub struct Recorder {
    data: File,
    data_path: PathBuf,
    meta_path: PathBuf,
    global: Global,
    /// The first samples.
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
    /// Begins a recording `path`, of samples of `format`, from the hardware `hw`.
    ///
    /// # Errors
    ///
    /// As [`Datatype::of`]; `AlreadyExists` if one of its files is there: none is overwritten.
    pub fn create(path: impl AsRef<Path>, format: &Format, hw: Option<&str>) -> Result<Self> {
        let (datatype, num_channels) = Datatype::of(format)?;
        let (data_path, meta_path) = paths(path.as_ref());
        let data = create_new(&data_path)?;
        // Its content replaces it.
        if let Err(error) = create_new(&meta_path) {
            let _ = fs::remove_file(&data_path);
            return Err(error);
        }
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
        Ok(recorder)
    }

    /// Appends a block.
    ///
    /// # Errors
    ///
    /// `ENOSPC` and what else writing says; as [`Samples::parts`].
    pub fn write(&mut self, samples: &Samples) -> Result<()> {
        self.write_as(samples, samples.meta().lost)
    }

    /// The same with another loss before it.
    pub(crate) fn write_as(&mut self, samples: &Samples, lost: Lost) -> Result<()> {
        let meta = samples.meta();
        let count = (meta.len / self.sample_len) as u64;
        self.note(lost, count, meta.time);
        let parts = samples.parts()?;
        let slices: Vec<_> = parts.iter().map(IoSlice::new).collect();
        write_all(&self.data, &slices)
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
            // There is nothing behind it that could begin.
            self.losses.add(lost, self.samples, 0, None);
        }
        self.data
            .sync_data()
            .map_err(|why| Error::new("write", self.data_path.display().to_string(), why))?;
        self.update()
    }

    /// Bytes that were copied into the file's memory.
    #[must_use]
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// The block of `count` samples that comes next was complete at `end`.
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

    /// When the first of `count` samples was, of which the last was at `end`.
    fn begin(&self, count: u64, end: SystemTime) -> SystemTime {
        #[allow(clippy::cast_precision_loss)] // of a block
        let lasted = self.rate.map_or(0.0, |rate| count as f64 / rate);
        let lasted = Duration::try_from_secs_f64(lasted).unwrap_or_default();
        end.checked_sub(lasted).unwrap_or(end)
    }

    /// Replaces the metadata as a whole.
    fn update(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut partial = self.meta_path.clone().into_os_string();
        partial.push(".partial");
        let meta = Meta {
            global: self.global.clone(),
            captures: self.begin.iter().cloned().chain(self.losses.captures()).collect(),
            annotations: self.losses.annotations().collect(),
        };
        let done = serde_json::to_vec_pretty(&meta)
            .map_err(std::io::Error::from)
            .and_then(|text| fs::write(&partial, text))
            .and_then(|()| fs::rename(&partial, &self.meta_path));
        if done.is_err() {
            let _ = fs::remove_file(&partial);
        }
        done.map_err(|why| Error::new("write", self.meta_path.display().to_string(), why))?;
        self.is_stale = false;
        self.next_update = began + UPDATE.max(began.elapsed() * SHARE);
        Ok(())
    }
}

fn create_new(path: &Path) -> Result<File> {
    File::create_new(path).map_err(|why| {
        let exists = why.kind() == io::ErrorKind::AlreadyExists;
        let error = Error::new("make", path.display().to_string(), why);
        if !exists {
            return error;
        }
        error.help("a recording is never overwritten: choose another name, or remove both files")
    })
}

fn write_all(mut file: &File, parts: &[IoSlice<'_>]) -> io::Result<()> {
    for some in parts.chunks(MOST_PARTS) {
        let mut some = some.to_vec();
        let mut left = some.as_mut_slice();
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }
    Ok(())
}
