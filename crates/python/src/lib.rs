//! The Python package `busbar`: the library, for Python.
//!
//! Nothing is implemented here again. Waits release the interpreter and return to it every 100 ms, so that signals
//! are handled; memory is exported by the buffer protocol.

// The macros of PyO3 take arguments by value and have methods that do not need `self`. The documentation of classes is
// for Python.
#![allow(clippy::doc_markdown, clippy::needless_pass_by_value, clippy::unused_self)]

mod arguments;
#[cfg(target_pointer_width = "64")]
mod coprocessor;
mod endpoint;
mod error;
mod layout;
mod memory;
mod pipeline;
mod process;
mod receive;
mod sink;
mod slot;
mod source;
mod wait;

/// The part of the package that is written in Rust.
#[pyo3::pymodule]
mod _busbar {
    use pyo3::prelude::*;

    /// Makes the type that has no name here. The child of a fork would wait for one that another thread was making.
    #[allow(clippy::unnecessary_wraps)] // as PyO3 wants it
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.py().get_type::<crate::memory::Buffer>();
        Ok(())
    }

    // A coprocessor needs addresses of 64 bits.
    #[cfg(target_pointer_width = "64")]
    #[pymodule_export]
    use crate::coprocessor::{_join, Coprocessor, Port};
    #[pymodule_export]
    use crate::endpoint::{Controller, Endpoint};
    #[pymodule_export]
    use crate::pipeline::Pipeline;
    #[pymodule_export]
    use crate::process::_forked;
    #[pymodule_export]
    use crate::receive::{Connection, Listener, Receiver, View};
    #[pymodule_export]
    use crate::sink::{Sink, Space};
    #[pymodule_export]
    use crate::source::{Block, Source};
}
