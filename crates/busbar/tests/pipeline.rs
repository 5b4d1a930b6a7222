//! Random pipelines: each sample of a source reaches each sink or is reported as missing there, is right, and
//! every block comes back, even if a peer goes and comes back meanwhile.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use busbar::pipeline::{
    Config, Counters, Edge, Pipeline, SinkConfig, SinkCounters, SinkKind, SourceConfig, SourceKind,
    StageConfig, State, WhenFull, Work,
};
use busbar::stream::net::{FrameSender, Options};
use busbar::stream::sigmf::Recording;
use busbar::stream::{Lost, Source, StreamSetup};
use busbar::wait::{Events, Interest, Poller};
use busbar::{Error, Result};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::TestCaseError;
use tempfile::TempDir;

/// More time than anything that has to happen takes.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);
/// How long a sink is waited for that [may get nothing](Way::may_get_nothing).
const FIRST: Duration = Duration::from_secs(5);
/// Longest search for a simpler case after a failure, in milliseconds.
const SHRINK: u32 = 120_000;
/// The channels of the counter.
const CHANNELS: [&str; 4] = ["voltage0_i", "voltage0_q", "voltage1_i", "voltage1_q"];

/// One sample of so many is kept at least.
const FEWEST: u64 = 10_000;
/// What is kept of blocks from the network.
const THIRD: u32 = 3;

/// A random pipeline.
#[derive(Clone, Debug)]
struct Plan {
    /// Samples per second, enough for losses when the source is not read; 0: as fast as possible.
    rate: Option<u32>,
    /// Blocks in addition to the fewest allowed. `None`: the default number.
    spare: Option<usize>,
    samples: usize,
    stages: Vec<StagePlan>,
    sinks: Vec<SinkPlan>,
    /// Pause between two turns, in which the source is not read.
    nap: u64,
}

#[derive(Clone, Debug)]
struct StagePlan {
    input: Index,
    edge: EdgePlan,
    work: Work,
}

#[derive(Clone, Debug)]
struct SinkPlan {
    input: Index,
    edge: EdgePlan,
    end: End,
}

#[derive(Clone, Copy, Debug)]
struct EdgePlan {
    queue: usize,
    when_full: WhenFull,
}

#[derive(Clone, Debug)]
enum End {
    Null,
    Verify,
    File,
    /// To a pipeline in another thread, with these sinks; and whether its blocks stay in parts where `receive`
    /// has put them.
    Net(Vec<EdgePlan>, bool),
}

fn edge() -> impl Strategy<Value = EdgePlan> {
    let when_full = select(vec![WhenFull::Block, WhenFull::DropOldest, WhenFull::DropNewest]);
    let queue = prop_oneof![Just(1), Just(2), 3..=8_usize];
    (queue, when_full).prop_map(|(queue, when_full)| EdgePlan { queue, when_full })
}

fn work() -> impl Strategy<Value = Work> {
    let names = subsequence(CHANNELS.to_vec(), 1..=4).prop_shuffle();
    prop_oneof![
        (1..=40_u32).prop_map(Work::Decimate),
        names.prop_map(|names| Work::Select(names.into_iter().map(Into::into).collect())),
        Just(Work::Checksum),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let stage = (any::<Index>(), edge(), work());
    let stage = stage.prop_map(|(input, edge, work)| StagePlan { input, edge, work });
    let end = prop_oneof![
        1 => Just(End::Null),
        3 => Just(End::Verify),
        1 => Just(End::File),
        2 => (prop::collection::vec(edge(), 1..=2), any::<bool>())
            .prop_map(|(edges, in_parts)| End::Net(edges, in_parts)),
    ];
    let sink = (any::<Index>(), edge(), end);
    let sink = sink.prop_map(|(input, edge, end)| SinkPlan { input, edge, end });
    let rate = prop::option::of(select(vec![50_000, 1_000_000, 20_000_000]));
    let stages = prop::collection::vec(stage, 0..=4);
    let sinks = prop::collection::vec(sink, 1..=4);
    let nap = prop_oneof![3 => Just(0), 1 => 0..=3_u64];
    let all = (rate, prop::option::of(0..=2_usize), 16..=600_usize, stages, sinks, nap);
    all.prop_map(|(rate, spare, samples, stages, sinks, nap)| Plan {
        rate,
        spare,
        samples,
        stages,
        sinks,
        nap,
    })
}

fn from(name: &str, edge: EdgePlan) -> Edge {
    Edge::new(name).queue(edge.queue).when_full(edge.when_full)
}

/// What happens to samples on the way to a node.
#[derive(Clone, Debug, Default)]
struct Way {
    name: String,
    /// Several stages, one after the other.
    decimated: Vec<u64>,
    channels: Vec<String>,
    /// Whether an edge drops blocks.
    drops: bool,
    /// Whether that is before a stage that decimates: in turns that are all alike, the dropped blocks may be those with
    /// the samples that the stage would keep.
    may_get_nothing: bool,
}

impl Way {
    /// How many of so many samples reach the node or are reported as missing there.
    fn count(&self, samples: u64) -> u64 {
        self.decimated.iter().fold(samples, |left, by| left.div_ceil(*by))
    }

    /// Whether each sample is one more than that before.
    fn is_counter(&self) -> bool {
        self.channels.iter().any(|it| it == CHANNELS[0]) && self.decimated.iter().all(|by| *by == 1)
    }
}

/// The pipeline of a plan, and the pipelines that it sends to.
struct Built {
    config: Config,
    ways: Vec<Way>,
    far: Vec<(usize, JoinHandle<Result<Counters>>)>,
    files: Vec<(usize, PathBuf)>,
}

/// A port that nobody has, below those that the kernel gives to connections.
fn port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).find(is_free).unwrap()
}

