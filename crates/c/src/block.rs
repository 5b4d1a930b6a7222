//! Memory that devices share.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use busbar::block::{Block, Memory, Purpose, Reading, Writing};

use crate::args::{self, Wait, sized};
use crate::error::{Fault, Result, call, done, string};
use crate::handle::{self, Pinned, objects};

/// Memory that devices, programs and coprocessors share: a DMABUF, or a memfd.
pub struct busbar_block(());

objects! {
    busbar_block, "a block", Memories;
}

/// What is known of a block.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_block_info {
    /// sizeof(struct busbar_block_info), set by the caller.
    pub size: usize,
    /// Its length in bytes: a multiple of its page size, unless its descriptor was made elsewhere.
    pub len: usize,
    /// Where its memory comes from, in words. Valid as long as the block.
    pub memory: *const c_char,
    /// 1 if a device can use it, 0 if not.
    pub is_dmabuf: u8,
    /// 0.
    pub reserved: [u8; 7],
}

sized! {
    busbar_block_info: reserved;
}

/// A block, and the access to it.
pub(crate) struct Memories {
    state: Mutex<State>,
    fd: c_int,
    len: usize,
    is_dmabuf: bool,
    memory: CString,
}

/// Locked only for moments, so that no call waits for one that waits for a device.
struct State {
    /// Dropped before the block, which it borrows.
    access: Option<Access>,
    /// An access begins: a call uses the block without the lock, and will set `access`.
    begins: bool,
    /// Calls that wait for devices: each has a shared reference to the block without the lock.
    waits: usize,
    block: Pinned<Block>,
}

