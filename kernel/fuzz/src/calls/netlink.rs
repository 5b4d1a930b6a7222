//! `rpmsg_netlink`: blocks over generic netlink.

use busbar_uapi::rpmsg_netlink::{block, channel, command};
use libc::{SYS_recvfrom, SYS_sendto, SYS_setsockopt, SYS_socket};

use super::{ZERO, memory, u32};
use crate::describe::{Call, Field, Found, Kind, Type};

const SOCKET: Type = Type::Given(Kind::Generic);
const NUMBER: Type = Type::Struct(&[u32(Type::OneOf(&[1, 1, 2, 3, 0, 100, 4096, 1 << 16]))]);
const CHANNEL: Type = Type::Struct(&[u32(Type::OneOf(&[1, 1, 1, 2, 3]))]);
const TIMEOUT: Type = Type::Struct(&[u32(Type::OneOf(&[1, 10, 100, 30_000, 1 << 31, 0]))]);
const DATA: Type = Type::Bytes(6000);

const ATTRIBUTES: &[Type] = &[
    Type::Attribute(block::CHANNEL, &CHANNEL),
    Type::Attribute(block::LENGTH, &NUMBER),
    Type::Attribute(block::OFFSET, &NUMBER),
    Type::Attribute(block::CRC, &Type::Struct(&[Field(2, Type::Any)])),
    Type::Attribute(block::NOWAIT, &Type::Bytes(1)),
    Type::Attribute(block::STATUS, &NUMBER),
    Type::Attribute(block::DATA, &DATA),
    Type::Attribute(block::TIMEOUT, &TIMEOUT),
    Type::Attribute(0x8000 | channel::DEVICE, &Type::Bytes(40)),
];

/// Request, with acknowledgement, as a dump.
const FLAGS: Field = Field(2, Type::OneOf(&[1, 5, 5, 0x301, 0]));

const REQUEST: Type = Type::Message(&Type::Struct(&[
    Field(2, Type::Found(Found::RpmsgFamily)),
    FLAGS,
    u32(Type::UpTo(9)),
    u32(ZERO),
    Field(
        1,
        Type::OneOf(&[
            command::SEND as u64,
            command::SEND as u64,
            command::RECEIVE as u64,
            command::FETCH as u64,
            command::RESET as u64,
            command::CHANNEL_GET as u64,
            command::DATA_NTF as u64,
        ]),
    ),
    Field(1, Type::Is(1)),
    Field(2, ZERO),
    memory(Type::AnyOf(ATTRIBUTES, 8)),
]));

pub const CALLS: &[Call] = &[
    Call::new(
        "generic_socket",
        SYS_socket,
        &[Type::Is(16), Type::OneOf(&[3, 0o4003]), Type::Is(16)],
    )
    .gives(Kind::Generic),
    // To the kernel, as no address is given.
    Call::new(
        "rpmsg_request",
        SYS_sendto,
        &[SOCKET, Type::To(&REQUEST), Type::Length(1), Type::OneOf(&[0, 0x40]), ZERO, ZERO],
    ),
    Call::new(
        "generic_receive",
        SYS_recvfrom,
        &[
            SOCKET,
            Type::To(&Type::Room(8192)),
            Type::Length(1),
            Type::OneOf(&[0x40, 0, 0x42]),
            ZERO,
            ZERO,
        ],
    ),
    // `NETLINK_ADD_MEMBERSHIP` and so on.
    Call::new(
        "generic_option",
        SYS_setsockopt,
        &[
            SOCKET,
            Type::Is(270),
            Type::OneOf(&[1, 2, 10, 11, 8]),
            Type::To(&Type::Struct(&[u32(Type::UpTo(40))])),
            Type::Is(4),
        ],
    ),
    // A small receive buffer, so that notifications are lost.
    Call::new(
        "generic_buffer",
        SYS_setsockopt,
        &[
            SOCKET,
            Type::Is(1),
            Type::Is(8),
            Type::To(&Type::Struct(&[u32(Type::OneOf(&[0, 2048, 65536]))])),
            Type::Is(4),
        ],
    ),
];
