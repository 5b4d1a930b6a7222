//! What a pipeline is made of.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::message::Action;
use crate::block::Memory;
use crate::bulk::Transport;
use crate::stream::sigmf::Datatype;
use crate::stream::{Interface, StreamSetup};
use crate::{Error, Result};

/// Nodes of one kind that a pipeline can have.
const MOST_NODES: usize = 64;
/// Blocks of a source whose edges do not say how many they need.
const BLOCKS: usize = 4;
/// What a reaction may take, unless it is said.
pub(super) const REACTION: Duration = Duration::from_millis(10);

/// A pipeline, as it is to be.
///
/// From a file by [`Config::parse`], or put together; [`Pipeline::open`](super::Pipeline::open)
/// checks both alike.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// How long the end may take: what is under way is delivered within it.
    pub drain: Option<Duration>,
    /// A part that fails ends it at once; otherwise it is opened anew for as long as `patience` says.
    pub fail_fast: bool,
    /// Where samples come from.
    pub sources: Vec<SourceConfig>,
    /// What is done with them.
    pub stages: Vec<StageConfig>,
    /// Where they go to.
    pub sinks: Vec<SinkConfig>,
    /// Who has a say in it.
    pub controls: Vec<ControlConfig>,
}

/// A source of samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SourceConfig {
    /// What it is called.
    pub name: String,
    /// Where samples come from.
    pub from: SourceKind,
    /// Number of blocks, 1 to 1024; as many as the edges behind it need, if not given.
    pub blocks: Option<usize>,
    /// Bytes of a block.
    pub block_len: usize,
    /// Memory of the blocks; the best for what is behind it, if not given.
    pub memory: Option<Memory>,
    /// How to talk to a converter; chosen if not given.
    pub interface: Option<Interface>,
    /// Channels of a converter; all voltages if none is given.
    pub channels: Vec<String>,
    /// Ends behind the block that has the sample of this number, from 1 on; never if not given.
    pub count: Option<u64>,
    /// How long to try to have it back before it is an error; for ever if not given.
    pub patience: Option<Duration>,
    /// Bytes of all blocks together that a sender may have made, see
    /// [`Options::memory_limit`](crate::stream::net::Options::memory_limit); its default if not given.
    pub memory_limit: Option<usize>,
}

/// What a source is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceKind {
    /// `iio:NAME` or `synth:PATTERN`, see [`stream`](crate::stream#names).
    Device(String),
    /// `tcp-listen:[HOST:]PORT`.
    Listen(String),
    /// `receive:DEVICE:ADDRESS:PORT`, or `host` for the device: frames by
    /// [`receive`](crate::receive).
    Receive {
        /// The network device; nothing for ordinary receive.
        device: Option<String>,
        /// Where to listen.
        address: SocketAddr,
    },
    /// `file:NAME`, a recording in the format `SigMF`.
    Recording(PathBuf),
    /// `endpoint:SERVICE?type=TYPE&channels=N`: messages of a coprocessor, whole samples each.
    Endpoint {
        /// The service.
        service: String,
        /// Of each value.
        datatype: Datatype,
        /// How many channels, of two values each if the type is complex.
        channels: usize,
    },
}

/// Something that is done with samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StageConfig {
    /// What it is called.
    pub name: String,
    /// Whose samples.
    pub input: Edge,
    /// What is done.
    pub work: Work,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Keeps every Nth sample. Does not filter.
    Decimate(u32),
    /// Keeps these channels.
    Select(Vec<String>),
    /// Lets blocks through while it is open.
    Gate(Gate),
    /// Computes CRC-32C of each block. A `tcp:` sink sends it, and `verify:` compares it.
    Checksum,
}

/// A gate for blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gate {
    /// The control whose events it obeys.
    pub control: String,
    /// The event that opens it.
    pub open_on: String,
    /// The event that closes it.
    pub close_on: Option<String>,
    /// Closes behind the block with the sample of this number since it was opened.
    pub samples: Option<u64>,
    /// Whether it is open in the beginning.
    pub is_open: bool,
}

