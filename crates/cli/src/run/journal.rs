//! A file of events.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use busbar::{Error, Result};
use serde::Serialize;

/// A file of JSON objects, one per line.
pub struct Journal {
    file: File,
    name: String,
}

#[derive(Serialize)]
struct Entry<'a, T> {
    /// Seconds since 1970.
    time: f64,
    #[serde(flatten)]
    what: &'a T,
}

impl Journal {
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::options().append(true).create(true).open(path);
        let file = file.map_err(|why| Error::new("open", name.clone(), why))?;
        Ok(Self { file, name })
    }

    /// Appends a line in one write, so that a reader sees whole lines.
    pub fn write(&mut self, what: &impl Serialize) -> Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = serde_json::to_string(&Entry { time: now.as_secs_f64(), what })
            .map_err(std::io::Error::from)
            .and_then(|line| self.file.write_all(format!("{line}\n").as_bytes()));
        line.map_err(|why| Error::new("write", self.name.clone(), why))
    }
}
