//! Pipelines.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use busbar::pipeline::{self, Config, Counters, Event, Pipeline};
use busbar_uapi::signal::Quiet;

use crate::args::{self, Texts, Wait, sized};
use crate::cancel;
use crate::error::{Fault, Result, call, done};
use crate::handle::{self, Used, objects};

/// Sources, stages and sinks that are joined in one loop.
pub struct busbar_pipeline(());

objects! {
    busbar_pipeline, "a pipeline", Running;
}

/// The state of a pipeline.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum busbar_state {
    /// Samples pass through.
    Running = 0,
    /// No more samples come, and some are under way.
    Draining,
    /// Nothing is left to do.
    Finished,
}

/// Counters of a pipeline: totals since it was opened.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_counters {
    /// sizeof(struct busbar_counters), set by the caller.
    pub size: usize,
    /// Number of sources.
    pub sources: usize,
    /// Number of stages.
    pub stages: usize,
    /// Number of sinks.
    pub sinks: usize,
    /// Number of controls.
    pub controls: usize,
    /// 0.
    pub reserved: usize,
    /// Bytes that were copied in all nodes, each time they were.
    pub copied: u64,
}

/// Counters of a source.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_source_counters {
    /// sizeof(struct busbar_source_counters), set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// "off", "down", "open" or "ended".
    pub state: *const c_char,
    /// Its interface, if it is a converter: "dmabuf", "fileio", "synth", "iiod"; else NULL.
    pub interface: *const c_char,
    /// The memory of its blocks, if it is a converter; else NULL.
    pub memory: *const c_char,
    /// 0.
    pub reserved: usize,
    /// Blocks received.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Samples that are known to be missing.
    pub lost: u64,
    /// Blocks of which it is not known whether samples are missing before them.
    pub unknown: u64,
    /// Blocks that a converter failed to fill.
    pub failed: u64,
    /// How often it was opened again after a failure.
    pub restarts: u64,
    /// How often a sender came back.
    pub reconnects: u64,
    /// Invalid frames.
    pub corrupted: u64,
    /// Bytes copied.
    pub copied: u64,
}

/// Counters of a stage.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_stage_counters {
    /// sizeof(struct busbar_stage_counters), set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// Blocks that wait for it.
    pub waiting: usize,
    /// 0.
    pub reserved: usize,
    /// Blocks that came out of it.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Blocks that its edge has dropped.
    pub dropped_blocks: u64,
    /// Samples in those.
    pub dropped_samples: u64,
    /// Samples that a gate has kept back.
    pub kept_back: u64,
    /// How often a gate was opened.
    pub opened: u64,
    /// Bytes copied.
    pub copied: u64,
}

/// Counters of a sink.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_sink_counters {
    /// sizeof(struct busbar_sink_counters), set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// "new" (no samples yet), "down", "open" or "finished".
    pub state: *const c_char,
    /// Blocks that wait.
    pub waiting: usize,
    /// Blocks that are under way.
    pub under_way: usize,
    /// 0.
    pub reserved: usize,
    /// Blocks that were delivered.
    pub blocks: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Samples that are known to be missing in what was delivered.
    pub lost: u64,
    /// Blocks of which it is not known whether samples are missing before them.
    pub unknown: u64,
    /// Blocks that its edge has dropped.
    pub dropped_blocks: u64,
    /// Samples in those.
    pub dropped_samples: u64,
    /// Blocks that were lost when the sink failed.
    pub failed: u64,
    /// How often it was opened again after a failure.
    pub restarts: u64,
    /// How often a connection was made again.
    pub reconnects: u64,
    /// Blocks that were sent again.
    pub resent: u64,
    /// Samples that were verified.
    pub verified: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Median latency in microseconds, from the completion of a block to its delivery.
    pub latency_p50: u64,
    /// 99th percentile of the latency.
    pub latency_p99: u64,
    /// Maximum of the latency.
    pub latency_max: u64,
}

/// Counters of a control.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_control_counters {
    /// sizeof(struct busbar_control_counters), set by the caller.
    pub size: usize,
    /// Its name.
    pub name: *const c_char,
    /// "down" or "up".
    pub state: *const c_char,
    /// 0.
    pub reserved: usize,
    /// Commands that were carried out.
    pub commands: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Events received.
    pub events: u64,
    /// Invalid messages.
    pub malformed: u64,
    /// Reactions that took longer than the deadline.
    pub late: u64,
    /// The slowest reaction, in microseconds.
    pub slowest: u64,
    /// How often it came back.
    pub restarts: u64,
}

/// An event of a pipeline.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct busbar_event {
    /// sizeof(struct busbar_event), set by the caller.
    pub size: usize,
    /// The name of the node.
    pub node: *const c_char,
    /// What happened: "trouble", "restarted", "came", "event", "refused".
    pub what: *const c_char,
    /// Details: the text of an error, or the name of a coprocessor's event and its value.
    pub text: *const c_char,
}

sized! {
    busbar_counters: copied;
    busbar_source_counters: copied;
    busbar_stage_counters: copied;
    busbar_sink_counters: latency_max;
    busbar_control_counters: restarts;
    busbar_event: text;
}

