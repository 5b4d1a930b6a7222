//! `epoll_ctl_batch`, `epoll_pwait1`, `EPIOCGSYSCALLS` (kernel/patches), and the calls that they share code with.

use libc::{SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait2, SYS_eventfd2, SYS_ioctl};

use super::{DESCRIPTOR, memory, u32, u64};
use crate::describe::{Call, Field, Found, Kind, Type};

const SET: Type = Type::Given(Kind::Epoll);
/// `EPOLLIN`, `EPOLLOUT`, `EPOLLRDHUP`, `EPOLLEXCLUSIVE`, `EPOLLWAKEUP`, `EPOLLONESHOT`, `EPOLLET`.
const EVENTS: Type = Type::Flags(&[1, 4, 0x2000, 1 << 28, 1 << 29, 1 << 30, 1 << 31]);
/// Add, delete, modify, and an invalid operation.
const OP: Type = Type::OneOf(&[1, 1, 2, 3, 4]);

/// Flags of `epoll_ctl_batch`: continue after an error or not.
const BATCH_FLAGS: Type = Type::OneOf(&[0, 1]);
/// `struct epoll_ctl_cmd`.
const COMMAND: Type = Type::Struct(&[
    u32(Type::OneOf(&[0])),
    u32(OP),
    u32(Type::Given(Kind::File)),
    u32(EVENTS),
    u64(Type::Any),
    u32(Type::Any),
    u32(Type::OneOf(&[0])),
]);

/// Flags of `epoll_pwait1`.
const WAIT_FLAGS: Type = Type::OneOf(&[0, 0, 1]);
/// `struct epoll_wait_params`, sometimes with more bytes than the kernel knows.
const PARAMS: Type = Type::Struct(&[
    u32(Type::OneOf(&[1, 0, 7, 4])),
    u32(Type::OneOf(&[0])),
    u64(Type::To(&TIME)),
    u64(Type::To(&MASK)),
    u64(Type::OneOf(&[8])),
    memory(Type::Array(&Type::Struct(&[u64(Type::OneOf(&[0, 0, 1]))]), 2)),
]);
const TIME: Type = Type::Struct(&[
    u64(Type::OneOf(&[0, 0, 0, 1, 1 << 62])),
    u64(Type::OneOf(&[0, 1, 1_000_000, 20_000_000, 999_999_999])),
]);
const MASK: Type = Type::Bytes(8);
const READY: Type = Type::Room(48 * 12);
const MOST: Type = Type::UpTo(48);

pub const CALLS: &[Call] = &[
    Call::new("epoll_create", SYS_epoll_create1, &[Type::OneOf(&[0, 0o2_000_000])])
        .gives(Kind::Epoll),
    Call::new("eventfd", SYS_eventfd2, &[Type::UpTo(3), DESCRIPTOR]).gives(Kind::Event),
    Call::new(
        "epoll_ctl",
        SYS_epoll_ctl,
        &[
            SET,
            OP,
            Type::Given(Kind::File),
            Type::To(&Type::Struct(&[u32(EVENTS), Field(8, Type::Any)])),
        ],
    ),
    Call::found(
        "epoll_ctl_batch",
        Found::CtlBatch,
        &[SET, BATCH_FLAGS, Type::Count(3), Type::To(&Type::Array(&COMMAND, 40))],
    ),
    Call::found(
        "epoll_pwait1",
        Found::Pwait1,
        &[SET, WAIT_FLAGS, Type::To(&READY), MOST, Type::To(&PARAMS), Type::Length(4)],
    ),
    Call::new(
        "epoll_pwait2",
        SYS_epoll_pwait2,
        &[SET, Type::To(&READY), MOST, Type::To(&TIME), Type::To(&MASK), Type::OneOf(&[8])],
    ),
    Call::new(
        "epoll_get_syscalls",
        SYS_ioctl,
        &[SET, Type::Is(0x8010_8ab0), Type::To(&Type::Room(16))],
    ),
    Call::new(
        "epoll_set_params",
        SYS_ioctl,
        &[SET, Type::Is(0x4008_8a01), Type::To(&Type::Bytes(8))],
    ),
    Call::new(
        "epoll_get_params",
        SYS_ioctl,
        &[SET, Type::Is(0x8008_8a02), Type::To(&Type::Room(8))],
    ),
];
