//! Destinations of received data.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use busbar::block::Bytes;
use busbar::receive::Piece;
use busbar::{Error, Result};

use super::verify::{Pattern, Verify};

/// A destination, as it is written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    Null,
    File(PathBuf),
    Verify(Pattern),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = match text.split_once(':') {
            Some(("null", "")) => Some(Self::Null),
            Some(("file", name)) if !name.is_empty() => Some(Self::File(name.into())),
            Some(("verify", pattern)) => Pattern::parse(pattern).map(Self::Verify),
            _ => None,
        };
        known.ok_or_else(|| {
            "allowed: null:, file:NAME, verify:, verify:N with N 2 to 256".to_owned()
        })
    }
}

impl To {
    /// Fails at once where opening would fail with the first connection.
    pub fn check(&self) -> Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder {
            Some(folder) if !folder.is_dir() => {
                let why = io::Error::from(io::ErrorKind::NotFound);
                Err(Error::new("create", path.display().to_string(), why)
                    .help(format!("there is no folder {}", folder.display())))
            }
            _ => Ok(()),
        }
    }
}

/// The destination of one connection.
pub enum Output {
    Null,
    File(File, String),
    Verify(Verify),
}

impl Output {
    pub fn open(to: &To) -> Result<Self> {
        Ok(match to {
            To::Null => Self::Null,
            To::File(path) => {
                let name = path.display().to_string();
                let file =
                    File::create(path).map_err(|why| Error::new("create", name.clone(), why))?;
                Self::File(file, name)
            }
            To::Verify(pattern) => Self::Verify(Verify::new(*pattern)),
        })
    }

    /// Takes the next data. Data that is only discarded is not touched.
    pub fn take(&mut self, piece: &Piece) -> Result<()> {
        if matches!(self, Self::Null) {
            return Ok(());
        }
        match piece {
            Piece::View(view) => self.take_bytes(view.read()?.bytes()),
            Piece::Bytes(bytes) => self.take_bytes(Bytes::from(&bytes[..])),
        }
    }

    fn take_bytes(&mut self, bytes: Bytes<'_>) -> Result<()> {
        match self {
            Self::Null => Ok(()),
            Self::File(file, name) => {
                bytes.write_all_to(file).map_err(|why| Error::new("write", name.clone(), why))
            }
            Self::Verify(verify) => bytes.try_for_each_chunk(|chunk| verify.bytes(chunk)),
        }
    }

    /// Bytes that were verified.
    pub fn verified(&self) -> Option<u64> {
        match self {
            Self::Verify(verify) => Some(verify.at()),
            Self::Null | Self::File(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_what_they_say() {
        assert_eq!("null:".parse(), Ok(To::Null));
        assert_eq!("file:a:b".parse(), Ok(To::File("a:b".into())));
        assert_eq!("verify:".parse(), Ok(To::Verify(Pattern::Counter)));
        assert_eq!("verify:7".parse(), Ok(To::Verify(Pattern::Bytes(7))));
        for bad in ["", "null", "null:x", "file:", "verify", "verify:1", "verify:257", "verify:x"] {
            assert!(bad.parse::<To>().unwrap_err().contains("verify:N"), "{bad}");
        }
    }
}