/// A pipeline.
pub(crate) struct Running {
    fd: c_int,
    inside: Mutex<Inside>,
}

struct Inside {
    pipeline: Pipeline,
    /// The last one that the caller asked for.
    snapshot: Snapshot,
    events: std::vec::IntoIter<Event>,
    /// The texts of the last event.
    event: Texts,
}

/// The counters at one time, and their texts.
#[derive(Default)]
struct Snapshot {
    sources: Vec<busbar_source_counters>,
    stages: Vec<busbar_stage_counters>,
    sinks: Vec<busbar_sink_counters>,
    controls: Vec<busbar_control_counters>,
    _texts: Texts,
}

// SAFETY: the addresses are those of its own texts, which do not change.
unsafe impl Send for Snapshot {}

/// A structure for C: the fields that are named first have these values, the others those of `$from`.
macro_rules! counters {
    ($from:ident; $($name:ident: $value:expr),*; $($same:ident)*) => {
        Sized { $($name: $value,)* $($same: $from.$same,)* ..args::Sized::ZERO }
    };
}

impl Snapshot {
    fn new(now: &Counters) -> Self {
        let mut texts = Texts::default();
        let mut text = |text: &str| texts.add(text);
        let sources = now.sources.iter().map(|it| {
            type Sized = busbar_source_counters;
            counters!(it;
                name: text(&it.name),
                state: text(&it.state),
                interface: it.interface.as_deref().map_or(ptr::null(), &mut text),
                memory: it.memory.as_deref().map_or(ptr::null(), &mut text);
                blocks samples bytes lost unknown failed restarts reconnects corrupted copied)
        });
        let sources = sources.collect();
        let stages = now.stages.iter().map(|it| {
            type Sized = busbar_stage_counters;
            counters!(it;
                name: text(&it.name);
                waiting blocks samples dropped_blocks dropped_samples kept_back opened copied)
        });
        let stages = stages.collect();
        let sinks = now.sinks.iter().map(|it| {
            type Sized = busbar_sink_counters;
            counters!(it;
                name: text(&it.name), state: text(&it.state);
                waiting under_way blocks samples bytes lost unknown dropped_blocks dropped_samples failed
                restarts reconnects resent verified copied latency_p50 latency_p99 latency_max)
        });
        let sinks = sinks.collect();
        let controls = now.controls.iter().map(|it| {
            type Sized = busbar_control_counters;
            counters!(it;
                name: text(&it.name), state: text(&it.state);
                commands refused events malformed late slowest restarts)
        });
        let controls = controls.collect();
        Self { sources, stages, sinks, controls, _texts: texts }
    }
}

/// The inside of a pipeline, for one thread at a time.
fn inside(it: &Used<busbar_pipeline>) -> Result<MutexGuard<'_, Inside>> {
    handle::alone(&it.inside, "another thread uses the pipeline")
}

/// One of the counters of a kind.
fn at<'a, T>(all: &'a [T], index: usize, kind: &str) -> Result<&'a T> {
    all.get(index).ok_or_else(|| {
        let allowed = format!("less than {}, as of the last busbar_pipeline_counters", all.len());
        busbar::Error::invalid(format!("the index of a {kind}"), index, allowed).into()
    })
}

/// Opens a pipeline that a text in TOML describes (docs/pipeline.md). name is what errors call the text, such as the
/// name of its file. The pipeline is to be freed by busbar_pipeline_free.
///
/// Errors: -EINVAL for a text that is not allowed; the error of a source that cannot be opened.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_open(
    name: *const c_char,
    toml: *const c_char,
    pipeline: *mut *mut busbar_pipeline,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let _quiet = Quiet::new();
        args::make(pipeline, || {
            let (name, text) =
                (args::text(name, "the name of the text")?, args::text(toml, "the text")?);
            let config = Config::parse(name, text)?;
            let pipeline = cancel::ended(move || Pipeline::open(config))?;
            let fd = args::number(&pipeline);
            let inside = Inside {
                pipeline,
                snapshot: Snapshot::default(),
                events: Vec::new().into_iter(),
                event: Texts::default(),
            };
            Ok(Running { fd, inside: Mutex::new(inside) })
        })
    })
}

/// The descriptor of the pipeline, readable while busbar_pipeline_turn has something to do, and possibly without.
/// A loop of its own has to call busbar_pipeline_turn at least every 100 ms, even without an event. The descriptor
/// belongs to the pipeline: do not close it.
///
/// Errors: -EINVAL for what is no such handle.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_fd(pipeline: *mut busbar_pipeline) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe { Ok(handle::enter(pipeline)?.fd) })
}

/// Ends the wait of a turn when a descriptor of the caller is readable, such as a signalfd or an eventfd. No turn
/// waits while it is readable. To stop a pipeline from another thread, make such a descriptor readable. It has to
/// stay open until the pipeline is freed.
///
/// Errors: -EEXIST if it was named before; -EPERM for a file that cannot be polled; -EBADF if it is not open; -EINVAL for
/// a negative one; -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_wake_for(
    pipeline: *mut busbar_pipeline,
    fd: c_int,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        Ok(inside(&it)?.pipeline.wake_for(&args::descriptor(fd)?)?)
    })
}

