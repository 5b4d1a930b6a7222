//! Sinks and their free blocks.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use busbar::block::Bytes;
use busbar::stream::{self, Samples};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{Seconds, Size, Timeout, Whole, timeout};
use crate::error::{OrRaise, invalid};
use crate::layout::Layout;
use crate::memory::{Buffer, Given, Held, as_asked};
use crate::slot::{Slot, leave};
use crate::source::{self, Block, setup};

/// A stream of samples to a converter of this machine, `iio:NAME`, or of another one, `iio:NAME@ip:HOST`, to a new
/// recording, `file:NAME`, over the network, `tcp:HOST:PORT`, or to nowhere, `verify:counter` and `null:`.
///
/// With `like`, it has the channels and the rate of a source, whose blocks it can then forward. `rate` is the number of samples
/// per second that a recording or a receiver is told, where there is no `like`; a converter has its own. The other
/// arguments are those of `Source`.
///
/// Errors: as `Source`, and `ValueError` if the channels of `like` have other types here.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Sink {
    stream: Slot<stream::Sink>,
    layout: Arc<Layout>,
    name: String,
}

#[pymethods]
impl Sink {
    #[new]
    #[pyo3(signature = (name, *, blocks=None, block_len=Size::Bytes(64 << 10), memory=None, interface=None, channels=None, rate=None, like=None), text_signature = "(name, *, blocks=None, block_len=\"64K\", memory=None, interface=None, channels=None, rate=None, like=None)")]
    #[allow(clippy::too_many_arguments)] // keywords
    fn new(
        py: Python<'_>,
        name: String,
        blocks: Option<Whole>,
        block_len: Size,
        memory: Option<&str>,
        interface: Option<&str>,
        channels: Option<Vec<String>>,
        rate: Option<f64>,
        like: Option<PyRef<'_, crate::source::Source>>,
    ) -> PyResult<Self> {
        let setup = setup(py, blocks, block_len, memory, interface, channels)?.rate(rate);
        let format = like.map(|source| source.format());
        let place = name.clone();
        let open = move || match &format {
            Some(format) => stream::Sink::open_for(&place, format, &setup),
            None => stream::Sink::open(&place, &setup),
        };
        let sink = source::open(py, &name, open)?;
        let layout = Arc::new(Layout::new(sink.format().clone()));
        Ok(Self { stream: Slot::new(sink, "sink"), layout, name })
    }

