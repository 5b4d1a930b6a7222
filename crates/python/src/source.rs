//! Sources and their blocks.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use busbar::stream::{self, Lost, Meta, Samples, Scale, StreamSetup, Value, Values};
use pyo3::exceptions::{
    PyBrokenPipeError, PyBufferError, PyStopIteration, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{Seconds, Size, Whole, parsed, timeout};
use crate::error::{OrRaise, invalid, raise};
use crate::layout::Layout;
use crate::memory::{Buffer, Fresh, Held, as_asked};
use crate::slot::{Slot, leave};
use crate::wait;

/// What the library allows.
const MAX_BLOCKS: usize = 1024;

/// The setup of a stream, from arguments.
pub fn setup(
    py: Python<'_>,
    blocks: Option<Whole>,
    block_len: Size,
    memory: Option<&str>,
    interface: Option<&str>,
    channels: Option<Vec<String>>,
) -> PyResult<StreamSetup> {
    if channels.as_ref().is_some_and(Vec::is_empty) {
        return Err(invalid("channels", "[]", "at least one channel; None for the default"));
    }
    let setup = match blocks {
        Some(blocks) => StreamSetup::new().blocks(blocks.within("blocks", 1..=MAX_BLOCKS)?),
        None => StreamSetup::new(),
    };
    Ok(setup
        .block_len(block_len.of("block_len")?)
        .memory(parsed(py, "memory", memory)?)
        .interface(parsed(py, "interface", interface)?)
        .channels(channels.unwrap_or_default()))
}

/// Opens a stream. That may wait for a name server, another machine, a sender, a driver or a FIFO.
pub fn open<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    open: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> PyResult<T> {
    let never_waits = ["synth:", "null:", "verify:"].iter().any(|it| name.starts_with(it));
    let opened = if never_waits { py.detach(open) } else { wait::opened(py, open)? };
    opened.or_raise_by(py, argument)
}

/// The argument for what the library calls a bad value.
fn argument(field: &str) -> String {
    let known = [
        ("the number of blocks", "blocks"),
        ("the length of a block", "block_len"),
        ("the memory of a block", "memory"),
        ("a DMA heap", "memory"),
        ("the interface of ", "interface"),
        ("a channel of ", "channels"),
        ("the channels of ", "channels"),
        ("the rate", "rate"),
        ("for ", "like"),
        ("the name of ", "name"),
    ];
    match known.iter().find(|(beginning, _)| field.starts_with(beginning)) {
        Some((_, argument)) => (*argument).to_owned(),
        // A part of the name.
        None if field.ends_with(" of `synth:`") => format!("name: {field}"),
        None => field.to_owned(),
    }
}

/// A stream of samples from a converter: an iterator of blocks, which ends when it is closed.
///
/// `name` is `iio:NAME`, `iio:NAME@ip:HOST` for a converter of another machine, `synth:PATTERN`, `file:NAME` for a
/// recording, or `tcp-listen:PORT` for what is sent to it, where this waits for the sender, for
/// 30 s at most. `blocks` is a number of blocks, 1 to 1024; by default as many as have 1 MiB together, from 4 to 64, which is 16
/// of `"64K"`. `block_len` is a number of bytes or a text such as `"1M"` (K is 1024), rounded down
/// to whole samples. `memory` is `heap:NAME`, `pages`, `huge` or `memfd`, and `interface` is `dmabuf`, `fileio`,
/// `synth`, `iiod` or `library`; without them the library chooses. `channels` are the names of the channels to receive, in any
/// order; without it, all voltages, or if there are none, all but `timestamp`. With `on_loss="raise"`, iterators raise
/// `LossError` before a block in front of whose end samples are missing, or may be.
///
/// Errors: `ValueError` for a bad argument; `FileNotFoundError` if there is no such device; `PermissionError`;
/// `OSError` with `EBUSY` if another program uses it.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Source {
    stream: Slot<stream::Source>,
    layout: Arc<Layout>,
    name: String,
    raises: bool,
}