/// A sink of samples.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SinkConfig {
    /// What it is called.
    pub name: String,
    /// Whose samples.
    pub input: Edge,
    /// Where they go.
    pub to: SinkKind,
    /// Number of blocks of a converter, 1 to 1024; 4 if not given.
    pub blocks: Option<usize>,
    /// Memory of its blocks, as that of a [`SourceConfig`].
    pub memory: Option<Memory>,
    /// How to talk to it; chosen if not given.
    pub interface: Option<Interface>,
    /// As that of a [`SourceConfig`].
    pub patience: Option<Duration>,
}

/// What a sink is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkKind {
    /// `iio:NAME`.
    Device(String),
    /// `tcp:HOST:PORT`.
    Connect(String),
    /// `file:NAME`, a recording in the format `SigMF`.
    Recording(PathBuf),
    /// `endpoint:SERVICE`: messages to a coprocessor, whole samples each.
    Endpoint(String),
    /// `bulk:TRANSPORT`: blocks to a coprocessor, see [`bulk`](crate::bulk).
    Bulk(Transport),
    /// `null:`, nothing.
    Null,
    /// `verify:counter`, or `verify:` for check sums alone: nothing, but every sample has to be right.
    Verify {
        /// Whether samples count.
        counter: bool,
    },
}

/// How samples get from one node to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Edge {
    /// The source or stage.
    pub from: String,
    /// Blocks that wait, or are under way in the sink, at most.
    pub queue: usize,
    /// What happens when there are as many.
    pub when_full: WhenFull,
}

/// What an edge does with one block too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// Has what is before it wait.
    #[default]
    Block,
    /// Drops the oldest of those that wait.
    DropOldest,
    /// Drops the new one.
    DropNewest,
}

/// A coprocessor that has a say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlConfig {
    /// What it is called.
    pub name: String,
    /// Its service, see [`message`](super::message).
    pub endpoint: String,
    /// Sources that it starts, stops and tunes.
    pub sources: Vec<String>,
    /// What a reaction to one of its messages may take.
    pub deadline: Duration,
    /// What is done about its events.
    pub on: Vec<Reaction>,
}

/// What is done about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reaction {
    /// The event.
    pub event: String,
    /// What is done, in this order.
    pub actions: Vec<Action>,
}

impl Edge {
    /// From a node, with 4 blocks that block.
    #[must_use]
    pub fn new(from: impl Into<String>) -> Self {
        Self { from: from.into(), queue: 4, when_full: WhenFull::Block }
    }

    /// Sets [`queue`](Self#structfield.queue).
    #[must_use]
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue;
        self
    }

    /// Sets [`when_full`](Self#structfield.when_full).
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }
}

impl SourceConfig {
    /// A source with blocks of 64 KiB, the rest left to the pipeline.
    #[must_use]
    pub fn new(name: impl Into<String>, from: SourceKind) -> Self {
        Self {
            name: name.into(),
            from,
            blocks: None,
            block_len: 64 << 10,
            memory: None,
            interface: None,
            channels: Vec::new(),
            count: None,
            patience: None,
            memory_limit: None,
        }
    }

    /// Sets [`blocks`](Self#structfield.blocks).
    #[must_use]
    pub fn blocks(mut self, blocks: impl Into<Option<usize>>) -> Self {
        self.blocks = blocks.into();
        self
    }

    /// Sets [`block_len`](Self#structfield.block_len).
    #[must_use]
    pub fn block_len(mut self, block_len: usize) -> Self {
        self.block_len = block_len;
        self
    }

    /// Sets [`memory`](Self#structfield.memory).
    #[must_use]
    pub fn memory(mut self, memory: impl Into<Option<Memory>>) -> Self {
        self.memory = memory.into();
        self
    }

    /// Sets [`interface`](Self#structfield.interface).
    #[must_use]
    pub fn interface(mut self, interface: impl Into<Option<Interface>>) -> Self {
        self.interface = interface.into();
        self
    }

