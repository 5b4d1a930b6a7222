//! DMABUFs, heaps and memfds.

use libc::{
    SYS_fcntl, SYS_ftruncate, SYS_ioctl, SYS_memfd_create, SYS_mmap, SYS_munmap, SYS_openat,
};

use super::{HERE, ZERO, u32, u64};
use crate::describe::{Call, Kind, Type};

const BUFFER: Type = Type::Given(Kind::Dmabuf);
const LENGTH: Type = Type::OneOf(&[0x1000, 0x4000, 0x4_0000, 0x10_0000]);
const ACCESS: Type = Type::OneOf(&[1, 2, 3, 5, 6, 7]);

pub const CALLS: &[Call] = &[
    Call::new(
        "open_heap",
        SYS_openat,
        &[
            HERE,
            Type::To(&Type::Text(&["/run/busbar-fuzz/heap", "/run/busbar-fuzz/udmabuf"])),
            Type::Is(0o2_000_002),
        ],
    )
    .gives(Kind::Heap),
    Call::new(
        "heap_alloc",
        SYS_ioctl,
        &[
            Type::Given(Kind::Heap),
            Type::Is(0xc018_4800),
            Type::To(&Type::Struct(&[
                u64(LENGTH),
                u32(ZERO),
                u32(Type::Is(0o2_000_002)),
                u64(ZERO),
            ])),
        ],
    )
    .leaves(Kind::Dmabuf, 2, 8),
    Call::new("memfd", SYS_memfd_create, &[Type::To(&Type::Text(&["fuzz"])), Type::OneOf(&[3, 2])])
        .gives(Kind::Memfd),
    Call::new("truncate", SYS_ftruncate, &[Type::Given(Kind::Memfd), LENGTH_OF_FILE]),
    // Seals against shrinking, which udmabuf needs.
    Call::new(
        "seal",
        SYS_fcntl,
        &[Type::Given(Kind::Memfd), Type::Is(1033), Type::OneOf(&[2, 2, 6])],
    ),
    Call::new(
        "udmabuf_create",
        SYS_ioctl,
        &[
            Type::Given(Kind::Heap),
            Type::Is(0x4018_7542),
            Type::To(&Type::Struct(&[
                u32(Type::Given(Kind::Memfd)),
                u32(Type::OneOf(&[1, 0])),
                u64(Type::OneOf(&[0, 0x1000])),
                u64(LENGTH),
            ])),
        ],
    )
    .gives(Kind::Dmabuf),
    Call::new("dmabuf_sync", SYS_ioctl, &[BUFFER, Type::Is(0x4008_6200), Type::To(&SYNC)]),
    Call::new(
        "export_sync_file",
        SYS_ioctl,
        &[BUFFER, Type::Is(0xc008_6202), Type::To(&Type::Struct(&[u32(ACCESS), u32(ZERO)]))],
    )
    .leaves(Kind::SyncFile, 2, 4),
    Call::new(
        "import_sync_file",
        SYS_ioctl,
        &[
            BUFFER,
            Type::Is(0x4008_6203),
            Type::To(&Type::Struct(&[u32(ACCESS), u32(Type::Given(Kind::SyncFile))])),
        ],
    ),
    Call::new(
        "dmabuf_map",
        SYS_mmap,
        &[ZERO, LENGTH, Type::OneOf(&[3, 1]), Type::Is(1), BUFFER, Type::OneOf(&[0, 0x1000])],
    )
    .gives(Kind::Mapping),
    Call::new(
        "unmap",
        SYS_munmap,
        &[Type::Given(Kind::Mapping), Type::OneOf(&[0x1000, 0x10_0000])],
    ),
];

const SYNC: Type = Type::Struct(&[u64(ACCESS)]);
/// Lengths of a memfd. They are small, so that larger requests fail.
const LENGTH_OF_FILE: Type = Type::OneOf(&[0x1000, 0x4_0000, 0x10_0000, 0]);
