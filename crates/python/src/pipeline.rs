//! Pipelines.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use busbar::pipeline::{self, Config, State};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use rustix::fs::OFlags;

use crate::arguments::{Seconds, timeout, without_nul};
use crate::error::{OrRaise, invalid};
use crate::slot::{Slot, leave};
use crate::wait;

/// Sources, stages and sinks that are joined in one loop: from TOML text, or from a dict of the same tables. Nodes
/// are in the order of the text or dict. `name` stands in errors for the name of a file.
///
/// Errors: `ValueError` that names the line or key; `OSError` of a source or sink that cannot be opened.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Pipeline {
    /// Locked only while the interpreter is free: a turn may wait. The lock is a fair one: a thread that turns again and
    /// again leaves it to others in between.
    held: Slot<Mutex<pipeline::Pipeline>>,
    /// The pipeline's own, which nobody need wait for.
    fd: RawFd,
    name: String,
}

#[pymethods]
impl Pipeline {
    /// From TOML text, or from a dict of the same tables.
    #[new]
    #[pyo3(signature = (config, *, name="pipeline"))]
    fn new(py: Python<'_>, config: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if let Ok(table) = config.cast::<PyDict>() {
            let text = toml(table)?;
            let config = py.detach(|| Config::parse(name, &text)).or_raise_by(py, |field| {
                // The line is one of a text that the program has not written.
                let rest = field.strip_prefix(name).and_then(|it| it.strip_prefix(", line "));
                let key = rest.map(|it| it.trim_start_matches(|it: char| it.is_ascii_digit()));
                key.map_or_else(|| field.to_owned(), |key| format!("{name}{key}"))
            })?;
            return Self::start(py, name, config);
        }
        let Ok(text) = config.cast::<PyString>() else {
            return Err(PyTypeError::new_err("config: TOML text or a dict is needed"));
        };
        Self::start(py, name, Config::parse(name, &text.extract::<String>()?).or_raise(py)?)
    }

    /// From a TOML file. Errors: `FileNotFoundError`, `PermissionError`; `ValueError` for what is no regular file; as
    /// `Pipeline`.
    #[classmethod]
    fn open(_class: &Bound<'_, PyType>, py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        without_nul("path", &path)?;
        let (name, regular) = (path.display().to_string(), "a regular file");
        let read = || {
            // A FIFO would wait for somebody who writes to it.
            let mut file = File::options()
                .read(true)
                .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                .open(&path)?;
            let is_regular = file.metadata()?.is_file();
            let mut text = String::new();
            if is_regular {
                file.read_to_string(&mut text)?;
            }
            Ok::<_, io::Error>(is_regular.then_some(text))
        };
        let text = py.detach(read).map_err(|why| busbar::Error::new("read", &name, why));
        let text = text.or_raise(py)?.ok_or_else(|| invalid("path", &name, regular))?;
        Self::start(py, &name, Config::parse(&name, &text).or_raise(py)?)
    }

    /// Does what can be done now; if there is nothing, waits for the next event, for `timeout` seconds at most, and
    /// for 100 ms in any case. Returns
    /// `running`, `draining` (the blocks under way are delivered) or `finished`. Errors: `OSError` of a node that has
    /// failed for good; `TimeoutError` if not all blocks could be delivered in time at the end; `ValueError` for a
    /// bad `timeout`, and once it is closed.
    #[pyo3(signature = (timeout=None))]
    fn turn(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<&'static str> {
        let (pipeline, limit) = (self.held.get()?, self::timeout("timeout", timeout)?);
        // Without a limit it waits 100 ms at most, which is no error: there is a next turn.
        let limit = limit.unwrap_or(Duration::MAX);
        let state = py.detach(|| pipeline.lock().turn_timeout(limit)).or_raise(py)?;
        py.check_signals()?;
        Ok(word(state))
    }

    /// Turns until it has finished. After `seconds` seconds (`None`: never) it is stopped, and blocks under way are
    /// delivered. Errors: as `turn`, and `ValueError` for bad `seconds`.
    #[pyo3(signature = (seconds=None))]
    fn run(&self, py: Python<'_>, seconds: Option<Seconds>) -> PyResult<()> {
        let limit = timeout("seconds", seconds)?;
        let turns = |pipeline: &Mutex<pipeline::Pipeline>, slice: Duration| {
            let begin = Instant::now();
            loop {
                let left = slice.saturating_sub(begin.elapsed());
                if pipeline.lock().turn_timeout(left)? == State::Finished {
                    return Ok(Some(()));
                }
                if left.is_zero() {
                    return Ok(None);
                }
            }
        };
        if self.held.until(py, limit, turns)?.is_none() {
            self.stop(py)?;
            self.held.until(py, None, turns)?;
        }
        Ok(())
    }

    /// Takes no more blocks from the sources. Further turns deliver those under way. Errors: `ValueError` once it is
    /// closed.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let pipeline = self.held.get()?;
        py.detach(|| pipeline.lock().stop());
        Ok(())
    }

    /// Totals since it was opened, as `Counters`. Errors: `ValueError` once it is closed.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let pipeline = self.held.get()?;
        let counters = py.detach(|| serde_json::to_string(&pipeline.lock().counters()));
        py.import("busbar._types")?.call_method1("counters", (json(counters)?,))
    }

    /// Events since the last call, a list of `Event`. The oldest are left out if there are more than 1024. Errors:
    /// `ValueError` once it is closed.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let pipeline = self.held.get()?;
        let events = py.detach(|| serde_json::to_string(&pipeline.lock().take_events()));
        py.import("busbar._types")?.call_method1("events", (json(events)?,))
    }

    /// Number of blocks that were not delivered yet, by the name of each sink that has some. Errors: `ValueError`
    /// once it is closed.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<std::collections::BTreeMap<String, usize>> {
        let pipeline = self.held.get()?;
        Ok(py.detach(|| pipeline.lock().remaining()).into_iter().collect())
    }

    /// A descriptor that is readable while a turn has something to do, and possibly without. Its number belongs to
    /// the pipeline. Errors: `ValueError` once it is closed.
    fn fileno(&self) -> PyResult<RawFd> {
        self.held.get().map(|_| self.fd)
    }

    /// As `run`, in the event loop of asyncio, without a thread: to be awaited. Errors: as `run`.
    #[pyo3(signature = (seconds=None))]
    fn run_async(slf: Bound<'_, Self>, seconds: Option<Seconds>) -> PyResult<Bound<'_, PyAny>> {
        let limit = timeout("seconds", seconds)?.map(|it| it.as_secs_f64());
        slf.py().import("busbar._aio")?.call_method1("run", (slf, limit))
    }

    /// Ends it at once and drops blocks under way. To close it again does nothing. Errors: none.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let pipeline = slf.get().held.close(slf)?;
        slf.py().detach(move || drop(pipeline));
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
        self.held.repr("Pipeline", &self.name)
    }
}

