//! The descriptions: one file for each interface. This is all that has to change when an interface does.
//!
//! A call names nothing but what setup has put into [`FOLDER`] or what is named here: no sequence can reach
//! the files of the guest or its host.

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

/// Where setup puts links to the files that calls may open.
pub const FOLDER: &str = "/run/busbar-fuzz";

/// All calls. A sequence names them by their names, so their order is free.
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

/// `AT_FDCWD`: paths are whole ones.
const HERE: Type = Type::Is(libc::AT_FDCWD.cast_unsigned() as u64);
/// Flags of `open`.
const OPEN: Type = Type::OneOf(&[0o2, 0o4002, 0o4000, 0, 1, 0o2_000_002]);
/// Flags of descriptors that need no open.
const DESCRIPTOR: Type = Type::Flags(&[0o4000, 0o2_000_000]);
const ZERO: Type = Type::Is(0);

/// 32 bits that are given by another call.
const fn u32(what: Type) -> Field {
    Field(4, what)
}

const fn u64(what: Type) -> Field {
    Field(8, what)
}

/// Memory in memory, as long as it is.
const fn memory(what: Type) -> Field {
    Field(0, what)
}
