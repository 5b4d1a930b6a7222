//! Streams that transmit.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use busbar::block::Writing;
use busbar::stream::{Sink, Space};

use crate::args::{self, Wait};
use crate::cancel;
use crate::error::{Fault, Result, call, done};
use crate::handle::{self, Pinned, objects};
use crate::stream::{
    About, busbar_channel, busbar_samples, busbar_stream_info, busbar_stream_setup,
};

/// A stream of samples to a converter.
pub struct busbar_sink(());

/// A free block of a sink, to fill.
pub struct busbar_space(());

objects! {
    busbar_sink, "a sink", Transmitting;
    busbar_space, "a block to fill", Filling;
}

/// A sink.
pub(crate) struct Transmitting {
    sink: Sink,
    about: About,
}

/// A block to fill, and the access to it.
pub(crate) struct Filling(Mutex<Open>);

struct Open {
    /// Dropped before the space, which it borrows.
    access: Option<Writing<'static>>,
    space: Pinned<Space>,
}

impl Filling {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn write(&mut self) -> Result<(*const u8, usize)> {
        if self.access.is_none() {
            // SAFETY: the space is dropped after the access, has an address of its own, and is used by nobody
            // else while there is an access.
            self.access = Some(unsafe { self.space.get_mut() }.write()?);
        }
        let access = self.access.as_mut();
        let access = access.ok_or_else(|| Fault::argument("the block has no access"))?;
        let mut bytes = access.bytes_mut();
        Ok((bytes.as_mut_ptr().cast_const(), bytes.len()))
    }
}

/// Opens a sink and returns its handle: "iio:NAME" for a converter of this machine, which starts with the first block;
/// "iio:NAME@ip:HOST" or "iio:NAME@ip:HOST:PORT" for one of another machine, where iiod or busbar serve runs, which
/// starts at once; "file:NAME" for a new recording (SigMF), which is complete when the sink is stopped or freed;
/// "tcp:HOST:PORT" for a receiver of another machine, such as a source "tcp-listen:PORT"; "verify:counter" to verify the
/// samples of "synth:counter", where busbar_space_send fails with the first wrong one; "null:" to discard samples. All
/// but a converter take little-endian values of 16 bits, for the channels of the setup, by default
/// "voltage0_i,voltage0_q".
///
/// setup may be NULL. The sink is to be freed by busbar_sink_free.
///
/// Errors: as busbar_source_open; -EEXIST if the recording exists; -EINVAL for channels that cannot be recorded or
/// verified.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_open(
    name: *const c_char,
    setup: *const busbar_stream_setup,
    sink: *mut *mut busbar_sink,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(sink, || {
            let name = args::text(name, "the name of the sink")?.to_owned();
            let setup = args::get(setup)?.setup()?;
            let sink = cancel::ended(move || Sink::open(&name, &setup))?;
            let about = About::new(sink.format(), sink.interface(), sink.memory());
            Ok(Transmitting { sink, about })
        })
    })
}

/// The descriptor of the sink, which is readable while busbar_sink_space would return a block or an error at once,
/// and when a forwarded block can go back to its source: call busbar_sink_space or busbar_sink_reap then. It
/// belongs to the sink: do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_fd(sink: *mut busbar_sink) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(args::number(&handle::enter(sink)?.sink)) })
}

/// What is known of the sink.
///
/// Errors: -EINVAL for what is no such handle, and for a size that no version has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_info(
    sink: *mut busbar_sink,
    info: *mut busbar_stream_info,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(sink)?;
        let Transmitting { sink, about } = &*it;
        let (blocks, block_len) = (sink.blocks(), sink.block_len());
        let (copied, queued) = (sink.copied(), sink.queued());
        let rest = about.info(sink.format());
        args::put(info, busbar_stream_info { blocks, block_len, copied, queued, ..rest })
    })
}

/// A channel of the sink, by its place in the sample.
///
/// Errors: -EINVAL if there are not so many.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_channel(
    sink: *mut busbar_sink,
    index: usize,
    channel: *mut busbar_channel,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(sink)?;
        args::put(channel, it.about.channel(it.sink.format(), index)?)
    })
}

