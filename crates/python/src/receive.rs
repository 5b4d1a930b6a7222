//! Data from the network.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use busbar::block::{Block, Memory};
use busbar::receive::{self, Piece, ReceiveSetup};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::arguments::{Seconds, Size, Whole, parsed, some, timeout, without_nul};
use crate::error::{OrRaise, invalid};
use crate::memory::{Buffer, Held, as_asked};
use crate::slot::{Slot, leave};
use crate::wait;

/// Receives TCP into `len` bytes of memory, of which the program gets views.
///
/// Without `device`, it receives on any host with one copy. With `device`, the name of a network device, its queues
/// write into the memory, and no processor copies. `len` is a number of bytes or a text such as `"4M"` (K is 1024),
/// rounded up to whole pages. `memory` is as for `Source`. Only with `device`: `queues`, a number of queues or a list
/// such as `8-15`, and `tokens`, which is `default`, `index` or `autorelease`: who records which memory is in use.
///
/// Errors: `ValueError` for a bad argument; `OSError` with `ENODEV` if there is no such device, with `EOPNOTSUPP` if
/// it or the kernel cannot do it, with `EBUSY` if other memory is bound to its queues; `PermissionError`.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Receiver {
    receiver: Slot<receive::Receiver>,
    /// The device, or `memory`.
    name: String,
}

#[pymethods]
impl Receiver {
    /// Without `device`, receives on any host with one copy. With `device`, its queues write into the block.
    #[new]
    #[pyo3(signature = (device=None, *, len=Size::Bytes(4 << 20), memory=None, queues=None, tokens=None), text_signature = "(device=None, *, len=\"4M\", memory=None, queues=None, tokens=None)")]
    fn new(
        py: Python<'_>,
        device: Option<&str>,
        len: Size,
        memory: Option<&str>,
        queues: Option<&str>,
        tokens: Option<&str>,
    ) -> PyResult<Self> {
        let len = len.of("len")?;
        let default = if device.is_some() { Memory::Pages } else { Memory::Memfd };
        let memory = parsed(py, "memory", memory)?.unwrap_or(default);
        let device = device.map(|it| without_nul("device", it)).transpose()?;
        for (argument, value) in [("queues", queues), ("tokens", tokens)] {
            if let (None, Some(value)) = (device, value) {
                return Err(invalid(argument, value, "None without a device"));
            }
        }
        let setup = ReceiveSetup::new()
            .queues(parsed(py, "queues", queues)?.unwrap_or_default())
            .tokens(parsed(py, "tokens", tokens)?.unwrap_or_default());
        let open = || {
            let block = Block::with(len, &memory)?;
            match device {
                Some(name) => receive::Receiver::open(name, block, &setup),
                None => receive::Receiver::host(block),
            }
        };
        let receiver = py.detach(open).or_raise_by(py, argument)?;
        let name = device.unwrap_or("memory").to_owned();
        Ok(Self { receiver: Slot::new(receiver, "receiver"), name })
    }

    /// Listens on an address, or on one of those of a host name; port 0 chooses a free one. Errors:
    /// `FileNotFoundError` if nobody knows the name; `OSError` with `EADDRINUSE` if the port is taken, and with
    /// `ENOSPC` if the device has no room for a rule; `PermissionError`; `ValueError` for a bad argument, and once it
    /// is closed.
    #[pyo3(signature = (host, port=Whole::Number(0)), text_signature = "($self, host, port=0)")]
    fn listen(&self, py: Python<'_>, host: String, port: Whole) -> PyResult<Listener> {
        let port = port.within("port", 0..=u16::MAX)?;
        let (addresses, receiver) = (self.addresses(py, host, port, None)?, self.receiver.get()?);
        let listener = py.detach(|| first(&addresses, |address, _| receiver.listen(address)));
        let listener = listener.or_raise(py)?;
        let name = listener.local_addr().or_raise(py)?.to_string();
        Ok(Listener { listener: Slot::new(listener, "listener"), name })
    }

