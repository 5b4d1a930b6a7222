//! Handles: what C programs hold of an object.
//!
//! A handle is the address of a shell, with some bits of the shell's generation in the low bits of the
//! address. Shells are never returned to the allocator, so a handle that was freed can be examined: the shell says
//! what it is and whether it is still in use. A freed shell is used again only after many others.
//!
//! A shell counts the calls that use its object. An object that is freed during a call is dropped when this call
//! ends.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::error::{Fault, Result};

/// An object that C programs have handles of. `Self` is the opaque type in the header.
pub(crate) trait Object: Sized {
    /// What is behind the handle.
    type Body: Send + Sync + 'static;
    /// What the object is called, with its article.
    const NAME: &'static str;

    /// Where its shells are: a static of its own, whose address tells its kind.
    fn pool() -> &'static Pool<Self::Body>;
}

/// Declares opaque types and their objects.
macro_rules! objects {
    ($($handle:ident, $name:literal, $body:ty;)*) => {$(
        impl $crate::handle::Object for $crate::$handle {
            type Body = $body;
            const NAME: &'static str = $name;

            fn pool() -> &'static $crate::handle::Pool<$body> {
                static POOL: $crate::handle::Pool<$body> = $crate::handle::Pool::new();
                &POOL
            }
        }
    )*};
}
pub(crate) use objects;

/// Freed shells that wait until they are used again.
const PARKED: usize = 64;
/// Bits of the generation in a handle: those that the alignment of a shell leaves.
const LOW: usize = 63;

/// An object is there.
const LIVE: u32 = 1 << 15;
/// Calls that use it.
const CALLS: u32 = LIVE - 1;
const GENERATION: u32 = 16;

#[repr(C)]
struct Header {
    /// The address of the pool, which no other kind has, nor most memory that a program may pass by mistake. Written
    /// once.
    pool: usize,
    /// Generation, [`LIVE`], and number of calls.
    state: AtomicU32,
}

/// The place of an object. It begins with its header, whatever the object is.
#[repr(C, align(64))]
pub(crate) struct Shell<T> {
    header: Header,
    body: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the header is atomic, and the body is shared only as `&T` while it is counted.
unsafe impl<T: Send + Sync> Sync for Shell<T> {}

/// The shells of one kind that are not in use, the oldest first.
pub(crate) struct Pool<T: 'static>(Mutex<VecDeque<&'static Shell<T>>>);

impl<T> Pool<T> {
    /// A pool without shells.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    fn parked(&self) -> MutexGuard<'_, VecDeque<&'static Shell<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What distinguishes its shells from all others.
    #[inline]
    fn kind(&'static self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[inline]
    fn get(&'static self) -> &'static Shell<T> {
        let mut parked = self.parked();
        let old = (parked.len() > PARKED).then(|| parked.pop_front()).flatten();
        old.unwrap_or_else(|| {
            let header = Header { pool: self.kind(), state: AtomicU32::new(0) };
            Box::leak(Box::new(Shell { header, body: UnsafeCell::new(MaybeUninit::uninit()) }))
        })
    }
}

/// A handle of a new object.
#[inline]
pub(crate) fn new<O: Object>(body: O::Body) -> *mut O {
    let shell = O::pool().get();
    // SAFETY: nobody else uses a shell that is not live and came from the pool.
    unsafe { (*shell.body.get()).write(body) };
    let generation = (shell.header.state.load(Ordering::Relaxed) >> GENERATION).wrapping_add(1);
    shell.header.state.store(generation << GENERATION | LIVE, Ordering::Release);
    let low = generation as usize & LOW;
    std::ptr::from_ref(shell).cast_mut().map_addr(|address| address | low).cast()
}

/// An object that a call uses.
pub(crate) struct Used<O: Object>(&'static Shell<O::Body>);

impl<O: Object> Deref for Used<O> {
    type Target = O::Body;

    fn deref(&self) -> &O::Body {
        // SAFETY: it is counted, so that it is not dropped.
        unsafe { (*self.0.body.get()).assume_init_ref() }
    }
}

impl<O: Object> Drop for Used<O> {
    #[inline]
    fn drop(&mut self) {
        let before = self.0.header.state.fetch_sub(1, Ordering::AcqRel);
        if before & (LIVE | CALLS) == 1 {
            // SAFETY: it was freed, and this was the last call that used it.
            unsafe { discard::<O>(self.0) };
        }
    }
}

/// The shell of a handle, and its state while the handle is valid.
///
/// # Safety
///
/// `handle` is null or was returned by [`new`], for an object of any kind, freed or not.
#[inline]
unsafe fn shell<O: Object>(handle: *mut O) -> Result<&'static Shell<O::Body>> {
    let base = handle.map_addr(|address| address & !LOW);
    if base.is_null() {
        return Err(Fault::argument(format!("{} is needed, the handle is NULL", O::NAME)));
    }
    // SAFETY: a shell is never freed, and begins with its header, of which this part does not change.
    let pool = unsafe { (&raw const (*base.cast::<Header>()).pool).read() };
    if pool != O::pool().kind() {
        return Err(Fault::argument(format!(
            "{} is needed, the handle is one of another kind",
            O::NAME
        )));
    }
    // SAFETY: only this pool makes shells with its address, all of this type.
    Ok(unsafe { &*base.cast() })
}

/// Whether a handle belongs to this state of its shell.
fn is_live<O>(handle: *mut O, state: u32) -> bool {
    state & LIVE != 0 && (state >> GENERATION) as usize & LOW == handle.addr() & LOW
}

#[cold]
fn freed<O: Object>() -> Fault {
    Fault::argument(format!("{} is needed, the handle was freed", O::NAME))
}

/// The object of a handle, which stays as long as the result.
///
/// # Safety
///
/// As [`shell`].
#[inline]
pub(crate) unsafe fn enter<O: Object>(handle: *mut O) -> Result<Used<O>> {
    // SAFETY: guaranteed by the caller.
    let shell = unsafe { shell(handle) }?;
    let mut state = shell.header.state.load(Ordering::Acquire);
    loop {
        if !is_live(handle, state) {
            return Err(freed::<O>());
        }
        if state & CALLS == CALLS {
            return Err(Fault::argument(format!("{} has too many calls at a time", O::NAME)));
        }
        match shell.header.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::Acquire,
            Ordering::Acquire,
        ) {
            Ok(_) => return Ok(Used(shell)),
            Err(now) => state = now,
        }
    }
}

/// Ends a handle that at most `most` calls use. How many do.
///
/// # Safety
///
/// As [`shell`].
#[inline]
unsafe fn leave<O: Object>(handle: *mut O, most: u32) -> Result<(&'static Shell<O::Body>, u32)> {
    // SAFETY: guaranteed by the caller.
    let shell = unsafe { shell(handle) }?;
    let mut state = shell.header.state.load(Ordering::Acquire);
    loop {
        if !is_live(handle, state) {
            return Err(freed::<O>());
        }
        if state & CALLS > most {
            return Err(Fault::Busy("another thread uses the object: it is not freed"));
        }
        match shell.header.state.compare_exchange_weak(
            state,
            state & !LIVE,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return Ok((shell, state & CALLS)),
            Err(now) => state = now,
        }
    }
}

/// Frees the object of a handle: now, or at the end of the last call that uses it.
///
/// # Safety
///
/// As [`shell`].
#[inline]
pub(crate) unsafe fn free<O: Object>(handle: *mut O) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let (shell, calls) = unsafe { leave(handle, CALLS) }?;
    if calls == 0 {
        // SAFETY: no call uses it, and none can begin to.
        unsafe { discard::<O>(shell) };
    }
    Ok(())
}

