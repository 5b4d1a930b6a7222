//! A coprocessor whose firmware is written in Python, for tests of one's own protocol.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use busbar::Error;
use busbar_coprocessor::message::MTU;
use busbar_coprocessor::remoteproc::{self, Remoteproc};
use busbar_coprocessor::service::{self, Service, Services, Spec};
use busbar_coprocessor::{Core, Notice, Options, Statistics, Stop, StopHandle};
use pyo3::exceptions::{PyBlockingIOError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyTuple};

use crate::arguments::{Seconds, Timeout, Whole, some, timeout, without_nul};
use crate::error::{OrRaise, invalid, raise};
use crate::memory::Given;
use crate::process::{Process, inherited};
use crate::slot::{leave, note};
use crate::wait;

/// Most notices that are kept until they are taken.
const MOST: usize = 1024;

/// What a service can do while it is called. Once the call has returned, every use but `address` is a `ValueError`.
#[pyclass(frozen, module = "busbar")]
pub struct Port {
    /// The address of the service.
    #[pyo3(get)]
    address: u32,
    room: usize,
    /// `None` once the call has returned.
    asked: Mutex<Option<Asked>>,
}

/// What is done when the call has returned.
#[derive(Default)]
struct Asked {
    sent: Vec<(u32, Vec<u8>)>,
    crash: Option<String>,
}