#[pymethods]
impl Source {
    #[new]
    #[pyo3(signature = (name, *, blocks=None, block_len=Size::Bytes(64 << 10), memory=None, interface=None, channels=None, on_loss="ignore"), text_signature = "(name, *, blocks=None, block_len=\"64K\", memory=None, interface=None, channels=None, on_loss=\"ignore\")")]
    #[allow(clippy::too_many_arguments)] // keywords
    fn new(
        py: Python<'_>,
        name: String,
        blocks: Option<Whole>,
        block_len: Size,
        memory: Option<&str>,
        interface: Option<&str>,
        channels: Option<Vec<String>>,
        on_loss: &str,
    ) -> PyResult<Self> {
        let raises = match on_loss {
            "ignore" => false,
            "raise" => true,
            other => return Err(invalid("on_loss", other, "\"ignore\", \"raise\"")),
        };
        let setup = setup(py, blocks, block_len, memory, interface, channels)?;
        let place = name.clone();
        let source = open(py, &name, move || stream::Source::open(&place, &setup))?;
        let layout = Arc::new(Layout::new(source.format().clone()));
        Ok(Self { stream: Slot::new(source, "source"), layout, name, raises })
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

    /// Bytes of a sample.
    #[getter]
    fn sample_len(&self) -> usize {
        self.layout.sample_len()
    }

    /// The interface to the driver: `dmabuf`, `fileio`, `synth` or `iiod`. Errors: `ValueError` once it is closed.
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

    /// Bytes that were copied in memory on the way into blocks. Errors: `ValueError` once it is closed.
    #[getter]
    fn copied(&self, py: Python<'_>) -> PyResult<u64> {
        let source = self.stream.get()?;
        Ok(py.detach(|| source.copied()))
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.stream.is_closed()
    }

    /// How to convert the values of a channel into its unit: `(offset, scale)`, where `(value + offset) * scale` is
    /// in that unit, millivolts for a voltage. Errors: `ValueError` for a channel that is not received, and once it
    /// is closed.
    fn scale(&self, py: Python<'_>, channel: &str) -> PyResult<(f64, f64)> {
        let source = self.stream.get()?;
        let Scale { offset, scale } =
            py.detach(|| source.scale(channel)).or_raise_as(py, "channel")?;
        Ok((offset, scale))
    }

    /// The next block, or `None` if none came within `timeout` seconds (`None`: no limit). Never raises `LossError`.
    /// Errors: `BrokenPipeError` once the device is gone; another `OSError` if the driver has failed with a block,
    /// after which the next block can be taken; `ValueError` for a bad `timeout`, and once it is closed.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Option<Block>> {
        let limit = self::timeout("timeout", timeout)?;
        let samples = self.stream.until(py, limit, stream::Source::next_timeout)?;
        Ok(samples.map(|samples| self.block(samples)))
    }

    /// The next block, or `None` if none is complete now. Does not wait. Errors: as `next`.
    fn try_next(&self, py: Python<'_>) -> PyResult<Option<Block>> {
        let source = self.stream.get()?;
        let samples = py.detach(|| source.try_next()).or_raise(py)?;
        Ok(samples.map(|samples| self.block(samples)))
    }

    /// A descriptor that is readable while a block is complete. Its number belongs to the source. Errors:
    /// `ValueError` once it is closed.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let source = self.stream.get()?;
        Ok(py.detach(|| source.as_fd().as_raw_fd()))
    }

    /// Stops the device and restores its settings. Blocks that were handed out stay valid. To close it again does
    /// nothing. Errors: `OSError` for a setting that could not be restored.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(source) = slf.get().stream.close(slf)? else { return Ok(()) };
        slf.py().detach(move || source.stop()).or_raise(slf.py())
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

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<Block>> {
        if self.stream.is_closed() {
            return Err(PyStopIteration::new_err(()));
        }
        match self.next(py, None) {
            Ok(Some(block)) => self.checked(py, block),
            Ok(None) => Err(PyStopIteration::new_err(())),
            // Another thread has closed it, or a signal handler, whose own exception goes on.
            Err(error) if self.stream.is_closed() && says_closed(py, &error) => {
                Err(PyStopIteration::new_err(()))
            }
            Err(error) => Err(error),
        }
    }

    /// As `try_next`, for iterators: raises on a loss if `on_loss` says so.
    fn _try_next(&self, py: Python<'_>) -> PyResult<Option<Py<Block>>> {
        self.try_next(py)?.map(|block| self.checked(py, block)).transpose()
    }

    fn __aiter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        slf.py().import("busbar._aio")?.call_method1("Blocks", (slf,))
    }

    fn __repr__(&self) -> String {
        self.stream.repr("Source", &self.name)
    }
}

impl Source {
    /// What a sample looks like.
    pub fn format(&self) -> stream::Format {
        self.layout.format.clone()
    }

