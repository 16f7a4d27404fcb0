"""The planner's program: predictions as table, JSON and plot, and what it says of them."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import msgspec
import pytest

from horovod.planner import __main__ as program
from horovod.planner import network, predict, profile
from horovod.planner.network import Layout
from horovod.planner.simulate import Settings

WORDS = ["vgg16", "--nodes", "16", "--gpus-per-node", "4", "--bandwidth", "25Gbit", "--latency", "10us"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert program.main(argv) == 0
    return capsys.readouterr().out


def test_a_prediction_names_the_limit_and_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, *WORDS, "--price", "2.5")
    for part in ("bandwidth-bound: ceiling", "exposed communication", "bandwidth x2 (50 Gbit/s)", "local steps H = 8"):
        assert part in text
    assert "Cost/epoch" in text
    assert "the network is not calibrated" in text


def test_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(run(capsys, *WORDS, "--json", "--price", "2.5"))
    assert sum(found["breakdown_seconds"].values()) == pytest.approx(found["step_seconds"])
    assert found["efficiency"] == pytest.approx(found["single_worker_step_seconds"] / found["step_seconds"])
    assert found["samples_per_second"] == pytest.approx(64 * 64 / found["step_seconds"])
    assert found["cost_per_hour"] == 64 * 2.5
    assert found["cost_per_epoch"] == pytest.approx(found["cost_per_hour"] / found["epochs_per_hour"])
    assert found["efficiency"] <= found["ceilings"]["bandwidth"]
    assert set(found["changes"]) == {
        "bandwidth x2 (50 Gbit/s)",
        "batch x2 (128)",
        "compression fp16",
        "algorithm hierarchical",
        "local steps H = 8",
    }


def test_predictions_for_thousands_of_workers_take_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    argv = ["inception3", "--nodes", "1024", "--gpus-per-node", "4", "--bandwidth", "25Gbit", "--scale"]
    text = run(capsys, *argv)
    assert time.process_time() - start < 10
    assert [line.split()[0] for line in text.splitlines() if " x 4 " in line] == [str(1 << k) for k in range(11)]


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="needs matplotlib")
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_drawn(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"plot.{ending}"
    run(capsys, "vgg16", "--nodes", "4", "--bandwidth", "25Gbit,100Gbit", "--plot", str(path))
    start = path.read_bytes()[:400]
    assert b"PNG" in start if ending == "png" else b"<svg" in start or b"<?xml" in start


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["vgg16", "--nodes", "2"], "--bandwidth must be given"),
        (["alexnet", "--bandwidth", "1Gbit"], "no profile 'alexnet'"),
        (["vgg16", "--bandwidth", "1Gbit", "--nodes", "5000"], "must be at most 4096"),
        (["vgg16", "--bandwidth", "1Gbit", "--plot", "x.pdf"], "--plot must end with .png or .svg"),
    ],
)
def test_errors_name_the_wrong_argument(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(argv) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "variation", "layout", "limit"),
    [
        ({}, profile.Variation(), Layout(1), "compute-bound: one worker"),
        ({"bandwidth": 1e11, "latency": 0.0, "intra_latency": 0.0}, profile.Variation(), Layout(4), "compute-bound"),
        ({"bandwidth": 1e11, "latency": 5e-3}, profile.Variation(), Layout(64), "latency-bound"),
        ({"bandwidth": 1e11}, profile.Variation(0.1, 0.0), Layout(64), "straggler-bound"),
        ({"bandwidth": 1e11, "overhead": 0.2}, profile.Variation(), Layout(64), "overhead-bound: ceiling 83%"),
        ({"bandwidth": 2e8}, profile.Variation(), Layout(64), "bandwidth-bound"),
    ],
)
def test_limit(change: dict[str, float], variation: profile.Variation, layout: Layout, limit: str) -> None:
    shape = msgspec.structs.replace(profile.load("resnet50"), variation=variation)
    net = msgspec.structs.replace(network.assumed("gpu", 1e9), **change)
    assert predict.predict(shape, layout, net, Settings()).limit.startswith(limit)


def test_extrapolation_is_reported() -> None:
    shape = msgspec.structs.replace(profile.load("vgg16"), variation=profile.Variation(0.01, 0.0))
    net = msgspec.structs.replace(network.assumed("gpu", 5e9), workers=(2, 16), calibrated_at=25e9 / 8)
    notes = " / ".join(predict.predict(shape, Layout(16, 4), net, Settings(), batch=32).extrapolates)
    assert "64 workers; the network was calibrated with 2 to 16" in notes
    assert "bandwidth 40 Gbit/s; calibrated at 25 Gbit/s" in notes
    assert "batch 32; the profile was made with 64" in notes
    assert "the profile is of one worker" in notes
    inside = msgspec.structs.replace(net, bandwidth=25e9 / 8)
    shape = msgspec.structs.replace(shape, workers=4)
    assert predict.predict(shape, Layout(4), inside, Settings()).extrapolates == ()
