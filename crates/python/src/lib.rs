//! The Python package `busbar`: the library, for Python.
//!
//! Nothing is implemented here again. Waits release the interpreter and return to it every 100 ms, so that signals
//! are handled; memory is exported by the buffer protocol.

// Sums of times that panic; see clippy.toml.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
// The macros of PyO3 take arguments by value and have methods that do not need `self`. The documentation of classes is
// for Python.
#![allow(clippy::doc_markdown, clippy::needless_pass_by_value, clippy::unused_self)]

mod arguments;
#[cfg(target_pointer_width = "64")]
mod coprocessor;
mod devices;
mod endpoint;
mod error;
mod interpreter;
mod layout;
mod memory;
mod pipeline;
mod process;
mod receive;
mod sink;
mod slot;
mod source;
mod wait;

use pyo3::prelude::*;

/// The part of the package that is written in Rust.
// A function, and not a module with exports: what is exported would be made before it can refuse.
//
// An interpreter without a global lock takes one while the module is loaded: that a fork finds no lock taken, and that a
// coprocessor is asked to end in order, rely on it.
#[pyo3::pymodule(gil_used = true)]
fn _busbar(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::check_main(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // A coprocessor needs addresses of 64 bits.
    #[cfg(target_pointer_width = "64")]
    {
        module.add_class::<coprocessor::Coprocessor>()?;
        module.add_class::<coprocessor::Port>()?;
        module.add_function(wrap_pyfunction!(coprocessor::_join, module)?)?;
    }
    module.add_class::<devices::Devices>()?;
    module.add_function(wrap_pyfunction!(devices::_servers, module)?)?;
    module.add_class::<endpoint::Controller>()?;
    module.add_class::<endpoint::Endpoint>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_function(wrap_pyfunction!(process::_forked, module)?)?;
    module.add_class::<receive::Connection>()?;
    module.add_class::<receive::Listener>()?;
    module.add_class::<receive::Receiver>()?;
    module.add_class::<receive::View>()?;
    module.add_class::<sink::Sink>()?;
    module.add_class::<sink::Space>()?;
    module.add_class::<source::Block>()?;
    module.add_class::<source::Source>()?;
    // Makes the type that has no name here. The child of a fork would wait for one that another thread was making.
    module.py().get_type::<memory::Buffer>();
    Ok(())
}
