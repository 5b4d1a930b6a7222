//! Calls that open something or talk to another machine, which a descriptor may end.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::Builder;

use busbar::Error;
use busbar_uapi::signal::Blocked;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, retry_on_intr};

use crate::args;
use crate::error::{Fault, Result, done};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

thread_local! {
    static CANCEL: RefCell<Option<Rc<OwnedFd>>> = const { RefCell::new(None) };
}

/// Tells when a call has ended, however it has.
struct Bell(Arc<OwnedFd>);

impl Drop for Bell {
    fn drop(&mut self) {
        // It has room for this.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// From now on, a call of this thread that opens something or talks to another machine ends with -ECANCELED as soon as a
/// descriptor is readable, or its other end is closed: an eventfd or a pipe, which another thread or a signal handler writes
/// to, or a signalfd. With -1, none does any more. These calls are busbar_source_open, busbar_sink_open,
/// busbar_pipeline_open, busbar_servers, busbar_devices_open, busbar_device_get, busbar_device_set, busbar_context_open, _get,
/// _set, _trigger and _set_trigger. They are made in a thread of their own, which goes on until it notices that it has ended, for
/// its time limit at most, and closes what it has opened. A value that was to be written may be written.
///
/// The library has a copy of the descriptor, and reads nothing from it: no such call is made while it is readable.
///
/// Errors: -EBADF if it is not open; -EINVAL for a negative one other than -1; -EMFILE.
///
/// Threads: each has its own descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_cancel_by(fd: c_int) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let copy = if fd == -1 { None } else { Some(Rc::new(args::copy(fd, "cancelling")?)) };
        // At the end of a thread, none of its calls can be ended any more.
        let _ = CANCEL.try_with(|cancel| cancel.replace(copy));
        Ok(())
    })
}

/// Makes a call, which the descriptor of the thread ends.
pub(crate) fn ended<T: Send + 'static>(
    work: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> Result<T> {
    let cancel = CANCEL.try_with(|cancel| cancel.borrow().clone()).unwrap_or_default();
    match cancel {
        Some(cancel) => aside(&cancel, work),
        None => Ok(work()?),
    }
}

fn aside<T: Send + 'static>(
    cancel: &OwnedFd,
    work: impl FnOnce() -> busbar::Result<T> + Send + 'static,
) -> Result<T> {
    let failed = |why: Errno| Error::new("wait for", "a call in another thread", why);
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?);
    let (tell, told) = mpsc::channel();
    let quit = Arc::new(AtomicBool::new(false));
    let (rings, asked) = (Bell(Arc::clone(&bell)), Arc::clone(&quit));
    let mut fds = [PollFd::new(&cancel, PollFlags::IN), PollFd::new(&*bell, PollFlags::IN)];
    let call = move || {
        // Dropped after the result was told.
        let _rings = rings;
        busbar::quit_when(asked);
        drop(tell.send(work()));
    };
    retry_on_intr(|| poll(&mut fds[..1], Some(&NOW))).map_err(failed)?;
    if !fds[0].revents().is_empty() {
        return Err(Fault::Cancelled);
    }
    let blocked = Blocked::new();
    let started = Builder::new().name("busbar-call".into()).spawn(call);
    drop(blocked);
    started.map_err(|why| Error::new("start", "a thread", why))?;
    retry_on_intr(|| poll(&mut fds, None)).map_err(failed)?;
    if fds[1].revents().is_empty() {
        quit.store(true, Ordering::Relaxed);
        return Err(Fault::Cancelled);
    }
    // A panic of the call is one of this thread, too.
    Ok(told.recv().unwrap_or_else(|_| panic!("the thread of the call has ended"))?)
}
