//! Endpoints and their controllers.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use busbar::endpoint::{self, ADDR_ANY, ChannelInfo, Implementation, MAX_MESSAGE};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple, PyType};

use crate::arguments::{Seconds, Whole, timeout, without_nul};
use crate::error::{OrRaise, invalid};
use crate::memory::Given;
use crate::slot::{Slot, leave};
use crate::wait;

/// The control device of one coprocessor, `/dev/rpmsg_ctrlN`.
///
/// Errors: `FileNotFoundError` if there is none, with what to do; `PermissionError`; `ValueError` for a path of
/// something else.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Controller {
    controller: Slot<endpoint::Controller>,
    path: PathBuf,
}

#[pymethods]
impl Controller {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        without_nul("path", &path)?;
        let open = || endpoint::Controller::open(&path);
        let controller = py.detach(open).or_raise_as(py, "path")?;
        Ok(Self { controller: Slot::new(controller, "controller"), path })
    }

    /// All control devices of this machine, a list of `ControllerInfo` by number; an empty one if the kernel has no
    /// rpmsg. Errors: `OSError` if sysfs cannot be read.
    #[classmethod]
    fn list<'py>(_class: &Bound<'py, PyType>, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let class = py.import("busbar._types")?.getattr("ControllerInfo")?;
        let all = PyList::empty(py);
        for info in py.detach(endpoint::Controller::list).or_raise(py)? {
            let processor = info.remoteproc.map(|it| it.name);
            let channels = channels(py, info.channels)?;
            all.append(class.call1((info.path, info.driver, processor, channels))?)?;
        }
        Ok(all)
    }

    /// The path that it was opened by.
    #[getter]
    fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The services that the coprocessor has announced, a tuple of `Service`. Errors: `BrokenPipeError` once the
    /// coprocessor has stopped; `ValueError` once it is closed.
    fn channels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let controller = self.controller.get()?;
        channels(py, py.detach(|| controller.channels()).or_raise(py)?)
    }

    /// Whether it makes endpoints that are descriptors alone, without a device node. Errors: as `channels`.
    fn supports_fd(&self, py: Python<'_>) -> PyResult<bool> {
        let controller = self.controller.get()?;
        py.detach(|| controller.supports_fd()).or_raise(py)
    }

    /// Makes an endpoint that sends to the service `name`, or to the address `destination`. `source` is its own
    /// address, 0 to 0x7fffffff; without one the kernel chooses. `implementation` is `auto`, `fd` (a descriptor
    /// alone) or `node`, and `timeout` the seconds (`None`: no limit) that a device node has to appear. Errors:
    /// `FileNotFoundError` if no such service is announced; `OSError` with `EADDRINUSE` if another endpoint has the
    /// source address, and with `EOPNOTSUPP` if the controller makes no descriptors; `TimeoutError` or
    /// `PermissionError` for a device node that did not appear, or may not be opened; `BrokenPipeError` once the
    /// coprocessor is gone; `ValueError` for a bad argument, and once it is closed.
    #[pyo3(signature = (name, *, source=None, destination=None, implementation="auto", timeout=Seconds::new(5)), text_signature = "($self, name, *, source=None, destination=None, implementation=\"auto\", timeout=5.0)")]
    fn endpoint(
        &self,
        py: Python<'_>,
        name: String,
        source: Option<Whole>,
        destination: Option<Whole>,
        implementation: &str,
        timeout: Option<Seconds>,
    ) -> PyResult<Endpoint> {
        let implementation = match implementation {
            "auto" => Implementation::Auto,
            "fd" => Implementation::Fd,
            "node" => Implementation::Node,
            other => return Err(invalid("implementation", other, "\"auto\", \"fd\", \"node\"")),
        };
        let controller = self.controller.get()?;
        let address = |argument, given: Option<Whole>| {
            given.map(|it| it.within(argument, 0..=u32::MAX)).transpose()
        };
        let (source, destination) =
            (address("source", source)?, address("destination", destination)?);
        let timeout = self::timeout("timeout", timeout)?.unwrap_or(Duration::MAX);
        // It may wait for udevd.
        let goes_on = || self.controller.get().map(drop);
        let service = name.clone();
        let endpoint = wait::ended(py, goes_on, move || {
            let builder = controller
                .endpoint(&name)
                .source(source.unwrap_or(ADDR_ANY))
                .implementation(implementation)
                .timeout(timeout);
            let builder = destination.into_iter().fold(builder, endpoint::Builder::destination);
            builder.create()
        })?;
        let argument =
            |field: &str| if field == "source address" { "source" } else { "name" }.to_owned();
        let endpoint = endpoint.or_raise_by(py, argument)?;
        Ok(Endpoint { endpoint: Slot::new(endpoint, "endpoint"), name: service })
    }

    /// Closes the device. Its endpoints stay. To close it again does nothing. Errors: none.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().controller.close(slf).map(drop)
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
        self.controller.repr("Controller", &self.path)
    }
}