    /// Sets [`channels`](Self#structfield.channels).
    #[must_use]
    pub fn channels<T: Into<String>>(mut self, channels: impl IntoIterator<Item = T>) -> Self {
        self.channels = channels.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`count`](Self#structfield.count).
    #[must_use]
    pub fn count(mut self, count: impl Into<Option<u64>>) -> Self {
        self.count = count.into();
        self
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Option<Duration>>) -> Self {
        self.patience = patience.into();
        self
    }

    /// Sets [`memory_limit`](Self#structfield.memory_limit).
    #[must_use]
    pub fn memory_limit(mut self, memory_limit: impl Into<Option<usize>>) -> Self {
        self.memory_limit = memory_limit.into();
        self
    }
}

impl StageConfig {
    /// A stage behind `input`.
    #[must_use]
    pub fn new(name: impl Into<String>, input: Edge, work: Work) -> Self {
        Self { name: name.into(), input, work }
    }
}

impl Gate {
    /// Closed until `control` tells of the event `open_on`.
    #[must_use]
    pub fn new(control: impl Into<String>, open_on: impl Into<String>) -> Self {
        Self { control: control.into(), open_on: open_on.into(), ..Self::default() }
    }
}

impl ControlConfig {
    /// A coprocessor's service with a say in `sources`, and nothing done about its events.
    #[must_use]
    pub fn new<T: Into<String>>(
        name: impl Into<String>,
        endpoint: impl Into<String>,
        sources: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            name: name.into(),
            endpoint: endpoint.into(),
            sources: sources.into_iter().map(Into::into).collect(),
            deadline: REACTION,
            on: Vec::new(),
        }
    }
}

impl Reaction {
    /// To an event.
    #[must_use]
    pub fn new(event: impl Into<String>, actions: Vec<Action>) -> Self {
        Self { event: event.into(), actions }
    }
}

impl SinkConfig {
    /// A sink with the rest left to the pipeline.
    #[must_use]
    pub fn new(name: impl Into<String>, input: Edge, to: SinkKind) -> Self {
        Self {
            name: name.into(),
            input,
            to,
            blocks: None,
            memory: None,
            interface: None,
            patience: None,
        }
    }

    /// Sets [`blocks`](Self#structfield.blocks).
    #[must_use]
    pub fn blocks(mut self, blocks: impl Into<Option<usize>>) -> Self {
        self.blocks = blocks.into();
        self
    }

    /// Sets [`memory`](Self#structfield.memory).
    #[must_use]
    pub fn memory(mut self, memory: impl Into<Option<Memory>>) -> Self {
        self.memory = memory.into();
        self
    }

    /// Sets [`interface`](Self#structfield.interface).
    #[must_use]
    pub fn interface(mut self, interface: impl Into<Option<Interface>>) -> Self {
        self.interface = interface.into();
        self
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: impl Into<Option<Duration>>) -> Self {
        self.patience = patience.into();
        self
    }
}

/// Where in a [`Config`] something is wrong, and what.
#[derive(Debug)]
pub(super) struct Fault {
    /// Such as `sink`, `net`, `input`.
    pub path: Vec<String>,
    pub value: String,
    pub allowed: String,
}

impl Fault {
    pub(super) fn new(path: &[&str], value: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        let path = path.iter().map(ToString::to_string).collect();
        Self { path, value: value.to_string(), allowed: allowed.to_string() }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::invalid(format!("`{}`", fault.path.join(".")), fault.value, fault.allowed)
    }
}

/// ```
/// use busbar::pipeline::{Config, Edge, Pipeline, SinkConfig, SinkKind, SourceConfig, SourceKind, State};
///
/// # fn main() -> busbar::Result<()> {
/// let adc = SourceConfig::new("adc", SourceKind::Device("synth:counter".into())).count(100_000);
/// let all = SinkConfig::new("all", Edge::new("adc"), SinkKind::Verify { counter: true });
/// let mut pipeline = Pipeline::open(Config::new().source(adc).sink(all))?;
/// while pipeline.turn()? != State::Finished {}
/// # Ok(())
/// # }
/// ```
impl Config {
    /// Nothing: a pipeline has one source and one sink at least.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`drain`](Self#structfield.drain).
    #[must_use]
    pub fn drain(mut self, drain: impl Into<Option<Duration>>) -> Self {
        self.drain = drain.into();
        self
    }