fn verify(way: &Way) -> SinkKind {
    SinkKind::Verify { counter: way.is_counter() }
}

impl Plan {
    fn build(&self, folder: &Path) -> Built {
        let rate = self.rate.map_or(String::new(), |rate| format!("?rate={rate}"));
        let mut adc = SourceConfig::new("adc", SourceKind::Device(format!("synth:counter{rate}")));
        adc.block_len = 8 * self.samples;
        let channels = CHANNELS.map(Into::into).into();
        let mut nodes = vec![Way { name: "adc".into(), channels, ..Way::default() }];
        let mut config = Config::new().drain(Some(PATIENCE));
        for (index, stage) in self.stages.iter().enumerate() {
            let before = stage.input.get(&nodes).clone();
            let (name, work) = (format!("stage{index}"), stage.work.clone().fit(&before));
            let input = from(&before.name, stage.edge);
            config.stages.push(StageConfig::new(name.clone(), input, work.clone()));
            nodes.push(before.through(name, stage.edge, &work));
        }
        let mut built = Built { config, ways: Vec::new(), far: Vec::new(), files: Vec::new() };
        for (index, plan) in self.sinks.iter().enumerate() {
            built.add_sink(index, plan, plan.input.get(&nodes).clone(), folder);
        }
        built.use_all(&nodes);
        built.config.sources.push(adc);
        if let Some(spare) = self.spare {
            // The fewest that are allowed, and some more.
            let fits = |blocks: &usize| {
                let mut config = built.config.clone();
                config.sources[0].blocks = Some(*blocks);
                config.check().is_ok()
            };
            let least = (1..=1024).find(fits).unwrap();
            built.config.sources[0].blocks = Some(least + spare);
        }
        built
    }

    /// Runs until each sink has enough samples, and then to the end.
    fn run(&self, config: Config, ways: &[Way]) -> Result<(Counters, Vec<(String, usize)>)> {
        let mut pipeline = Pipeline::open(config)?;
        let since = Instant::now();
        loop {
            pipeline.turn_timeout(LOOK)?;
            thread::sleep(Duration::from_millis(self.nap));
            let counters = pipeline.counters();
            let is_late = since.elapsed() > FIRST;
            let mut sinks = counters.sinks.iter().zip(ways);
            let enough = sinks.all(|(it, way)| it.blocks > 0 || (way.may_get_nothing && is_late));
            if counters.sources[0].blocks >= 40 && enough {
                break;
            }
            if since.elapsed() > PATIENCE {
                return Err(stalled(&counters));
            }
        }
        finish(&mut pipeline)
    }
}

trait Fit {
    fn fit(self, before: &Way) -> Self;
}

impl Fit for Work {
    /// Only channels that exist, and not so few samples that the first one takes a minute.
    fn fit(self, before: &Way) -> Self {
        let mut names = match self {
            Self::Select(names) => names,
            Self::Decimate(by) => {
                let most = FEWEST / before.decimated.iter().product::<u64>();
                return Self::Decimate(by.min(u32::try_from(most).unwrap()).max(1));
            }
            work => return work,
        };
        names.retain(|name| before.channels.contains(name));
        if names.is_empty() {
            names.push(before.channels[0].clone());
        }
        Self::Select(names)
    }
}

impl Way {
    fn through(mut self, name: String, edge: EdgePlan, work: &Work) -> Self {
        self.name = name;
        self.drops |= edge.when_full != WhenFull::Block;
        match work {
            Work::Decimate(by) => {
                self.decimated.push(u64::from(*by));
                self.may_get_nothing |= self.drops && *by > 1;
            }
            Work::Select(names) => self.channels.clone_from(names),
            _ => {}
        }
        self
    }
}

impl Built {
    fn add_sink(&mut self, index: usize, plan: &SinkPlan, way: Way, folder: &Path) {
        let to = match &plan.end {
            End::Null => SinkKind::Null,
            End::Verify => verify(&way),
            End::File => {
                let path = folder.join(format!("recording{index}"));
                self.files.push((index, path.clone()));
                SinkKind::Recording(path)
            }
            End::Net(edges, in_parts) => {
                let port = port();
                let config = receiver(port, &way, edges, *in_parts);
                self.far.push((index, thread::spawn(move || run(config))));
                SinkKind::Connect(format!("127.0.0.1:{port}"))
            }
        };
        self.config.sinks.push(SinkConfig::new(
            format!("sink{index}"),
            from(&way.name, plan.edge),
            to,
        ));
        self.ways.push(way);
    }

