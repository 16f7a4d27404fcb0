"""Comparison of predictions and runs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from horovod.planner import __main__ as program
from horovod.planner import network, profile, report
from horovod.planner.network import Layout
from horovod.planner.predict import Prediction, predict
from horovod.planner.simulate import Settings


@pytest.fixture
def planned() -> Prediction:
    shape = msgspec.structs.replace(profile.load("resnet50"), variation=profile.Variation(0.02, 0.01))
    return predict(shape, Layout(4, 2), network.assumed("gpu", 1e9), Settings())


def stats_of(planned: Prediction, **more: float) -> dict[str, object]:
    """Return statistics of a run as planned, except for some seconds."""
    parts = {
        name: seconds + more.get(name.split()[0], 0.0) for name, seconds in report.predicted_parts(planned).items()
    }
    step = parts["data"] + parts["computation"] + parts["exposed communication"]
    return {
        "size": 8,
        "step_seconds": step,
        "data_seconds": parts["data"],
        "compute_seconds": parts["computation"],
        "exposed_seconds": parts["exposed communication"],
        "hidden_seconds": parts["hidden communication"],
    }


def test_run_according_to_plan(planned: Prediction) -> None:
    assert "as planned" in report.render_comparison(planned, stats_of(planned))


@pytest.mark.parametrize("part", ["data", "computation", "exposed"])
@pytest.mark.parametrize("seconds", [0.1, -0.1])
def test_the_largest_difference_is_named(planned: Prediction, part: str, seconds: float) -> None:
    text = report.render_comparison(planned, stats_of(planned, **{part: seconds}))
    sign = "+" if seconds > 0 else "-"
    assert f"The largest difference is {part}" in text
    assert f"{sign}100 ms per step" in text


def test_the_program(planned: Prediction, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(stats_of(planned, data=0.2)))
    argv = ["compare", "resnet50", str(path), "--gpus-per-node", "2", "--bandwidth", "8Gbit"]
    assert program.main(argv) == 0
    out = capsys.readouterr().out
    assert "ResNet-50, 4 x 2 workers" in out
    assert "The largest difference is data: +200 ms per step. Workers wait longer" in out
    path.write_text("{}\n" + json.dumps(stats_of(planned, data=0.3)) + "\n")  # lines, as of --stats-file
    assert program.main(argv) == 0
    assert "+300 ms per step" in capsys.readouterr().out
    path.write_text("neither")
    assert program.main(argv) == 1
    assert "must contain hvd.stats()" in capsys.readouterr().err
    path.write_text(json.dumps({"size": 8, "step_seconds": None}))
    assert program.main(argv) == 1
    assert "`step_seconds` above 0" in capsys.readouterr().err
