//! Device memory TCP: binding DMABUFs, receiving, and returning tokens (kernel/patches, 0009 to 0018).

use busbar_uapi::netdev::{command, dmabuf, queue};
use libc::{
    SYS_connect, SYS_getsockopt, SYS_recvmsg, SYS_sendto, SYS_setsockopt, SYS_shutdown, SYS_socket,
};

use super::{ZERO, memory, u32, u64};
use crate::describe::{Call, Field, Found, Kind, Type};

const TCP: Type = Type::Given(Kind::Tcp);

/// Attribute that makes the kernel release tokens with the socket: kernel/patches, 0018.
const AUTORELEASE: u16 = dmabuf::AUTORELEASE;

const QUEUE: &[Type] = &[
    Type::Attribute(queue::ID, &Type::Struct(&[u32(Type::OneOf(&[1, 1, 2, 3, 15, 16]))])),
    Type::Attribute(queue::TYPE, &Type::Struct(&[u32(Type::OneOf(&[0, 0, 0, 1]))])),
];
const ATTRIBUTES: &[Type] = &[
    Type::Attribute(dmabuf::IFINDEX, &Type::Struct(&[u32(Type::Found(Found::Device))])),
    // Nested.
    Type::Attribute(0x8000 | dmabuf::QUEUES, &Type::AnyOf(QUEUE, 3)),
    Type::Attribute(dmabuf::FD, &Type::Struct(&[u32(Type::Given(Kind::Dmabuf))])),
    Type::Attribute(AUTORELEASE, &Type::Bytes(1)),
];
const BIND: Type = Type::Message(&Type::Struct(&[
    Field(2, Type::Found(Found::NetdevFamily)),
    Field(2, Type::OneOf(&[5])),
    u32(Type::UpTo(9)),
    u32(ZERO),
    Field(
        1,
        Type::OneOf(&[
            command::BIND_RX as u64,
            command::QUEUE_GET as u64,
            command::QSTATS_GET as u64,
        ]),
    ),
    Field(1, Type::Is(1)),
    Field(2, ZERO),
    memory(Type::AnyOf(ATTRIBUTES, 6)),
]));

/// Port 7777 of 10.77.0.2, where the set-up's sender listens, and a port without a listener.
const ADDRESS: Type = Type::Struct(&[
    Field(2, Type::Is(2)),
    Field(2, Type::OneOf(&[0x611e, 0x611e, 0x611e, 0x0100])),
    u32(Type::Is(0x0200_4d0a)),
    u64(ZERO),
]);

const PIECE: Type =
    Type::Struct(&[u64(Type::To(&Type::Room(8192))), u64(Type::OneOf(&[8192, 1, 1 << 20, 0]))]);
/// `struct msghdr`.
const MESSAGE: Type = Type::Struct(&[
    u64(ZERO),
    u64(ZERO),
    u64(Type::To(&Type::Array(&PIECE, 3))),
    u64(Type::Count(2)),
    u64(Type::To(&Type::Room(2048))),
    u64(Type::Length(4)),
    u64(ZERO),
]);
/// Ranges of tokens, which are small numbers.
const RANGES: Type = Type::Array(
    &Type::Struct(&[u32(Type::UpTo(80)), u32(Type::OneOf(&[1, 1, 2, 16, 1024, 0, 0xffff_ffff]))]),
    130,
);

pub const CALLS: &[Call] = &[
    Call::new(
        "bind_rx",
        SYS_sendto,
        &[Type::Given(Kind::Generic), Type::To(&BIND), Type::Length(1), Type::Is(0x40), ZERO, ZERO],
    ),
    Call::new("tcp_socket", SYS_socket, &[Type::Is(2), Type::OneOf(&[1, 0o4001]), ZERO])
        .gives(Kind::Tcp),
    Call::new("tcp_connect", SYS_connect, &[TCP, Type::To(&ADDRESS), Type::Is(16)]),
    Call::new("tcp_shutdown", SYS_shutdown, &[TCP, Type::UpTo(2)]),
    // `MSG_SOCK_DEVMEM`, with and without `MSG_PEEK`, `MSG_DONTWAIT`, `MSG_TRUNC`.
    Call::new(
        "devmem_receive",
        SYS_recvmsg,
        &[
            TCP,
            Type::To(&MESSAGE),
            Type::OneOf(&[
                0x0200_0000,
                0x0200_0000,
                0x0200_0040,
                0x0200_0002,
                0x0200_0020,
                0,
                0x0200_0100,
            ]),
        ],
    ),
    // `SO_DEVMEM_DONTNEED`
    Call::new(
        "devmem_return",
        SYS_setsockopt,
        &[TCP, Type::Is(1), Type::Is(80), Type::To(&RANGES), Type::Length(3)],
    ),
    Call::new(
        "devmem_option",
        SYS_getsockopt,
        &[
            TCP,
            Type::Is(1),
            Type::OneOf(&[78, 79, 80]),
            Type::To(&Type::Room(64)),
            Type::To(&Type::Struct(&[u32(Type::OneOf(&[64, 0]))])),
        ],
    ),
];
