use std::time::Duration;

use super::*;
use crate::bulk::Transport;

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
    assert_eq!(to("iiod:").unwrap(), SinkKind::Iiod("30431".into()));
    assert_eq!(to("iiod:[::1]:5000").unwrap(), SinkKind::Iiod("[::1]:5000".into()));
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
    assert!(fault(|it| it.sinks[0].input.queue = Some(0)).contains("`sink.c.queue`"));
}

#[test]
fn edges_that_drop_leave_blocks_for_the_others() {
    let full = |it: &mut Config, blocks| {
        it.sources[0].blocks = blocks;
        it.sinks[1].input =
            Edge { queue: Some(8), when_full: WhenFull::DropOldest, ..Edge::new("a") };
    };
    assert!(fault(|it| full(it, Some(8))).contains("9 or more"));
    let mut enough = config();
    full(&mut enough, Some(9));
    enough.check().unwrap();
    full(&mut enough, None);
    assert_eq!(enough.blocks(&enough.sources[0]), 2 + 8 + 8 + 8);
    enough.sources[0].block_len = 1 << 20;
    assert_eq!(enough.blocks(&enough.sources[0]), 2 + 4 + 4 + 8);
    // What drops has the newest: no more by default, however short they are.
    (enough.sources[0].block_len, enough.sinks[1].input.queue) = (4096, None);
    assert_eq!(enough.blocks(&enough.sources[0]), 2 + 32 + 32 + 4);
}

#[test]
fn controls_know_their_sources() {
    let control = |sources: &[&str]| ControlConfig {
        name: "core".into(),
        endpoint: "control".into(),
        sources: sources.iter().map(ToString::to_string).collect(),
        sinks: Vec::new(),
        deadline: Duration::from_millis(1),
        on: Vec::new(),
    };
    assert!(fault(|it| it.controls = vec![control(&["b"])]).contains("names of sources"));
    let two = |it: &mut Config| {
        it.controls = vec![control(&["a"]), ControlConfig { name: "e".into(), ..control(&["a"]) }];
    };
    assert!(fault(two).contains("each source in one control"));
    let gate = |it: &mut Config| it.stages[0].work = Work::Gate(Gate::default());
    assert!(fault(gate).contains("the name of a control"));
}