impl Port {
    fn with<T>(&self, read: impl FnOnce(&mut Asked) -> PyResult<T>) -> PyResult<T> {
        match &mut *lock(&self.asked) {
            Some(asked) => read(asked),
            None => Err(PyValueError::new_err("the call of the port has returned")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Port {
    /// Number of messages that can still be sent in this call. Errors: `ValueError` once the call has returned.
    #[getter]
    fn room(&self) -> PyResult<usize> {
        self.with(|asked| Ok(self.room - asked.sent.len()))
    }

    /// Sends a message of 496 bytes at most to an address of Linux, when the call has returned or raised an
    /// exception. Errors: `ValueError` for a bad address, for a message that is too long, and once the call has
    /// returned; `BlockingIOError` if this call has sent as many as it may (`room`).
    fn send(&self, to: Whole, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let to = to.within("to", 0..=u32::MAX)?;
        let message = Given::new("message", message)?.copy()?;
        if message.len() > MTU {
            return Err(invalid(
                "message",
                format!("{} bytes", message.len()),
                &format!("up to {MTU} bytes"),
            ));
        }
        self.with(|asked| {
            if asked.sent.len() >= self.room {
                return Err(PyBlockingIOError::new_err(
                    "this call has sent as many messages as it may: go on in on_tick",
                ));
            }
            asked.sent.push((to, message));
            Ok(())
        })
    }

    /// Makes the coprocessor crash after this call; `reason` is a text for events. Errors: `ValueError` once the call
    /// has returned.
    fn crash(&self, reason: String) -> PyResult<()> {
        self.with(|asked| {
            asked.crash.get_or_insert(reason);
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        format!("<busbar.Port {}>", self.address)
    }
}

/// A service that is an object of Python.
struct Firmware {
    name: String,
    object: Arc<Py<PyAny>>,
    news: News,
    /// How often `on_tick` is called.
    period: Option<Duration>,
    due: Option<Instant>,
}

impl Firmware {
    fn new(object: &Bound<'_, PyAny>, news: &News) -> PyResult<Self> {
        let period = match object.getattr_opt("period")? {
            Some(period) => period.extract()?,
            None => None,
        };
        let period = some("period", period, "seconds, more than 0; None for no calls of on_tick")?;
        let name = object.getattr_opt("name")?.and_then(|it| it.extract().ok());
        let (Some(name), Some(_)) = (name, object.getattr_opt("on_message")?) else {
            let text =
                "services: a text, or an object with `name`, a text, and `on_message`, is needed";
            return Err(PyTypeError::new_err(text));
        };
        let (object, news) = (Arc::new(object.clone().unbind()), Arc::clone(news));
        Ok(Self { name, object, news, period, due: None })
    }

    /// Calls a method of the object, if it has that, then sends what it has sent, also if it has raised an exception.
    fn call(
        &self,
        port: &mut service::Port<'_>,
        method: &str,
        message: Option<(u32, &[u8])>,
    ) -> busbar::Result<()> {
        let called = format!("{method} of service `{}`", self.name);
        let failed = |error: PyErr| {
            let text = std::io::Error::other(error.to_string());
            Error::new("call", called.as_str(), text)
        };
        let _call = UnderWay::begin(&self.news, &called);
        let (room, address) = (port.room(), port.address());
        let (asked, result) = Python::attach(|py| {
            let asked = Mutex::new(Some(Asked::default()));
            let way = Bound::new(py, Port { address, room, asked })?;
            let call = || {
                if let Some(function) = self.object.bind(py).getattr_opt(method)? {
                    match message {
                        Some((from, data)) => {
                            function.call1((&way, from, PyBytes::new(py, data)))?
                        }
                        None => function.call1((&way,))?,
                    };
                }
                Ok(())
            };
            // The text of an error is made by Python.
            let result = call().map_err(failed);
            let asked = lock(&way.get().asked).take().unwrap_or_default();
            Ok((asked, result))
        })
        .map_err(failed)?;
        if let Some(reason) = asked.crash {
            port.crash(reason);
        }
        let sent = asked.sent.iter().try_for_each(|(to, message)| port.send(*to, message));
        result.and(sent)
    }
}

impl Service for Firmware {
    fn name(&self) -> &str {
        &self.name
    }

    fn on_message(
        &mut self,
        port: &mut service::Port<'_>,
        from: u32,
        data: &[u8],
    ) -> busbar::Result<()> {
        self.call(port, "on_message", Some((from, data)))
    }

    fn on_start(&mut self, port: &mut service::Port<'_>) -> busbar::Result<()> {
        self.due = self.period.and_then(|period| Instant::now().checked_add(period));
        self.call(port, "on_start", None)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    fn on_tick(&mut self, port: &mut service::Port<'_>, now: Instant) -> busbar::Result<()> {
        self.due = self.period.and_then(|period| now.checked_add(period));
        self.call(port, "on_tick", None)
    }
}

/// What the thread of a coprocessor tells.
#[derive(Default)]
struct Told {
    notices: Vec<(String, String)>,
    is_ready: bool,
    /// The call of a service that has not returned yet.
    under_way: Option<String>,
    ended: Option<(Statistics, busbar::Result<()>)>,
}

type News = Arc<(Mutex<Told>, Condvar)>;

/// Tells of a call of a service while it exists.
struct UnderWay<'a>(&'a News);

impl<'a> UnderWay<'a> {
    fn begin(news: &'a News, call: &str) -> Self {
        lock(&news.0).under_way = Some(call.to_owned());
        Self(news)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.0.0).under_way = None;
    }
}

struct Running {
    /// Until it was asked to end.
    stop: Option<StopHandle>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Asks it to end, once: after a second request it would not end in order.
    fn ask_to_end(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.stop();
        }
    }
}

/// A virtual coprocessor (module vcoproc): runs services in a thread while it is entered.
///
/// Each service is a text as for `busbar coprocessor run --service`, or an object with `name` and `on_message(port,
/// sender, message)`; `on_start(port)`, and `on_tick(port)` each `period` seconds, if it has them. `device` is
/// `/dev/vcoprocN`; without it, the first one that is free.
///
/// Errors: `ValueError` or `TypeError` for a bad argument.
#[pyclass(frozen, weakref, module = "busbar")]
pub struct Coprocessor {
    device: Option<PathBuf>,
    /// Until it is started.
    services: Mutex<Option<Services>>,
    /// The objects of these, for the garbage collector.
    objects: Mutex<Vec<Arc<Py<PyAny>>>>,
    running: Mutex<Option<Running>>,
    news: News,
    home: Process,
}

#[pymethods]
impl Coprocessor {
    /// Each service is a text as for `busbar coprocessor run --service`, or an object with `name` and
    /// `on_message(port, sender, message)`; `on_start(port)`, and `on_tick(port)` each `period` seconds, if it has them.
    #[new]
    #[pyo3(signature = (services, *, device=None))]
    fn new(
        py: Python<'_>,
        services: Vec<Bound<'_, PyAny>>,
        device: Option<PathBuf>,
    ) -> PyResult<Self> {
        device.as_ref().map(|it| without_nul("device", it)).transpose()?;
        let (mut all, mut objects, news) = (Services::default(), Vec::new(), News::default());
        for each in &services {
            if let Ok(spec) = each.extract::<String>() {
                let spec: Spec = spec.parse().or_raise_as(py, "services")?;
                spec.add_to(&mut all).or_raise_as(py, "services")?;
            } else {
                let firmware = Firmware::new(each, &news)?;
                objects.push(Arc::clone(&firmware.object));
                all.add(firmware).or_raise_as(py, "services")?;
            }
        }
        if all.is_empty() {
            return Err(invalid("services", "[]", "at least one service"));
        }
        let (services, objects) = (Mutex::new(Some(all)), Mutex::new(objects));
        let running = Mutex::default();
        let home = Process::current();
        Ok(Self { device, services, objects, running, news, home })
    }

    /// Starts it, and returns when Linux knows the services and each `on_start` has returned. Errors: `TimeoutError`
    /// if that takes longer than `timeout` seconds (`None`: no limit): it is then stopped, as by `stop`, or ends when the
    /// call of a service that is under way has returned; `FileNotFoundError` without the module or a device, after which
    /// it can be started again; `OSError` with `EBUSY` if another process has it; `PermissionError`; `RuntimeError` if it
    /// was started before; `ValueError` for a bad `timeout`.
    #[pyo3(signature = (timeout=Seconds::new(30)), text_signature = "($self, timeout=30.0)")]
    fn start(slf: &Bound<'_, Self>, timeout: Option<Seconds>) -> PyResult<()> {
        let (this, py) = (slf.get(), slf.py());
        let limit = self::timeout("timeout", timeout)?;
        this.check_home()?;
        let started = || PyRuntimeError::new_err("it was started before: make another one");
        if lock(&this.services).is_none() {
            return Err(started());
        }
        let argument =
            |field: &str| if field == "coprocessor device" { "device" } else { field }.to_owned();
        let opened = py.detach(|| this.open()).or_raise_by(py, argument)?;
        let services = this.take_services().ok_or_else(started)?;
        let running = py.detach(|| this.spawn(opened, services)).or_raise(py)?;
        *lock(&this.running) = Some(running);
        py.import("busbar._exit")?.call_method1("remember", (slf,))?;
        let came = this.wait(py, limit, |told| {
            (told.is_ready || told.ended.is_some()).then_some(told.is_ready)
        });
        if matches!(came, Ok(Some(true))) {
            return Ok(());
        }
        // Nothing can end a call of a service, which may never return.
        let ended = this.end(py, |told| told.under_way.clone());
        let error = match came {
            Err(error) => error,
            // Its own error explains more.
            Ok(Some(_)) => {
                ended?;
                return Err(PyRuntimeError::new_err("it was stopped while it started"));
            }
            Ok(None) => raise(py, late(limit, ended.as_ref().ok().cloned().flatten())),
        };
        note(py, error.value(py), ended.map(drop))?;
        Err(error)
    }

    /// Withdraws the services, stops the coprocessor and ends. Waits for the call of a service that is under way,
    /// without a limit. Then Linux has 2 seconds to take the withdrawals, 30 seconds to finish a start that is under
    /// way, and 30 seconds to stop it. A signal ends the wait, not the end itself: call it again to go on waiting. A
    /// service that calls it ends the coprocessor when its call has returned. To stop it again does nothing. Errors:
    /// the `OSError` that has ended it before; `TimeoutError` if Linux does not start or stop it in time.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        if self.home.is_parent() {
            return Ok(());
        }
        self.end(py, |_| None).map(drop)
    }

    /// Asks it to end, without waiting for that.
    fn _ask_to_end(&self) {
        if !self.home.is_parent()
            && let Some(running) = &mut *lock(&self.running)
        {
            running.ask_to_end();
        }
    }

    /// What has happened since the last call: a list of pairs of a word (`started`, `ready`, `channel`, `failed`,
    /// `transferred`, `stopped`, `crashed`) and a text. The newest are left out if there are more than 1024. Errors:
    /// `ValueError` in the child of a fork.
    fn take_events(&self) -> PyResult<Vec<(String, String)>> {
        self.check_home()?;
        Ok(std::mem::take(&mut lock(&self.news.0).notices))
    }

    /// What it has done, as a dict, once it was stopped; `None` before. Errors: `ValueError` in the child of a fork.
    #[getter]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.check_home()?;
        let text = lock(&self.news.0).ended.as_ref().map(|ended| serde_json::to_string(&ended.0));
        let text = text.transpose().map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        text.map(|text| py.import("json")?.call_method1("loads", (text,))).transpose()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(objects) = self.objects.try_lock() else { return Ok(()) };
        objects.iter().try_for_each(|object| visit.call(&**object))
    }

    fn __clear__(&self) {
        drop(self.take_services());
    }

    /// Calls `start` with its limit of 30 seconds, and returns itself; `stop` is called at the end of the `with`
    /// block. Errors: as `start`.
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        Self::start(&slf, Some(Seconds::new(30)))?;
        Ok(slf)
    }