impl Pipeline {
    fn start(py: Python<'_>, name: &str, config: Config) -> PyResult<Self> {
        let open = move || pipeline::Pipeline::open(config);
        let pipeline = wait::opened(py, open)?.or_raise(py)?;
        let fd = pipeline.as_fd().as_raw_fd();
        let held = Slot::new(Mutex::new(pipeline), "pipeline");
        Ok(Self { held, fd, name: name.to_owned() })
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Finished => "finished",
        State::Draining => "draining",
        _ => "running",
    }
}

fn json(text: serde_json::Result<String>) -> PyResult<String> {
    text.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A dict as TOML, with its nodes in their order.
fn toml(table: &Bound<'_, PyDict>) -> PyResult<String> {
    let mut lines = Vec::new();
    // Copies, as what is converted may be code of the program, which changes the dict.
    for (key, value) in table.copy()? {
        let value = match value.cast::<PyDict>() {
            Ok(nodes) => {
                let pair = |(name, node)| Ok(format!("{} = {}", quoted(&name)?, inline(&node)?));
                let nodes = nodes.copy()?.iter().map(pair).collect::<PyResult<Vec<_>>>()?;
                format!("{{ {} }}", nodes.join(", "))
            }
            Err(_) => inline(&value)?,
        };
        lines.push(format!("{} = {value}", quoted(&key)?));
    }
    Ok(lines.join("\n"))
}

/// A key. What JSON escapes is escaped in the same way in TOML, which escapes DEL as well.
fn quoted(key: &Bound<'_, PyAny>) -> PyResult<String> {
    match key.extract::<String>() {
        Ok(key) => Ok(json(serde_json::to_string(&key))?.replace('\u{7f}', "\\u007f")),
        Err(_) => Err(invalid("config", key, "texts as keys")),
    }
}

/// A value as TOML, by way of JSON.
fn inline(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text: String = value.py().import("json")?.call_method1("dumps", (value,))?.extract()?;
    let value: toml::Value = serde_json::from_str(&text).map_err(|error| {
        invalid("config", error, "tables, lists, texts, numbers, True and False")
    })?;
    Ok(value.to_string())
}