    /// Connects to an address, or to one of those of a host name, within `timeout` seconds (`None`: no limit).
    /// Errors: `TimeoutError`, `ConnectionRefusedError`; as `listen`.
    #[pyo3(signature = (host, port, timeout=Seconds::new(10)), text_signature = "($self, host, port, timeout=10.0)")]
    fn connect(
        &self,
        py: Python<'_>,
        host: String,
        port: Whole,
        timeout: Option<Seconds>,
    ) -> PyResult<Connection> {
        let port = port.within("port", 1..=u16::MAX)?;
        let limit = some("timeout", timeout, "more than 0 seconds; None for no limit")?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let addresses = self.addresses(py, host, port, deadline)?;
        let receiver = self.receiver.get()?;
        let connect = move || {
            first(&addresses, |address, left| {
                let time = deadline.map(|it| it.saturating_duration_since(Instant::now()));
                // One that does not answer leaves time for the others.
                receiver.connect_timeout(address, time.map_or(Duration::MAX, |time| time / left))
            })
        };
        let connection = wait::ended(py, || self.receiver.get().map(drop), connect)?;
        Ok(Connection::new(connection.or_raise(py)?))
    }

    /// The counters of all its connections together, as `ReceiveStatistics`. Errors: `OSError` with `ENODEV` if the
    /// device is gone; `ValueError` once it is closed.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let receiver = self.receiver.get()?;
        let it = py.detach(|| receiver.statistics()).or_raise(py)?;
        py.import("busbar._types")?.getattr("ReceiveStatistics")?.call1((
            it.bytes,
            it.copied,
            it.views,
            it.held,
            it.memory,
            it.shortages,
            it.returns,
            it.refused,
        ))
    }

    /// The numbers of the queues that fill the memory; none without a device. Errors: `ValueError` once it is closed.
    #[getter]
    fn queues(&self) -> PyResult<Vec<u32>> {
        Ok(self.receiver.get()?.queues().to_vec())
    }

    /// Undoes all settings of the device. Connections go on without it; views stay valid. To close it again does
    /// nothing. Errors: `OSError` for a setting that could not be undone.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(receiver) = slf.get().receiver.close(slf)? else { return Ok(()) };
        // A thread that still uses it ends within moments and drops it, which undoes them as well.
        let close = || Arc::into_inner(receiver).map_or(Ok(()), receive::Receiver::close);
        slf.py().detach(close).or_raise(slf.py())
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
        self.receiver.repr("Receiver", &self.name)
    }
}

impl Receiver {
    /// The addresses of a host, at least one. To find them can take seconds.
    fn addresses(
        &self,
        py: Python<'_>,
        host: String,
        port: u16,
        deadline: Option<Instant>,
    ) -> PyResult<Vec<SocketAddr>> {
        without_nul("host", &host)?;
        let failed =
            |host: &str, why: io::Error| busbar::Error::new("find the address of", host, why);
        let goes_on = || {
            self.receiver.get()?;
            if deadline.is_none_or(|deadline| deadline > Instant::now()) {
                return Ok(());
            }
            Err(failed(&host, io::ErrorKind::TimedOut.into())).or_raise(py)
        };
        let name = host.clone();
        let find = move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            let none = || io::Error::from(io::ErrorKind::NotFound);
            match found {
                Ok(addresses) if addresses.is_empty() => Err(failed(&name, none())),
                Ok(addresses) => Ok(addresses),
                // Names have numbers of their own, which `std` keeps to itself.
                Err(why) if why.raw_os_error().is_none() => {
                    Err(failed(&name, io::Error::new(io::ErrorKind::NotFound, why.to_string())))
                }
                Err(why) => Err(failed(&name, why)),
            }
        };
        wait::aside(py, goes_on, find)?.or_raise(py)
    }
}

