//! Streams that receive.

use std::ffi::{CString, c_char, c_int, c_void};
use std::marker::PhantomPinned;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use busbar::stream::{
    Channel, Format, Interface, Lost, Meta, Samples, SamplesRead, Scale, Source, StreamSetup,
};

use crate::args::{self, Wait, sized};
use crate::cancel;
use crate::error::{Fault, Result, call, done, string};
use crate::handle::{self, objects};

/// A stream of samples from a converter.
pub struct busbar_source(());

/// A block of samples that a source has handed out.
pub struct busbar_samples(());

objects! {
    busbar_source, "a source", Receiving;
    busbar_samples, "a block of samples", Received;
}

/// How a stream is opened. A field that is 0 or NULL has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_stream_setup {
    /// sizeof(struct busbar_stream_setup).
    pub size: usize,
    /// Number of blocks, 1 to 1024; by default as many as have 1 MiB together, from 4 to 64.
    pub blocks: usize,
    /// Bytes of a block, up to 1 GiB, rounded down to whole samples; 65536 by default.
    pub block_len: usize,
    /// The memory of the blocks: "heap:NAME", "pages", "huge" or "memfd"; by default the best that the host has.
    pub memory: *const c_char,
    /// The interface to the driver: "dmabuf" or "fileio"; by default the best that the driver and the host offer. For
    /// a converter of another machine only "iiod", and for what is no converter only busbar_stream_info.interface.
    pub interface: *const c_char,
    /// Names of channels, without "in_" or "out_", separated by commas; at least one, none empty. By default all
    /// voltages, or if there are none, all but "timestamp".
    pub channels: *const c_char,
    /// Samples per second of a sink that is no device, such as "file:"; 0 if the rate is not known.
    pub rate: f64,
}

/// What is known of a stream.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_stream_info {
    /// sizeof(struct busbar_stream_info), set by the caller.
    pub size: usize,
    /// Number of blocks that the stream has.
    pub blocks: usize,
    /// Bytes of samples that a block holds.
    pub block_len: usize,
    /// Bytes of a sample, padding included.
    pub sample_len: usize,
    /// Number of channels.
    pub channels: usize,
    /// Blocks of a sink that the device has not transmitted yet, as far as is known; 0 for a source.
    pub queued: usize,
    /// Samples per second; 0 if the rate is not known, or the converter runs as fast as it can.
    pub rate: f64,
    /// Bytes that were copied in memory.
    pub copied: u64,
    /// The interface to the driver: "dmabuf", "fileio", "synth", "iiod" or "library". Valid as long as the stream.
    pub interface: *const c_char,
    /// The memory of the blocks, in words. Valid as long as the stream.
    pub memory: *const c_char,
}

/// One value of a sample, as IIO describes it (Documentation/ABI/testing/sysfs-bus-iio, _type).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_channel {
    /// sizeof(struct busbar_channel), set by the caller.
    pub size: usize,
    /// Its name, such as "voltage0_i". Valid as long as the stream.
    pub name: *const c_char,
    /// Offset of its first byte in the sample.
    pub offset: usize,
    /// Valid bits.
    pub bits: u8,
    /// Bits that the value takes up: 8, 16, 32 or 64 and more.
    pub storage_bits: u8,
    /// How many bits the value is to be shifted to the right.
    pub shift: u8,
    /// Number of values in a row: 1 for all but vectors.
    pub repeat: u8,
    /// 1 if the value is a two's complement, 0 if it has no sign.
    pub is_signed: u8,
    /// 1 if the first byte is the most significant one, 0 if it is the least significant one.
    pub big_endian: u8,
    /// 0.
    pub reserved: [u8; 2],
}

/// What is known of a block of samples.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_meta {
    /// sizeof(struct busbar_meta), set by the caller.
    pub size: usize,
    /// Bytes of the samples: a multiple of the length of a sample.
    pub len: usize,
    /// Number of the block, from 0. Failed blocks count, too.
    pub sequence: u64,
    /// Samples that are missing between the end of the block before and the end of this one; BUSBAR_LOST_UNKNOWN
    /// if neither the driver nor the data tells.
    pub lost: u64,
    /// When the block was complete, in nanoseconds since 1970 (CLOCK_REALTIME).
    pub time: i64,
}