    /// The name that it was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The type of a sample, structured: a field for each channel, as it is stored. A copy.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.layout.dtype(py)
    }

    /// The channels, a tuple of `Channel`, in their order in the sample.
    #[getter]
    fn channels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.layout.channels(py)
    }

    /// Samples per second, or `None` if that is not known.
    #[getter]
    fn rate(&self) -> Option<f64> {
        self.layout.format.rate
    }

    /// The interface to the driver: `dmabuf` or `fileio`. Errors: `ValueError` once it is closed.
    #[getter]
    fn interface(&self) -> PyResult<String> {
        Ok(self.stream.get()?.interface().to_string())
    }

    /// The memory of the blocks: `heap:NAME`, `pages`, `huge` or `memfd`. Errors: `ValueError` once it is closed.
    #[getter]
    fn memory(&self) -> PyResult<String> {
        Ok(self.stream.get()?.memory().to_string())
    }

    /// Number of blocks. Errors: `ValueError` once it is closed.
    #[getter]
    fn blocks(&self) -> PyResult<usize> {
        Ok(self.stream.get()?.blocks())
    }

    /// Bytes of samples that a block holds: whole samples. Errors: `ValueError` once it is closed.
    #[getter]
    fn block_len(&self) -> PyResult<usize> {
        Ok(self.stream.get()?.block_len())
    }

    /// Bytes that were copied in memory, by the library or by `write`. Errors: `ValueError` once it is closed.
    #[getter]
    fn copied(&self, py: Python<'_>) -> PyResult<u64> {
        let sink = self.stream.get()?;
        Ok(py.detach(|| sink.copied()))
    }

    /// Number of blocks that the device has not transmitted yet, as far as is known. Errors: `ValueError` once it is
    /// closed.
    #[getter]
    fn queued(&self, py: Python<'_>) -> PyResult<usize> {
        let sink = self.stream.get()?;
        Ok(py.detach(|| sink.queued()))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.stream.is_closed()
    }

    /// A block to fill, or `None` if none was free within `timeout` seconds (`None`: no limit). Errors:
    /// `BrokenPipeError` once the device is gone; `OSError` with `EBUSY` while samples are repeated by `cyclic`;
    /// another `OSError` if the driver has failed with a block; `ValueError` for a bad `timeout`, and once it is
    /// closed.
    #[pyo3(signature = (timeout=None))]
    fn space(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Option<Space>> {
        let limit = self::timeout("timeout", timeout)?;
        let space = self.stream.until(py, limit, stream::Sink::space_timeout)?;
        Ok(space.map(|space| self.free(space)))
    }

    /// A block to fill, or `None` if none is free now. Does not wait. Errors: as `space`.
    fn try_space(&self, py: Python<'_>) -> PyResult<Option<Space>> {
        let sink = self.stream.get()?;
        let space = py.detach(|| sink.try_space()).or_raise(py)?;
        Ok(space.map(|space| self.free(space)))
    }

    /// Copies samples into free blocks and transmits them. Returns how many samples it took: all of them, unless there was
    /// no free block for the rest within `timeout` seconds (`None`: no limit). `samples` is anything with contiguous
    /// memory that holds bytes, values of `dtype`, or, where all channels have one type, values of that, such as an array
    /// of shape `(samples, channels)`: whole samples. Nothing is converted. Errors: `ValueError` for other samples, for a
    /// bad `timeout`, and once it is closed; `OSError` as `space`. An exception that ends it, such as
    /// `KeyboardInterrupt`, has that number as its attribute `written`.
    #[pyo3(signature = (samples, timeout=None))]
    fn write(
        &self,
        py: Python<'_>,
        samples: &Bound<'_, PyAny>,
        timeout: Option<Seconds>,
    ) -> PyResult<usize> {
        let limit = self::timeout("timeout", timeout)?;
        let given = Given::samples("samples", samples, &self.layout)?;
        let (bytes, item) = (given.bytes(), self.layout.sample_len());
        if !bytes.len().is_multiple_of(item) {
            let allowed = format!("whole samples, of {item} bytes");
            return Err(invalid("samples", format!("{} bytes", bytes.len()), &allowed));
        }
        let mut written = 0;
        let result = self.write_all(py, bytes, limit, &mut written);
        let written = written / item;
        result.map(|()| written).inspect_err(|error| {
            // An exception of the program may refuse it.
            let _ = error.value(py).setattr("written", written);
        })
    }

    /// Transmits a received block, which then goes back to its source; by reference where the device can use its
    /// memory, else as a copy. `False` if there was no room within `timeout` seconds (`None`: no limit). Errors:
    /// `ValueError` for a block that does not fit, for one that was given back, and as `space`; `OSError` as `space`.
    #[pyo3(signature = (block, timeout=None))]
    fn forward(
        &self,
        py: Python<'_>,
        block: &Bound<'_, Block>,
        timeout: Option<Seconds>,
    ) -> PyResult<bool> {
        let limit = self::timeout("timeout", timeout)?;
        let samples: Samples = block.get().samples()?;
        let attempt = |sink: &stream::Sink, slice| match sink.forward_timeout(&samples, slice) {
            Ok(done) => Ok(done.then_some(())),
            Err(error) => Err(match error.input() {
                Some(bad) => busbar::Error::invalid("block", &bad.value, &bad.allowed),
                None => error,
            }),
        };
        Ok(self.stream.until(py, limit, attempt)?.is_some())
    }

    /// Transmits these samples, which are as those of `write` and fit into a block, again and again, until it is
    /// closed. Errors: `ValueError` for other samples, and once it is closed; `OSError` with `EOPNOTSUPP` where the
    /// interface is `fileio`.
    fn cyclic(&self, py: Python<'_>, samples: &Bound<'_, PyAny>) -> PyResult<()> {
        let (sink, given) = (self.stream.get()?, Given::samples("samples", samples, &self.layout)?);
        let samples = given.copy()?;
        py.detach(|| sink.cyclic(&samples)).or_raise_as(py, "samples")
    }

    /// Takes transmitted blocks back from the driver. Does not wait. Errors: as `space`.
    fn reap(&self, py: Python<'_>) -> PyResult<()> {
        let sink = self.stream.get()?;
        py.detach(|| sink.reap()).or_raise(py)
    }

    /// Waits until everything was transmitted. `False` if it was not within `timeout` seconds (`None`: no limit).
    /// Errors: as `space`.
    #[pyo3(signature = (timeout=None))]
    fn drain(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<bool> {
        let limit = self::timeout("timeout", timeout)?;
        let attempt = |sink: &stream::Sink, slice| Ok(sink.drain_timeout(slice)?.then_some(()));
        Ok(self.stream.until(py, limit, attempt)?.is_some())
    }

    /// A descriptor that is readable while a block is free, or can go back to its source. Its number belongs to the
    /// sink. Errors: `ValueError` once it is closed.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let sink = self.stream.get()?;
        Ok(py.detach(|| sink.as_fd().as_raw_fd()))
    }

    /// Stops the device at once and restores its settings; `drain` before has everything transmitted. To close it
    /// again does nothing. Errors: `OSError` for a setting that could not be restored.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(sink) = slf.get().stream.close(slf)? else { return Ok(()) };
        slf.py().detach(move || sink.stop()).or_raise(slf.py())
    }

    /// Returns itself; `close` is called at the end of the `with` block. Errors: none.
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Calls `close`. An error of that is a note of the exception that leaves the `with` block, if there is one.
    /// Errors: as `close`.
    #[pyo3(signature = (*args))]
    fn __exit__(slf: &Bound<'_, Self>, args: &Bound<'_, PyTuple>) -> PyResult<()> {
        leave(slf.py(), args, Self::close(slf))
    }

    fn __repr__(&self) -> String {
        self.stream.repr("Sink", &self.name)
    }
}