    /// Gives every node an output.
    fn use_all(&mut self, nodes: &[Way]) {
        for way in nodes {
            let stages = self.config.stages.iter().map(|it| &it.input.from);
            let mut used = stages.chain(self.config.sinks.iter().map(|it| &it.input.from));
            if used.all(|name| *name != way.name) {
                let name = format!("end-{}", way.name);
                self.config.sinks.push(SinkConfig::new(name, Edge::new(&way.name), verify(way)));
                self.ways.push(way.clone());
            }
        }
    }
}

/// A pipeline that receives, with a sink for each of these edges, one sink for all samples and one for every
/// third sample.
fn receiver(port: u16, way: &Way, edges: &[EdgePlan], in_parts: bool) -> Config {
    let input = |edge: &EdgePlan| from("net", *edge);
    let mut sinks: Vec<_> = edges
        .iter()
        .enumerate()
        .map(|(index, edge)| SinkConfig::new(format!("sink{index}"), input(edge), verify(way)))
        .collect();
    let third = StageConfig::new("third", Edge::new("net"), Work::Decimate(THIRD));
    sinks.push(SinkConfig::new("all", Edge::new("net"), verify(way)));
    sinks.push(SinkConfig::new("some", Edge::new("third"), SinkKind::Null));
    let from = if in_parts {
        SourceKind::Receive { device: None, address: ([127, 0, 0, 1], port).into() }
    } else {
        SourceKind::Listen(format!("127.0.0.1:{port}"))
    };
    let net = SourceConfig::new("net", from);
    let mut config = Config::new().drain(PATIENCE).source(net).stage(third);
    config.sinks = sinks;
    config
}

/// Runs a pipeline to the end of all its sources.
fn run(config: Config) -> Result<Counters> {
    to_the_end(Pipeline::open(config)?)
}

fn to_the_end(mut pipeline: Pipeline) -> Result<Counters> {
    let since = Instant::now();
    while pipeline.turn_timeout(LOOK)? != State::Finished {
        if since.elapsed() > 2 * PATIENCE {
            return Err(stalled(&pipeline.counters()));
        }
    }
    Ok(pipeline.counters())
}

fn finish(pipeline: &mut Pipeline) -> Result<(Counters, Vec<(String, usize)>)> {
    pipeline.stop();
    while pipeline.turn_timeout(LOOK)? != State::Finished {}
    Ok((pipeline.counters(), pipeline.remaining()))
}

fn stalled(counters: &Counters) -> Error {
    let why = std::io::Error::new(std::io::ErrorKind::TimedOut, format!("{counters:?}"));
    Error::new("go on with", "a pipeline", why)
}

/// Samples of a source that came or are reported as missing.
fn told_by_source(counters: &Counters) -> u64 {
    counters.sources[0].samples + counters.sources[0].lost
}

fn told(sink: &SinkCounters) -> u64 {
    sink.samples + sink.lost
}

/// Verifies that all samples that came to a pipeline have come out of it.
fn complete(counters: &Counters, ways: &[Way]) -> std::result::Result<(), TestCaseError> {
    prop_assert_eq!(counters.sources[0].unknown, 0);
    for (sink, way) in counters.sinks.iter().zip(ways) {
        prop_assert_eq!(told(sink), way.count(told_by_source(counters)), "{:?}", counters);
        prop_assert_eq!((sink.unknown, sink.failed), (0, 0), "{:?}", sink);
        prop_assert_eq!((sink.waiting, sink.under_way), (0, 0), "{:?}", sink);
        prop_assert_eq!(&sink.state, "finished");
    }
    Ok(())
}

fn recorded(path: &Path, sink: &SinkCounters, way: &Way) -> std::result::Result<(), TestCaseError> {
    let recording = Recording::open(path).unwrap();
    let lost: u64 = recording
        .gaps()
        .iter()
        .map(|gap| match gap.lost {
            Lost::Samples(lost) => lost,
            Lost::Unknown => panic!("{gap:?}"),
        })
        .sum();
    prop_assert_eq!((recording.samples(), lost), (sink.samples, sink.lost));
    let played = play(path, way).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(told_by_source(&played), told(sink), "{:?}", played);
    complete(&played, &[Way { decimated: Vec::new(), ..way.clone() }])
}