/// It is not known how many samples are missing.
pub const BUSBAR_LOST_UNKNOWN: u64 = u64::MAX;

sized! {
    busbar_stream_setup: channels;
    busbar_stream_info: memory;
    busbar_channel: reserved;
    busbar_meta: time;
}

impl busbar_stream_setup {
    /// # Safety
    ///
    /// The texts are null or strings.
    pub(crate) unsafe fn setup(&self) -> Result<StreamSetup> {
        let mut setup = StreamSetup::new();
        // SAFETY: guaranteed by the caller.
        let [memory, interface, channels] = unsafe {
            [
                args::perhaps(self.memory, "the memory")?,
                args::perhaps(self.interface, "the interface")?,
                args::perhaps(self.channels, "the channels")?,
            ]
        };
        if self.blocks != 0 {
            setup = setup.blocks(self.blocks);
        }
        if self.block_len != 0 {
            setup = setup.block_len(self.block_len);
        }
        if let Some(memory) = memory {
            setup = setup.memory(memory.parse::<busbar::block::Memory>()?);
        }
        if let Some(interface) = interface {
            setup = setup.interface(interface.parse::<Interface>()?);
        }
        if self.rate != 0.0 {
            setup = setup.rate(self.rate);
        }
        Ok(match channels {
            // An empty name is none of a channel, and none at all would mean the default.
            Some(channels) => setup.channels(channels.split(',')),
            None => setup,
        })
    }
}

/// The texts of a stream, for as long as it exists.
pub(crate) struct About {
    names: Vec<CString>,
    interface: CString,
    memory: CString,
}

impl About {
    pub(crate) fn new(
        format: &Format,
        interface: Interface,
        memory: &busbar::block::Memory,
    ) -> Self {
        Self {
            names: names(format),
            interface: string(interface.to_string()),
            memory: string(memory.to_string()),
        }
    }

    /// What these and the format tell of a stream.
    pub(crate) fn info(&self, format: &Format) -> busbar_stream_info {
        busbar_stream_info {
            sample_len: format.sample_len,
            channels: format.channels.len(),
            rate: format.rate.unwrap_or_default(),
            interface: self.interface.as_ptr(),
            memory: self.memory.as_ptr(),
            ..args::Sized::ZERO
        }
    }

    pub(crate) fn channel(&self, format: &Format, index: usize) -> Result<busbar_channel> {
        channel(format, &self.names, index)
    }
}

/// The names of the channels.
pub(crate) fn names(format: &Format) -> Vec<CString> {
    format.channels.iter().map(|channel| string(&*channel.name)).collect()
}

/// A channel of a format; its name is one of `names`.
pub(crate) fn channel(format: &Format, names: &[CString], index: usize) -> Result<busbar_channel> {
    let (Some(channel), Some(name)) = (format.channels.get(index), names.get(index)) else {
        let allowed = format!("less than {}", format.channels.len());
        return Err(busbar::Error::invalid("the index of a channel", index, allowed).into());
    };
    let Channel { signed, bits, storage_bits, shift, big_endian, repeat, offset, .. } = *channel;
    Ok(busbar_channel {
        name: name.as_ptr(),
        offset,
        bits,
        storage_bits,
        shift,
        repeat,
        is_signed: signed.into(),
        big_endian: big_endian.into(),
        ..args::Sized::ZERO
    })
}

/// A source.
pub(crate) struct Receiving {
    source: Source,
    /// Its samples share it.
    format: Arc<Format>,
    about: About,
}

/// A block of samples, and the access to it.
pub(crate) struct Received {
    /// Dropped before the samples, which it borrows.
    access: Mutex<Option<SamplesRead<'static>>>,
    samples: Samples,
    format: Arc<Format>,
    /// Since there is such a borrow, a reference that can change this is not the only one to it.
    _borrowed: PhantomPinned,
}

impl Received {
    fn new(samples: Samples, format: &Arc<Format>) -> Self {
        let (access, format) = (Mutex::new(None), Arc::clone(format));
        Self { access, samples, format, _borrowed: PhantomPinned }
    }

