//! IIO devices and their attributes: what `busbar/_devices.py` is made of.

use std::time::Duration;

use busbar::stream::Channel;
use busbar::stream::iiod::{self, Owner};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::arguments::{Seconds, some};
use crate::error::{OrRaise, invalid};
use crate::layout;
use crate::slot::Slot;
use crate::wait;

/// The devices of a machine, and the connection to it.
#[pyclass(frozen, module = "busbar", name = "_Devices")]
pub struct Devices {
    held: Slot<iiod::Devices>,
}

/// A channel, by its id, and whether it transmits.
type OfChannel = Option<(String, bool)>;

/// What an attribute belongs to: `kind` is `device`, `buffer` or `debug`, if it is no channel's.
fn owner<'a>(kind: &str, channel: Option<&'a (String, bool)>) -> Owner<'a> {
    match (channel, kind) {
        (Some((id, is_output)), _) => Owner::Channel { id, is_output: *is_output },
        (None, "buffer") => Owner::Buffer,
        (None, "debug") => Owner::Debug,
        (None, _) => Owner::Device,
    }
}

#[pymethods]
impl Devices {
    #[new]
    fn new(py: Python<'_>, host: Option<String>, timeout: Option<Seconds>) -> PyResult<Self> {
        let limit = some("timeout", timeout, "more than 0 seconds; None for no limit")?;
        let limit = limit.unwrap_or(Duration::MAX);
        let open = move || iiod::Devices::open(host.as_deref(), limit);
        let devices = wait::opened(py, open)?.or_raise_as(py, "host")?;
        Ok(Self { held: Slot::new(devices, "list of devices") })
    }

    /// What there is: for each device its id, name and label; the names of its own attributes, of those of its buffer and of
    /// those in debugfs; and for each channel its id, its name, whether it transmits, its format, and the names of its
    /// attributes.
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let devices = self.held.get()?;
        let all = PyList::empty(py);
        for it in devices.list() {
            let channels = it.channels.iter().map(|channel| of(py, channel));
            let channels = channels.collect::<PyResult<Vec<_>>>()?;
            let names = (&it.own_attributes, &it.buffer_attributes, &it.debug_attributes);
            all.append(((&it.id, &it.name, &it.label), names, channels))?;
        }
        Ok(all)
    }

    fn triggers(&self) -> PyResult<Vec<String>> {
        Ok(self.held.get()?.triggers().map(str::to_owned).collect())
    }

    fn read(
        &self,
        py: Python<'_>,
        device: String,
        kind: String,
        channel: OfChannel,
        name: String,
    ) -> PyResult<String> {
        let devices = self.held.get()?;
        let read = move || devices.read(&device, owner(&kind, channel.as_ref()), &name);
        wait::opened(py, read)?.or_raise(py)
    }

    fn write(
        &self,
        py: Python<'_>,
        device: String,
        kind: String,
        channel: OfChannel,
        name: String,
        value: String,
    ) -> PyResult<()> {
        let devices = self.held.get()?;
        let write = move || devices.write(&device, owner(&kind, channel.as_ref()), &name, &value);
        wait::opened(py, write)?.or_raise(py)
    }

    fn trigger(&self, py: Python<'_>, device: String) -> PyResult<Option<String>> {
        let devices = self.held.get()?;
        wait::opened(py, move || devices.trigger(&device))?.or_raise(py)
    }

    fn set_trigger(&self, py: Python<'_>, device: String, trigger: Option<String>) -> PyResult<()> {
        let devices = self.held.get()?;
        let set = move || devices.set_trigger(&device, trigger.as_deref());
        wait::opened(py, set)?.or_raise_as(py, "trigger")
    }
}

fn of<'py>(py: Python<'py>, channel: &iiod::ChannelInfo) -> PyResult<Bound<'py, PyTuple>> {
    let format = channel.format.as_ref().map(|format: &Channel| layout::channel(py, format));
    let names: Vec<_> = channel.attributes.iter().map(|(name, _)| name).collect();
    (&channel.id, &channel.name, channel.is_output, format.transpose()?, names).into_pyobject(py)
}

/// The servers of the local network: name and address of each.
#[pyfunction]
pub fn _servers(py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Vec<(String, String)>> {
    let allowed = "more than 0 seconds";
    let limit =
        some("timeout", timeout, allowed)?.ok_or_else(|| invalid("timeout", "None", allowed))?;
    let found = wait::opened(py, move || iiod::servers(limit))?.or_raise(py)?;
    Ok(found.into_iter().map(|it| (it.name, it.address.to_string())).collect())
}
