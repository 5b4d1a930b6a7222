//! Data from the network, received into a block.

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomPinned;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use busbar::block::{Block, Reading};
use busbar::receive::{Connection, Listener, Piece, ReceiveSetup, Receiver, Statistics};

use crate::args::{self, Wait, sized};
use crate::block::busbar_block;
use crate::error::{Fault, Result, call, done};
use crate::handle::{self, Used, objects};

/// Receives into a block.
pub struct busbar_receiver(());

/// Accepts connections whose data goes into the block of its receiver.
pub struct busbar_listener(());

/// A TCP connection whose data comes in views.
pub struct busbar_connection(());

/// A piece of a stream: a part of the block, or bytes that a device did not write into it.
pub struct busbar_view(());

objects! {
    busbar_receiver, "a receiver", Receiver;
    busbar_listener, "a listener", Listener;
    busbar_connection, "a connection", Connected;
    busbar_view, "a view", Viewed;
}

/// How a device is used. A field that is NULL has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_receive_setup {
    /// sizeof(struct busbar_receive_setup).
    pub size: usize,
    /// Queues that receive into the block: a number of queues, or a list such as "8,9" or "8-15"; by default one.
    pub queues: *const c_char,
    /// Who records tokens: "default", "index" or "autorelease".
    pub tokens: *const c_char,
}

/// Counters of a receiver.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_statistics {
    /// sizeof(struct busbar_statistics), set by the caller.
    pub size: usize,
    /// Views that exist.
    pub views: usize,
    /// Bytes of the block that views hold, in whole pages.
    pub held: usize,
    /// Length of the block in bytes.
    pub memory: usize,
    /// Bytes that were received.
    pub bytes: u64,
    /// Bytes of these that a processor has copied: all without a device, else those outside the block.
    pub copied: u64,
    /// How often memory was short; BUSBAR_SHORTAGES_UNKNOWN if the driver does not count.
    pub shortages: u64,
    /// Calls in which tokens were returned.
    pub returns: u64,
    /// Tokens that the kernel has refused to take back.
    pub refused: u64,
}

/// The driver does not count how often memory was short.
pub const BUSBAR_SHORTAGES_UNKNOWN: u64 = u64::MAX;

/// What is known of a view.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_view_info {
    /// sizeof(struct busbar_view_info), set by the caller.
    pub size: usize,
    /// Number of bytes, at least 1.
    pub len: usize,
    /// Where they begin in the block.
    pub offset: usize,
    /// 1 if they are in the block, 0 if not.
    pub in_block: u8,
    /// 0.
    pub reserved: [u8; 7],
}

sized! {
    busbar_receive_setup: tokens;
    busbar_statistics: refused;
    busbar_view_info: reserved;
}

/// A connection.
pub(crate) struct Connected {
    fd: c_int,
    socket: c_int,
    inside: Mutex<Connection>,
}

impl Connected {
    fn new(connection: Connection) -> Self {
        let (fd, socket) = (args::number(&connection), args::number(connection.socket()));
        Self { fd, socket, inside: Mutex::new(connection) }
    }
}

/// The inside of a connection, for one thread at a time.
fn inside(it: &Used<busbar_connection>) -> Result<MutexGuard<'_, Connection>> {
    handle::alone(&it.inside, "another thread uses the connection")
}

/// A view, and the access to it.
pub(crate) struct Viewed {
    /// Dropped before the piece, which it borrows.
    access: Mutex<Option<Reading<'static>>>,
    piece: Piece,
    /// Since there is such a borrow, a reference that can change this is not the only one to it.
    _borrowed: PhantomPinned,
}

impl Viewed {
    /// The bytes. Access begins, if it has not yet.
    fn read(&self) -> Result<(*const u8, usize)> {
        let view = match &self.piece {
            Piece::View(view) => view,
            Piece::Bytes(bytes) => return Ok((bytes.as_ptr(), bytes.len())),
        };
        let mut access = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if access.is_none() {
            let read = view.read()?;
            // SAFETY: it borrows the block of the view, which is dropped after it, and whose place does not change: an
            // object stays in its shell until it is dropped.
            *access = Some(unsafe { std::mem::transmute::<Reading<'_>, Reading<'static>>(read) });
        }
        let bytes = access.as_ref().map(Reading::bytes).unwrap_or_default();
        Ok((bytes.as_ptr(), bytes.len()))
    }
}

/// Ends all that waits for a socket.
fn shut(socket: c_int) {
    // SAFETY: a plain call; a number that is no socket makes it fail.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

fn address(text: &str) -> Result<SocketAddr> {
    let allowed = "ADDRESS:PORT, such as 127.0.0.1:5201 or [::]:5201";
    Ok(text.parse().map_err(|_| busbar::Error::invalid("the address", text, allowed))?)
}

/// Receives from any network device, on any host and without privilege, with one copy into the block. The receiver
/// has a descriptor of its own of the memory; the caller still frees his block. The receiver is to be freed by
/// busbar_receiver_free.
///
/// Errors: -EINVAL for a block of less than a page; -EBUSY if the block is accessed; -EMFILE.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_receiver_host(
    block: *mut busbar_block,
    receiver: *mut *mut busbar_receiver,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(receiver, || {
            let block = handle::enter(block)?.with(Block::try_clone)?;
            Ok(Receiver::host(block)?)
        })
    })
}