/// Reads a recording to its end.
fn play(path: &Path, way: &Way) -> Result<Counters> {
    let source = SourceConfig::new("played", SourceKind::Recording(path.into()));
    let all = SinkConfig::new("all", Edge::new("played"), verify(way));
    run(Config::new().source(source).sink(all))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_time: SHRINK, ..ProptestConfig::default() })]

    #[test]
    fn every_sample_is_delivered_or_told_and_every_block_comes_back(plan in plan()) {
        let folder = TempDir::new().unwrap();
        let built = plan.build(folder.path());
        let (counters, remaining) = plan.run(built.config, &built.ways).map_err(|error| {
            TestCaseError::fail(error.to_string())
        })?;
        prop_assert_eq!(remaining, vec![]);
        complete(&counters, &built.ways)?;
        for (index, path) in built.files {
            recorded(&path, &counters.sinks[index], &built.ways[index])?;
        }
        for (index, far) in built.far {
            let there = far.join().unwrap().map_err(|error| TestCaseError::fail(error.to_string()))?;
            let way = Way { decimated: Vec::new(), ..built.ways[index].clone() };
            let third = Way { decimated: vec![THIRD.into()], ..way.clone() };
            let mut ways = vec![way; there.sinks.len()];
            ways.splice(there.sinks.len() - 1.., [third]);
            complete(&there, &ways)?;
            prop_assert_eq!(there.sources[0].samples, counters.sinks[index].samples);
            prop_assert_eq!(told_by_source(&there), told(&counters.sinks[index]));
        }
    }

    /// The receiver goes at any moment, and another one comes: every sample that was sent is accounted for, and
    /// none is wrong.
    #[test]
    fn receivers_that_go_are_followed_by_others(
        edge in edge(),
        lives in prop::collection::vec((0..60_u64, 0..200_u64, any::<bool>()), 1..=3),
        rate in select(vec![100_000, 2_000_000]),
        in_parts in any::<bool>(),
    ) {
        let port = port();
        let there = receiver(port, &counter(), &[EdgePlan { when_full: WhenFull::Block, queue: 2 }], in_parts);
        let last = Arc::new(AtomicBool::new(false));
        let is_last = Arc::clone(&last);
        let far = thread::spawn(move || {
            for (away, turns, in_order) in lives {
                short_life(&there, turns, in_order)?;
                thread::sleep(Duration::from_millis(away));
            }
            let pipeline = Pipeline::open(there)?;
            is_last.store(true, Ordering::Release);
            to_the_end(pipeline)
        });
        let mut adc = SourceConfig::new("adc", SourceKind::Device(format!("synth:counter?rate={rate}")));
        adc.block_len = 1600;
        let net = SinkConfig::new("net", from("adc", edge), SinkKind::Connect(format!("127.0.0.1:{port}")));
        let beside = SinkConfig::new("beside", Edge::new("adc"), SinkKind::Verify { counter: true });
        let config = Config::new().drain(Some(PATIENCE)).source(adc).sink(net).sink(beside);
        let mut pipeline = Pipeline::open(config).unwrap();
        let since = Instant::now();
        while !last.load(Ordering::Acquire) {
            pipeline.turn_timeout(LOOK).unwrap();
            prop_assert!(since.elapsed() < PATIENCE, "{:?}", pipeline.counters());
        }
        let (counters, remaining) = finish(&mut pipeline).map_err(|error| {
            TestCaseError::fail(error.to_string())
        })?;
        prop_assert_eq!(remaining, vec![]);
        for sink in &counters.sinks {
            prop_assert_eq!((told(sink), sink.unknown), (told_by_source(&counters), 0), "{:?}", sink);
        }
        let there = far.join().unwrap().unwrap();
        let verified = &there.sinks[..2];
        prop_assert!(verified.iter().all(|it| it.verified == it.samples), "{:?}", there);
    }
}

/// Runs so many turns of a pipeline; then drops it, or stops it first.
fn short_life(config: &Config, turns: u64, in_order: bool) -> Result<()> {
    let mut pipeline = Pipeline::open(config.clone())?;
    for _ in 0..turns {
        if pipeline.turn_timeout(LOOK)? == State::Finished {
            return Ok(());
        }
    }
    if in_order { finish(&mut pipeline).map(|_| ()) } else { Ok(()) }
}

/// The configuration of a pipeline that sends to `port`, in blocks of so many bytes.
fn sending(port: u16, synth: &str, block_len: usize) -> Config {
    let mut adc = SourceConfig::new("adc", SourceKind::Device(synth.into()));
    adc.block_len = block_len;
    let net =
        SinkConfig::new("net", Edge::new("adc"), SinkKind::Connect(format!("127.0.0.1:{port}")));
    let drain = Some(PATIENCE);
    Config::new().drain(drain).source(adc).sink(net)
}

fn sender(port: u16, synth: &str) -> Pipeline {
    Pipeline::open(sending(port, synth, 1600)).unwrap()
}

/// Turns both until `done`.
fn both(
    here: &mut Pipeline,
    there: &mut Pipeline,
    done: impl Fn(&Counters) -> bool,
) -> Result<State> {
    let since = Instant::now();
    loop {
        here.try_turn()?;
        let state = there.turn_timeout(Duration::from_millis(1))?;
        if state == State::Finished || done(&there.counters()) {
            return Ok(state);
        }
        assert!(since.elapsed() < PATIENCE, "{:?} {:?}", here.counters(), there.counters());
    }
}

fn counter() -> Way {
    Way { channels: CHANNELS.map(Into::into).into(), ..Way::default() }
}

#[test]
fn a_sender_that_goes_is_followed_by_another_and_that_is_told() {
    let port = port();
    let mut there = Pipeline::open(receiver(port, &counter(), &[], false)).unwrap();
    for round in 1..=3 {
        let mut here = sender(port, "synth:counter?rate=1M");
        let before = there.counters().sources[0].blocks;
        both(&mut here, &mut there, |it| it.sources[0].blocks > before + 20).unwrap();
        if round == 3 {
            here.stop();
            while both(&mut here, &mut there, |_| false).unwrap() != State::Finished {}
        }
    }
    let counters = there.counters();
    let (source, sink) = (&counters.sources[0], &counters.sinks[0]);
    assert_eq!((source.unknown, sink.unknown), (2, 2), "{counters:?}");
    assert_eq!((sink.verified, source.reconnects), (source.samples, 2), "{counters:?}");
}

