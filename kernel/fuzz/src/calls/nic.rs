//! `vnic`: creating, removing and configuring pairs.

use libc::{SYS_ioctl, SYS_sendto, SYS_socket};

use super::{ZERO, memory, u32, u64};
use crate::describe::{Call, Field, Kind, Type};

/// Only pairs of the sequence itself, so that the pair for device memory stays unchanged.
const NAME: Type = Type::Text(&["fuzz0", "fuzz1"]);
const QUEUES: Type = Type::Struct(&[u32(Type::OneOf(&[1, 2, 16, 128, 0, 129]))]);
const MTU: Type = Type::Struct(&[u32(Type::OneOf(&[1500, 68, 9000, 65535, 0]))]);

/// `struct ifinfomsg` without an index, so that the name is used.
const LINK: [Field; 6] = [
    Field(1, ZERO),
    Field(1, ZERO),
    Field(2, ZERO),
    u32(ZERO),
    u32(Type::OneOf(&[0, 1])),
    u32(Type::OneOf(&[0, 1])),
];
const LINK_ATTRIBUTES: &[Type] = &[
    Type::Attribute(3, &NAME),
    Type::Attribute(4, &MTU),
    Type::Attribute(31, &QUEUES),
    Type::Attribute(32, &QUEUES),
    Type::Attribute(1, &Type::Bytes(8)),
];
const PEER: Type =
    Type::Struct(&[memory(Type::Struct(&LINK)), memory(Type::AnyOf(LINK_ATTRIBUTES, 3))]);
const INFO: &[Type] = &[
    Type::Attribute(1, &Type::Text(&["vnic", "vnic", "vnic", "veth"])),
    Type::Attribute(0x8002, &Type::AnyOf(&[Type::Attribute(0x8001, &PEER)], 1)),
];
const ATTRIBUTES: &[Type] = &[
    Type::Attribute(3, &NAME),
    Type::Attribute(0x8012, &Type::AnyOf(INFO, 2)),
    Type::Attribute(4, &MTU),
    Type::Attribute(31, &QUEUES),
    Type::Attribute(32, &QUEUES),
];
const REQUEST: Type = Type::Message(&Type::Struct(&[
    // New, delete, get.
    Field(2, Type::OneOf(&[16, 16, 16, 17, 18])),
    Field(2, Type::OneOf(&[0x605, 5, 0x405])),
    u32(Type::UpTo(9)),
    u32(ZERO),
    memory(Type::Struct(&LINK)),
    memory(Type::AnyOf(ATTRIBUTES, 5)),
]));

/// `struct ifreq` and the memory that it points to.
const fn about(what: &'static Type) -> [Field; 3] {
    [Field(16, NAME), u64(Type::To(what)), u64(ZERO)]
}

const SMALL: Type = Type::OneOf(&[0, 1, 2, 3, 4, 16, 40, 128, 256, 8192, 0xffff_ffff]);
/// Coalescing, rings, statistics, strings, features, hashing, channels: a command and its numbers.
const SETTING: Type = Type::Struct(&[
    u32(Type::OneOf(&[
        0x3, 0xe, 0xf, 0x10, 0x11, 0x1b, 0x1d, 0x25, 0x26, 0x29, 0x2a, 0x2d, 0x2e, 0x30, 0x37,
        0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0x46, 0x47, 0x4c,
    ])),
    memory(Type::Array(&Type::Struct(&[u32(SMALL)]), 40)),
]);
/// `struct ethtool_rxnfc` with a rule.
const RULE: Type = Type::Struct(&[
    // Get, delete or insert a rule.
    u32(Type::OneOf(&[0x32, 0x32, 0x2f, 0x31])),
    u32(ZERO),
    u64(ZERO),
    // TCP and UDP over IPv4 and IPv6, and unsupported types.
    u32(Type::OneOf(&[1, 2, 5, 6, 0x12, 0x2000_0001, 0x8000_0001])),
    Field(52, Type::Bytes(52)),
    Field(20, Type::Bytes(20)),
    Field(52, Type::Bytes(52)),
    Field(20, Type::Bytes(20)),
    u32(ZERO),
    u64(Type::OneOf(&[0, 1, 15, 16, u64::MAX, 1 << 32])),
    u32(Type::OneOf(&[0, 1, 63, 64, 0xffff_ffff])),
    u32(ZERO),
    u32(Type::OneOf(&[0, 1])),
    u32(ZERO),
]);

pub const CALLS: &[Call] = &[
    Call::new("route_socket", SYS_socket, &[Type::Is(16), Type::Is(3), ZERO]).gives(Kind::Route),
    Call::new(
        "link_request",
        SYS_sendto,
        &[
            Type::Given(Kind::Route),
            Type::To(&REQUEST),
            Type::Length(1),
            Type::Is(0x40),
            ZERO,
            ZERO,
        ],
    ),
    Call::new(
        "nic_setting",
        SYS_ioctl,
        &[Type::Given(Kind::Tcp), Type::Is(0x8946), Type::To(&Type::Struct(&about(&SETTING)))],
    ),
    Call::new(
        "nic_rule",
        SYS_ioctl,
        &[Type::Given(Kind::Tcp), Type::Is(0x8946), Type::To(&Type::Struct(&about(&RULE)))],
    ),
];