/// Makes queues of a network device receive into the block, which has to be a DMABUF, preferably of "pages". setup
/// may be NULL. As busbar_receiver_host otherwise.
///
/// Settings of the device are undone when the receiver is freed. A program that is killed leaves them: have SIGINT and
/// SIGTERM set a flag, or wait for them by a signalfd, and free the receiver outside of the handler.
///
/// Errors: -ENODEV; -EPERM without CAP_NET_ADMIN; -EOPNOTSUPP if kernel or driver do not support it; -EBUSY if queues
/// are bound to other memory, or the block is accessed; -EINVAL for queues and tokens that are not available.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_receiver_open(
    device: *const c_char,
    block: *mut busbar_block,
    setup: *const busbar_receive_setup,
    receiver: *mut *mut busbar_receiver,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(receiver, || {
            let device = args::text(device, "the name of the network device")?;
            let given: busbar_receive_setup = args::get(setup)?;
            let mut setup = ReceiveSetup::new();
            if let Some(queues) = args::perhaps(given.queues, "the queues")? {
                setup = setup.queues(queues.parse()?);
            }
            if let Some(tokens) = args::perhaps(given.tokens, "the tokens")? {
                setup = setup.tokens(tokens.parse()?);
            }
            let block = handle::enter(block)?.with(Block::try_clone)?;
            Ok(Receiver::open(device, block, &setup)?)
        })
    })
}

/// The counters of all connections of the receiver together.
///
/// Errors: -ENODEV if the device is gone.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_receiver_statistics(
    receiver: *mut busbar_receiver,
    statistics: *mut busbar_statistics,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let found = handle::enter(receiver)?.statistics()?;
        let Statistics { bytes, copied, views, held, memory, returns, refused, .. } = found;
        let shortages = found.shortages.unwrap_or(BUSBAR_SHORTAGES_UNKNOWN);
        args::put(
            statistics,
            busbar_statistics {
                views,
                held,
                memory,
                bytes,
                copied,
                shortages,
                returns,
                refused,
                ..args::Sized::ZERO
            },
        )
    })
}

/// Frees the receiver, and undoes all settings of its device. Connections continue without the device; views stay
/// valid.
///
/// Errors: the first setting that could not be undone; the others are undone, and the handle is freed. -EINVAL for
/// NULL, and if it was freed. -EBUSY if a call in another thread uses it: nothing is undone then, nor freed.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_receiver_free(receiver: *mut busbar_receiver) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { Ok(handle::take(receiver)?.close()?) })
}

/// Listens on an address, such as "0.0.0.0:5201", or one of IPv6 in brackets; port 0 chooses a free one. The listener is to be
/// freed by busbar_listener_free.
///
/// Errors: -EADDRINUSE, -EADDRNOTAVAIL, -EACCES; -ENOSPC if the device has no room for a rule; -EINVAL for what is no
/// address.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_receiver_listen(
    receiver: *mut busbar_receiver,
    local: *const c_char,
    listener: *mut *mut busbar_listener,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(listener, || {
            let local = address(args::text(local, "the address")?)?;
            Ok(handle::enter(receiver)?.listen(local)?)
        })
    })
}

/// Connects to an address. The connection is to be freed by busbar_connection_free.
///
/// Errors: -ETIMEDOUT after timeout nanoseconds, or if TCP gives up; -ECONNREFUSED, -EHOSTUNREACH; -ENOSPC if the
/// device has no room for a rule; -EINVAL for what is no address, and for a timeout of 0.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_receiver_connect(
    receiver: *mut busbar_receiver,
    remote: *const c_char,
    timeout: i64,
    connection: *mut *mut busbar_connection,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(connection, || {
            let remote = address(args::text(remote, "the address")?)?;
            let it = handle::enter(receiver)?;
            let made = match Wait::of(timeout)? {
                Wait::Forever => it.connect(remote),
                Wait::For(time) => it.connect_timeout(remote, time),
                Wait::Not => {
                    let allowed = "1 or more nanoseconds, or BUSBAR_FOREVER";
                    Err(busbar::Error::invalid("the time to connect", 0, allowed))
                }
            };
            Ok(Connected::new(made?))
        })
    })
}

/// The descriptor of the listener, which is readable when a connection can be accepted. It belongs to the listener:
/// do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_listener_fd(listener: *mut busbar_listener) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(args::number(&*handle::enter(listener)?)) })
}

/// The port on which it listens, from 1 to 65535.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_listener_port(listener: *mut busbar_listener) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(handle::enter(listener)?.local_addr()?.port().into()) })
}