/// Accepts connections and never reads from them.
fn deaf() -> (TcpListener, SinkKind) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = SinkKind::Connect(listener.local_addr().unwrap().to_string());
    (listener, to)
}

#[test]
fn what_waits_behind_an_edge_that_drops_starves_nobody_else() {
    let (_deaf, to) = deaf();
    let mut adc = SourceConfig::new("adc", SourceKind::Device("synth:counter".into()));
    adc.block_len = 800;
    let dropping = EdgePlan { queue: 1, when_full: WhenFull::DropNewest };
    let sum = StageConfig::new("sum", from("adc", dropping), Work::Checksum);
    let behind = EdgePlan { queue: 8, when_full: WhenFull::Block };
    let mut config = Config::new()
        .source(adc)
        .stage(sum)
        .sink(SinkConfig::new("deaf", from("sum", behind), to))
        .sink(SinkConfig::new("all", Edge::new("adc"), SinkKind::Verify { counter: true }));
    config.sources[0].blocks = Some(9);
    let error = config.check().unwrap_err().to_string();
    assert!(error.contains("10 or more"), "{error}");
    config.sources[0].blocks = Some(10);
    let mut pipeline = Pipeline::open(config).unwrap();
    let since = Instant::now();
    while pipeline.counters().sinks[1].blocks < 500 {
        pipeline.turn_timeout(LOOK).unwrap();
        assert!(since.elapsed() < PATIENCE, "{:?}", pipeline.counters());
    }
}

/// The error of a sender, and the result of its receiver with this source and sink.
fn end_of(port: u16, count: Option<u64>, to: SinkKind) -> (String, Result<Counters>) {
    let mut net = SourceConfig::new("net", SourceKind::Listen(format!("127.0.0.1:{port}")));
    net.count = count;
    let config = Config::new().source(net).sink(SinkConfig::new("all", Edge::new("net"), to));
    let receiver = thread::spawn(move || run(config));
    // The receiver may not listen yet: then the sender tries again.
    let here = sending(port, "synth:counter?rate=1M", 4096).fail_fast(true);
    let said = run(here).unwrap_err().to_string();
    (said, receiver.join().unwrap())
}

#[test]
fn a_count_ends_a_source_and_whoever_sends_hears_of_it() {
    let (said, counters) = end_of(port(), Some(1000), SinkKind::Verify { counter: true });
    assert!(said.contains("takes no more"), "{said}");
    // The count is rounded up to the end of a block.
    assert_eq!(counters.unwrap().sinks[0].verified, 1024);
}

#[test]
fn a_pipeline_that_is_polled_is_readable_whenever_it_has_something_to_do() {
    // A block in 256 us, and nodes behind another source that make a turn long without having anything to do.
    let source =
        |name: &str, synth: &str| SourceConfig::new(name, SourceKind::Device(synth.into()));
    let adc = source("adc", "synth:counter?rate=1M").block_len(2048);
    let idle = source("idle", "synth:counter?rate=1").blocks(1);
    let all = SinkConfig::new("all", Edge::new("adc"), SinkKind::Verify { counter: true });
    let mut config = Config::new().source(adc).source(idle).sink(all);
    for n in 0..60 {
        let stage = StageConfig::new(format!("s{n}"), Edge::new("idle"), Work::Decimate(2));
        let sink = SinkConfig::new(format!("n{n}"), Edge::new(format!("s{n}")), SinkKind::Null);
        config = config.stage(stage).sink(sink);
    }
    let mut pipeline = Pipeline::open(config).unwrap();
    let (poller, mut events) = (Poller::new().unwrap(), Events::new(1).unwrap());
    poller.add(&pipeline, 1, Interest::READABLE).unwrap();
    for turn in 0..2_000 {
        pipeline.try_turn().unwrap();
        // A turn that mostly finds nothing. Sooner or later a block comes at each step of it.
        let late = Instant::now() + Duration::from_nanos(turn * 997 % 256_000);
        while Instant::now() < late {}
        pipeline.try_turn().unwrap();
        let ready = poller.wait_timeout(&mut events, Duration::from_secs(10)).unwrap();
        assert_eq!(ready, 1, "turn {turn}: {:?}", pipeline.counters().sources[0]);
    }
    assert!(pipeline.counters().sinks[0].verified > 0);
}

#[test]
fn a_failure_ends_it_and_whoever_sends_hears_why() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("there");
    std::fs::write(path.with_extension("sigmf-data"), "").unwrap();
    let (said, result) = end_of(port(), None, SinkKind::Recording(path));
    for text in [said, result.unwrap_err().to_string()] {
        assert!(text.contains("never overwritten"), "{text}");
    }
}

