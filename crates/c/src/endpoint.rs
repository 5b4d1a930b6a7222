//! Messages to and from a coprocessor.

use std::ffi::{CString, c_char, c_int, c_void};
use std::time::Duration;

use busbar::bulk;
use busbar::bulk::packet::Direction;
use busbar::endpoint::{
    ADDR_ANY, Controller, ControllerInfo, Endpoint, Implementation, MAX_MESSAGE,
};
use busbar_uapi::signal::Quiet;

use crate::args::{self, Wait, sized};
use crate::block::busbar_block;
use crate::error::{Fault, Result, call, done, string};
use crate::handle::{self, objects};

/// The control device of one coprocessor.
pub struct busbar_controller(());

/// An rpmsg endpoint on Linux's side.
pub struct busbar_endpoint(());

objects! {
    busbar_controller, "a controller", Controlling;
    busbar_endpoint, "an endpoint", Messages;
}

/// Maximum length of a message on the virtio bus, in bytes.
pub const BUSBAR_MAX_MESSAGE: usize = 496;
const _: () = assert!(BUSBAR_MAX_MESSAGE == MAX_MESSAGE);

/// No address: an endpoint with this destination only receives.
pub const BUSBAR_ADDR_ANY: u32 = 0xffff_ffff;
const _: () = assert!(BUSBAR_ADDR_ANY == ADDR_ANY);

/// busbar_endpoint_setup.source is given.
pub const BUSBAR_ENDPOINT_SOURCE: usize = 1;
/// busbar_endpoint_setup.destination is given.
pub const BUSBAR_ENDPOINT_DESTINATION: usize = 2;
/// The file is in non-blocking mode, for code that reads and writes the descriptor itself. Whether a function of
/// this library waits does not depend on it.
pub const BUSBAR_ENDPOINT_NONBLOCKING: usize = 4;
/// Only a descriptor, no device node.
pub const BUSBAR_ENDPOINT_FD: usize = 8;
/// Only a device node.
pub const BUSBAR_ENDPOINT_NODE: usize = 16;
const FLAGS: usize = 31;

/// The coprocessor reads the block.
pub const BUSBAR_TO_REMOTE: u32 = 1;
/// The coprocessor fills the block.
pub const BUSBAR_FROM_REMOTE: u32 = 2;

/// How an endpoint is made. A field that is 0 has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_endpoint_setup {
    /// sizeof(struct busbar_endpoint_setup).
    pub size: usize,
    /// BUSBAR_ENDPOINT_ flags.
    pub flags: usize,
    /// The local address, 0 to 0x7fffffff, if the flag says so; by default a free one.
    pub source: u32,
    /// The address that messages are sent to, if the flag says so; by default that of the announced service.
    pub destination: u32,
    /// How long to wait until a device node exists and may be opened, in nanoseconds; 0: 5 s. BUSBAR_FOREVER is not
    /// allowed.
    pub timeout: i64,
}

/// The coprocessor's answer to a block that it was given.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_answer {
    /// sizeof(struct busbar_answer), set by the caller.
    pub size: usize,
    /// Bytes of the part that were used, as the coprocessor says: compare it with the length of the part.
    pub len: usize,
    /// Which use of a block it answers: that of busbar_endpoint_give.
    pub cookie: u64,
    /// 0, or why the coprocessor has refused the block: an error number of Linux.
    pub status: u32,
    /// 0.
    pub reserved: u32,
}

sized! {
    busbar_endpoint_setup: timeout;
    busbar_answer: reserved;
}

/// A controller.
pub(crate) struct Controlling {
    controller: Controller,
    path: CString,
}

/// An endpoint.
pub(crate) struct Messages {
    endpoint: Endpoint,
    /// It may be a socket or a pipe, so that sending may raise SIGPIPE.
    is_foreign: bool,
}

impl Controlling {
    fn open(path: &std::path::Path) -> Result<Self> {
        let controller = Controller::open(path)?;
        Ok(Self { controller, path: string(path.to_string_lossy()) })
    }
}

