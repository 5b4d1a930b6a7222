//! Cache keys: a hash of everything that went into a result.

use std::path::Path;

use busbar::{Error, Result};
use sha2::{Digest, Sha256};

/// Collects the inputs of a result.
#[derive(Clone, Default)]
pub(crate) struct Key(Sha256);

impl Key {
    /// Adds one part with its length, so that the boundaries of parts matter.
    pub fn part(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let bytes = bytes.as_ref();
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds name and content of a file.
    pub fn file(&mut self, name: &Path, file: &Path) -> Result<&mut Self> {
        let content = std::fs::read(file)
            .map_err(|error| Error::new("read", file.display().to_string(), error))?;
        Ok(self.part(name.as_os_str().as_encoded_bytes()).part(content))
    }

    /// The key as 16 hexadecimal digits.
    pub fn finish(&self) -> String {
        hex(&self.0.clone().finalize()[..8])
    }
}

/// The bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let key = |parts: &[&str]| {
            let mut key = Key::default();
            for part in parts {
                key.part(part);
            }
            key.finish()
        };
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["ab"]), key(&["ab", ""]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_eq!(key(&[]).len(), 16);
        assert_eq!(hex(&[0x0f, 0xa0]), "0fa0");
    }

    #[test]
    fn a_file_counts_with_name_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "one").unwrap();
        let key = |name: &str| Key::default().file(Path::new(name), &path).unwrap().finish();
        let before = key("a");
        assert_ne!(before, key("b"));
        std::fs::write(&path, "two").unwrap();
        assert_ne!(before, key("a"));
    }
}