#[test]
fn a_failure_keeps_no_turn_beyond_its_time_while_the_sender_is_told() {
    let (folder, port) = (TempDir::new().unwrap(), port());
    let path = folder.path().join("there");
    std::fs::write(path.with_extension("sigmf-data"), "").unwrap();
    let net = SourceConfig::new("net", SourceKind::Listen(format!("127.0.0.1:{port}")));
    let all = SinkConfig::new("all", Edge::new("net"), SinkKind::Recording(path));
    let config = Config::new().source(net).sink(all);
    let mut there = Pipeline::open(config).unwrap();
    let mut here = sender(port, "synth:counter?rate=1M");
    let (since, mut is_told) = (Instant::now(), false);
    let error = loop {
        assert!(since.elapsed() < PATIENCE, "{:?}", there.counters());
        // The sender does not read when it is refused.
        if !is_told {
            here.try_turn().unwrap();
        }
        match there.try_turn() {
            Ok(state) => is_told |= state == State::Draining,
            Err(error) => break error,
        }
    };
    assert!(is_told);
    assert!(error.to_string().contains("never overwritten"), "{error}");
    assert_eq!(there.turn_timeout(LOOK).unwrap(), State::Finished);
}

#[test]
fn a_sender_whose_last_block_is_the_last_that_is_wanted_has_succeeded() {
    for has_more in [false, true] {
        let port = port();
        let listen = SourceKind::Listen(format!("127.0.0.1:{port}"));
        let net = SourceConfig::new("net", listen).count(1024);
        let all = SinkConfig::new("all", Edge::new("net"), SinkKind::Verify { counter: true });
        let config = Config::new().source(net).sink(all);
        let mut there = Pipeline::open(config).unwrap();
        let setup = StreamSetup::new().block_len(4096);
        let source = Source::open("synth:counter", &setup).unwrap();
        let target = format!("127.0.0.1:{port}");
        let mut here =
            FrameSender::open(&target, source.format(), source.block_len(), &Options::default())
                .unwrap();
        let block = || source.next().unwrap();
        here.push(block()).unwrap();
        here.push(block()).unwrap();
        // The receiver has enough before the sender ends the stream.
        while there.turn_timeout(LOOK).unwrap() != State::Finished {
            here.advance().unwrap();
        }
        assert_eq!(there.counters().sinks[0].verified, 1024);
        while here.unacknowledged() > 0 {
            here.advance().unwrap();
        }
        if has_more {
            let error = here.push(block()).unwrap_err();
            assert!(error.to_string().contains("takes no more"), "{error}");
        } else {
            here.finish(Lost::Samples(0));
            assert!(here.wait_timeout(PATIENCE).unwrap());
        }
    }
}

/// Sends blocks of `channels` until they are taken over, or the error.
fn send_to(port: u16, channels: &[&str], block_len: usize) -> JoinHandle<Result<()>> {
    let setup = StreamSetup::new().block_len(block_len).channels(channels.iter().copied());
    thread::spawn(move || {
        let source = Source::open("synth:counter", &setup)?;
        let target = format!("127.0.0.1:{port}");
        let options = Options::new().patience(PATIENCE);
        let mut sender = FrameSender::open(&target, source.format(), source.block_len(), &options)?;
        sender.push(source.next()?)?;
        sender.finish(Lost::Samples(0));
        assert!(sender.wait_timeout(PATIENCE)?, "not within a minute");
        Ok(())
    })
}

/// What becomes of a sender while the pipeline runs.
fn becomes(pipeline: &mut Pipeline, sender: JoinHandle<Result<()>>) -> Result<()> {
    while !sender.is_finished() {
        pipeline.turn_timeout(LOOK).unwrap();
    }
    sender.join().unwrap()
}