    /// Calls `stop`. An error of that is a note of the exception that leaves the `with` block, if there is one.
    /// Errors: as `stop`.
    #[pyo3(signature = (*args))]
    fn __exit__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<()> {
        leave(py, args, self.stop(py))
    }

    fn __repr__(&self) -> String {
        let device = self.device.as_deref().unwrap_or(Path::new("any device")).display();
        let state = match (&*lock(&self.services), &*lock(&self.running)) {
            (Some(_), _) => "not started",
            (None, Some(_)) => "running",
            (None, None) => "stopped",
        };
        format!("<busbar.Coprocessor {device}, {state}>")
    }
}

impl Coprocessor {
    /// Waits until the thread has told something.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        limit: Timeout,
        find: impl Fn(&Told) -> Option<T> + Send,
    ) -> PyResult<Option<T>> {
        let (told, news) = &*self.news;
        wait::until(py, limit, move |slice| {
            let told = news.wait_timeout_while(lock(told), slice, |it| find(it).is_none());
            Ok(find(&told.unwrap_or_else(PoisonError::into_inner).0))
        })
    }

    /// Asks it to end, and waits for that. Raises the error that has ended it. It is left alone with a call that `leaves`
    /// returns.
    fn end(
        &self,
        py: Python<'_>,
        leaves: impl Fn(&Told) -> Option<String> + Send,
    ) -> PyResult<Option<String>> {
        let is_own = match &mut *lock(&self.running) {
            None => return Ok(None),
            Some(running) => {
                running.ask_to_end();
                running.thread.thread().id() == std::thread::current().id()
            }
        };
        if is_own {
            return Ok(None);
        }
        let left = self.wait(py, None, move |told| match &told.ended {
            Some(_) => Some(None),
            None => leaves(told).map(Some),
        })?;
        if let Some(Some(call)) = left {
            return Ok(Some(call));
        }
        let running = lock(&self.running).take();
        py.detach(move || running.map(|it| it.thread.join()));
        let error =
            lock(&self.news.0).ended.as_mut().map(|ended| std::mem::replace(&mut ended.1, Ok(())));
        error.unwrap_or(Ok(())).map_err(|error| raise(py, error))?;
        Ok(None)
    }

    /// In a child, its thread does not run, and may have had a lock during the fork.
    fn check_home(&self) -> PyResult<()> {
        if self.home.is_parent() { Err(inherited("coprocessor")) } else { Ok(()) }
    }

    /// From now on only their thread refers to them. To drop them may call code of the program.
    fn take_services(&self) -> Option<Services> {
        let objects = std::mem::take(&mut *lock(&self.objects));
        let services = lock(&self.services).take();
        drop(objects);
        services
    }

    fn open(&self) -> busbar::Result<(Core, Remoteproc, Stop)> {
        let core = match &self.device {
            Some(node) => Core::open(node)?,
            None => Core::open_free()?,
        };
        let side = remoteproc::Coprocessor::find(core.node().unwrap_or(Path::new("")))?.remoteproc;
        Ok((core, side, Stop::new()?))
    }

    fn spawn(
        &self,
        (core, side, stop): (Core, Remoteproc, Stop),
        mut services: Services,
    ) -> busbar::Result<Running> {
        let handle = stop.handle();
        let news = Arc::clone(&self.news);
        let body = move || {
            let (stop, remoteproc) = (Some(&stop), Some(&side));
            let options = Options { stop, remoteproc, ..Options::default() };
            let mut notify = |notice: Notice<'_>| tell(&news, &notice);
            let run = AssertUnwindSafe(|| core.run(&mut services, &options, &mut notify));
            // Whoever waits is told of any end.
            lock(&news.0).ended = Some(catch_unwind(run).unwrap_or_else(|_| panicked()));
            news.1.notify_all();
        };
        let thread = std::thread::Builder::new()
            .name("busbar-coprocessor".into())
            .spawn(body)
            .map_err(|why| Error::new("start", "the thread of a coprocessor", why))?;
        Ok(Running { stop: Some(handle), thread })
    }
}

