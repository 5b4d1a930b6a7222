//! Memory that Python sees, by the buffer protocol.
//!
//! A converter, another process or another mapping may write to the memory of a block at any time. A reader in Python
//! sees old bytes, new bytes or a mixture, as in C; no Rust reference to the memory exists meanwhile.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use busbar::block::{Bytes, Reading, Writing};
use busbar::receive::View;
use busbar::stream::{Samples, SamplesRead, Space};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyMemoryView;
use self_cell::{MutBorrow, self_cell};

use crate::error::OrRaise;
use crate::layout::{Layout, once};
use crate::process::{Process, inherited};

self_cell!(
    /// Samples, and the guard that keeps caches coherent.
    pub struct SamplesGuard {
        owner: Samples,
        #[covariant]
        dependent: SamplesRead,
    }
);

self_cell!(
    pub struct SpaceGuard {
        owner: MutBorrow<Space>,
        #[covariant]
        dependent: Writing,
    }
);

self_cell!(
    pub struct ViewGuard {
        owner: View,
        #[covariant]
        dependent: Reading,
    }
);

/// Memory that is handed out, and its guard while it is exported.
pub trait Memory: Sized {
    /// Has the memory and its guard.
    type Guard;
    /// Begins to use it.
    fn begin(self) -> Result<Self::Guard, (Self, busbar::Error)>;
    /// Ends to use it.
    fn end(guard: Self::Guard) -> Self;
    /// The memory of a guard.
    fn owner(guard: &Self::Guard) -> Option<&Self>;
    /// Address and length. They stay the same as long as the guard exists, wherever it is moved.
    fn range(guard: &mut Self::Guard) -> (*mut u8, usize);
}

fn of(bytes: Bytes<'_>) -> (*mut u8, usize) {
    (bytes.as_ptr().cast_mut(), bytes.len())
}

impl Memory for Samples {
    type Guard = SamplesGuard;

    fn begin(self) -> Result<SamplesGuard, (Self, busbar::Error)> {
        SamplesGuard::try_new_or_recover(self, Self::read)
    }

    fn end(guard: SamplesGuard) -> Self {
        guard.into_owner()
    }

    fn owner(guard: &SamplesGuard) -> Option<&Self> {
        Some(guard.borrow_owner())
    }

    fn range(guard: &mut SamplesGuard) -> (*mut u8, usize) {
        of(guard.borrow_dependent().bytes())
    }
}

impl Memory for View {
    type Guard = ViewGuard;

    fn begin(self) -> Result<ViewGuard, (Self, busbar::Error)> {
        ViewGuard::try_new_or_recover(self, Self::read)
    }

    fn end(guard: ViewGuard) -> Self {
        guard.into_owner()
    }

    fn owner(guard: &ViewGuard) -> Option<&Self> {
        Some(guard.borrow_owner())
    }

    fn range(guard: &mut ViewGuard) -> (*mut u8, usize) {
        of(guard.borrow_dependent().bytes())
    }
}

impl Memory for Space {
    type Guard = SpaceGuard;

    fn begin(self) -> Result<SpaceGuard, (Self, busbar::Error)> {
        let begun =
            SpaceGuard::try_new_or_recover(MutBorrow::new(self), |it| it.borrow_mut().write());
        begun.map_err(|(space, error)| (space.into_inner(), error))
    }

    fn end(guard: SpaceGuard) -> Self {
        guard.into_owner().into_inner()
    }

    fn owner(_: &SpaceGuard) -> Option<&Self> {
        None
    }

    fn range(guard: &mut SpaceGuard) -> (*mut u8, usize) {
        guard.with_dependent_mut(|_, writing| {
            let mut bytes = writing.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len())
        })
    }
}

enum State<M: Memory> {
    /// Nobody sees it.
    Idle(M),
    /// So many [`Buffer`]s refer to it.
    Exported(M::Guard, usize),
    /// It was given back.
    Gone,
}

/// Memory that Python exports as long as it likes, and that is given back once.
pub struct Held<M: Memory> {
    state: Mutex<State<M>>,
    what: &'static str,
    home: Process,
}

impl<M: Memory> Held<M> {
    /// `what` names it in errors.
    pub fn new(memory: M, what: &'static str) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Idle(memory)), what, home: Process::current() })
    }

    /// Locked only for moments, so the interpreter may wait for it. Nothing of Python runs meanwhile: that could be a
    /// program's code, which comes back here.
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> PyErr {
        PyValueError::new_err(format!("the {} was given back", self.what))
    }

