//! The layout of samples, for NumPy.

use busbar::stream::{Channel, Format};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyMemoryView, PyTuple};

use crate::error::invalid;

/// The layout of samples, and what Python calls it.
pub struct Layout {
    pub format: Format,
    dtype: PyOnceLock<Py<PyAny>>,
    channels: PyOnceLock<Py<PyTuple>>,
}

impl Layout {
    pub fn new(format: Format) -> Self {
        Self { format, dtype: PyOnceLock::new(), channels: PyOnceLock::new() }
    }

    /// Bytes of a sample.
    pub fn sample_len(&self) -> usize {
        self.format.sample_len.max(1)
    }

    /// The structured type of a sample: a field for each channel, as it is stored. A new object each time, as a program
    /// can rename its fields.
    pub fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Unlike `numpy.dtype(…, copy=True)` it makes another object. `|` changes no order of bytes.
        self.own(py)?.call_method1("newbyteorder", ("|",))
    }

    /// The type of a channel.
    pub fn field<'py>(&self, py: Python<'py>, channel: &str) -> PyResult<Bound<'py, PyAny>> {
        self.own(py)?.get_item(channel)
    }

    /// Refuses an array that is not laid out as samples.
    pub fn check(&self, argument: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = object.py();
        let numpy = py.import("numpy")?;
        let given = match object.getattr_opt("dtype")? {
            Some(dtype) if dtype.is_instance(&numpy.getattr("dtype")?)? => dtype,
            // What is not an array has its type in its buffer.
            _ => numpy.call_method1("asarray", (PyMemoryView::from(object)?,))?.getattr("dtype")?,
        };
        let own = self.own(py)?;
        if given.eq(own)? {
            return Ok(());
        }
        let mut allowed = format!("bytes, or the dtype {own}");
        if let Some(channel) = self.alike() {
            let each = self.field(py, &channel.name)?;
            if given.eq(&each)? {
                return Ok(());
            }
            allowed = format!("{allowed}, or {each} for each channel");
        }
        Err(invalid(argument, given, &allowed))
    }

    /// The first channel, if all have the same type and there is nothing between them.
    pub fn alike(&self) -> Option<&Channel> {
        let channels = &self.format.channels;
        let kind = |it: &Channel| (it.storage_bits, it.signed, it.big_endian, it.repeat);
        let bytes: usize = channels.iter().map(Channel::len).sum();
        let first = channels.first().filter(|_| bytes == self.format.sample_len)?;
        (first.repeat == 1 && channels.iter().all(|it| kind(it) == kind(first))).then_some(first)
    }

    /// The type that no program sees.
    fn own<'a, 'py: 'a>(&'a self, py: Python<'py>) -> PyResult<&'a Bound<'py, PyAny>> {
        let make = || {
            let channels = &self.format.channels;
            let fields = PyDict::new(py);
            fields.set_item("names", PyList::new(py, channels.iter().map(|it| &it.name))?)?;
            fields.set_item("formats", PyList::new(py, channels.iter().map(kind))?)?;
            fields.set_item("offsets", PyList::new(py, channels.iter().map(|it| it.offset))?)?;
            fields.set_item("itemsize", self.sample_len())?;
            Ok::<_, PyErr>(py.import("numpy")?.call_method1("dtype", (fields,))?.unbind())
        };
        once(&self.dtype, py, make)
    }

    /// The channels, as objects of Python.
    pub fn channels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let make = || {
            let all = self.format.channels.iter().map(|it| channel(py, it));
            let all = all.collect::<PyResult<Vec<_>>>()?;
            Ok::<_, PyErr>(PyTuple::new(py, all)?.unbind())
        };
        once(&self.channels, py, make).cloned()
    }
}

/// A channel as an object of Python.
pub fn channel<'py>(py: Python<'py>, it: &Channel) -> PyResult<Bound<'py, PyAny>> {
    py.import("busbar._types")?.getattr("Channel")?.call1((
        &it.name,
        it.signed,
        it.bits,
        it.storage_bits,
        it.shift,
        it.big_endian,
        it.repeat,
        it.offset,
    ))
}

/// What `make` makes, the first time.
///
/// It is made outside of the cell. Code of Python runs meanwhile, and with it other threads, signal handlers and a fork; all of
/// them would wait for the one that is about to fill the cell, the child of a fork and a handler without end.
pub fn once<'a, 'py, T>(
    cell: &'a PyOnceLock<Py<T>>,
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<Py<T>>,
) -> PyResult<&'a Bound<'py, T>> {
    if cell.get(py).is_none() {
        // Another thread may have been faster: then its value is that of all.
        let _ = cell.set(py, make()?);
    }
    let filled = cell.get(py).map(|value| value.bind(py));
    filled.ok_or_else(|| PyRuntimeError::new_err("a value that was just made is gone"))
}

/// The type of a stored value, as NumPy writes it. Values that no number of NumPy holds are bytes.
fn kind(channel: &Channel) -> String {
    let order = if channel.big_endian { '>' } else { '<' };
    let sign = if channel.signed { 'i' } else { 'u' };
    let bytes = channel.storage_bits / 8;
    let one = match bytes {
        1 | 2 | 4 | 8 => format!("{order}{sign}{bytes}"),
        _ => format!("V{bytes}"),
    };
    if channel.repeat == 1 { one } else { format!("({},){one}", channel.repeat) }
}