impl Drop for Coprocessor {
    fn drop(&mut self) {
        // Not by its lock, which a thread of the parent may have had during the fork.
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut running) = running else { return };
        if self.home.is_parent() {
            std::mem::forget(running);
            return;
        }
        // The thread may wait for the interpreter, which this has; it ends by itself.
        running.ask_to_end();
        let mut ending = lock(&ENDING);
        ending.retain(|thread| !thread.is_finished());
        ending.push(running.thread);
    }
}

/// Threads of coprocessors that were dropped.
static ENDING: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// How long a thread that ends may go unnoticed.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for threads that still end: one that calls Python after its end would abort the process. A signal handler may
/// end that.
#[pyfunction]
pub fn _join(py: Python<'_>) -> PyResult<()> {
    // The lock is held with the interpreter, so that no fork finds it locked.
    let is_over = |slice: Duration| {
        let mut ending = lock(&ENDING);
        ending.retain(|thread| !thread.is_finished());
        if ending.is_empty() {
            return Ok(Some(()));
        }
        drop(ending);
        py.detach(|| std::thread::sleep(slice.min(PAUSE)));
        Ok(None)
    };
    wait::slices(py, None, is_over).map(drop)
}

/// In a child, where they do not run.
pub fn forget_threads() {
    std::mem::forget(std::mem::take(&mut *lock(&ENDING)));
}