    pub fn is_gone(&self) -> bool {
        matches!(*self.lock(), State::Gone)
    }

    /// Takes it out, to give it back or to pass it on; `None` if that was done before. A `BufferError` while
    /// something refers to the memory.
    pub fn take(&self) -> PyResult<Option<M>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Idle(memory) if self.home.is_parent() => {
                std::mem::forget(memory);
                Ok(None)
            }
            State::Idle(memory) => Ok(Some(memory)),
            State::Gone => Ok(None),
            State::Exported(guard, count) => {
                *state = State::Exported(guard, count);
                let what = self.what;
                let text = format!(
                    "the {what} cannot be given back: {count} arrays or memoryviews refer to it"
                );
                Err(PyBufferError::new_err(text))
            }
        }
    }

    /// A `ValueError` in a forked child.
    pub fn check_home(&self) -> PyResult<()> {
        if self.home.is_parent() { Err(inherited(self.what)) } else { Ok(()) }
    }

    /// As [`take`](Self::take), but being gone is an error.
    pub fn take_once(&self) -> PyResult<M> {
        self.check_home()?;
        self.take()?.ok_or_else(|| self.gone())
    }

    /// Something of the memory.
    pub fn with<T>(&self, read: impl FnOnce(&M) -> T) -> PyResult<T> {
        match &*self.lock() {
            State::Idle(memory) => Some(memory),
            State::Exported(guard, _) => M::owner(guard),
            State::Gone => None,
        }
        .map(read)
        .ok_or_else(|| self.gone())
    }

    /// Begins to use the memory, or goes on to. Returns its address and length.
    fn begin(&self, py: Python<'_>) -> PyResult<(*mut u8, usize)> {
        let mut state = self.lock();
        let (mut guard, count) = match std::mem::replace(&mut *state, State::Gone) {
            State::Gone => return Err(self.gone()),
            State::Exported(guard, count) => (guard, count),
            State::Idle(memory) => match memory.begin() {
                Ok(guard) => (guard, 0),
                Err((memory, error)) => {
                    *state = State::Idle(memory);
                    drop(state);
                    return Err(error).or_raise(py);
                }
            },
        };
        let range = M::range(&mut guard);
        *state = State::Exported(guard, count + 1);
        Ok(range)
    }

    /// Ends one use of the memory.
    fn end(&self) {
        let mut state = self.lock();
        *state = match std::mem::replace(&mut *state, State::Gone) {
            State::Exported(guard, 0 | 1) => State::Idle(M::end(guard)),
            State::Exported(guard, count) => State::Exported(guard, count - 1),
            other => other,
        };
    }
}

impl<M: Memory> Drop for Held<M> {
    fn drop(&mut self) {
        if self.home.is_parent() {
            std::mem::forget(std::mem::replace(&mut *self.lock(), State::Gone));
        }
    }
}

/// What has begun to use memory, and ends that when it is dropped.
struct Use<M: Memory>(Arc<Held<M>>);

impl<M: Memory> Drop for Use<M> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Memory of a block as Python sees it: an object with the buffer protocol. Arrays and memoryviews refer to it, and the
/// block is in use as long as it exists. It is not enough to count the calls of the buffer protocol:
/// `numpy.ndarray(buffer=…)` releases the buffer at once, and keeps only a reference to this object.
#[pyclass(frozen, module = "busbar", name = "_Buffer")]
pub struct Buffer {
    address: Address,
    len: isize,
    readonly: bool,
    _in_use: Box<dyn Send + Sync>,
}

/// Mapped memory.
struct Address(*mut u8);

// SAFETY: any thread may use mapped memory; the buffer protocol hands out the address only.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Buffer {
    pub fn new<'py, M>(
        py: Python<'py>,
        held: &Arc<Held<M>>,
        readonly: bool,
    ) -> PyResult<Bound<'py, Self>>
    where
        M: Memory + Send + 'static,
        M::Guard: Send,
    {
        let (address, len) = held.begin(py)?;
        let in_use = Use(Arc::clone(held));
        let (address, len) = (Address(address), len.cast_signed());
        Bound::new(py, Self { address, len, readonly, _in_use: Box::new(in_use) })
    }

    /// A memoryview of the bytes.
    pub fn view(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        Ok(PyMemoryView::from(slf.as_any())?.into_any())
    }

    /// An array of the bytes, as values of `dtype`.
    pub fn array<'py>(
        slf: Bound<'py, Self>,
        dtype: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static FROMBUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let make = || Ok(py.import("numpy")?.getattr("frombuffer")?.unbind());
        once(&FROMBUFFER, py, make)?.call1((slf, dtype))
    }
}