    /// Sets [`fail_fast`](Self#structfield.fail_fast).
    #[must_use]
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Adds one of [`sources`](Self#structfield.sources).
    #[must_use]
    pub fn source(mut self, source: SourceConfig) -> Self {
        self.sources.push(source);
        self
    }

    /// Adds one of [`stages`](Self#structfield.stages).
    #[must_use]
    pub fn stage(mut self, stage: StageConfig) -> Self {
        self.stages.push(stage);
        self
    }

    /// Adds one of [`sinks`](Self#structfield.sinks).
    #[must_use]
    pub fn sink(mut self, sink: SinkConfig) -> Self {
        self.sinks.push(sink);
        self
    }

    /// Adds one of [`controls`](Self#structfield.controls).
    #[must_use]
    pub fn control(mut self, control: ControlConfig) -> Self {
        self.controls.push(control);
        self
    }

    /// Everything that can be said without opening anything.
    ///
    /// # Errors
    ///
    /// Bad input, naming the node and the key, what it holds and what it may hold.
    pub fn check(&self) -> Result<()> {
        Ok(self.verify()?)
    }

    pub(super) fn verify(&self) -> Result<(), Fault> {
        self.verify_names()?;
        self.verify_edges()?;
        self.verify_controls()?;
        for source in &self.sources {
            self.verify_blocks(source)?;
        }
        Ok(())
    }

    fn verify_names(&self) -> Result<(), Fault> {
        let all = [
            ("source", self.sources.iter().map(|it| it.name.as_str()).collect::<Vec<_>>()),
            ("stage", self.stages.iter().map(|it| it.name.as_str()).collect()),
            ("sink", self.sinks.iter().map(|it| it.name.as_str()).collect()),
            ("control", self.controls.iter().map(|it| it.name.as_str()).collect()),
        ];
        let mut seen = HashSet::new();
        for (kind, names) in all {
            if names.len() > MOST_NODES {
                return Err(Fault::new(&[kind], names.len(), format!("up to {MOST_NODES}")));
            }
            if names.is_empty() && matches!(kind, "source" | "sink") {
                return Err(Fault::new(&[kind], "nothing", format!("one {kind} or more")));
            }
            for name in names {
                if !is_name(name) {
                    let allowed = "names of 1 to 31 letters, digits, - and _";
                    return Err(Fault::new(&[kind, name], name, allowed));
                }
                if !seen.insert(name) {
                    return Err(Fault::new(&[kind, name], name, "each name once"));
                }
            }
        }
        Ok(())
    }

    fn verify_edges(&self) -> Result<(), Fault> {
        for (kind, name, edge) in self.edges() {
            if self.producers().all(|it| it != edge.from) {
                let names: Vec<_> = self.producers().collect();
                let allowed = format!("the name of a source or stage: {}", names.join(", "));
                return Err(Fault::new(&[kind, name, "input"], &edge.from, allowed));
            }
            if !(1..=StreamSetup::MAX_BLOCKS).contains(&edge.queue) {
                let allowed = format!("1 to {}", StreamSetup::MAX_BLOCKS);
                return Err(Fault::new(&[kind, name, "queue"], edge.queue, allowed));
            }
        }
        for stage in &self.stages {
            self.source_of(&stage.name).ok_or_else(|| {
                let allowed = "a source, or a stage that does not come behind this one";
                Fault::new(&["stage", &stage.name, "input"], &stage.input.from, allowed)
            })?;
        }
        let used: HashSet<_> = self.edges().map(|(_, _, edge)| edge.from.as_str()).collect();
        match self.producers().find(|name| !used.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let kind = if self.is_source(name) { "source" } else { "stage" };
                Err(Fault::new(&[kind, name], name, "a node that another one has as its input"))
            }
        }
    }

    fn verify_controls(&self) -> Result<(), Fault> {
        let names = || self.controls.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
        for stage in &self.stages {
            let Work::Gate(gate) = &stage.work else { continue };
            if !names().contains(&gate.control.as_str()) {
                let allowed = format!("the name of a control: {}", names().join(", "));
                return Err(Fault::new(&["stage", &stage.name, "control"], &gate.control, allowed));
            }
        }
        let mut owned = HashSet::new();
        for control in &self.controls {
            for source in &control.sources {
                let path = ["control", &control.name, "sources"];
                if !self.is_source(source) {
                    return Err(Fault::new(&path, source, "names of sources"));
                }
                if !owned.insert(source) {
                    return Err(Fault::new(&path, source, "each source in one control"));
                }
            }
            let actions = control.on.iter().flat_map(|reaction| {
                reaction.actions.iter().map(move |action| (&reaction.event, action))
            });
            for (event, action) in actions {
                if !self.is_source(action.source().as_str()) {
                    let path = ["control", &control.name, "on", event];
                    return Err(Fault::new(&path, action, "actions on a source that there is"));
                }
            }
        }
        Ok(())
    }