    /// The bytes. Access begins, if it has not yet.
    fn read(&self) -> Result<(*const u8, usize)> {
        let mut access = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if access.is_none() {
            let read = self.samples.read()?;
            // SAFETY: it borrows the samples, which are dropped after it, and whose place does not change: an object
            // stays in its shell until it is dropped.
            let read =
                unsafe { std::mem::transmute::<SamplesRead<'_>, SamplesRead<'static>>(read) };
            *access = Some(read);
        }
        let bytes = access.as_ref().map(SamplesRead::bytes).unwrap_or_default();
        Ok((bytes.as_ptr(), bytes.len()))
    }

    /// The samples, to pass them on. Access ends.
    pub(crate) fn pass(&self) -> &Samples {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = None;
        &self.samples
    }
}

/// Opens a source and starts it: "iio:NAME" for a converter, by its name or number ("iio:deviceN");
/// "iio:NAME@ip:HOST" or "iio:NAME@ip:HOST:PORT" for one of another machine, where iiod or busbar serve runs
/// (docs/remote.md); "synth:counter", "synth:sine" or "synth:noise" for samples that the library makes (docs/stream.md has
/// their settings); "file:NAME" for a recording (SigMF), which is played as fast as its blocks are taken;
/// "tcp-listen:PORT" or "tcp-listen:HOST:PORT" for what busbar stream or a sink sends to "tcp:", where this waits for the
/// first sender. That one is answered only within busbar_source_next and its kind: it gives up if there is none for 10 s.
///
/// setup may be NULL. The source is to be freed by busbar_source_free.
///
/// Errors: -ENOENT if there is no such device, -EBUSY if another program uses it, -EACCES; -EINVAL for a name,
/// channel or number that is not allowed; -EPERM or -ENOTTY if the setup names an interface that the driver does
/// not offer. For another machine also -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -EIO if its address is not found, and
/// -EBADMSG if what answers has another protocol. For a recording -EINVAL if it is none; for the network -EADDRINUSE, and
/// -ETIMEDOUT if no sender connects within 30 s.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_open(
    name: *const c_char,
    setup: *const busbar_stream_setup,
    source: *mut *mut busbar_source,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(source, || {
            let name = args::text(name, "the name of the source")?.to_owned();
            let setup = args::get(setup)?.setup()?;
            let source = cancel::ended(move || Source::open(&name, &setup))?;
            let about = About::new(source.format(), source.interface(), source.memory());
            let format = Arc::new(source.format().clone());
            Ok(Receiving { source, format, about })
        })
    })
}

/// The descriptor of the source, which is readable while busbar_source_next would return a block or an error at
/// once. It may be readable without either. It belongs to the source: do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_fd(source: *mut busbar_source) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(args::number(&handle::enter(source)?.source)) })
}

/// What is known of the source.
///
/// Errors: -EINVAL for what is no such handle, and for a size that no version has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_info(
    source: *mut busbar_source,
    info: *mut busbar_stream_info,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(source)?;
        let Receiving { source, about, .. } = &*it;
        let (blocks, block_len, copied) = (source.blocks(), source.block_len(), source.copied());
        args::put(
            info,
            busbar_stream_info { blocks, block_len, copied, ..about.info(source.format()) },
        )
    })
}

/// A channel of the source, by its place in the sample: 0 to busbar_stream_info.channels - 1.
///
/// Errors: -EINVAL if there are not so many.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_channel(
    source: *mut busbar_source,
    index: usize,
    channel: *mut busbar_channel,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(source)?;
        args::put(channel, it.about.channel(it.source.format(), index)?)
    })
}

/// How to convert the values of a channel into a unit: (value + offset) * scale, as in IIO. A voltage is in
/// millivolts. Setting a gain may change them.
///
/// Errors: -EINVAL for a channel that is not received.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_scale(
    source: *mut busbar_source,
    channel: *const c_char,
    scale: *mut f64,
    offset: *mut f64,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let (scale, offset) =
            (args::out(scale, 1.0, "the scale")?, args::out(offset, 0.0, "the offset")?);
        let it = handle::enter(source)?;
        let found: Scale = it.source.scale(args::text(channel, "the name of a channel")?)?;
        scale.set(found.scale);
        offset.set(found.offset);
        Ok(())
    })
}

