//! `vconv`: IIO devices, their buffers, and their files in sysfs, configfs and debugfs.

use libc::{SYS_ioctl, SYS_mkdirat, SYS_openat, SYS_read, SYS_unlinkat, SYS_write};

use super::{HERE, OPEN, u32, u64};
use crate::describe::{Call, Kind, Type};

const BUFFER: Type = Type::Given(Kind::Buffer);
const BLOCK: Type = Type::To(&Type::Struct(&[u32(Type::Given(Kind::Dmabuf))]));
/// Converters that a sequence may create and remove.
const OWN: Type = Type::To(&Type::Text(&[
    "/sys/kernel/config/iio/devices/vconv/fuzz-a",
    "/sys/kernel/config/iio/devices/vconv/fuzz-b-tx",
]));

pub const CALLS: &[Call] = &[
    Call::new(
        "open_converter",
        SYS_openat,
        &[
            HERE,
            Type::To(&Type::Text(&["/run/busbar-fuzz/rx.device", "/run/busbar-fuzz/tx.device"])),
            OPEN,
        ],
    )
    .gives(Kind::Converter),
    Call::new(
        "get_buffer",
        SYS_ioctl,
        &[
            Type::Given(Kind::Converter),
            Type::Is(0xc004_6991),
            Type::To(&Type::Struct(&[u32(Type::OneOf(&[0]))])),
        ],
    )
    .leaves(Kind::Buffer, 2, 0),
    Call::new("block_attach", SYS_ioctl, &[BUFFER, Type::Is(0x4004_6992), BLOCK]),
    Call::new("block_detach", SYS_ioctl, &[BUFFER, Type::Is(0x4004_6993), BLOCK]),
    Call::new(
        "block_enqueue",
        SYS_ioctl,
        &[
            BUFFER,
            Type::Is(0x4010_6994),
            Type::To(&Type::Struct(&[
                u32(Type::Given(Kind::Dmabuf)),
                u32(Type::OneOf(&[0, 0, 1, 1 << 31, 1 << 31])),
                u64(Type::OneOf(&[0x1000, 0x4000, 8, 1, 0x1_0000])),
            ])),
        ],
    ),
    Call::new(
        "block_dequeue",
        SYS_ioctl,
        &[
            BUFFER,
            Type::Is(0x4010_699f),
            Type::To(&Type::Struct(&[
                u64(Type::To(&Type::Room(64))),
                u32(Type::OneOf(&[4, 1, 0])),
                u32(Type::OneOf(&[0])),
            ])),
        ],
    ),
    Call::new(
        "read_samples",
        SYS_read,
        &[Type::Given(Kind::Converter), Type::To(&Type::Room(8192)), Type::Length(1)],
    ),
    Call::new("write_samples", SYS_write, &[BUFFER, Type::To(&Type::Bytes(2048)), Type::Length(1)]),
    Call::new(
        "open_attribute",
        SYS_openat,
        &[
            HERE,
            Type::To(&Type::Text(&[
                "/run/busbar-fuzz/rx.enable",
                "/run/busbar-fuzz/tx.enable",
                "/run/busbar-fuzz/rx.length",
                "/run/busbar-fuzz/tx.length",
                "/run/busbar-fuzz/rx.rate",
                "/run/busbar-fuzz/tx.rate",
                "/run/busbar-fuzz/rx.pattern",
                "/run/busbar-fuzz/rx.loopback",
                "/run/busbar-fuzz/rx.count",
                "/run/busbar-fuzz/rx.gain",
                "/run/busbar-fuzz/rx.sine",
                "/run/busbar-fuzz/rx.lose",
                "/run/busbar-fuzz/rx.short",
                "/run/busbar-fuzz/tx.short",
                "/run/busbar-fuzz/rx.fail",
                "/run/busbar-fuzz/tx.fail",
                // The state of the coprocessor whose process a sequence may become.
                "/run/busbar-fuzz/core.state",
            ])),
            Type::OneOf(&[0o2, 0]),
        ],
    )
    .gives(Kind::Attribute),
    Call::new(
        "set_attribute",
        SYS_write,
        &[
            Type::Given(Kind::Attribute),
            Type::To(&Type::Text(&[
                "0",
                "1",
                "2",
                "8",
                "64",
                "1000",
                "1000000",
                "0.5",
                "-1",
                "4294967295",
                "counter",
                "sine",
                "noise",
                "none",
                "start",
                "stop",
            ])),
            Type::Length(1),
        ],
    ),
    Call::new("make_converter", SYS_mkdirat, &[HERE, OWN, Type::Is(0o755)]),
    // `AT_REMOVEDIR`
    Call::new("remove_converter", SYS_unlinkat, &[HERE, OWN, Type::Is(0x200)]),
];