    /// An edge that drops, and those behind it, must not hold so many blocks that the source has none
    /// left for the others.
    fn verify_blocks(&self, source: &SourceConfig) -> Result<(), Fault> {
        let needed = 1 + self.queued(&source.name, |edge| self.drops(edge));
        match source.blocks {
            Some(blocks) if !(1..=StreamSetup::MAX_BLOCKS).contains(&blocks) => {
                let allowed = format!("1 to {}", StreamSetup::MAX_BLOCKS);
                Err(Fault::new(&["source", &source.name, "blocks"], blocks, allowed))
            }
            Some(blocks) if blocks < needed => {
                let allowed = format!(
                    "{needed} or more: edges that drop, and those behind them, hold up to {}, and one is \
                     filled meanwhile",
                    needed - 1
                );
                Err(Fault::new(&["source", &source.name, "blocks"], blocks, allowed))
            }
            None if needed > StreamSetup::MAX_BLOCKS => {
                let allowed =
                    format!("edges that hold up to {} in all", StreamSetup::MAX_BLOCKS - 1);
                Err(Fault::new(&["source", &source.name], needed, allowed))
            }
            _ => Ok(()),
        }
    }

    /// Blocks for a source: as many as were asked for, or as its edges can hold, and one more.
    pub(super) fn blocks(&self, source: &SourceConfig) -> usize {
        source.blocks.unwrap_or_else(|| {
            let held = 2 + self.queued(&source.name, |_| true);
            held.clamp(BLOCKS, StreamSetup::MAX_BLOCKS)
        })
    }

    /// Blocks of a source that edges can hold.
    fn queued(&self, source: &str, counts: impl Fn(&Edge) -> bool) -> usize {
        let behind = |edge: &&Edge| self.source_of(&edge.from).is_some_and(|it| it == source);
        let edges = self.edges().map(|(_, _, edge)| edge);
        edges.filter(behind).filter(|edge| counts(edge)).map(|edge| edge.queue).sum()
    }

    /// Whether nobody waits for what this edge or one before it has no room for.
    fn drops(&self, edge: &Edge) -> bool {
        let mut edge = edge;
        for _ in 0..=self.stages.len() {
            if edge.when_full != WhenFull::Block {
                return true;
            }
            match self.stages.iter().find(|it| it.name == edge.from) {
                Some(stage) => edge = &stage.input,
                None => return false,
            }
        }
        false
    }

    /// All edges, with the kind and name of the node behind each.
    pub(super) fn edges(&self) -> impl Iterator<Item = (&'static str, &str, &Edge)> {
        let stages = self.stages.iter().map(|it| ("stage", it.name.as_str(), &it.input));
        stages.chain(self.sinks.iter().map(|it| ("sink", it.name.as_str(), &it.input)))
    }

    fn producers(&self) -> impl Iterator<Item = &str> {
        let sources = self.sources.iter().map(|it| it.name.as_str());
        sources.chain(self.stages.iter().map(|it| it.name.as_str()))
    }

    fn is_source(&self, name: &str) -> bool {
        self.sources.iter().any(|it| it.name == name)
    }

    /// The source whose samples come to this node; nothing where stages go round in a circle.
    pub(super) fn source_of<'a>(&'a self, node: &'a str) -> Option<&'a str> {
        let mut name = node;
        for _ in 0..=self.stages.len() {
            if self.is_source(name) {
                return Some(name);
            }
            name = &self.stages.iter().find(|it| it.name == name)?.input.from;
        }
        None
    }

    /// The sinks whose samples come from this source.
    pub(super) fn sinks_of<'a>(&'a self, source: &'a str) -> impl Iterator<Item = &'a SinkConfig> {
        self.sinks.iter().filter(move |it| self.source_of(&it.input.from) == Some(source))
    }
}