#[test]
fn a_sender_whose_samples_nobody_takes_is_refused_and_ends_nothing_else() {
    let folder = TempDir::new().unwrap();
    let select = |name: &str| Work::Select(vec![name.into()]);
    let sink = |from: &str, to| SinkConfig::new("to", Edge::new(from), to);
    let counter = || SinkKind::Verify { counter: true };
    let stage = |work| Some(StageConfig::new("some", Edge::new("net"), work));
    let (all, len): (&[&str], _) = (&CHANNELS, 4096);
    let cases = [
        (stage(select("voltage1_q")), sink("some", SinkKind::Null), &CHANNELS[..1], len),
        (None, sink("net", counter()), &CHANNELS[1..2], len),
        (
            None,
            sink("net", SinkKind::Recording(folder.path().join("it"))),
            &["voltage0_i", "count0"][..],
            len,
        ),
        // Ten blocks come from the network, and six are the stage's.
        (stage(Work::Decimate(2)), sink("some", SinkKind::Null), all, 1 << 20),
    ];
    for (stage, sink, channels, block_len) in cases {
        let port = port();
        let listen = SourceKind::Listen(format!("127.0.0.1:{port}"));
        let net = SourceConfig::new("net", listen).memory_limit(15 << 20);
        let other = SourceConfig::new("other", SourceKind::Device("synth:counter?rate=1M".into()));
        let mut config = Config::new().drain(PATIENCE).source(net).source(other);
        config.stages.extend(stage);
        let right = SinkConfig::new("right", Edge::new("other"), counter());
        // It would take them, if it did not stand beside another sink.
        let null = SinkConfig::new("null", Edge::new("net"), SinkKind::Null);
        config.sinks = vec![null, sink, right];
        let mut pipeline = Pipeline::open(config).unwrap();
        let error = becomes(&mut pipeline, send_to(port, channels, block_len)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
        let events = pipeline.take_events();
        let told = events.iter().any(|it| it.node == "net" && it.what == "trouble");
        assert!(told, "{events:?}");
        let verified = pipeline.counters().sinks[2].verified;
        // The next sender is the first one, of whatever shape.
        becomes(&mut pipeline, send_to(port, &CHANNELS, 8000)).unwrap();
        while pipeline.counters().sinks[2].verified == verified {
            pipeline.turn_timeout(LOOK).unwrap();
        }
        let (counters, _) = finish(&mut pipeline).unwrap();
        assert_eq!(counters.sources[0].samples, 1000);
        assert_eq!(counters.sinks[0].samples, 1000);
    }
}

#[test]
fn no_time_limit_is_too_long() {
    let from = SourceKind::Device("synth:counter?rate=1M".into());
    let source = SourceConfig::new("from", from).count(10_000).patience(Duration::MAX);
    let sink = SinkConfig::new("to", Edge::new("from"), SinkKind::Null).patience(Duration::MAX);
    let config = Config::new().drain(Duration::MAX).source(source).sink(sink);
    let mut pipeline = Pipeline::open(config).unwrap();
    pipeline.turn_timeout(Duration::ZERO).unwrap();
    pipeline.stop();
    finish(&mut pipeline).unwrap();
}

#[test]
fn a_sender_that_comes_back_with_other_samples_is_refused() {
    let port = port();
    let listen = SourceKind::Listen(format!("127.0.0.1:{port}"));
    let net = SourceConfig::new("net", listen).patience(Duration::from_millis(100));
    let sink = SinkConfig::new("to", Edge::new("net"), SinkKind::Null);
    let mut pipeline = Pipeline::open(Config::new().source(net).sink(sink)).unwrap();
    let setup = StreamSetup::new().block_len(8000);
    let source = Source::open("synth:counter", &setup).unwrap();
    let target = format!("127.0.0.1:{port}");
    let mut sender = FrameSender::open(&target, source.format(), 8000, &Options::new()).unwrap();
    sender.push(source.next().unwrap()).unwrap();
    while sender.unacknowledged() > 0 {
        sender.advance().unwrap();
        pipeline.turn_timeout(LOOK).unwrap();
    }
    drop(sender);
    while pipeline.counters().sources[0].restarts == 0 {
        pipeline.turn_timeout(LOOK).unwrap();
    }
    let error = becomes(&mut pipeline, send_to(port, &CHANNELS[..1], 8000)).unwrap_err();
    assert!(error.to_string().contains("another format than before"), "{error}");
    becomes(&mut pipeline, send_to(port, &CHANNELS, 8000)).unwrap();
    assert_eq!(finish(&mut pipeline).unwrap().0.sinks[0].samples, 2000);
}

/// Accepts connections and answers nothing. What was accepted stays open.
fn mute() -> (String, std::sync::mpsc::Receiver<std::net::TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let (tell, accepted) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            if tell.send(socket.unwrap()).is_err() {
                return;
            }
        }
    });
    (format!("iio:adc@ip:{host}"), accepted)
}

#[test]
fn an_end_that_does_not_answer_holds_up_nothing_else() {
    for is_source in [true, false] {
        let (name, accepted) = mute();
        let near = SourceConfig::new("near", SourceKind::Device("synth:counter".into()));
        let check = SinkConfig::new("check", Edge::new("near"), SinkKind::Verify { counter: true });
        let mut config = Config::new().source(near.block_len(800)).sink(check);
        let mut dropping = Edge::new("near");
        dropping.when_full = WhenFull::DropNewest;
        config = if is_source {
            let far = SourceConfig::new("far", SourceKind::Device(name));
            config.source(far).sink(SinkConfig::new("away", Edge::new("far"), SinkKind::Null))
        } else {
            config.sink(SinkConfig::new("away", dropping, SinkKind::Device(name)))
        };
        let mut pipeline = Pipeline::open(config).unwrap();
        let since = Instant::now();
        let mut socket = None;
        while socket.is_none() {
            pipeline.turn_timeout(LOOK).unwrap();
            socket = accepted.try_recv().ok();
            assert!(since.elapsed() < PATIENCE);
        }
        // It is being opened, and the other end goes on.
        let enough = pipeline.counters().sinks[0].blocks + 500;
        while pipeline.counters().sinks[0].blocks < enough {
            pipeline.turn_timeout(LOOK).unwrap();
        }
        let counters = pipeline.counters();
        let state = if is_source { &counters.sources[1].state } else { &counters.sinks[1].state };
        assert!(["down", "new"].contains(&state.as_str()), "{counters:?}");
        if is_source {
            // Nor does the end wait for it.
            let (counters, remaining) = finish(&mut pipeline).unwrap();
            assert_eq!((counters.sources[1].state.as_str(), remaining), ("ended", vec![]));
            assert!(accepted.try_recv().is_err());
        }
    }
}