/// Tries addresses until one is right; otherwise the last error. `attempt` is told how many are left, with this one.
fn first<T>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr, u32) -> busbar::Result<T>,
) -> busbar::Result<T> {
    let mut result = Err(busbar::Error::new("find", "an address", io::ErrorKind::NotFound));
    for (at, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        result = attempt(*address, left);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The argument for what the library calls a bad value.
fn argument(field: &str) -> String {
    let known = [("length", "len"), ("memory", "memory"), ("heap", "memory"), ("queues", "queues")];
    let known = known.iter().find(|(word, _)| field.split(' ').any(|it| it == *word));
    known.map_or_else(|| field.to_owned(), |(_, argument)| (*argument).to_owned())
}

/// Accepts connections. `Receiver.listen` makes one.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Listener {
    listener: Slot<receive::Listener>,
    /// Its address.
    name: String,
}

#[pymethods]
impl Listener {
    /// Its address and port: `(address, port)`. Errors: `ValueError` once it is closed.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<(String, u16)> {
        let address = self.listener.get()?.local_addr().or_raise(py)?;
        Ok((address.ip().to_string(), address.port()))
    }

    /// The next connection, or `None` if none came within `timeout` seconds (`None`: no limit). Errors: `OSError`
    /// with `EMFILE` if the process has too many descriptors; `ValueError` for a bad `timeout`, and once it is
    /// closed.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Option<Connection>> {
        let limit = self::timeout("timeout", timeout)?;
        let connection = self.listener.until(py, limit, receive::Listener::accept_timeout)?;
        Ok(connection.map(Connection::new))
    }

    /// A descriptor that is readable while a connection waits. Its number belongs to the listener. Errors:
    /// `ValueError` once it is closed.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.listener.get()?.as_fd().as_raw_fd())
    }

    /// Closes it. Its connections stay. To close it again does nothing. Errors: none.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let listener = slf.get().listener.close(slf)?;
        slf.py().detach(move || drop(listener));
        Ok(())
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
        self.listener.repr("Listener", &self.name)
    }
}

/// A connection: an iterator of pieces, each a `View` of the receiver's memory, or `bytes` that are not there. It
/// ends when the peer has ended.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Connection {
    connection: Slot<Connected>,
    /// The address of its peer.
    name: String,
}

struct Connected {
    /// Locked only while the interpreter is free, and for moments: no wait has it.
    connection: Mutex<receive::Connection>,
    /// The connection's own, which nobody need wait for.
    fd: RawFd,
    socket: RawFd,
}

impl Connected {
    /// The next piece, if it is there, and whether that is all.
    fn take(&self) -> busbar::Result<(Option<Piece>, bool)> {
        let mut connection = self.connection.lock();
        Ok((connection.try_next()?, connection.is_finished()))
    }

    /// Waits for news, without the lock. Another thread may take them: so this is for moments.
    fn wait(&self, time: Duration) -> busbar::Result<()> {
        // SAFETY: the connection has it open.
        #[allow(unsafe_code)]
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Timespec::try_from(time).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(busbar::Error::new("wait for", "a connection", errno)),
        }
    }
}

impl Connection {
    fn new(connection: receive::Connection) -> Self {
        let (fd, socket) = (connection.as_fd().as_raw_fd(), connection.socket().as_raw_fd());
        let peer = connection.socket().peer_addr();
        let name = peer.map_or_else(|_| "a peer that is gone".into(), |it| it.to_string());
        let connected = Connected { connection: Mutex::new(connection), fd, socket };
        Self { connection: Slot::new(connected, "connection"), name }
    }
}