/// Whether something can be called so.
pub(super) fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=31).contains(&text.len()) && text.bytes().all(fits)
}

const SOURCES: &str = "iio:NAME, synth:PATTERN, tcp-listen:[HOST:]PORT, \
     receive:DEVICE:ADDRESS:PORT (host for the device: ordinary receive), file:NAME, \
     endpoint:SERVICE?type=ci16_le&channels=1";
const SINKS: &str = "iio:NAME, tcp:HOST:PORT, file:NAME, endpoint:SERVICE, bulk:TRANSPORT, null:, verify:, \
     verify:counter";

impl FromStr for SourceKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = text.split_once(':').and_then(|(kind, rest)| match kind {
            "iio" | "synth" if !rest.is_empty() => Some(Self::Device(text.into())),
            "tcp-listen" if !rest.is_empty() => Some(Self::Listen(rest.into())),
            "file" if !rest.is_empty() => Some(Self::Recording(rest.into())),
            "receive" => receive(rest),
            "endpoint" => endpoint(rest),
            _ => None,
        });
        known.ok_or_else(|| Error::invalid("a source", text.escape_debug(), SOURCES))
    }
}

impl FromStr for SinkKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = text.split_once(':').and_then(|(kind, rest)| match (kind, rest) {
            ("null", "") => Some(Self::Null),
            ("verify", "") => Some(Self::Verify { counter: false }),
            ("verify", "counter") => Some(Self::Verify { counter: true }),
            (_, "") => None,
            ("iio", _) => Some(Self::Device(text.into())),
            ("tcp", address) if address.contains(':') => Some(Self::Connect(address.into())),
            ("file", path) => Some(Self::Recording(path.into())),
            ("endpoint", service) => Some(Self::Endpoint(service.into())),
            ("bulk", transport) => transport.parse().ok().map(Self::Bulk),
            _ => None,
        });
        known.ok_or_else(|| Error::invalid("a sink", text.escape_debug(), SINKS))
    }
}

impl FromStr for WhenFull {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "block" => Ok(Self::Block),
            "drop-oldest" => Ok(Self::DropOldest),
            "drop-newest" => Ok(Self::DropNewest),
            _ => {
                let allowed = "block, drop-oldest, drop-newest";
                Err(Error::invalid("what to do when full", text.escape_debug(), allowed))
            }
        }
    }
}

/// `DEVICE:ADDRESS:PORT`.
fn receive(rest: &str) -> Option<SourceKind> {
    let (device, address) = rest.split_once(':')?;
    let address = address.parse().ok()?;
    match device {
        "" => None,
        "host" => Some(SourceKind::Receive { device: None, address }),
        device => Some(SourceKind::Receive { device: Some(device.into()), address }),
    }
}

