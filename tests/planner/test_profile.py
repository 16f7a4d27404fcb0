"""Profiles: format, built-in networks, model descriptions."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import msgspec
import pytest

from horovod.planner import __main__ as program
from horovod.planner import network, profile, units
from horovod.planner.profile import RecordedRank, RecordedStep, profile_of_recording
from tests.documents import ROOT


@pytest.mark.parametrize(
    ("name", "tensors", "parameters", "gflop"),
    [
        ("inception3", 190, 23_819_401, 11.43),
        ("resnet50", 161, 25_559_081, 7.72),
        ("resnet101", 314, 44_551_209, 15.14),
        ("vgg16", 32, 138_361_641, 30.94),
    ],
)
def test_built_in_profiles_have_the_sizes_of_the_tensorflow_benchmark(
    name: str, tensors: int, parameters: int, gflop: float
) -> None:
    found = profile.load(name)
    assert len(found.gradients) == tensors
    assert sum(g.elements for g in found.gradients) == parameters
    assert found.gradients[-1].ready == pytest.approx(found.seconds.backward)
    generator = runpy.run_path(str(ROOT / "tools/planner_profiles.py"))
    flops = sum(layer.flops for layer in generator["NETWORKS"][name][1].layers)
    assert flops / 1e9 == pytest.approx(gflop, rel=0.01)


def test_built_in_profiles_match_the_generator(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "tools/planner_profiles.py"))["main"](tmp_path)
    written = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    folder = Path(profile.__file__).with_name("profiles")
    assert written == {name: (folder / f"{name}.json").read_text() for name in profile.built_in()}


def test_profiles_can_be_saved_and_loaded(tmp_path: Path) -> None:
    vgg = profile.load("vgg16")
    profile.save(vgg, tmp_path / "copy.json")
    assert profile.load(tmp_path / "copy.json") == vgg


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "`format` must be 1, got 2"),
        ({"device": "tpu"}, "`device` must be cpu or gpu, got 'tpu'"),
        ({"batch": 0}, "`batch` must be at least 1, got 0"),
        ({"unknown": 1}, "unknown field `unknown`"),
        ({"gradients": [{"name": "w", "elements": 1, "dtype": "complex64", "ready": 0.0}]}, "`dtype` of 'w' must be"),
        ({"gradients": [{"name": "w", "elements": 1, "dtype": "float32", "ready": 9.0}]}, "`ready` of 'w' must be"),
    ],
)
def test_an_invalid_profile_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**msgspec.to_builtins(profile.load("vgg16")), **change}))
    with pytest.raises(ValueError, match="is not a profile") as caught:
        profile.load(path)
    assert message in str(caught.value)


def test_describe_writes_the_profile_of_a_model(tmp_path: Path) -> None:
    layers = [profile.Layer("a", {"w": 100, "b": 10}, 3e6), profile.Layer("b", {"w": 50}, 1e6)]
    path = tmp_path / "model.json"
    path.write_bytes(msgspec.json.encode(profile.Model("two layers", layers)))
    argv = ["describe", str(path), "--throughput", "64", "--batch", "32", "-o", str(tmp_path / "profile.json")]
    assert program.main(argv) == 0
    found = profile.load(tmp_path / "profile.json")
    assert found.seconds.step == pytest.approx(0.5)
    assert [(g.name, g.elements) for g in found.gradients] == [("b.w", 50), ("a.w", 100), ("a.b", 10)]
    assert found.gradients[0].ready == pytest.approx(found.seconds.backward / 4)


def test_units_are_parsed_and_shown() -> None:
    assert units.parse_bandwidth("25Gbit") == 25e9 / 8
    assert units.parse_bandwidth("100 Mbit/s") == 100e6 / 8
    assert units.parse_bandwidth("80GB/s") == 80e9
    assert units.parse_bandwidth("1GiB/s") == 2**30
    assert units.parse_time("10us") == pytest.approx(1e-5)
    assert units.parse_bytes("64MiB") == 64 << 20
    assert units.parse_bytes("0") == 0
    assert (units.show_bandwidth(25e9 / 8), units.show_time(0.573), units.show_bytes(553.4e6)) == (
        "25 Gbit/s",
        "573 ms",
        "553 MB",
    )


@pytest.mark.parametrize("text", ["25", "Gbit", "25 Gx", "0Gbit", "-1Gbit"])
def test_a_bandwidth_needs_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match="bandwidth must be"):
        units.parse_bandwidth(text)


def test_networks_can_be_saved_and_loaded(tmp_path: Path) -> None:
    net = network.assumed("gpu", 1e9)
    network.save(net, tmp_path / "net.json")
    assert network.load(tmp_path / "net.json") == net
    (tmp_path / "net.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(net, efficiency=0.0)))
    with pytest.raises(ValueError, match="`efficiency` must be above 0"):
        network.load(tmp_path / "net.json")


# Profiles from recorded steps.

NAMES = [("a", 10, "float32"), ("b", 20, "float32"), ("unused", 5, "float32")]


def rank(*factors: float) -> RecordedRank:
    steps = [RecordedStep(0.1 * f, 0.2 * f, 0.4 * f, 0.1 * f, {0: 0.4 * f, 1: 0.1 * f}) for f in factors]
    return RecordedRank("model", "cpu", 8, NAMES, steps)


def test_gradients_follow_readiness_without_unused_ones() -> None:
    found = profile_of_recording([rank(1.0, 1.0, 1.0)])
    assert [(g.name, g.ready) for g in found.gradients] == [("b", 0.1), ("a", 0.4)]
    assert (found.variation.steps, found.variation.ranks) == (0, 0)
    assert found.seconds.step == pytest.approx(0.8)


def test_one_slow_step_changes_only_the_variation() -> None:
    found = profile_of_recording([rank(1.0, 1.0, 1.0, 1.0, 3.0)])
    assert (found.seconds.forward, found.seconds.backward) == (0.2, 0.4)
    assert found.seconds.data == pytest.approx(0.14)
    assert found.variation.steps == pytest.approx(0.8 / 1.4)


def test_lasting_rank_differences_are_not_step_variation() -> None:
    found = profile_of_recording([rank(1.0, 1.0), rank(3.0, 3.0)])
    assert found.workers == 2
    assert found.seconds.forward == pytest.approx(0.4)
    assert (found.variation.steps, found.variation.ranks) == (0, pytest.approx(0.5))


def test_comparison_needs_records() -> None:
    with pytest.raises(ValueError, match="at least one recorded step on every rank"):
        profile_of_recording([rank(1.0), rank()])
    nothing = RecordedRank("model", "cpu", 8, NAMES, [RecordedStep(0.1, 0.1, 0.1, 0.1, {})])
    with pytest.raises(ValueError, match="no gradient was seen"):
        profile_of_recording([nothing])
