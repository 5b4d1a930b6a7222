//! Calls for all kinds of files.

use libc::{
    SYS_close, SYS_dup, SYS_fcntl, SYS_ppoll, SYS_pread64, SYS_pwrite64, SYS_read, SYS_readv,
    SYS_splice, SYS_write,
};

use super::{ZERO, memory, u32, u64};
use crate::describe::{Call, Field, Kind, Type};

const FILE: Type = Type::Given(Kind::File);
const OFFSET: Type = Type::OneOf(&[0, 1, 8, 4096]);
const POLLED: Type =
    Type::Struct(&[u32(FILE), Field(2, Type::Flags(&[1, 2, 4, 0x2000])), Field(2, ZERO)]);
const MOMENT: Type = Type::Struct(&[u64(ZERO), u64(Type::OneOf(&[0, 1_000_000]))]);
const PIECE: Type = Type::Struct(&[u64(Type::To(&Type::Room(4096))), u64(Type::UpTo(4096))]);

pub const CALLS: &[Call] = &[
    Call::new("close", SYS_close, &[FILE]),
    Call::new("dup", SYS_dup, &[FILE]).gives(Kind::File),
    // `F_SETFL`: blocking or not.
    Call::new("set_flags", SYS_fcntl, &[FILE, Type::Is(4), Type::OneOf(&[0, 0o4000, 0o2000])]),
    Call::new(
        "poll",
        SYS_ppoll,
        &[Type::To(&Type::Array(&POLLED, 8)), Type::Count(0), Type::To(&MOMENT), ZERO, Type::Is(8)],
    ),
    Call::new("read", SYS_read, &[FILE, Type::To(&Type::Room(8192)), Type::Length(1)]),
    Call::new("write", SYS_write, &[FILE, Type::To(&Type::Bytes(2048)), Type::Length(1)]),
    Call::new("pread", SYS_pread64, &[FILE, Type::To(&Type::Room(64)), Type::Length(1), OFFSET]),
    Call::new("pwrite", SYS_pwrite64, &[FILE, Type::To(&Type::Bytes(64)), Type::Length(1), OFFSET]),
    Call::new("readv", SYS_readv, &[FILE, Type::To(&Type::Array(&PIECE, 4)), Type::Count(1)]),
    Call::new(
        "splice",
        SYS_splice,
        &[FILE, ZERO, FILE, ZERO, Type::UpTo(4096), Type::Flags(&[1, 2, 4])],
    ),
    Call::new(
        "write_message",
        SYS_write,
        &[FILE, Type::To(&Type::Struct(&[memory(Type::Bytes(496))])), Type::Length(1)],
    ),
];
