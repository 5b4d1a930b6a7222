//! Reads the kernel's reports of faults from `/dev/kmsg`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::thread::sleep;
use std::time::Duration;

use busbar::{Error, Result};

/// Time in which the kernel completes a report.
const MOMENT: Duration = Duration::from_secs(2);

/// A reader of kernel reports.
#[derive(Debug)]
pub struct Reports {
    log: File,
    known: Vec<String>,
}

impl Reports {
    /// Reads reports from now on, and ignores those that contain one of these texts.
    pub fn open(known: Vec<String>) -> Result<Self> {
        let path = "/dev/kmsg";
        let open = || {
            let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
            log.seek(SeekFrom::End(0))?;
            Ok(log)
        };
        let log = open().map_err(|why: std::io::Error| Error::new("open", path, why))?;
        Ok(Self { log, known })
    }

    /// Returns the reports since the last call.
    pub fn take(&mut self) -> Vec<String> {
        let mut text = self.text();
        if busbar_lab::reports(&text).is_empty() {
            return Vec::new();
        }
        // The kernel may not have completed the report.
        sleep(MOMENT);
        text += &self.text();
        let is_new = |report: &String| !self.known.iter().any(|known| report.contains(known));
        busbar_lab::reports(&text).into_iter().filter(is_new).collect()
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        let mut record = [0; 8192];
        loop {
            match self.log.read(&mut record) {
                Ok(0) => return text,
                Ok(len) => text += &line(&String::from_utf8_lossy(&record[..len])),
                // Records were overwritten before they were read.
                Err(why) if why.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return text,
            }
        }
    }
}

/// Returns the text of a record, without its prefix and without its device properties.
fn line(record: &str) -> String {
    let first = record.lines().next().unwrap_or_default();
    first.split_once(';').map_or(first, |(_, text)| text).to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_line() {
        assert_eq!(line("6,339,5140900,-;NET: a; b\n SUBSYSTEM=net\n"), "NET: a; b\n");
    }
}