    fn block(&self, samples: Samples) -> Block {
        let meta = *samples.meta();
        let item = self.layout.sample_len();
        Block {
            count: meta.len / item,
            held: Held::new(samples, "block"),
            meta,
            layout: Arc::clone(&self.layout),
        }
    }

    /// The block, unless samples are missing before its end and that is to be an exception.
    fn checked(&self, py: Python<'_>, block: Block) -> PyResult<Py<Block>> {
        let lost = block.lost();
        let block = Py::new(py, block)?;
        if !self.raises || lost == Some(0) {
            return Ok(block);
        }
        let class = py.import("busbar._types")?.getattr("LossError")?;
        Err(PyErr::from_value(class.call1((&self.name, lost, block))?))
    }
}

/// A block of samples, in the memory that the converter has filled. `numpy.asarray(block)` is a view of it, of shape
/// `(samples,)`, and `len(block)` the number of samples.
///
/// It goes back to its driver with the last reference to it and to its views, by `release`, or at the end of `with
/// block:`.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Block {
    held: Arc<Held<Samples>>,
    meta: Meta,
    layout: Arc<Layout>,
    count: usize,
}

#[pymethods]
impl Block {
    /// Number of the block, from 0. Blocks that the converter has failed to fill count, too.
    #[getter]
    fn sequence(&self) -> u64 {
        self.meta.sequence
    }

    /// When the block was complete, in seconds since 1970.
    #[getter]
    fn time(&self) -> f64 {
        self.meta.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }

    /// When the block was complete, in nanoseconds since 1970.
    #[getter]
    fn time_ns(&self) -> u128 {
        self.meta.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
    }

    /// Samples that are missing between the end of the block before and the end of this one; `None` if it is not
    /// known how many.
    #[getter]
    fn lost(&self) -> Option<u64> {
        match self.meta.lost {
            Lost::Samples(count) => Some(count),
            Lost::Unknown => None,
        }
    }

    /// Samples per second, or `None` if that is not known.
    #[getter]
    fn rate(&self) -> Option<f64> {
        self.layout.format.rate
    }

    /// Bytes of the samples.
    #[getter]
    fn nbytes(&self) -> usize {
        self.meta.len
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

    /// Whether it was given back.
    #[getter]
    fn released(&self) -> bool {
        self.held.is_gone()
    }

    /// A memoryview of the bytes in place, read-only, of shape `(nbytes,)`: for files and sockets. Errors:
    /// `ValueError` once it was given back; `OSError` if the kernel refuses the access.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Buffer::view(Buffer::new(py, &self.held, true)?)
    }

    /// The samples in place, read-only, of shape `(samples,)` and type `dtype`: what `numpy.asarray(block)` is.
    /// Errors: `ValueError` once it was given back; `OSError` if the kernel refuses the access.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Buffer::array(Buffer::new(py, &self.held, true)?, self.layout.dtype(py)?)
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