#[pymethods]
impl Buffer {
    /// # Safety
    ///
    /// Python's: `view` is a `Py_buffer` to fill, or null.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        if this.readonly && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("the memory is read-only"));
        }
        let (object, address) = (slf.as_ptr(), this.address.0.cast());
        // SAFETY: so many bytes are mapped at the address as long as this object exists, to which the view gets a
        // reference. Python guarantees the rest.
        match unsafe {
            ffi::PyBuffer_FillInfo(view, object, address, this.len, this.readonly.into(), flags)
        } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// The bytes of an object with the buffer protocol.
pub struct Given(PyUntypedBuffer);

impl Given {
    pub fn new(argument: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(crate::error::invalid(argument, "memory with gaps", "contiguous memory"));
        }
        Ok(Self(buffer))
    }

    /// Samples: bytes, or values that are laid out as the samples of a stream.
    pub fn samples(argument: &str, object: &Bound<'_, PyAny>, layout: &Layout) -> PyResult<Self> {
        let given = Self::new(argument, object)?;
        if given.0.item_size() != 1 {
            layout.check(argument, object)?;
        }
        Ok(given)
    }

    /// The bytes. Another thread of Python may write to them.
    pub fn bytes(&self) -> Bytes<'_> {
        if self.0.len_bytes() == 0 {
            return Bytes::default();
        }
        // SAFETY: the buffer keeps so many bytes where they are. If anybody writes to them, then not through a Rust
        // reference: they belong to Python.
        unsafe { Bytes::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// A copy of the bytes, or a `MemoryError`.
    pub fn copy(&self) -> PyResult<Vec<u8>> {
        let (bytes, mut copy) = (self.bytes(), Vec::new());
        copy.try_reserve_exact(bytes.len())
            .map_err(|why| PyMemoryError::new_err(why.to_string()))?;
        bytes.append_to(&mut copy);
        Ok(copy)
    }
}

/// A new array of NumPy, which nothing else refers to yet.
pub struct Fresh<'py> {
    array: Bound<'py, PyAny>,
    buffer: PyUntypedBuffer,
}

/// Its address, to be filled without the interpreter.
pub struct Room<T> {
    address: *mut T,
    count: usize,
}

// SAFETY: the memory belongs to one array, to which only one thread refers until it is filled.
unsafe impl<T: Send> Send for Room<T> {}

impl<'py> Fresh<'py> {
    /// `dtype` is the name of the type that is filled in.
    pub fn new(py: Python<'py>, count: usize, dtype: &str) -> PyResult<Self> {
        let array = py.import("numpy")?.call_method1("zeros", (count, dtype))?;
        let buffer = PyUntypedBuffer::get(&array)?;
        Ok(Self { array, buffer })
    }

    /// The memory, as values of the type.
    ///
    /// # Safety
    ///
    /// A `T` is what the array's type is, and any bits are one. The room is used before this value is dropped.
    pub unsafe fn room<T>(&mut self) -> PyResult<Room<T>> {
        let address: *mut T = self.buffer.buf_ptr().cast();
        let whole = self.buffer.item_size() == size_of::<T>() && self.buffer.is_c_contiguous();
        if !whole || self.buffer.readonly() || !address.is_aligned() {
            return Err(PyBufferError::new_err("numpy.zeros has returned another array"));
        }
        Ok(Room { address, count: self.buffer.item_count() })
    }

    pub fn into_array(self) -> Bound<'py, PyAny> {
        self.array
    }
}

impl<T> Room<T> {
    /// The values, all zero at first.
    pub fn values(&mut self) -> &mut [T] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: they are initialized, aligned and so many, see `room`, and nobody else refers to them.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.count) }
    }
}

/// A copy of a descriptor that belongs to Python.
pub fn duplicate(fd: std::os::fd::RawFd) -> std::io::Result<std::os::fd::OwnedFd> {
    if fd < 0 {
        return Err(busbar::Errno::BADF.into());
    }
    // SAFETY: it is not -1, and used for one call, which fails if the descriptor is not open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
}

/// What `__array__` returns: the array, unless another type or a copy was asked for.
pub fn as_asked<'py>(
    array: Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = match dtype {
        Some(dtype) if !array.getattr("dtype")?.eq(&dtype)? => {
            if copy == Some(false) {
                return Err(PyValueError::new_err("another dtype needs a copy"));
            }
            return array.call_method1("astype", (dtype,));
        }
        _ => array,
    };
    if copy == Some(true) { array.call_method0("copy") } else { Ok(array) }
}
