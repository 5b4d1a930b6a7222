//! IIO devices: which there are, and their attributes.

use std::ffi::{CString, c_char, c_int};

use busbar::stream::iiod::{self, DeviceInfo};
use busbar::stream::{Channel, Format};

use crate::args::{self, sized};
use crate::cancel;
use crate::error::{Fault, Result, call, done, string};
use crate::handle::{self, objects};
use crate::stream::{busbar_channel, channel, names};

/// A list of IIO devices.
pub struct busbar_devices(());

objects! {
    busbar_devices, "a list of devices", Listed;
}

/// An IIO device.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_device {
    /// sizeof(struct busbar_device), set by the caller.
    pub size: usize,
    /// Its number, "iio:deviceN". Valid as long as the list, as are the other texts.
    pub id: *const c_char,
    /// Its name; "" if it has none.
    pub name: *const c_char,
    /// Number of channels to receive from; 0 if it has no buffer for that.
    pub inputs: usize,
    /// Number of channels to transmit to; 0 if it has no buffer for that.
    pub outputs: usize,
    /// Names of its attributes and those of its channels, separated by commas, as for busbar_device_get.
    pub attributes: *const c_char,
    /// Samples per second; 0 if the device does not tell.
    pub rate: f64,
    /// Its label; "" if it has none.
    pub label: *const c_char,
    /// Names of the attributes of its buffer, separated by commas, as for busbar_context_get behind "buffer/".
    pub buffer_attributes: *const c_char,
    /// Names of its attributes in debugfs, separated by commas, as for busbar_context_get behind "debug/".
    pub debug_attributes: *const c_char,
    /// 0.
    pub reserved: usize,
}

sized! {
    busbar_device: rate;
}

/// The devices of a machine.
pub(crate) struct Listed(Vec<Device>);

struct Device {
    id: CString,
    name: CString,
    label: CString,
    attributes: CString,
    buffer_attributes: CString,
    debug_attributes: CString,
    inputs: Channels,
    outputs: Channels,
    rate: f64,
}

struct Channels {
    format: Format,
    names: Vec<CString>,
}

impl Channels {
    fn new(channels: Vec<Channel>) -> Self {
        let format = Format { channels, sample_len: 1, rate: None };
        Self { names: names(&format), format }
    }
}

impl Device {
    fn new(it: DeviceInfo) -> Self {
        Self {
            id: string(it.id),
            name: string(it.name.unwrap_or_default()),
            label: string(it.label.unwrap_or_default()),
            attributes: joined(&it.attributes),
            buffer_attributes: joined(&it.buffer_attributes),
            debug_attributes: joined(&it.debug_attributes),
            inputs: Channels::new(it.inputs),
            outputs: Channels::new(it.outputs),
            rate: it.rate.unwrap_or_default(),
        }
    }
}

/// Names, separated by commas, without those that have one.
pub(crate) fn joined<T: AsRef<str>>(names: &[T]) -> CString {
    let fitting: Vec<_> = names.iter().map(AsRef::as_ref).filter(|it| !it.contains(',')).collect();
    string(fitting.join(","))
}

impl Listed {
    pub(crate) fn new(devices: impl IntoIterator<Item = DeviceInfo>) -> Self {
        Self(devices.into_iter().map(Device::new).collect())
    }

    fn device(&self, index: usize) -> Result<&Device> {
        self.0.get(index).ok_or_else(|| {
            let allowed = format!("less than {}", self.0.len());
            busbar::Error::invalid("the index of a device", index, allowed).into()
        })
    }
}

/// Lists the IIO devices of this machine, or of another one, "HOST" or "HOST:PORT", where iiod or busbar serve runs;
/// host is NULL for this machine. Devices without a buffer are listed, too. The list is to be freed by
/// busbar_devices_free.
///
/// Errors: -EACCES; for another machine as busbar_source_open.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_devices_open(
    host: *const c_char,
    devices: *mut *mut busbar_devices,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(devices, || {
            let host = args::perhaps(host, "the host")?.map(str::to_owned);
            Ok(Listed::new(cancel::ended(move || iiod::devices(host.as_deref()))?))
        })
    })
}

