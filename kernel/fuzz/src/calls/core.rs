//! `/dev/vcoprocN`: the process of a coprocessor that Linux starts, stops and shares memory with.

use libc::{SYS_ioctl, SYS_mmap, SYS_openat, SYS_pread64, SYS_pwrite64, SYS_read};

use super::{HERE, OPEN, ZERO, u32};
use crate::describe::{Call, Kind, Type};

const CORE: Type = Type::Given(Kind::Core);
/// Offsets in the shared memory: rings at its start, buffers after them, and the resource table.
const PLACE: Type = Type::Inside(
    Kind::Mapping,
    &[
        0, 2, 4, 0x10, 0x20, 0x1000, 0x1004, 0x2000, 0x2002, 0x3000, 0x4000, 0x5004, 0x8000,
        0xf_f000,
    ],
);

pub const CALLS: &[Call] = &[
    Call::new(
        "open_core",
        SYS_openat,
        &[HERE, Type::To(&Type::Text(&["/run/busbar-fuzz/core"])), OPEN],
    )
    .gives(Kind::Core),
    Call::new("core_info", SYS_ioctl, &[CORE, Type::Is(0x8020_bb01), Type::To(&Type::Room(32))]),
    Call::new(
        "core_kick",
        SYS_ioctl,
        &[
            CORE,
            Type::Is(0x4004_bb02),
            Type::To(&Type::Struct(&[u32(Type::OneOf(&[1, 2, 3, 0, 4, 1 << 31]))])),
        ],
    ),
    Call::new("core_stopped", SYS_ioctl, &[CORE, Type::Is(0xbb03)]),
    Call::new("core_crash", SYS_ioctl, &[CORE, Type::Is(0xbb04)]),
    Call::new("core_event", SYS_read, &[CORE, Type::To(&Type::Room(32)), Type::Length(1)]),
    Call::new(
        "core_map",
        SYS_mmap,
        &[
            ZERO,
            Type::OneOf(&[0x10_0000, 0x1000]),
            Type::OneOf(&[3, 1, 2]),
            Type::OneOf(&[1, 1, 2]),
            CORE,
            // The whole shared memory, the resource table, and buffers that Linux shares.
            Type::OneOf(&[0, 0, 0x10_0000, 0x1000, 0x100_0000_0000, 0x100_0000_1000]),
        ],
    )
    .gives(Kind::Mapping),
    // The kernel accesses the memory, so that an invalid access is an error and not a signal.
    Call::new(
        "poke",
        SYS_pread64,
        &[Type::Given(Kind::Memfd), PLACE, Type::UpTo(64), Type::OneOf(&[0, 64])],
    ),
    Call::new(
        "peek",
        SYS_pwrite64,
        &[Type::Given(Kind::Memfd), PLACE, Type::UpTo(64), Type::OneOf(&[0, 64])],
    ),
];