#[test]
fn a_source_that_cannot_be_opened_at_the_start_ends_the_pipeline() {
    let (name, accepted) = mute();
    // From now on, it closes each connection.
    thread::spawn(move || accepted.into_iter().for_each(drop));
    let far = SourceConfig::new("far", SourceKind::Device(name));
    let sink = SinkConfig::new("away", Edge::new("far"), SinkKind::Null);
    let mut pipeline = Pipeline::open(Config::new().source(far).sink(sink)).unwrap();
    let since = Instant::now();
    let error = loop {
        match pipeline.turn_timeout(LOOK) {
            Ok(_) => assert!(since.elapsed() < PATIENCE),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("the IIO server"), "{error}");
}

#[test]
fn a_server_that_falls_silent_is_reported_and_opened_again() {
    use busbar::stream::iiod::{Server, ServerSetup};

    let setup = ServerSetup::new().listen("127.0.0.1:0").devices(["adc=synth:counter?rate=1M"]);
    let mut server = Server::open(&setup).unwrap();
    let port = server.address().port();
    let name = format!("iio:adc@ip:127.0.0.1:{port}?silence=100ms");
    let far = SourceConfig::new("far", SourceKind::Device(name)).block_len(800);
    let sink = SinkConfig::new("away", Edge::new("far"), SinkKind::Null);
    let mut pipeline = Pipeline::open(Config::new().source(far).sink(sink)).unwrap();
    let since = Instant::now();
    let mut until = |serves: bool, done: &dyn Fn(&Pipeline) -> bool| {
        while !done(&pipeline) {
            if serves {
                server.turn_timeout(Duration::ZERO).unwrap();
            }
            pipeline.turn_timeout(Duration::from_millis(1)).unwrap();
            assert!(since.elapsed() < PATIENCE, "{:?}", pipeline.counters());
        }
        pipeline.take_events()
    };
    until(true, &|it| it.counters().sinks[0].blocks > 0);
    let events = until(false, &|it| it.counters().sources[0].state == "down");
    assert!(
        events.iter().any(|it| it.what == "trouble" && it.text.contains("silent")),
        "{events:?}"
    );
    until(true, &|it| it.counters().sources[0].restarts > 0);
}

#[test]
fn a_sender_waits_for_a_sink_that_does_not_answer_and_nobody_else_does() {
    let ((name, accepted), port) = (mute(), port());
    let near = SourceConfig::new("near", SourceKind::Device("synth:counter".into()));
    let net = SourceConfig::new("net", SourceKind::Listen(format!("127.0.0.1:{port}")));
    let config = Config::new()
        .source(near.block_len(800))
        .source(net)
        .sink(SinkConfig::new("check", Edge::new("near"), SinkKind::Verify { counter: true }))
        .sink(SinkConfig::new("away", Edge::new("net"), SinkKind::Device(name)));
    let mut pipeline = Pipeline::open(config).unwrap();
    let source = Source::open("synth:counter", &StreamSetup::new().block_len(8000)).unwrap();
    let target = format!("127.0.0.1:{port}");
    let mut sender = FrameSender::open(&target, source.format(), 8000, &Options::new()).unwrap();
    sender.push(source.next().unwrap()).unwrap();
    let since = Instant::now();
    let mut turn = || {
        sender.advance().unwrap();
        pipeline.turn_timeout(LOOK).unwrap();
        assert!(since.elapsed() < PATIENCE);
        pipeline.counters()
    };
    let socket = loop {
        turn();
        if let Ok(socket) = accepted.try_recv() {
            break socket;
        }
    };
    let enough = turn().sinks[0].blocks + 500;
    let counters = loop {
        let counters = turn();
        if counters.sinks[0].blocks >= enough {
            break counters;
        }
    };
    assert_eq!((counters.sources[1].blocks, counters.sinks[1].state.as_str()), (0, "new"));
    drop(socket);
}

#[test]
fn an_option_of_a_name_is_checked_before_anything_is_opened() {
    for (name, is_source) in [
        ("iio:adc@ip:host?silence=5s", true),
        ("tcp-listen:4950?silence=5s", true),
        ("iio:dac@ip:host:1?silence=2min", false),
        ("tcp:host:4950?silence=3500ms", false),
    ] {
        let parse = |name: &str| {
            if is_source {
                name.parse::<SourceKind>().map(drop)
            } else {
                name.parse::<SinkKind>().map(drop)
            }
        };
        parse(name).unwrap();
        for wrong in [
            name.replace("silence", "silent"),
            name.replace("silence=", "silence"),
            format!("{name}x"),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
    }
}

#[test]
fn no_time_for_the_end_is_too_long() {
    let adc = SourceConfig::new("adc", SourceKind::Device("synth:counter".into()));
    let sink = SinkConfig::new("to", Edge::new("adc"), SinkKind::Null);
    let config = Config::new().drain(Duration::MAX).source(adc).sink(sink);
    finish(&mut Pipeline::open(config).unwrap()).unwrap();
}