/// A block to fill, which is to be sent by busbar_space_send, or freed by busbar_space_free. While all blocks are
/// handed out, none becomes free before one is sent or freed: a thread that holds them all and waits for another one
/// waits for ever. A signal does not end the wait.
///
/// Errors: -EAGAIN if no block was free within timeout nanoseconds. The driver's error if it has failed with a
/// block. -EBUSY while a block is repeated. -EPIPE once the stream has ended.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_space(
    sink: *mut busbar_sink,
    timeout: i64,
    space: *mut *mut busbar_space,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(space, || {
            let it = handle::enter(sink)?;
            let sink = &it.sink;
            let space = Wait::of(timeout)?.by(
                || sink.space(),
                |time| sink.space_timeout(time),
                || sink.try_space(),
            )?;
            Ok(Filling(Mutex::new(Open { access: None, space: Pinned::new(space) })))
        })
    })
}

/// The bytes to fill. Until they are written, they are those that were sent with this block before. data is not
/// valid once the block was sent or freed.
///
/// Errors: -ENOMEM if the block cannot be mapped.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_space_write(
    space: *mut busbar_space,
    data: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { args::lend(data.cast(), len, || handle::enter(space)?.open().write()) })
}

/// Transmits the first len bytes: whole samples, at least one. Returns before they are transmitted. The handle is
/// freed, also after an error, which gives the block back unsent.
///
/// Errors: -EINVAL for such a length, for NULL, and if it was freed; -EBUSY if another thread uses it at the same
/// time, and it is neither sent nor freed; -EPIPE once the stream has ended.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_space_send(space: *mut busbar_space, len: usize) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let Filling(open) = handle::take(space)?;
        let Open { access, space } = open.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(access);
        Ok(space.into_inner().send(len)?)
    })
}

/// Gives the block back unsent.
///
/// Errors: -EINVAL for NULL, and if it was freed or sent.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_space_free(space: *mut busbar_space) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(space) })
}

/// Transmits a received block: by reference if the sink takes DMABUFs, the block is one, the device can use its
/// memory, the source has another block to receive into, and the sink does not have this one already; otherwise it
/// is copied. Access to the samples ends (busbar_samples_read). They are still to be freed; the block goes back to
/// its source when they are, and it was transmitted: after the last one, call busbar_sink_reap.
///
/// Errors: -EAGAIN if there was no room within timeout nanoseconds; as busbar_sink_space; -EINVAL if the length is
/// not a multiple of a sample of this sink, or if the samples have to be copied and do not fit into a block.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_forward(
    sink: *mut busbar_sink,
    samples: *mut busbar_samples,
    timeout: i64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let (it, samples) = (handle::enter(sink)?, handle::enter(samples)?);
        let (sink, samples) = (&it.sink, samples.pass());
        Wait::of(timeout)?.whether(
            || sink.forward(samples),
            |time| sink.forward_timeout(samples, time),
            || sink.try_forward(samples),
        )
    })
}

/// Takes transmitted blocks back from the driver. Does not wait.
///
/// Errors: as busbar_sink_space.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_reap(sink: *mut busbar_sink) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { Ok(handle::enter(sink)?.sink.reap()?) })
}

/// Waits until everything was transmitted. With "fileio", a driver may transmit only full blocks: then the last one
/// is filled up with zeros.
///
/// Errors: -EAGAIN if that took longer than timeout nanoseconds; as busbar_sink_space.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_drain(sink: *mut busbar_sink, timeout: i64) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(sink)?;
        let sink = &it.sink;
        Wait::of(timeout)?.whether(
            || sink.drain(),
            |time| sink.drain_timeout(time),
            || sink.try_drain(),
        )
    })
}

/// Transmits samples again and again, until busbar_sink_stop or the next call of this. Blocks that were sent before
/// and are not transmitted yet are dropped. The samples are copied.
///
/// Errors: -EOPNOTSUPP with "fileio"; -EINVAL if they are not whole samples or do not fit into a block.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_cyclic(
    sink: *mut busbar_sink,
    samples: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let samples = args::bytes(samples, len, "the samples")?;
        Ok(handle::enter(sink)?.sink.cyclic(samples)?)
    })
}

/// Stops the device at once and restores its settings. A recording is complete and on the disk when this returns. The
/// receiver of "tcp:", if it has all blocks, knows of the end, for which this waits for up to 1 s.
///
/// Errors: as write(2) for a recording; the error of a setting that could not be restored.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_stop(sink: *mut busbar_sink) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { Ok(handle::enter(sink)?.sink.stop()?) })
}

/// Frees the sink, and does not wait: threads end a recording, and tell a receiver of the end. Call busbar_sink_drain
/// before to have everything transmitted, and busbar_sink_stop to know that it is on the disk.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. Threads that wait for the sink get -EPIPE; the last of them frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_sink_free(sink: *mut busbar_sink) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free_and_wake(sink, |it| drop(it.sink.stop())) })
}