/// Waits for a connection, which is to be freed by busbar_connection_free.
///
/// Errors: -EAGAIN if none came within timeout nanoseconds; -EMFILE, -ENOMEM.
///
/// Threads: any; each connection goes to one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_listener_accept(
    listener: *mut busbar_listener,
    timeout: i64,
    connection: *mut *mut busbar_connection,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(connection, || {
            let it = handle::enter(listener)?;
            let made = Wait::of(timeout)?.by(
                || it.accept(),
                |time| it.accept_timeout(time),
                || it.try_accept(),
            )?;
            Ok(Connected::new(made))
        })
    })
}

/// Frees the listener. Its connections stay.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. Threads that wait in busbar_listener_accept get -EINVAL; the last of them frees the listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_listener_free(listener: *mut busbar_listener) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free_and_wake(listener, |it| shut(args::number(it))) })
}

/// The descriptor of the connection, which is readable when there may be something new: then take views with a
/// timeout of 0 until there is none. It belongs to the connection: do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_connection_fd(connection: *mut busbar_connection) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(handle::enter(connection)?.fd) })
}

/// The socket of the connection: to send, to ask for addresses, to set options. Data that is read from it directly is
/// missing in the views. It belongs to the connection: do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_connection_socket(connection: *mut busbar_connection) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(handle::enter(connection)?.socket) })
}

/// The next piece of the stream, whose memory is free for other data by busbar_view_free. Without a device, this also
/// waits for memory that views hold.
///
/// Errors: -EAGAIN if nothing came within timeout nanoseconds; -ENODATA at the end, when the peer has stopped
/// sending; -ECONNRESET and -ETIMEDOUT if the peer has disappeared; -EBADMSG if data came into other memory than the
/// block; -EBUSY if another thread uses the connection.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_connection_next(
    connection: *mut busbar_connection,
    timeout: i64,
    view: *mut *mut busbar_view,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(view, || {
            let it = handle::enter(connection)?;
            let mut connection = inside(&it)?;
            let piece = match Wait::of(timeout)? {
                Wait::Forever => connection.next(),
                Wait::For(time) => connection.next_timeout(time),
                Wait::Not => connection.try_next(),
            }?;
            match piece {
                Some(piece) => {
                    Ok(Viewed { access: Mutex::new(None), piece, _borrowed: PhantomPinned })
                }
                None if connection.is_finished() => Err(Fault::End),
                None => Err(Fault::Nothing),
            }
        })
    })
}

/// Returns the memory of freed views to the device now. Call it before you stop calling busbar_connection_next for a
/// while, unless that has returned -EAGAIN.
///
/// Errors: those of the kernel; -EBUSY if another thread uses the connection.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_connection_flush(connection: *mut busbar_connection) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(connection)?;
        Ok(inside(&it)?.flush()?)
    })
}

/// Closes the connection and frees it. Views stay valid.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. A thread that waits in busbar_connection_next gets -ENODATA, and frees it then. One that waits for
/// memory that views hold is not woken before a view is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_connection_free(connection: *mut busbar_connection) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free_and_wake(connection, |it| shut(it.socket)) })
}

/// What is known of the view.
///
/// Errors: -EINVAL for what is no such handle, and for a size that no version has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_view_info(
    view: *mut busbar_view,
    info: *mut busbar_view_info,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(view)?;
        let (offset, in_block) = match &it.piece {
            Piece::View(view) => (view.range().start, 1),
            Piece::Bytes(_) => (0, 0),
        };
        let len = it.piece.len();
        args::put(info, busbar_view_info { len, offset, in_block, ..args::Sized::ZERO })
    })
}

/// The bytes of the view, where they are. They are not copied. data is valid until the view is freed.
///
/// Errors: -ENOMEM if the block cannot be mapped.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_view_read(
    view: *mut busbar_view,
    data: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { args::lend(data, len, || handle::enter(view)?.read()) })
}

/// Frees the view: its memory is free for other data.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any, and in any order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_view_free(view: *mut busbar_view) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(view) })
}

#[cfg(test)]
mod tests {
    use busbar::Errno;
    use busbar::block::Memory;

    use super::*;

    #[test]
    fn a_receiver_that_another_call_uses_is_not_freed() {
        let block = Block::with(4096, &Memory::Memfd).unwrap();
        let receiver: *mut busbar_receiver = handle::new(Receiver::host(block).unwrap());
        // SAFETY: the handle was made here.
        let free = || unsafe { busbar_receiver_free(receiver) };
        // SAFETY: as above.
        let used = unsafe { handle::enter(receiver) }.unwrap();
        assert_eq!(free(), -Errno::BUSY.raw_os_error());
        assert!(used.statistics().is_ok());
        drop(used);
        assert_eq!(free(), 0);
        assert_eq!(free(), -Errno::INVAL.raw_os_error());
    }
}