fn panicked() -> (Statistics, busbar::Result<()>) {
    let why = std::io::Error::other("its thread has panicked");
    (Statistics::default(), Err(Error::new("run", "the coprocessor", why)))
}

/// The error of a start that has taken too long; `left` is the call of a service that has not returned.
fn late(limit: Timeout, left: Option<String>) -> Error {
    let text =
        format!("Linux did not get to know the services within {:?}", limit.unwrap_or_default());
    let why = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
    let error = Error::new("start", "the coprocessor", why);
    match left {
        Some(call) => {
            error.help(format!("{call} has not returned; the coprocessor ends once it does"))
        }
        None => error,
    }
}

fn tell(news: &News, notice: &Notice<'_>) {
    let (word, text) = match notice {
        Notice::Started { boot } => ("started", format!("boot {boot}")),
        Notice::Ready { channels } => {
            let names: Vec<_> = channels.iter().map(|it| it.name.to_string()).collect();
            ("ready", names.join(", "))
        }
        Notice::Channel { announcement, .. } => ("channel", announcement.channel.name.to_string()),
        Notice::Failed { channel, error } => ("failed", format!("{}: {error}", channel.name)),
        Notice::Transferred { channel, .. } => ("transferred", channel.name.to_string()),
        Notice::Stopped => ("stopped", String::new()),
        Notice::Crashed { reason } => ("crashed", (*reason).to_owned()),
    };
    let mut told = lock(&news.0);
    match notice {
        Notice::Ready { .. } => told.is_ready = true,
        Notice::Stopped | Notice::Crashed { .. } => told.is_ready = false,
        _ => {}
    }
    if told.notices.len() < MOST {
        told.notices.push((word.to_owned(), text));
    }
    news.1.notify_all();
}
