//! The descriptions: one file per interface. If an interface changes, nothing else has to be adapted.
//!
//! A call can open only files that the set-up has linked in [`FOLDER`] or that are listed here, so no
//! sequence can access other files of the guest or its host.

mod converter;
mod core;
mod devmem;
mod endpoint;
mod epoll;
mod files;
mod memory;
mod netlink;
mod nic;

use std::sync::LazyLock;

use crate::describe::{Call, Field, Type};

/// Folder of links to the files that calls may open.
pub const FOLDER: &str = "/run/busbar-fuzz";

/// Returns all calls. Sequences refer to them by name, so their order does not matter.
#[must_use]
pub fn all() -> &'static [&'static Call] {
    static ALL: LazyLock<Vec<&'static Call>> = LazyLock::new(|| {
        let tables = [
            converter::CALLS,
            core::CALLS,
            devmem::CALLS,
            endpoint::CALLS,
            epoll::CALLS,
            files::CALLS,
            memory::CALLS,
            netlink::CALLS,
            nic::CALLS,
        ];
        tables.into_iter().flatten().collect()
    });
    &ALL
}

/// `AT_FDCWD`; all paths are absolute.
const HERE: Type = Type::Is(libc::AT_FDCWD.cast_unsigned() as u64);
/// Flags of `open`.
const OPEN: Type = Type::OneOf(&[0o2, 0o4002, 0o4000, 0, 1, 0o2_000_002]);
/// Flags of calls that create descriptors without `open`.
const DESCRIPTOR: Type = Type::Flags(&[0o4000, 0o2_000_000]);
const ZERO: Type = Type::Is(0);

/// A field of 32 bits.
const fn u32(what: Type) -> Field {
    Field(4, what)
}

const fn u64(what: Type) -> Field {
    Field(8, what)
}

/// A field that is memory, with the length of its value.
const fn memory(what: Type) -> Field {
    Field(0, what)
}