/// The number of devices in the list.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_devices_count(devices: *mut busbar_devices) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let count = handle::enter(devices)?.0.len();
        c_int::try_from(count).map_err(|_| Fault::argument("too many devices"))
    })
}

/// A device of the list, by its place in it.
///
/// Errors: -EINVAL if there are not so many, and for a size that no version has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_devices_device(
    devices: *mut busbar_devices,
    index: usize,
    device: *mut busbar_device,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(devices)?;
        let found = it.device(index)?;
        let Device { inputs, outputs, rate, .. } = found;
        args::put(
            device,
            busbar_device {
                id: found.id.as_ptr(),
                name: found.name.as_ptr(),
                label: found.label.as_ptr(),
                inputs: inputs.names.len(),
                outputs: outputs.names.len(),
                attributes: found.attributes.as_ptr(),
                buffer_attributes: found.buffer_attributes.as_ptr(),
                debug_attributes: found.debug_attributes.as_ptr(),
                rate: *rate,
                ..args::Sized::ZERO
            },
        )
    })
}

/// A channel to receive from, by its place in the sample: 0 to busbar_device.inputs - 1. Its offset is that in a sample
/// of all these channels.
///
/// Errors: -EINVAL if there are not so many.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_devices_input(
    devices: *mut busbar_devices,
    device: usize,
    index: usize,
    input: *mut busbar_channel,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(devices)?;
        let Channels { format, names } = &it.device(device)?.inputs;
        args::put(input, channel(format, names, index)?)
    })
}

/// As busbar_devices_input, for a channel to transmit to: 0 to busbar_device.outputs - 1.
///
/// Errors: -EINVAL if there are not so many.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_devices_output(
    devices: *mut busbar_devices,
    device: usize,
    index: usize,
    output: *mut busbar_channel,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(devices)?;
        let Channels { format, names } = &it.device(device)?.outputs;
        args::put(output, channel(format, names, index)?)
    })
}

/// Frees the list.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_devices_free(devices: *mut busbar_devices) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(devices) })
}

/// Reads an attribute of a device, by its name or number. "NAME@ip:HOST" is a device of another machine, as for
/// busbar_source_open. Returns the length of the value, without the newline at its end. As much of it as has room is
/// written to value, with a NUL behind it.
///
/// Errors: -ENOENT if there is no such device or attribute; -EACCES; what the driver returns; -EINVAL for no room; for
/// another machine also as busbar_source_open.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_device_get(
    device: *const c_char,
    attribute: *const c_char,
    value: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let device = args::text(device, "the name of the device")?.to_owned();
        let attribute = args::text(attribute, "the name of the attribute")?.to_owned();
        fill(value, room, || cancel::ended(move || busbar::stream::attribute(&device, &attribute)))
    })
}

/// Fills the room of the caller with a text, and returns its length.
///
/// # Safety
///
/// As [`args::room`].
pub(crate) unsafe fn fill(
    value: *mut c_char,
    room: usize,
    read: impl FnOnce() -> Result<String>,
) -> Result<c_int> {
    // SAFETY: guaranteed by the caller.
    let room = unsafe { args::room(value.cast::<u8>(), room, "the room for the value") }?;
    let Some(most) = room.len().checked_sub(1) else {
        return Err(Fault::argument("there is no room for the value"));
    };
    let found = string(read()?).into_bytes();
    let count = found.len().min(most);
    room[..count].copy_from_slice(&found[..count]);
    room[count] = 0;
    c_int::try_from(found.len()).map_err(|_| Fault::argument("the value is too long"))
}

/// Writes a value to an attribute of a device, by its name or number, also one that the attribute has already: a driver may
/// calibrate anew. "NAME@ip:HOST" is a device of another machine, as for busbar_source_open.
///
/// Errors: -ENOENT if there is no such device or attribute; -EACCES; what the driver returns, such as -EINVAL, or
/// -EBUSY while the device is used, unless the attribute has the value already; for another machine also as
/// busbar_source_open.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_device_set(
    device: *const c_char,
    attribute: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let device = args::text(device, "the name of the device")?.to_owned();
        let attribute = args::text(attribute, "the name of the attribute")?.to_owned();
        let value = args::text(value, "the value")?.to_owned();
        cancel::ended(move || busbar::stream::set_attribute(&device, &attribute, &value))
    })
}
