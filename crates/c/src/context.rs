//! The IIO devices of a machine, and a connection to it that stays.

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

use busbar::stream::iiod::{self, Devices, Owner, ServerInfo};

use crate::args::{self, Wait};
use crate::cancel;
use crate::device::{Listed, busbar_devices, fill, joined};
use crate::error::{Result, call, done};
use crate::handle::{self, objects};

/// The IIO devices of this machine or of another one, and the connection to it.
pub struct busbar_context(());

objects! {
    busbar_context, "a context", Context;
}

/// A thread of a call that was cancelled may still use the devices.
pub(crate) struct Context(Arc<Devices>);

/// What an attribute belongs to, and its name.
fn owner(attribute: &str) -> (Owner<'static>, String) {
    let (owner, name) = match attribute.split_once('/') {
        Some(("buffer", name)) => (Owner::Buffer, name),
        Some(("debug", name)) => (Owner::Debug, name),
        _ => (Owner::Any, attribute),
    };
    (owner, name.to_owned())
}

/// How long a call may take, or this long if it has no limit. Without `forever`, it has to have one.
fn limit(timeout: i64, forever: Option<Duration>) -> Result<Duration> {
    let limit = match Wait::of(timeout)? {
        Wait::Forever => forever,
        Wait::For(time) => Some(time),
        Wait::Not => None,
    };
    let allowed = match forever {
        Some(_) => "more than 0 nanoseconds, or BUSBAR_FOREVER (-1)",
        None => "more than 0 nanoseconds",
    };
    limit.ok_or_else(|| busbar::Error::invalid("the timeout", timeout, allowed).into())
}

/// Searches the local network for IIO servers (DNS-SD), for timeout nanoseconds. Returns the length of a text, of which as much as
/// has room is written, with a NUL behind it: for each server a line of its address, as busbar_context_open takes it, a space and
/// the name that it is announced with. Names and addresses are what any neighbour says. At most 1024 are listed, by their names.
///
/// Errors: -EINVAL for a timeout of 0, BUSBAR_FOREVER, or no room; -ECANCELED by busbar_cancel_by; those of the network
/// interfaces.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_servers(timeout: i64, text: *mut c_char, room: usize) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let time = limit(timeout, None)?;
        fill(text, room, || {
            let found = cancel::ended(move || iiod::servers(time))?;
            Ok(found.iter().map(line).collect())
        })
    })
}

fn line(server: &ServerInfo) -> String {
    let name = server.name.replace(char::is_control, " ");
    format!("{} {name}\n", server.address)
}

/// Opens the IIO devices of this machine, or of another one, "HOST" or "HOST:PORT", where iiod or busbar serve runs; host is
/// NULL for this machine. Another one is connected to once: each later call is a round trip. If the server closes the
/// connection, or a call fails by it, the next call connects anew; nothing is sent twice. timeout is how many nanoseconds this
/// and each later call may take on the network, without the time that a name server takes; 5 s without an answer are always
/// the end. The devices are those that there were at first. The context is to be freed by busbar_context_free.
///
/// Errors: -EACCES; -EINVAL for a timeout of 0; -ECANCELED by busbar_cancel_by; for another machine as busbar_source_open.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_open(
    host: *const c_char,
    timeout: i64,
    context: *mut *mut busbar_context,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(context, || {
            let host = args::perhaps(host, "the host")?.map(str::to_owned);
            let limit = limit(timeout, Some(Duration::MAX))?;
            let devices = cancel::ended(move || Devices::open(host.as_deref(), limit))?;
            Ok(Context(Arc::new(devices)))
        })
    })
}

/// Lists the devices of the context, without asking the machine again. The list is to be freed by busbar_devices_free, and
/// stays valid without the context.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_devices(
    context: *mut busbar_context,
    devices: *mut *mut busbar_devices,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(devices, || {
            let it = handle::enter(context)?;
            Ok(Listed::new(it.0.list().iter().cloned()))
        })
    })
}

/// Reads an attribute of a device, which is given by its number "iio:deviceN", its label or its name. attribute is the name of
/// its file in Linux, such as "in_voltage0_scale", for one of the device or its channels; "buffer/NAME" for one of its
/// buffer; "debug/NAME" for one in debugfs, such as "debug/direct_reg_access", by which registers are read: write the address
/// of the register to it before. Returns the length of the value, without the newline at its end. As much of it as has room
/// is written to value, with a NUL behind it.
///
/// Errors: -ENOENT if there is no such device or attribute; -EACCES; what the driver returns; -EINVAL for no room;
/// -ECANCELED by busbar_cancel_by; for another machine also -ETIMEDOUT, and as busbar_source_open.
///
/// Threads: any; calls of one context to another machine are made one after the other, so one may wait for those before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_get(
    context: *mut busbar_context,
    device: *const c_char,
    attribute: *const c_char,
    value: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let devices = Arc::clone(&handle::enter(context)?.0);
        let device = args::text(device, "the name of the device")?.to_owned();
        let (owner, name) = owner(args::text(attribute, "the name of the attribute")?);
        fill(value, room, || cancel::ended(move || devices.read(&device, owner, &name)))
    })
}

/// Writes a value to an attribute, as busbar_context_get names it, also one that the attribute has already.
///
/// Errors: as busbar_context_get; -EINVAL and others of the driver; -EBUSY while the device is used, unless the attribute has the
/// value already. After -ECANCELED, and errors of the network, it is not known whether it was written.
///
/// Threads: as busbar_context_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_set(
    context: *mut busbar_context,
    device: *const c_char,
    attribute: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let devices = Arc::clone(&handle::enter(context)?.0);
        let device = args::text(device, "the name of the device")?.to_owned();
        let (owner, name) = owner(args::text(attribute, "the name of the attribute")?);
        let value = args::text(value, "the value")?.to_owned();
        cancel::ended(move || devices.write(&device, owner, &name, &value))
    })
}

/// The names of all triggers of the machine, separated by commas, as busbar_context_get returns a value.
///
/// Errors: -EINVAL for no room.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_triggers(
    context: *mut busbar_context,
    names: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let it = handle::enter(context)?;
        let all = joined(&it.0.triggers().collect::<Vec<_>>());
        fill(names, room, || Ok(all.to_string_lossy().into_owned()))
    })
}

/// The name of the trigger of a device, as busbar_context_get returns a value; 0 if it has none now.
///
/// Errors: as busbar_context_get; -ENOENT also if the device knows no triggers.
///
/// Threads: as busbar_context_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_trigger(
    context: *mut busbar_context,
    device: *const c_char,
    name: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let devices = Arc::clone(&handle::enter(context)?.0);
        let device = args::text(device, "the name of the device")?.to_owned();
        let read = move || devices.trigger(&device).map(Option::unwrap_or_default);
        fill(name, room, || cancel::ended(read))
    })
}

/// Sets the trigger of a device, one of busbar_context_triggers; NULL for none.
///
/// Errors: as busbar_context_trigger; -EINVAL for another name; -EBUSY while the device is used.
///
/// Threads: as busbar_context_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_set_trigger(
    context: *mut busbar_context,
    device: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let devices = Arc::clone(&handle::enter(context)?.0);
        let device = args::text(device, "the name of the device")?.to_owned();
        let name = args::perhaps(name, "the name of the trigger")?.map(str::to_owned);
        cancel::ended(move || devices.set_trigger(&device, name.as_deref()))
    })
}

/// Frees the context, and closes its connection.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. Calls that use it go on to their end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_context_free(context: *mut busbar_context) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(context) })
}
