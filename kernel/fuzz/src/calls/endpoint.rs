//! Endpoints: `rpmsg_eptfd`, and next to it the in-tree `rpmsg_ctrl` and `rpmsg_char`.

use libc::{SYS_ioctl, SYS_openat};

use super::{HERE, OPEN, ZERO, u32, u64};
use crate::describe::{Call, Field, Kind, Type};

const CONTROL: Type = Type::Given(Kind::Control);
const ENDPOINT: Type = Type::Given(Kind::Endpoint);
/// Services of the coprocessor, an unknown name, and a name without a NUL byte.
const NAME: Field = Field(
    32,
    Type::Text(&["echo", "sink", "fuzz", "", "a-name-that-is-longer-than-thirty-one-bytes"]),
);
/// Channels that a sequence may create and release, unlike those of the coprocessor.
const OWN_NAME: Field = Field(32, Type::Text(&["fuzz", "fuzz-2"]));
const SOURCE: Field = u32(Type::OneOf(&[0xffff_ffff, 0x500, 0x501, 0x400, 0x35, 0]));
const TARGET: Field = u32(Type::OneOf(&[0x400, 0x401, 0x402, 0xffff_ffff, 0x77]));
const INFO: Type = Type::Struct(&[NAME, SOURCE, TARGET]);
const OWN_INFO: Type = Type::Struct(&[OWN_NAME, SOURCE, TARGET]);
const BUFFER: Type = Type::Struct(&[
    u32(Type::Given(Kind::Dmabuf)),
    u32(Type::OneOf(&[0])),
    u64(Type::OneOf(&[0])),
    u64(ZERO),
    u64(ZERO),
]);

/// Messages to send, and room for those to receive.
const MANY: Type = Type::Struct(&[
    u64(Type::To(&Type::Array(
        &Type::Struct(&[
            u64(Type::To(&Type::Bytes(64))),
            u32(Type::OneOf(&[16, 1, 0, 496, 497])),
            u32(ZERO),
        ]),
        20,
    ))),
    u32(Type::Count(0)),
    u32(Type::OneOf(&[1, 0, 2])),
]);

pub const CALLS: &[Call] = &[
    Call::new(
        "open_control",
        SYS_openat,
        &[
            HERE,
            Type::To(&Type::Text(&["/run/busbar-fuzz/eptfd", "/run/busbar-fuzz/in-tree"])),
            OPEN,
        ],
    )
    .gives(Kind::Control),
    Call::new(
        "create_ept_fd",
        SYS_ioctl,
        &[
            CONTROL,
            Type::Is(0xc030_b507),
            Type::To(&Type::Struct(&[
                NAME,
                SOURCE,
                TARGET,
                u32(Type::OneOf(&[0o2, 0o4002, 0o2_004_002, 1, 0, 3])),
                u32(ZERO),
            ])),
        ],
    )
    .leaves(Kind::Endpoint, 2, 44),
    Call::new("create_ept", SYS_ioctl, &[CONTROL, Type::Is(0x4028_b501), Type::To(&INFO)]),
    Call::new("create_dev", SYS_ioctl, &[CONTROL, Type::Is(0x4028_b503), Type::To(&OWN_INFO)]),
    Call::new("release_dev", SYS_ioctl, &[CONTROL, Type::Is(0x4028_b504), Type::To(&OWN_INFO)]),
    // The first names of endpoints' device nodes.
    Call::new(
        "open_endpoint",
        SYS_openat,
        &[HERE, Type::To(&Type::Text(&["/dev/rpmsg0", "/dev/rpmsg1", "/dev/rpmsg512"])), OPEN],
    )
    .gives(Kind::Endpoint),
    Call::new("destroy_ept", SYS_ioctl, &[ENDPOINT, Type::Is(0xb502)]),
    Call::new("get_flow", SYS_ioctl, &[ENDPOINT, Type::Is(0x8004_b505), Type::To(&Type::Room(4))]),
    Call::new("set_flow", SYS_ioctl, &[ENDPOINT, Type::Is(0x8004_b506), Type::OneOf(&[0, 1, 2])]),
    Call::new("ept_attach", SYS_ioctl, &[ENDPOINT, Type::Is(0x4020_b50c), Type::To(&BUFFER)]),
    Call::new("ept_detach", SYS_ioctl, &[ENDPOINT, Type::Is(0x4020_b50d), Type::To(&BUFFER)]),
    Call::new(
        "ept_send_buffer",
        SYS_ioctl,
        &[
            ENDPOINT,
            Type::Is(0xc040_b50e),
            Type::To(&Type::Struct(&[
                u32(Type::Given(Kind::Dmabuf)),
                u32(Type::OneOf(&[1, 2, 3])),
                u64(Type::OneOf(&[0, 1, 0x1000])),
                u64(Type::OneOf(&[1, 0x1000, 0x4000, 0])),
                u64(Type::Any),
                u64(Type::OneOf(&[0])),
                u64(ZERO),
                u64(ZERO),
                u64(ZERO),
            ])),
        ],
    ),
    Call::new("ept_send_many", SYS_ioctl, &[ENDPOINT, Type::Is(0x4010_b50a), Type::To(&MANY)]),
    Call::new("ept_receive_many", SYS_ioctl, &[ENDPOINT, Type::Is(0x4010_b50b), Type::To(&MANY)]),
    Call::new(
        "ept_send",
        libc::SYS_write,
        &[ENDPOINT, Type::To(&Type::Bytes(512)), Type::Length(1)],
    ),
    Call::new(
        "ept_receive",
        libc::SYS_read,
        &[ENDPOINT, Type::To(&Type::Room(512)), Type::Length(1)],
    ),
];