fn channels(py: Python<'_>, channels: Vec<ChannelInfo>) -> PyResult<Bound<'_, PyTuple>> {
    let class = py.import("busbar._types")?.getattr("Service")?;
    let of = |it: ChannelInfo| class.call1((it.name, it.destination, it.driver));
    PyTuple::new(py, channels.into_iter().map(of).collect::<PyResult<Vec<_>>>()?)
}

/// Messages to and from a coprocessor. Each arrives whole, and may be empty. `Controller.endpoint` makes one.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Endpoint {
    endpoint: Slot<endpoint::Endpoint>,
    /// Its service, or its descriptor.
    name: String,
}

#[pymethods]
impl Endpoint {
    /// From a descriptor that was made elsewhere, which belongs to the endpoint from now on. Errors: `OSError` with
    /// `EBADF` if it is not open; `ValueError` for a number that no descriptor has.
    #[classmethod]
    fn from_fd(_class: &Bound<'_, PyType>, py: Python<'_>, fd: Whole) -> PyResult<Self> {
        let fd = fd.within("fd", 0..=RawFd::MAX)?;
        // Only the caller knows whether another object has the descriptor, so take a copy and have Python close its.
        let copy = crate::memory::duplicate(fd)
            .map_err(|why| {
                busbar::Error::new("use as an endpoint", format!("descriptor {fd}"), why)
            })
            .or_raise(py)?;
        py.import("os")?.call_method1("close", (fd,))?;
        let name = format!("descriptor {}", copy.as_raw_fd());
        Ok(Self { endpoint: Slot::new(endpoint::Endpoint::from(copy), "endpoint"), name })
    }