impl Sink {
    /// Copies and transmits bytes as long as there are free blocks in time; `written` is how many.
    fn write_all(
        &self,
        py: Python<'_>,
        bytes: Bytes<'_>,
        limit: Timeout,
        written: &mut usize,
    ) -> PyResult<()> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        while *written < bytes.len() {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            let space = self.stream.until(py, left, stream::Sink::space_timeout)?;
            let Some(mut space) = space else { return Ok(()) };
            let next = bytes.slice(*written..bytes.len().min(*written + space.len()));
            let send = move || {
                space.write()?.bytes_mut().slice(..next.len()).copy_from_bytes(next);
                space.send(next.len())
            };
            py.detach(send).or_raise(py)?;
            *written += next.len();
        }
        Ok(())
    }

    fn free(&self, space: stream::Space) -> Space {
        let item = self.layout.sample_len();
        Space {
            count: space.len() / item,
            held: Held::new(space, "block"),
            layout: Arc::clone(&self.layout),
        }
    }
}

/// A free block of a sink. `numpy.asarray(space)` is a writable view of its memory, of shape `(samples,)`, and
/// `len(space)` the number of samples that fit. Without `send`, it goes back unsent.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Space {
    held: Arc<Held<stream::Space>>,
    layout: Arc<Layout>,
    count: usize,
}

#[pymethods]
impl Space {
    /// The type of a sample, structured: a field for each channel, as it is stored. A copy.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.layout.dtype(py)
    }

    /// A memoryview of the bytes in place, writable, of shape `(bytes,)`: for files and sockets. Errors: `ValueError`
    /// once it was sent or given back; `OSError` if the kernel refuses the access.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Buffer::view(Buffer::new(py, &self.held, false)?)
    }

    /// The samples in place, writable, of shape `(samples,)` and type `dtype`: what `numpy.asarray(space)` is.
    /// Errors: as `data`.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Buffer::array(Buffer::new(py, &self.held, false)?, self.layout.dtype(py)?)
    }

    /// What `numpy.asarray` calls: `array`, or a copy of it where `copy` is true or `dtype` is another type. Errors:
    /// as `array`; `ValueError` if another type needs a copy and `copy` is false.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        as_asked(self.array(py)?, dtype, copy)
    }

    /// Transmits the first `samples` samples, or all of them. Errors: `ValueError` for another number than 1 to
    /// `len(space)`, and once it was sent or given back; `BufferError` while an array or memoryview refers to it;
    /// `OSError` as `Sink.space`.
    #[pyo3(signature = (samples=None))]
    fn send(&self, py: Python<'_>, samples: Option<Whole>) -> PyResult<()> {
        let most = self.count;
        let samples = samples.map_or(Ok(most), |it| it.within("samples", 1..=most))?;
        let space = self.held.take_once()?;
        let bytes = samples * self.layout.sample_len();
        py.detach(move || space.send(bytes)).or_raise(py)
    }

    /// Gives it back unsent. To release it again does nothing. Errors: `BufferError` while an array or memoryview
    /// refers to it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let space = self.held.take()?;
        py.detach(move || drop(space));
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        let released = if self.held.is_gone() { ", sent or released" } else { "" };
        format!("<busbar.Space of {} samples{released}>", self.count)
    }
}