fn piece(py: Python<'_>, piece: Piece) -> PyResult<Bound<'_, PyAny>> {
    match piece {
        Piece::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
        Piece::View(view) => {
            let count = view.len();
            Ok(Bound::new(py, View { held: Held::new(view, "view"), count })?.into_any())
        }
    }
}

#[pymethods]
impl Connection {
    /// The next piece; `None` at the end, or if none came within `timeout` seconds (`None`: no limit): `finished`
    /// tells. Without a device, it also waits for memory that views hold. Errors: `ConnectionResetError` or
    /// `TimeoutError` if the peer has disappeared; `ValueError` for a bad `timeout`, and once it is closed.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let limit = self::timeout("timeout", timeout)?;
        // `Some(None)` is the end.
        let next = self.connection.until(py, limit, |connection, slice| {
            let (mut piece, mut ended) = connection.take()?;
            if piece.is_none() && !ended {
                connection.wait(slice)?;
                (piece, ended) = connection.take()?;
            }
            Ok((piece.is_some() || ended).then_some(piece))
        })?;
        next.flatten().map(|next| piece(py, next)).transpose()
    }

    /// The next piece, or `None` if there is none now, or at the end: `finished` tells. Does not wait. Errors: as
    /// `next`.
    fn try_next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let connection = self.connection.get()?;
        let (next, _) = py.detach(|| connection.take()).or_raise(py)?;
        next.map(|next| piece(py, next)).transpose()
    }

    /// Whether the peer has ended and everything was received. Errors: `ValueError` once it is closed.
    #[getter]
    fn finished(&self, py: Python<'_>) -> PyResult<bool> {
        let connection = self.connection.get()?;
        Ok(py.detach(|| connection.connection.lock().is_finished()))
    }

    /// A descriptor that is readable when there may be something new: then call `try_next` until it returns `None`. Its
    /// number belongs to the connection. Errors: `ValueError` once it is closed.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.connection.get()?.fd)
    }

    /// The connection as a `socket.socket` with a descriptor of its own, which the caller closes: to send, to ask for
    /// addresses, to set options. It does not block; after `settimeout(seconds)`, `sendall` waits. What is received by
    /// it is missing in the pieces. Errors: `OSError` with `EMFILE` if the process has too many descriptors;
    /// `ValueError` once it is closed.
    fn socket<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // Open until this returns.
        let connection = self.connection.get()?;
        let (os, keywords) = (py.import("os")?, PyDict::new(py));
        let class = py.import("socket")?.getattr("socket")?;
        let fd = os.call_method1("dup", (connection.socket,))?;
        keywords.set_item("fileno", &fd)?;
        match class.call((), Some(&keywords)) {
            Ok(socket) => {
                // What the descriptor already is.
                socket.call_method1("settimeout", (0,))?;
                Ok(socket)
            }
            Err(error) => {
                os.call_method1("close", (fd,))?;
                Err(error)
            }
        }
    }

    /// Closes it. Views stay valid. To close it again does nothing. Errors: none.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let connection = slf.get().connection.close(slf)?;
        slf.py().detach(move || drop(connection));
        Ok(())
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

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.next(py, None)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        slf.py().import("busbar._aio")?.call_method1("Pieces", (slf,))
    }

    fn __repr__(&self) -> String {
        self.connection.repr("Connection", &self.name)
    }
}

/// A part of the receiver's memory, which is free for other data once it and its arrays are dropped.
/// `numpy.asarray(view)` is its bytes, read-only, and `len(view)` their number.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct View {
    held: Arc<Held<receive::View>>,
    count: usize,
}

#[pymethods]
impl View {
    /// The offset of its first byte in the memory, in bytes. Errors: `ValueError` once it was given back.
    #[getter]
    fn offset(&self) -> PyResult<usize> {
        self.held.with(|view| view.range().start)
    }

    /// A memoryview of the bytes in place, read-only, of shape `(bytes,)`: for files and sockets. Errors:
    /// `ValueError` once it was given back; `OSError` if the kernel refuses the access.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Buffer::view(Buffer::new(py, &self.held, true)?)
    }

    /// The bytes in place, read-only, of shape `(bytes,)` and type `uint8`: what `numpy.asarray(view)` is. Errors:
    /// `ValueError` once it was given back; `OSError` if the kernel refuses the access.
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Buffer::array(Buffer::new(py, &self.held, true)?, py.import("numpy")?.getattr("uint8")?)
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

    /// Frees the memory for other data. To release it again does nothing. Errors: `BufferError` while an array or
    /// memoryview refers to it.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let view = self.held.take()?;
        py.detach(move || drop(view));
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        let released = if self.held.is_gone() { ", released" } else { "" };
        format!("<busbar.View of {} bytes{released}>", self.count)
    }
}