    /// Sends one message, of 496 bytes at most on the virtio bus: `bytes`, or anything with contiguous memory.
    /// `False` if no buffer became free within `timeout` seconds (`None`: no limit). Errors: `BrokenPipeError` once
    /// the remote is gone; `OSError` with `EMSGSIZE` for a message that is too long; `ValueError` for a bad
    /// `timeout`, and once it is closed.
    #[pyo3(signature = (message, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        timeout: Option<Seconds>,
    ) -> PyResult<bool> {
        let limit = self::timeout("timeout", timeout)?;
        let message = Given::new("message", message)?.copy()?;
        let attempt = |endpoint: &endpoint::Endpoint, slice| {
            Ok(endpoint.send_timeout(&message, slice)?.then_some(()))
        };
        Ok(self.endpoint.until(py, limit, attempt)?.is_some())
    }

    /// Sends one message if that is possible at once; `False` if no buffer is free. Errors: as `send`, and `OSError`
    /// with `EOPNOTSUPP` on a device node in blocking mode that was opened elsewhere.
    fn try_send(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<bool> {
        let endpoint = self.endpoint.get()?;
        let message = Given::new("message", message)?.copy()?;
        py.detach(|| endpoint.try_send(&message)).or_raise(py)
    }

    /// Takes one message, or returns `None` if none came within `timeout` seconds (`None`: no limit). `max_len` is in
    /// bytes, 1 to 65535. Errors: `OSError` with `EMSGSIZE` for a message that is longer than that, which is lost,
    /// and with `ENOBUFS` once after messages were lost; `BrokenPipeError` once the remote is gone; `ValueError` for
    /// a bad `max_len`; `ValueError` for a bad `timeout`, and once it is closed.
    #[pyo3(signature = (timeout=None, *, max_len=Whole::Number(MAX_MESSAGE as u64)), text_signature = "($self, timeout=None, *, max_len=496)")]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<Seconds>,
        max_len: Whole,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let limit = self::timeout("timeout", timeout)?;
        let mut buffer = room(max_len)?;
        let attempt =
            |endpoint: &endpoint::Endpoint, slice| endpoint.recv_timeout(&mut buffer, slice);
        let len = self.endpoint.until(py, limit, attempt)?;
        Ok(len.map(|len| PyBytes::new(py, &buffer[..len])))
    }

    /// Takes one message, or returns `None` if there is none now. Does not wait. Errors: as `recv`.
    #[pyo3(signature = (*, max_len=Whole::Number(MAX_MESSAGE as u64)), text_signature = "($self, *, max_len=496)")]
    fn try_recv<'py>(
        &self,
        py: Python<'py>,
        max_len: Whole,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let endpoint = self.endpoint.get()?;
        let mut buffer = room(max_len)?;
        let len = py.detach(|| endpoint.try_recv(&mut buffer)).or_raise(py)?;
        Ok(len.map(|len| PyBytes::new(py, &buffer[..len])))
    }

    /// As `send`, without a limit, in the event loop of asyncio, without a thread: to be awaited. Errors: as `send`.
    fn send_async<'py>(
        slf: Bound<'py, Self>,
        message: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("busbar._aio")?.call_method1("send", (slf, message))
    }

    /// As `recv`, without a limit, in the event loop of asyncio, without a thread: to be awaited. Errors: as `recv`.
    #[pyo3(signature = (*, max_len=Whole::Number(MAX_MESSAGE as u64)), text_signature = "($self, *, max_len=496)")]
    fn recv_async(slf: Bound<'_, Self>, max_len: Whole) -> PyResult<Bound<'_, PyAny>> {
        let max_len = longest(max_len)?;
        slf.py().import("busbar._aio")?.call_method1("recv", (slf, max_len))
    }

    /// What it is made of: `fd` (a descriptor alone) or `node` (a device node). Errors: `ValueError` once it is
    /// closed.
    #[getter]
    fn implementation(&self) -> PyResult<String> {
        Ok(self.endpoint.get()?.implementation().to_string())
    }

    /// Asks the remote to pause sending, or to go on. Errors: `OSError` with `EOPNOTSUPP` on a bus without flow
    /// control, such as the virtio bus; `ValueError` once it is closed.
    fn set_paused(&self, py: Python<'_>, paused: bool) -> PyResult<()> {
        let endpoint = self.endpoint.get()?;
        py.detach(|| endpoint.set_paused(paused)).or_raise(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.endpoint.is_closed()
    }

    /// The descriptor, which is readable while a message is there. Its number belongs to the endpoint. Errors:
    /// `ValueError` once it is closed.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.endpoint.get()?.as_fd().as_raw_fd())
    }

    /// Closes it. Other threads and tasks that wait for it get a `ValueError`. To close it again does nothing.
    /// Errors: none.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let endpoint = slf.get().endpoint.close(slf)?;
        slf.py().detach(move || drop(endpoint));
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
        self.endpoint.repr("Endpoint", &self.name)
    }
}

fn longest(max_len: Whole) -> PyResult<u16> {
    // The header of a message has 16 bits for its length.
    max_len.within("max_len", 1..=u16::MAX)
}

fn room(max_len: Whole) -> PyResult<Vec<u8>> {
    Ok(vec![0; usize::from(longest(max_len)?)])
}