/// Opens a control device, "/dev/rpmsg_ctrlN". It is to be freed by busbar_controller_free.
///
/// Errors: -ENOENT if there is none; -EACCES; -EINVAL for what is not a character device.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_controller_open(
    path: *const c_char,
    controller: *mut *mut busbar_controller,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(controller, || {
            Controlling::open(args::text(path, "the path of the control device")?.as_ref())
        })
    })
}

/// Finds the coprocessor that has announced a service, and opens its control device: the one with the lowest number
/// if there are several.
///
/// Errors: -ENOENT if no coprocessor has announced it; as busbar_controller_open.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_controller_find(
    service: *const c_char,
    controller: *mut *mut busbar_controller,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(controller, || {
            let service = args::text(service, "the name of the service")?;
            let all = Controller::list()?;
            let has =
                |it: &&ControllerInfo| it.channels.iter().any(|channel| channel.name == service);
            let found = all.iter().find(has).ok_or_else(|| {
                let none = std::io::Error::new(std::io::ErrorKind::NotFound, "no such service");
                busbar::Error::new("find", format!("service `{service}`"), none)
                    .help(format!("{} control devices; see `busbar endpoint list`", all.len()))
            })?;
            Controlling::open(&found.path)
        })
    })
}

/// The path of the control device. Valid as long as the controller; NULL after an error.
///
/// Errors: NULL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_controller_path(
    controller: *mut busbar_controller,
) -> *const c_char {
    let mut path = std::ptr::null();
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        path = handle::enter(controller)?.path.as_ptr();
        Ok(())
    });
    path
}

/// The address of an announced service, the lowest if there are several.
///
/// Errors: -ENOENT if it is not announced; -EPIPE once the coprocessor has stopped.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_controller_address(
    controller: *mut busbar_controller,
    service: *const c_char,
    address: *mut u32,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let address = args::out(address, ADDR_ANY, "the address of the service")?;
        let it = handle::enter(controller)?;
        address
            .set(it.controller.find(args::text(service, "the name of the service")?)?.destination);
        Ok(())
    })
}

/// Frees the controller. Endpoints that it has made stay.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_controller_free(controller: *mut busbar_controller) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(controller) })
}

/// Makes an endpoint. name is its name in the kernel, 1 to 31 bytes, and the service that it sends to unless a
/// destination is given. setup may be NULL. The endpoint is to be freed by busbar_endpoint_free.
///
/// Errors: -EINVAL for a name, source or flag that is not allowed; -ENOENT if no such service is announced;
/// -EADDRINUSE if another endpoint has the source address; -EOPNOTSUPP if only a descriptor is allowed, and the
/// controller makes none; -ETIMEDOUT if the device node has not appeared in time; -EACCES if it could not be opened
/// in time; -EPIPE if the coprocessor is gone.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_create(
    controller: *mut busbar_controller,
    name: *const c_char,
    setup: *const busbar_endpoint_setup,
    endpoint: *mut *mut busbar_endpoint,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(endpoint, || {
            let it = handle::enter(controller)?;
            let setup: busbar_endpoint_setup = args::get(setup)?;
            let name = args::text(name, "the name of the endpoint")?;
            let has = |flag| setup.flags & flag != 0;
            if has(!FLAGS) || (has(BUSBAR_ENDPOINT_FD) && has(BUSBAR_ENDPOINT_NODE)) {
                let allowed = "BUSBAR_ENDPOINT_ flags, FD and NODE not together";
                let flags = format!("{:#x}", setup.flags);
                return Err(
                    busbar::Error::invalid("the flags of an endpoint", flags, allowed).into()
                );
            }
            if setup.timeout < 0 {
                return Err(Fault::argument(
                    "`timeout` of busbar_endpoint_setup has to be 0 or more",
                ));
            }
            let mut builder =
                it.controller.endpoint(name).nonblocking(has(BUSBAR_ENDPOINT_NONBLOCKING));
            if has(BUSBAR_ENDPOINT_SOURCE) {
                builder = builder.source(setup.source);
            }
            if has(BUSBAR_ENDPOINT_DESTINATION) {
                builder = builder.destination(setup.destination);
            }
            if setup.timeout > 0 {
                builder = builder.timeout(Duration::from_nanos(setup.timeout.unsigned_abs()));
            }
            let only = match (has(BUSBAR_ENDPOINT_FD), has(BUSBAR_ENDPOINT_NODE)) {
                (true, _) => Implementation::Fd,
                (_, true) => Implementation::Node,
                _ => Implementation::Auto,
            };
            let endpoint = builder.implementation(only).create()?;
            Ok(Messages { endpoint, is_foreign: false })
        })
    })
}