enum Access {
    Read(#[allow(dead_code)] Reading<'static>),
    Write(#[allow(dead_code)] Writing<'static>),
}

impl Memories {
    fn new(block: Block) -> Self {
        Self {
            fd: args::number(&block),
            len: block.len(),
            is_dmabuf: block.is_dmabuf(),
            memory: string(block.memory().to_string()),
            state: Mutex::new(State {
                access: None,
                begins: false,
                waits: 0,
                block: Pinned::new(block),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` with the block, which is not accessed.
    pub(crate) fn with<T>(&self, with: impl FnOnce(&Block) -> busbar::Result<T>) -> Result<T> {
        let state = self.state();
        state.idle()?;
        // SAFETY: it exists as long as this, and without an access all references to it are shared.
        Ok(with(unsafe { state.block.get() })?)
    }

    /// Calls `with` with the block, which nobody else uses.
    pub(crate) fn with_mut<T>(
        &self,
        with: impl FnOnce(&mut Block) -> busbar::Result<T>,
    ) -> Result<T> {
        let mut state = self.state();
        state.alone()?;
        // SAFETY: it exists as long as this, and there is no other reference to it.
        Ok(with(unsafe { state.block.get_mut() })?)
    }

    /// Calls `with`, which may wait for devices. Meanwhile other calls do not wait for this one.
    fn wait<T>(&self, with: impl FnOnce(&Block) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        state.idle()?;
        state.waits += 1;
        // SAFETY: it exists as long as this, and while `waits` is not 0 all references to it are shared.
        let block = unsafe { state.block.get() };
        drop(state);
        let _waits = Waits(self);
        with(block)
    }

    /// Begins to read, which may wait for devices.
    fn read(&self) -> Result<(*const u8, usize)> {
        let mut state = self.state();
        state.idle()?;
        state.begins = true;
        // SAFETY: it exists as long as the access, and while one begins or is there all references to it are shared.
        let block = unsafe { state.block.get() };
        drop(state);
        let mut begins = Begins { of: self, access: None };
        let reading = block.read()?;
        let there = (reading.bytes().as_ptr(), reading.bytes().len());
        begins.access = Some(Access::Read(reading));
        Ok(there)
    }

    /// Begins to write, which may wait for devices.
    fn write(&self) -> Result<(*const u8, usize)> {
        let mut state = self.state();
        state.alone()?;
        state.begins = true;
        // SAFETY: it exists as long as the access, and nobody else uses it while one begins or is there.
        let block = unsafe { state.block.get_mut() };
        drop(state);
        let mut begins = Begins { of: self, access: None };
        let mut writing = block.write()?;
        let mut bytes = writing.bytes_mut();
        let there = (bytes.as_mut_ptr().cast_const(), bytes.len());
        begins.access = Some(Access::Write(writing));
        Ok(there)
    }

    /// Ends the access, under the lock: the block stays until the caches are coherent again.
    fn end(&self) -> Result<()> {
        let mut state = self.state();
        let access = state.access.take();
        access.map(drop).ok_or_else(|| Fault::argument("the block is not accessed"))
    }
}

impl State {
    /// The block must not be accessed.
    fn idle(&self) -> Result<()> {
        if self.access.is_some() || self.begins {
            return Err(Fault::Busy("the block is accessed: call busbar_block_end first"));
        }
        Ok(())
    }

    /// As [`idle`](Self::idle), and nobody waits with the block.
    fn alone(&self) -> Result<()> {
        self.idle()?;
        if self.waits > 0 {
            return Err(Fault::Busy("another thread waits for the block"));
        }
        Ok(())
    }
}

/// A call that waits.
struct Waits<'a>(&'a Memories);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.state().waits -= 1;
    }
}

/// A call that begins an access, which is there afterwards unless it has failed.
struct Begins<'a> {
    of: &'a Memories,
    access: Option<Access>,
}

impl Drop for Begins<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.begins = false;
        state.access = self.access.take();
    }
}

/// A block of at least len bytes, zeroed. memory is "heap:NAME", "pages", "huge" or "memfd"; NULL chooses the best
/// for devices that the host has. The block is to be freed by busbar_block_free.
///
/// Errors: -ENOENT where the kernel has no such memory, -ENOMEM, -EACCES; -EINVAL for a length of 0, or one that no
/// address space has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_new(
    len: usize,
    memory: *const c_char,
    block: *mut *mut busbar_block,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(block, || {
            let memory = match args::perhaps(memory, "the memory")? {
                Some(memory) => memory.parse()?,
                None => Memory::choose(Purpose::Device),
            };
            Ok(Memories::new(Block::with(len, &memory)?))
        })
    })
}

/// A block of a descriptor that was made elsewhere: a DMABUF, or a memfd that is sealed against shrinking. The
/// descriptor is duplicated; the caller keeps his own. This waits until no device writes to the DMABUF.
///
/// Errors: -EBADF, -EPERM for a memfd that can shrink, or another error if it is neither.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_from_fd(fd: c_int, block: *mut *mut busbar_block) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(block, || Ok(Memories::new(Block::try_from(args::copy(fd, "a block")?)?)))
    })
}

/// The descriptor of the block, for other devices and processes. It belongs to the block: do not close it.
///
/// It can be polled: POLLIN when no device writes to the block any more, POLLOUT when no device uses it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_fd(block: *mut busbar_block) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(handle::enter(block)?.fd) })
}

/// What is known of the block.
///
/// Errors: -EINVAL for what is no such handle, and for a size that no version has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_info(
    block: *mut busbar_block,
    info: *mut busbar_block_info,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(block)?;
        let Memories { len, is_dmabuf, .. } = *it;
        let memory = it.memory.as_ptr();
        let is_dmabuf = is_dmabuf.into();
        args::put(info, busbar_block_info { len, memory, is_dmabuf, ..args::Sized::ZERO })
    })
}

/// Begins to read the block: waits until no device writes to it, and makes caches coherent until busbar_block_end.
/// data is valid until then. Anyone who has a descriptor of the memory can write to it at the same time.
///
/// Errors: -ENOMEM if the block cannot be mapped; -EACCES if it comes from a descriptor that does not allow to read; -EBUSY if it
/// is accessed already, also by a call that waits in another thread.
///
/// Threads: any; one access at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_read(
    block: *mut busbar_block,
    data: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { args::lend(data, len, || handle::enter(block)?.read()) })
}

/// Begins to write to the block, and to read it: waits until no device uses it. As busbar_block_read otherwise.
///
/// Errors: as busbar_block_read; -EACCES also if the descriptor does not allow to write; -EBUSY also if another thread waits in
/// busbar_block_wait_filled or busbar_block_wait_unused.
///
/// Threads: any; one access at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_write(
    block: *mut busbar_block,
    data: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { args::lend(data.cast(), len, || handle::enter(block)?.write()) })
}

/// Ends the access that busbar_block_read or busbar_block_write has begun.
///
/// Errors: -EINVAL if there is none.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_end(block: *mut busbar_block) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(block)?;
        it.end()
    })
}

/// Waits until no device writes to the block.
///
/// Errors: -EAGAIN if that took longer than timeout nanoseconds; -EBUSY if the block is accessed.
///
/// Threads: any. Meanwhile the block cannot be written to, nor given to a coprocessor: -EBUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_wait_filled(block: *mut busbar_block, timeout: i64) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let timeout = Wait::of(timeout)?;
        handle::enter(block)?.wait(|block| {
            timeout.whether(
                || block.wait_filled(),
                |time| block.wait_filled_timeout(time),
                || block.try_wait_filled(),
            )
        })
    })
}

/// Waits until no device uses the block.
///
/// Errors: -EAGAIN if that took longer than timeout nanoseconds; -EBUSY if the block is accessed.
///
/// Threads: any. Meanwhile the block cannot be written to, nor given to a coprocessor: -EBUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_wait_unused(block: *mut busbar_block, timeout: i64) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let timeout = Wait::of(timeout)?;
        handle::enter(block)?.wait(|block| {
            timeout.whether(
                || block.wait_unused(),
                |time| block.wait_unused_timeout(time),
                || block.try_wait_unused(),
            )
        })
    })
}

/// Frees the block. The kernel frees the memory when nothing uses it any more.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_block_free(block: *mut busbar_block) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(block) })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn block() -> Memories {
        Memories::new(Block::with(4096, &Memory::Memfd).unwrap())
    }

    #[test]
    fn a_call_that_waits_for_a_device_stops_no_other_call() {
        let block = block();
        let ((waits, is_waiting), (end, ended)) = (channel(), channel::<()>());
        thread::scope(|scope| {
            let block = &block;
            let waiter = scope.spawn(move || {
                block.wait(|_| {
                    waits.send(()).unwrap();
                    ended.recv().unwrap();
                    Ok(())
                })
            });
            is_waiting.recv().unwrap();
            assert!(block.wait(|_| Ok(())).is_ok());
            assert!(block.with(Block::try_clone).is_ok());
            assert!(matches!(block.end(), Err(Fault::Argument(_))));
            assert!(matches!(block.write(), Err(Fault::Busy(_))));
            assert!(matches!(block.with_mut(|_| Ok(())), Err(Fault::Busy(_))));
            assert!(block.read().is_ok());
            assert!(matches!(block.wait(|_| Ok(())), Err(Fault::Busy(_))));
            assert!(block.end().is_ok());
            end.send(()).unwrap();
            assert!(waiter.join().unwrap().is_ok());
        });
        assert!(block.write().is_ok());
        assert!(matches!(block.read(), Err(Fault::Busy(_))));
        assert!(block.end().is_ok());
    }
}