/// The next block, which goes back to the driver by busbar_samples_free. While all blocks are handed out, no block
/// comes until one is given back. A signal does not end the wait.
///
/// Errors: -EAGAIN if no block was complete within timeout nanoseconds. The driver's error if it has failed with a
/// block; the next call takes the next block. -EIO if the driver has completed a block without samples. -EPIPE once
/// the stream has ended: by busbar_source_stop, with the last sample of a recording or a sender, or because the device
/// was disabled or has gone, or its server has.
///
/// Threads: any; each block goes to one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_next(
    source: *mut busbar_source,
    timeout: i64,
    samples: *mut *mut busbar_samples,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        args::make(samples, || {
            let it = handle::enter(source)?;
            let source = &it.source;
            let samples = Wait::of(timeout)?.by(
                || source.next(),
                |time| source.next_timeout(time),
                || source.try_next(),
            )?;
            Ok(Received::new(samples, &it.format))
        })
    })
}

/// Stops the device and restores its settings. Threads that wait in busbar_source_next get -EPIPE.
///
/// Errors: the error of a setting that could not be restored.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_stop(source: *mut busbar_source) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { Ok(handle::enter(source)?.source.stop()?) })
}

/// Stops the source and frees it. Blocks that were handed out stay valid.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. Threads that wait in busbar_source_next get -EPIPE; the last of them frees the source.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_source_free(source: *mut busbar_source) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free_and_wake(source, |it| drop(it.source.stop())) })
}

/// What is known of the block.
///
/// Errors: -EINVAL for what is no such handle, and for a size that no version has.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_samples_meta(
    samples: *mut busbar_samples,
    meta: *mut busbar_meta,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(samples)?;
        let Meta { sequence, time, lost, len, .. } = *it.samples.meta();
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        // A clock that was set may be before 1970.
        let time =
            time.duration_since(UNIX_EPOCH).map_or_else(|before| -nanos(before.duration()), nanos);
        let lost = match lost {
            Lost::Samples(lost) => lost,
            Lost::Unknown => BUSBAR_LOST_UNKNOWN,
        };
        args::put(meta, busbar_meta { sequence, time, lost, len, ..args::Sized::ZERO })
    })
}

/// The bytes of the samples, where the converter has put them. They are not copied. Access to them ends when the
/// samples are freed, or passed on by busbar_sink_forward; data is not valid afterwards.
///
/// Do not write to them: other owners of the block read them, too.
///
/// Errors: -ENOMEM if the block cannot be mapped.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_samples_read(
    samples: *mut busbar_samples,
    data: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { args::lend(data, len, || handle::enter(samples)?.read()) })
}

/// The values of one channel as numbers: (value + offset) * scale, with the scale and offset of busbar_source_scale
/// for the unit of the channel, or 1 and 0 for what the converter has measured. Returns how many values there are:
/// the samples of the block, or room if that is less.
///
/// Errors: -EINVAL for a channel that is not received, or that has not one number of 8, 16, 32 or 64 bits.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_samples_values(
    samples: *mut busbar_samples,
    channel: *const c_char,
    scale: f64,
    offset: f64,
    values: *mut f32,
    room: usize,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let samples = handle::enter(samples)?;
        let channel = args::text(channel, "the name of a channel")?;
        let wanted = samples.format.values::<f32>(channel)?.scaled(Scale { offset, scale });
        // A block has at most 1 GiB, so that the number fits.
        let room = room.min(c_int::MAX as usize);
        let count =
            wanted.read(&samples.samples, args::room(values, room, "the room for values")?)?;
        c_int::try_from(count).map_err(|_| Fault::argument("too many values"))
    })
}

/// The descriptor of the block, a DMABUF or a memfd, to pass it to another device or process. The samples are its
/// first busbar_meta.len bytes. It belongs to the samples: do not close it.
///
/// Errors: -EINVAL if the samples are not in one block.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_samples_fd(samples: *mut busbar_samples) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let it = handle::enter(samples)?;
        let block =
            it.samples.block().ok_or_else(|| Fault::argument("the samples are in parts"))?;
        Ok(args::number(block))
    })
}

/// Gives the block back to its driver.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any, and in any order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_samples_free(samples: *mut busbar_samples) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe { handle::free(samples) })
}
