"""Pipelines."""

import dataclasses

import busbar
import pytest

TEXT = """
source.adc = { from = "synth:counter?rate=1M", count = 100000 }
stage.tenth = { input = "adc", do = "decimate", by = 10 }
sink.check = { input = "adc", to = "verify:counter" }
sink.some = { input = "tenth", to = "null:" }
"""

TABLES = {
    "source": {"adc": {"from": "synth:counter?rate=1M", "count": 100_000}},
    "stage": {"tenth": {"input": "adc", "do": "decimate", "by": 10}},
    "sink": {
        "check": {"input": "adc", "to": "verify:counter"},
        "some": {"input": "tenth", "to": "null:"},
    },
}


def check(pipeline):
    counters = pipeline.counters
    assert counters.sources[0].name == "adc" and counters.sources[0].samples >= 100_000
    by_name = {sink.name: sink for sink in counters.sinks}
    assert by_name["check"].verified == counters.sources[0].samples
    assert by_name["check"].state == "finished" and by_name["check"].lost == 0
    assert counters.stages[0].samples == by_name["some"].samples
    with pytest.raises(dataclasses.FrozenInstanceError):
        counters.copied = 0


def test_text_file_and_dict_are_the_same(tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text(TEXT)
    for pipeline in (busbar.Pipeline(TEXT), busbar.Pipeline(TABLES), busbar.Pipeline.open(file)):
        with pipeline:
            pipeline.run()
            check(pipeline)
            assert pipeline.turn() == "finished" and pipeline.remaining == {}
            assert all(isinstance(event, busbar.Event) for event in pipeline.take_events())


def test_it_stops_after_a_time_and_delivers_what_is_under_way():
    with busbar.Pipeline({**TABLES, "source": {"adc": {"from": "synth:counter?rate=1M"}}}) as pipeline:
        pipeline.run(0.3)
        assert pipeline.counters.sinks[0].verified == pipeline.counters.sources[0].samples > 0


def test_turns_by_hand():
    with busbar.Pipeline(TEXT) as pipeline:
        states = {pipeline.turn(0.01)}
        while (state := pipeline.turn()) != "finished":
            states.add(state)
        assert "running" in states
        check(pipeline)


async def test_it_runs_in_an_event_loop():
    with busbar.Pipeline(TEXT) as pipeline:
        await pipeline.run_async()
        check(pipeline)


def test_nodes_of_a_dict_keep_their_order():
    names = ["zeta", "alpha", "0", "mid"]
    with busbar.Pipeline(
        {
            "source": {"z": {"from": "synth:counter?rate=1"}, "a": {"from": "synth:counter?rate=1"}},
            "sink": {name: {"input": "z", "to": "null:"} for name in names} | {"last": {"input": "a", "to": "null:"}},
        }
    ) as pipeline:
        counters = pipeline.counters
        assert [source.name for source in counters.sources] == ["z", "a"]
        assert [sink.name for sink in counters.sinks] == [*names, "last"]


def test_errors_of_a_dict_name_the_key_alone():
    for name in ("pipeline", "mine, line 3"):
        with pytest.raises(ValueError) as raised:
            busbar.Pipeline({"source": {"adc": {"from": "sunth:x"}}}, name=name)
        assert str(raised.value).startswith(f"{name}, key `source.adc.from`: `sunth:x` is not allowed; ")
    with pytest.raises(ValueError, match='key `source.q"'):
        busbar.Pipeline({"source": {'q"\\\n\x7f\u00e4': {"from": "synth:counter"}}})
    for config in ({"source": {1: {"from": "synth:counter"}}}, {1: {}}, {"source": float("nan")}):
        with pytest.raises(ValueError, match="^config: "):
            busbar.Pipeline(config)


def test_errors_name_the_line_and_the_key(tmp_path):
    with pytest.raises(ValueError, match="line 2, key `source.adc.from`: `sunth:x` is not allowed"):
        busbar.Pipeline('\nsource.adc = { from = "sunth:x" }')
    with pytest.raises(ValueError, match="source.adc.count"):
        busbar.Pipeline({"source": {"adc": {"from": "synth:sine", "count": -1}}})
    with pytest.raises(ValueError, match="config"):
        busbar.Pipeline({"source": None})
    with pytest.raises(FileNotFoundError):
        busbar.Pipeline.open(tmp_path / "none.toml")
    pipeline = busbar.Pipeline(TEXT)
    pipeline.close()
    with pytest.raises(ValueError, match="the pipeline is closed"):
        pipeline.turn()