/// `SERVICE?type=TYPE&channels=N`, both of them optional.
fn endpoint(rest: &str) -> Option<SourceKind> {
    let (service, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut datatype, mut channels) = ("ci16_le", 1);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("type", value) => datatype = value,
            ("channels", value) => channels = value.parse().ok()?,
            _ => return None,
        }
    }
    let datatype = datatype.parse().ok()?;
    let fits = !service.is_empty() && (1..=16).contains(&channels);
    fits.then(|| SourceKind::Endpoint { service: service.into(), datatype, channels })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(name: &str, from: &str) -> SinkConfig {
        SinkConfig::new(name, Edge::new(from), SinkKind::Null)
    }

    fn stage(name: &str, from: &str) -> StageConfig {
        StageConfig { name: name.into(), input: Edge::new(from), work: Work::Checksum }
    }

    fn config() -> Config {
        let from = SourceKind::Device("synth:counter".into());
        Config {
            sources: vec![SourceConfig::new("a", from)],
            stages: vec![stage("b", "a")],
            sinks: vec![sink("c", "b"), sink("d", "a")],
            ..Config::default()
        }
    }

    fn fault(change: impl FnOnce(&mut Config)) -> String {
        let mut config = config();
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn ends_are_what_they_say() {
        let from = |text: &str| text.parse::<SourceKind>();
        assert_eq!(from("iio:vconv0").unwrap(), SourceKind::Device("iio:vconv0".into()));
        assert_eq!(from("tcp-listen:[::1]:4950").unwrap(), SourceKind::Listen("[::1]:4950".into()));
        let address = ([10, 0, 0, 1], 4950).into();
        let device = Some("nic0".into());
        assert_eq!(
            from("receive:nic0:10.0.0.1:4950").unwrap(),
            SourceKind::Receive { device, address }
        );
        let address = "[::1]:7".parse().unwrap();
        assert_eq!(
            from("receive:host:[::1]:7").unwrap(),
            SourceKind::Receive { device: None, address }
        );
        let datatype = "ri32_be".parse().unwrap();
        let endpoint = SourceKind::Endpoint { service: "adc".into(), datatype, channels: 3 };
        assert_eq!(from("endpoint:adc?type=ri32_be&channels=3").unwrap(), endpoint);
        for bad in [
            "",
            "iio",
            "iio:",
            "null:",
            "IIO:a",
            "tcp-listen:",
            "receive:4950",
            "receive::1.2.3.4:1",
            "receive:nic0:port",
            "endpoint:",
            "endpoint:a?type=x",
            "endpoint:a?channels=0",
            "endpoint:a?x",
        ] {
            assert!(from(bad).unwrap_err().to_string().contains("tcp-listen"), "{bad}");
        }
        let to = |text: &str| text.parse::<SinkKind>();
        assert_eq!(to("tcp:host:4950").unwrap(), SinkKind::Connect("host:4950".into()));
        assert_eq!(to("bulk:buffer").unwrap(), SinkKind::Bulk(Transport::Buffer));
        assert_eq!(to("verify:counter").unwrap(), SinkKind::Verify { counter: true });
        for bad in ["", "iio:", "synth:sine", "tcp:host", "null:x", "verify:sine", "bulk:pigeon"] {
            assert!(to(bad).unwrap_err().to_string().contains("verify:counter"), "{bad}");
        }
    }

    #[test]
    fn nodes_are_joined_by_names_that_there_are() {
        config().check().unwrap();
        assert!(fault(|it| it.sinks.clear()).contains("one sink or more"));
        assert!(fault(|it| it.sinks[0].name = "a".into()).contains("each name once"));
        assert!(fault(|it| it.sinks[0].name = "a b".into()).contains("letters"));
        assert!(fault(|it| it.sinks[1].input.from = "x".into()).contains("a, b"));
        assert!(fault(|it| it.sinks[0].input.from = "a".into()).contains("`stage.b`"));
        assert!(fault(|it| it.stages[0].input.from = "b".into()).contains("does not come behind"));
        assert!(fault(|it| it.sinks[0].input.queue = 0).contains("`sink.c.queue`"));
    }

    #[test]
    fn edges_that_drop_leave_blocks_for_the_others() {
        let full = |it: &mut Config, blocks| {
            it.sources[0].blocks = blocks;
            it.sinks[1].input =
                Edge { queue: 8, when_full: WhenFull::DropOldest, ..Edge::new("a") };
        };
        assert!(fault(|it| full(it, Some(8))).contains("9 or more"));
        let mut enough = config();
        full(&mut enough, Some(9));
        enough.check().unwrap();
        full(&mut enough, None);
        assert_eq!(enough.blocks(&enough.sources[0]), 2 + 4 + 4 + 8);
    }

    #[test]
    fn controls_know_their_sources() {
        let control = |sources: &[&str]| ControlConfig {
            name: "core".into(),
            endpoint: "control".into(),
            sources: sources.iter().map(ToString::to_string).collect(),
            deadline: Duration::from_millis(1),
            on: Vec::new(),
        };
        assert!(fault(|it| it.controls = vec![control(&["b"])]).contains("names of sources"));
        let two = |it: &mut Config| {
            it.controls =
                vec![control(&["a"]), ControlConfig { name: "e".into(), ..control(&["a"]) }];
        };
        assert!(fault(two).contains("each source in one control"));
        let gate = |it: &mut Config| it.stages[0].work = Work::Gate(Gate::default());
        assert!(fault(gate).contains("the name of a control"));
    }
}
