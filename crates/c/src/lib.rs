//! libbusbar: the library for C.
//!
//! It wraps the crate `busbar` and implements nothing of it again. `include/busbar.h` is made of these sources by
//! cbindgen, with their comments; so these are written for readers of C.

// Sums of times that panic; see clippy.toml.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
#![allow(unsafe_code)]
// The names are those of the header.
#![allow(non_camel_case_types)]
// Every function has the same rules, which are at the beginning of the header.
#![allow(clippy::missing_safety_doc)]
// The comments are for readers of the header, which has no Markdown.
#![allow(clippy::doc_markdown)]
// Fields are in the order in which a structure has no holes.
#![allow(clippy::inconsistent_struct_constructor)]

mod args;
mod handle;
mod signal;

// In the order of the header.
mod error;

mod cancel;

mod block;

mod stream;

mod sink;

mod device;

mod context;

mod endpoint;

mod receive;

mod pipeline;

use std::ffi::c_char;

#[doc(inline)]
pub use self::{
    block::*, cancel::*, context::*, device::*, endpoint::*, error::*, pipeline::*, receive::*,
    sink::*, stream::*,
};

/// The version of this header. busbar_version has that of the library.
pub const BUSBAR_VERSION_MAJOR: u32 = 0;
/// The minor version: until version 1, another one may break programs.
pub const BUSBAR_VERSION_MINOR: u32 = 1;
/// The patch version.
pub const BUSBAR_VERSION_PATCH: u32 = 0;
const _: () = assert!(
    is(BUSBAR_VERSION_MAJOR, env!("CARGO_PKG_VERSION_MAJOR"))
        && is(BUSBAR_VERSION_MINOR, env!("CARGO_PKG_VERSION_MINOR"))
        && is(BUSBAR_VERSION_PATCH, env!("CARGO_PKG_VERSION_PATCH")),
    "the version macros have another version than Cargo.toml"
);

/// Whether a number is written so.
const fn is(number: u32, text: &str) -> bool {
    matches!(u32::from_str_radix(text, 10), Ok(value) if value == number)
}

/// A time limit: wait as long as it takes. Every other limit is in nanoseconds; 0 means not to wait.
pub const BUSBAR_FOREVER: i64 = -1;

/// The version of the library, such as "0.1.0".
///
/// Errors: none.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn busbar_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