/// An endpoint of a descriptor that was made elsewhere, for example an inherited one. The descriptor is duplicated;
/// the caller keeps his own.
///
/// Errors: -EBADF.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_from_fd(
    fd: c_int,
    endpoint: *mut *mut busbar_endpoint,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(endpoint, || {
            Ok(Messages { endpoint: args::copy(fd, "an endpoint")?.into(), is_foreign: true })
        })
    })
}

/// The descriptor of the endpoint: readable when there is a message, writable when there is a free buffer. It
/// belongs to the endpoint: do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_fd(endpoint: *mut busbar_endpoint) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(args::number(&handle::enter(endpoint)?.endpoint)) })
}

/// Sends one message of len bytes, which may be 0. A signal does not end the wait.
///
/// Errors: -EAGAIN if no buffer became free within timeout nanoseconds; -EMSGSIZE for a message that does not fit;
/// -EPIPE once the coprocessor is gone; -EINVAL if the destination is BUSBAR_ADDR_ANY; -EOPNOTSUPP with a time limit on a
/// device node of busbar_endpoint_from_fd that is not in non-blocking mode.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_send(
    endpoint: *mut busbar_endpoint,
    message: *const c_void,
    len: usize,
    timeout: i64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let (it, message) = (handle::enter(endpoint)?, args::bytes(message, len, "the message")?);
        let _quiet = it.is_foreign.then(Quiet::new);
        let it = &it.endpoint;
        Wait::of(timeout)?.whether(
            || it.send(message),
            |time| it.send_timeout(message, time),
            || it.try_send(message),
        )
    })
}

/// Takes one message, and returns its length in bytes, which may be 0. BUSBAR_MAX_MESSAGE bytes of room are always
/// enough on the virtio bus. A signal does not end the wait.
///
/// Errors: -EAGAIN if none came within timeout nanoseconds; -EMSGSIZE if the message is longer than room, which loses
/// it; -ENOBUFS once after messages were lost because they were not read in time; -EPIPE once the coprocessor is
/// gone; -EINVAL for no room.
///
/// Threads: any; each message goes to one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_recv(
    endpoint: *mut busbar_endpoint,
    message: *mut c_void,
    room: usize,
    timeout: i64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let it = handle::enter(endpoint)?;
        let it = &it.endpoint;
        // No message is as long as this, so that its length fits into the result.
        let room = args::room(message.cast::<u8>(), room.min(1 << 20), "the room for a message")?;
        let room = std::cell::RefCell::new(room);
        let len = Wait::of(timeout)?.by(
            || it.recv(&mut room.borrow_mut()),
            |time| it.recv_timeout(&mut room.borrow_mut(), time),
            || it.try_recv(&mut room.borrow_mut()),
        )?;
        c_int::try_from(len).map_err(|_| Fault::argument("a message of this length"))
    })
}

/// Ends the endpoint for all that share it, in this and in other processes. The handle is still to be freed.
///
/// Errors: -ENOTTY if the descriptor of busbar_endpoint_from_fd is no endpoint; -EINVAL if it is the one that a channel
/// has by itself.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_destroy(endpoint: *mut busbar_endpoint) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { Ok(handle::enter(endpoint)?.endpoint.destroy()?) })
}