    /// Two channels of the same type in place, read-only, of shape `(samples, 2)`. Errors: `ValueError` for an
    /// unknown channel, and for a `q` that is not behind `i` or has another type; as `array`.
    fn pairs<'py>(&self, py: Python<'py>, i: &str, q: &str) -> PyResult<Bound<'py, PyAny>> {
        let format = &self.layout.format;
        let one = format.channel(i).or_raise_as(py, "i")?;
        let two = format.channel(q).or_raise_as(py, "q")?;
        let alike = (one.storage_bits, one.signed, one.big_endian, one.repeat)
            == (two.storage_bits, two.signed, two.big_endian, two.repeat);
        if !alike || one.repeat != 1 || two.offset <= one.offset {
            return Err(invalid("q", q, &format!("a channel behind {i} of the same type")));
        }
        let dtype = self.layout.field(py, i)?;
        let strides = (self.layout.sample_len(), two.offset - one.offset);
        let buffer = Buffer::new(py, &self.held, true)?;
        py.import("numpy")?
            .call_method1("ndarray", ((self.count, 2), dtype, buffer, one.offset, strides))
    }

    /// The values of a channel as a new array of shape `(samples,)` and type `dtype`, which is `int16`, `int32`,
    /// `int64`, `float32` or `float64`, by name or as NumPy has it: shifted and sign-extended. With a `scale`, the result
    /// of `Source.scale`, they are in the channel's unit; it needs a float. Errors: `ValueError` for an unknown channel,
    /// for a type that cannot hold its values, and once the block was given back.
    #[pyo3(signature = (channel, dtype=DtypeName::new("float32"), scale=None), text_signature = "($self, channel, dtype=\"float32\", scale=None)")]
    fn values<'py>(
        &self,
        py: Python<'py>,
        channel: &str,
        dtype: DtypeName,
        scale: Option<(f64, f64)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = dtype.0.as_str();
        if scale.is_some() && !dtype.starts_with("float") {
            return Err(invalid("dtype", dtype, "\"float32\", \"float64\", with a scale"));
        }
        match dtype {
            "int16" => self.convert(py, dtype, self.of::<i16>(py, channel, dtype)?),
            "int32" => self.convert(py, dtype, self.of::<i32>(py, channel, dtype)?),
            "int64" => self.convert(py, dtype, self.of::<i64>(py, channel, dtype)?),
            "float32" => {
                self.convert(py, dtype, scaled(self.of::<f32>(py, channel, dtype)?, scale))
            }
            "float64" => {
                self.convert(py, dtype, scaled(self.of::<f64>(py, channel, dtype)?, scale))
            }
            _ => {
                let allowed = "\"int16\", \"int32\", \"int64\", \"float32\", \"float64\"";
                Err(invalid("dtype", dtype, allowed))
            }
        }
    }

    /// I and Q as a new array of shape `(samples,)` and type `dtype`, which is `complex64` or `complex128`. With a
    /// `scale`, the result of `Source.scale`, they are in the channels' unit. Errors: `ValueError` for an unknown
    /// channel or type, and once the block was given back.
    #[pyo3(signature = (i, q, dtype=DtypeName::new("complex64"), scale=None), text_signature = "($self, i, q, dtype=\"complex64\", scale=None)")]
    fn complex<'py>(
        &self,
        py: Python<'py>,
        i: &str,
        q: &str,
        dtype: DtypeName,
        scale: Option<(f64, f64)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let dtype = dtype.0.as_str();
        let format = &self.layout.format;
        format.channel(i).or_raise_as(py, "i")?;
        format.channel(q).or_raise_as(py, "q")?;
        if i == q {
            return Err(invalid("q", q, "another channel than i"));
        }
        let argument =
            |field: &str| if field == format!("channel `{i}`") { "i" } else { "q" }.to_owned();
        match dtype {
            "complex64" => {
                let pairs = format.pairs::<f32>(i, q).or_raise_by(py, argument)?;
                self.convert(py, dtype, scaled(pairs, scale))
            }
            "complex128" => {
                let pairs = format.pairs::<f64>(i, q).or_raise_by(py, argument)?;
                self.convert(py, dtype, scaled(pairs, scale))
            }
            _ => Err(invalid("dtype", dtype, "\"complex64\", \"complex128\"")),
        }
    }

    /// Gives the block back to its driver. To release it again does nothing. Errors: `BufferError` while an array or
    /// memoryview refers to it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let samples = self.held.take()?;
        py.detach(move || drop(samples));
        Ok(())
    }

    /// Returns itself; `release` is called at the end of the `with` block. Errors: none.
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Calls `release`. An error of that is a note of the exception that leaves the `with` block, if there is one.
    /// Errors: as `release`.
    #[pyo3(signature = (*args))]
    fn __exit__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<()> {
        leave(py, args, self.release(py))
    }

    fn __len__(&self) -> usize {
        self.count
    }

    /// A DLPack capsule, made by NumPy, read-only: values of shape `(samples, channels)` if all channels have the
    /// same type and there is nothing between them, else bytes of shape `(samples, bytes)`. Errors: `BufferError` for
    /// a consumer, or a NumPy before 2.1, that does not know of read-only memory (before DLPack 1.0); as `array`.
    #[pyo3(signature = (**keywords))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        keywords: Option<&Bound<'py, pyo3::types::PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let plain = self.plain(py)?;
        let made = plain.call_method("__dlpack__", (), keywords);
        // NumPy before 2.1 knows nothing of DLPack 1.0, and refuses what is read-only.
        made.map_err(|error| {
            if !error.is_instance_of::<PyTypeError>(py) || !is_before_2_1(py).unwrap_or(false) {
                return error;
            }
            let new = PyBufferError::new_err("read-only memory needs NumPy 2.1 for DLPack");
            new.set_cause(py, Some(error));
            new
        })
    }

    /// The device of the memory: `(1, 0)`, a processor. Errors: as `array`.
    fn __dlpack_device__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.plain(py)?.call_method0("__dlpack_device__")
    }

    fn __repr__(&self) -> String {
        let lost = self.lost().map_or("None".to_owned(), |lost| lost.to_string());
        let released = if self.held.is_gone() { ", released" } else { "" };
        format!(
            "<busbar.Block {} of {} samples, lost {lost}{released}>",
            self.meta.sequence, self.count
        )
    }
}