/// Does what can be done now; if there is nothing, waits for the next event, for timeout nanoseconds and for 100 ms at
/// most. A signal with a handler ends the wait, without an error. state may be NULL.
///
/// Errors: permanent failures, such as a file that cannot be written, or samples that are wrong. -ETIMEDOUT if not
/// all blocks could be delivered in time at the end. -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_turn(
    pipeline: *mut busbar_pipeline,
    timeout: i64,
    state: *mut busbar_state,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let _quiet = Quiet::new();
        let it = handle::enter(pipeline)?;
        let mut inside = inside(&it)?;
        let pipeline = &mut inside.pipeline;
        let state = if state.is_null() {
            None
        } else {
            Some(args::out(state, busbar_state::Running, "the state")?)
        };
        let now = match Wait::of(timeout)? {
            Wait::Forever => pipeline.turn(),
            Wait::For(time) => pipeline.turn_timeout(time),
            Wait::Not => pipeline.try_turn(),
        }?;
        if let Some(state) = state {
            state.set(match now {
                pipeline::State::Running => busbar_state::Running,
                pipeline::State::Finished => busbar_state::Finished,
                _ => busbar_state::Draining,
            });
        }
        Ok(())
    })
}

/// Ends the sources. Turns then deliver what is under way; the pipeline is finished after that.
///
/// Errors: -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_stop(pipeline: *mut busbar_pipeline) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let _quiet = Quiet::new();
        let it = handle::enter(pipeline)?;
        inside(&it)?.pipeline.stop();
        Ok(())
    })
}

/// Takes a snapshot of all counters, of which the other calls then return the parts.
///
/// Errors: -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_counters(
    pipeline: *mut busbar_pipeline,
    counters: *mut busbar_counters,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        let mut inside = inside(&it)?;
        args::expect(counters)?;
        let now = inside.pipeline.counters();
        inside.snapshot = Snapshot::new(&now);
        args::put(
            counters,
            busbar_counters {
                sources: now.sources.len(),
                stages: now.stages.len(),
                sinks: now.sinks.len(),
                controls: now.controls.len(),
                copied: now.copied,
                ..args::Sized::ZERO
            },
        )
    })
}

/// Counters of a source, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
///
/// Errors: -EINVAL if there are not so many sources; -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_source(
    pipeline: *mut busbar_pipeline,
    index: usize,
    counters: *mut busbar_source_counters,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        args::put(counters, *at(&inside(&it)?.snapshot.sources, index, "source")?)
    })
}

/// Counters of a stage, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
///
/// Errors: -EINVAL if there are not so many stages; -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_stage(
    pipeline: *mut busbar_pipeline,
    index: usize,
    counters: *mut busbar_stage_counters,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        args::put(counters, *at(&inside(&it)?.snapshot.stages, index, "stage")?)
    })
}

/// Counters of a sink, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
///
/// Errors: -EINVAL if there are not so many sinks; -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_sink(
    pipeline: *mut busbar_pipeline,
    index: usize,
    counters: *mut busbar_sink_counters,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        args::put(counters, *at(&inside(&it)?.snapshot.sinks, index, "sink")?)
    })
}

/// Counters of a control, as of the last busbar_pipeline_counters. Their texts are valid until the next one.
///
/// Errors: -EINVAL if there are not so many controls; -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_control(
    pipeline: *mut busbar_pipeline,
    index: usize,
    counters: *mut busbar_control_counters,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        args::put(counters, *at(&inside(&it)?.snapshot.controls, index, "control")?)
    })
}

/// The next event since the pipeline was opened. Its texts are valid until the next call of this.
///
/// Errors: -EAGAIN if there is none; -EBUSY if another thread uses the pipeline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_event(
    pipeline: *mut busbar_pipeline,
    event: *mut busbar_event,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let it = handle::enter(pipeline)?;
        let mut inside = inside(&it)?;
        args::expect(event)?;
        if inside.events.len() == 0 {
            inside.events = inside.pipeline.take_events().into_iter();
        }
        let Event { node, what, text, .. } = inside.events.next().ok_or(Fault::Nothing)?;
        inside.event = Texts::default();
        let [node, what, text] = [node, what.into(), text].map(|text| inside.event.add(text));
        args::put(event, busbar_event { node, what, text, ..args::Sized::ZERO })
    })
}

/// Ends the pipeline at once, drops blocks under way, and frees it. Call busbar_pipeline_stop before, and turn until
/// it is finished, to have them delivered.
///
/// Errors: -EINVAL for NULL, and if it was freed.
///
/// Threads: any. While a call in another thread uses the pipeline, this returns at once, and the pipeline is freed when
/// that call ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn busbar_pipeline_free(pipeline: *mut busbar_pipeline) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    done(|| unsafe {
        let _quiet = Quiet::new();
        handle::free(pipeline)
    })
}