/// As [`free`]. If other calls use the object, `wake` ends their wait.
///
/// # Safety
///
/// As [`shell`].
pub(crate) unsafe fn free_and_wake<O: Object>(
    handle: *mut O,
    wake: impl FnOnce(&O::Body),
) -> Result<()> {
    // SAFETY: guaranteed by the caller. The object stays as long as `it`, which counts as a call.
    let (it, (_, calls)) = unsafe { (enter(handle)?, leave(handle, CALLS)?) };
    if calls > 1 {
        wake(&it);
    }
    Ok(())
}

/// Takes the object out of its handle, which is freed, unless a call uses it.
///
/// # Safety
///
/// As [`shell`].
pub(crate) unsafe fn take<O: Object>(handle: *mut O) -> Result<O::Body> {
    // SAFETY: guaranteed by the caller.
    let (shell, _) = unsafe { leave(handle, 0) }?;
    // SAFETY: no call uses it, and none can begin to. It is not read again.
    let body = unsafe { (*shell.body.get()).assume_init_read() };
    O::pool().parked().push_back(shell);
    Ok(body)
}

/// What is inside an object, for one thread at a time.
pub(crate) fn alone<'a, T>(inside: &'a Mutex<T>, busy: &'static str) -> Result<MutexGuard<'a, T>> {
    match inside.try_lock() {
        Ok(inside) => Ok(inside),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Fault::Busy(busy)),
    }
}

/// Drops an object, and parks its shell.
///
/// # Safety
///
/// The object is there, no call uses it, and none can begin to.
#[inline]
unsafe fn discard<O: Object>(shell: &'static Shell<O::Body>) {
    // SAFETY: guaranteed by the caller.
    unsafe { (*shell.body.get()).assume_init_drop() };
    O::pool().parked().push_back(shell);
}

/// A value at an address that does not change, for guards that borrow it.
#[derive(Debug)]
pub(crate) struct Pinned<T>(std::ptr::NonNull<T>);

// SAFETY: it owns its value, as a `Box`.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T> Pinned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::ptr::NonNull::from(Box::leak(Box::new(value))))
    }

    /// The value, for as long as the caller says.
    ///
    /// # Safety
    ///
    /// This value exists for `'a`, and nobody else has a reference to it that conflicts.
    pub(crate) unsafe fn get<'a>(&self) -> &'a T {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.as_ref() }
    }

    /// As [`get`](Self::get), to change it.
    ///
    /// # Safety
    ///
    /// As [`get`](Self::get).
    pub(crate) unsafe fn get_mut<'a>(&mut self) -> &'a mut T {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.as_mut() }
    }

    pub(crate) fn into_inner(self) -> T {
        let value = self.0;
        std::mem::forget(self);
        // SAFETY: `new` has made the box, and nobody refers to it any more.
        *unsafe { Box::from_raw(value.as_ptr()) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: as `into_inner`.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