impl Block {
    /// `dtype` is the name of the type.
    fn of<T: stream::Number>(
        &self,
        py: Python<'_>,
        channel: &str,
        dtype: &str,
    ) -> PyResult<Values<T>> {
        let format = &self.layout.format;
        // Floats hold, or round, the values of every channel that has values at all.
        format.values::<f64>(channel).or_raise_as(py, "channel")?;
        let stream::Channel { bits, signed, .. } = *format.channel(channel).or_raise(py)?;
        let sign = if signed { "signed" } else { "unsigned" };
        let allowed = format!("a float, or integers that hold {bits} bits, {sign}");
        format.values(channel).map_err(|_| invalid("dtype", dtype, &allowed))
    }

    /// Another reference to its samples, which may be the last one that is dropped.
    pub fn samples(&self) -> PyResult<Samples> {
        self.held.check_home()?;
        self.held.with(Samples::clone)
    }

    fn convert<'py, T: Value + Send>(
        &self,
        py: Python<'py>,
        dtype: &str,
        values: Values<T>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let samples = self.held.with(Samples::clone)?;
        let mut fresh = Fresh::new(py, self.count, dtype)?;
        // SAFETY: the callers name the type that they convert to: a number of Rust, or two for a complex one.
        #[allow(unsafe_code)]
        let mut room = unsafe { fresh.room::<T>()? };
        py.detach(move || values.read(&samples, room.values()))
            .map_err(|error| raise(py, error))?;
        Ok(fresh.into_array())
    }

    /// The samples as one type.
    fn plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // DLPack has no byte order.
        let native = |it: &&stream::Channel| it.big_endian == cfg!(target_endian = "big");
        let (dtype, width) = match self.layout.alike().filter(native) {
            Some(channel) => {
                let dtype = self.layout.field(py, &channel.name)?;
                (dtype, self.layout.format.channels.len())
            }
            None => (py.import("numpy")?.getattr("uint8")?, self.layout.sample_len()),
        };
        let array = Buffer::array(Buffer::new(py, &self.held, true)?, dtype)?;
        array.call_method1("reshape", (self.count, width))
    }
}

/// Whether NumPy is older than 2.1.
fn is_before_2_1(py: Python<'_>) -> PyResult<bool> {
    let version: String = py.import("numpy")?.getattr("__version__")?.extract()?;
    let mut numbers = version.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (2, 1))
}

/// Whether an error may be that of a stream that was closed.
fn says_closed(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyValueError>(py) || error.is_instance_of::<PyBrokenPipeError>(py)
}

/// The name of a type of NumPy: of what `numpy.dtype` takes, such as `"float32"` or `numpy.float32`.
#[derive(Clone)]
pub struct DtypeName(String);

impl DtypeName {
    fn new(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl<'py> FromPyObject<'_, 'py> for DtypeName {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let numpy = object.py().import("numpy")?;
        let name = |dtype: Bound<'_, PyAny>| -> PyResult<Option<String>> {
            let is_native: bool = dtype.getattr("isnative")?.extract()?;
            is_native.then(|| dtype.getattr("name")?.extract()).transpose()
        };
        // To NumPy, None is a type of its own choice.
        let made = if object.is_none() {
            Ok(None)
        } else {
            numpy.call_method1("dtype", (object,)).and_then(name)
        };
        match made {
            Ok(Some(name)) => Ok(Self(name)),
            Err(error) if !error.is_instance_of::<PyTypeError>(object.py()) => Err(error),
            // Which types are allowed is told by whoever uses it.
            _ => Ok(Self(object.str()?.to_string())),
        }
    }
}

fn scaled<T: Value>(values: Values<T>, scale: Option<(f64, f64)>) -> Values<T>
where
    Values<T>: Scaled,
{
    match scale {
        Some((offset, scale)) => values.to_scale(Scale { offset, scale }),
        None => values,
    }
}

/// Values of floats, one or two.
trait Scaled {
    fn to_scale(self, scale: Scale) -> Self;
}

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Scaled for Values<$type> {
            fn to_scale(self, scale: Scale) -> Self {
                self.scaled(scale)
            }
        }
    )*};
}

floats!(f32 f64 [f32; 2] [f64; 2]);