/// Attaches a block to the endpoint, so that it can be given: maps it for the coprocessor's device.
///
/// Errors: -ENOTTY if the driver cannot share blocks; -EBUSY if the block is attached already, or accessed;
/// -EOPNOTSUPP if the device cannot see the block as one piece; -EPIPE once the coprocessor is gone.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_attach(
    endpoint: *mut busbar_endpoint,
    block: *mut busbar_block,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let (it, block) = (handle::enter(endpoint)?, handle::enter(block)?);
        block.with(|block| it.endpoint.attach(block))
    })
}

/// Undoes busbar_endpoint_attach. Parts that the coprocessor still uses are released when it is done.
///
/// Errors: -EPERM if the block is not attached; -EBUSY if it is accessed.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_detach(
    endpoint: *mut busbar_endpoint,
    block: *mut busbar_block,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let (it, block) = (handle::enter(endpoint)?, handle::enter(block)?);
        block.with(|block| it.endpoint.detach(block))
    })
}

/// Gives len bytes from offset on of an attached block to the coprocessor: to read them (BUSBAR_TO_REMOTE), or to
/// fill them (BUSBAR_FROM_REMOTE). The answer comes as a message with the same cookie: see busbar_answer_read. The
/// block can be waited for, too: busbar_block_wait_filled, busbar_block_wait_unused.
///
/// Errors: -EPERM if the block is not attached; -EINVAL if the part is not in it; -EBUSY if bytes of it are in use
/// already, the block is accessed, or another thread waits for it; -EPIPE once the coprocessor is gone.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_give(
    endpoint: *mut busbar_endpoint,
    block: *mut busbar_block,
    offset: usize,
    len: usize,
    direction: u32,
    cookie: *mut u64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let cookie = args::out(cookie, 0, "the cookie")?;
        let (it, block) = (handle::enter(endpoint)?, handle::enter(block)?);
        let direction = match direction {
            BUSBAR_TO_REMOTE => Direction::ToRemote,
            BUSBAR_FROM_REMOTE => Direction::FromRemote,
            other => {
                let allowed = "BUSBAR_TO_REMOTE, BUSBAR_FROM_REMOTE";
                return Err(busbar::Error::invalid("the direction", other, allowed).into());
            }
        };
        let end =
            offset.checked_add(len).ok_or_else(|| Fault::argument("offset + len is too large"))?;
        cookie.set(block.with_mut(|block| it.endpoint.give(block, offset..end, direction))?);
        Ok(())
    })
}

/// Reads the coprocessor's answer to a block that it was given. Returns 1 if the message is one, 0 if it is another
/// message.
///
/// Errors: -EINVAL for a NULL that is not allowed, or a structure without its size.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_answer_read(
    message: *const c_void,
    len: usize,
    answer: *mut busbar_answer,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let Some(done) = bulk::done(args::bytes(message, len, "the message")?) else {
            return Ok(0);
        };
        let status =
            bulk::packet::errno(done.status).map_or(0, |errno| errno.raw_os_error().unsigned_abs());
        let (cookie, len) = (done.cookie, usize::try_from(done.length).unwrap_or(usize::MAX));
        args::put(answer, busbar_answer { status, cookie, len, ..args::Sized::ZERO })?;
        Ok(1)
    })
}

/// Frees the endpoint, and closes its descriptor. A device node that busbar_endpoint_create has made is destroyed, even if
/// others have it open.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. If another thread is in a call with the endpoint, the endpoint is ended as by busbar_endpoint_destroy,
/// also for other processes that have its descriptor: threads that wait get -EPIPE, and the last of them frees it. If
/// others are to keep the endpoint, have no thread in a call. Threads that wait for one of busbar_endpoint_from_fd are not
/// woken, and it is not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_endpoint_free(endpoint: *mut busbar_endpoint) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        handle::free_and_wake(endpoint, |it| {
            if !it.is_foreign {
                let _ = it.endpoint.destroy();
            }
        })
    })
}
