//! The files of a recording.

use std::path::{Path, PathBuf};

/// What follows the name of the metadata in that of the file with the metadata of the beginning.
pub(super) const BEGUN: &str = ".begun";

/// The two files of a recording, data and metadata. `path` is one of them, or has neither extension.
pub(super) fn paths(path: &Path) -> (PathBuf, PathBuf) {
    let ends = ["sigmf-meta", "sigmf-data"];
    let named = path.extension().is_some_and(|end| ends.iter().any(|known| end == *known));
    let base = if named { path.with_extension("") } else { path.to_owned() };
    let with = |end: &str| {
        let mut name = base.clone().into_os_string();
        name.push(end);
        PathBuf::from(name)
    };
    (with(".sigmf-data"), with(".sigmf-meta"))
}

/// The path of a file beside the metadata.
pub(super) fn beside(meta_path: &Path, end: &str) -> PathBuf {
    let mut path = meta_path.to_owned().into_os_string();
    path.push(end);
    path.into()
}
