"""Calibration: fits find constants again and predict published tables, and a job measures its links."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from horovod.planner import __main__ as program
from horovod.planner import calibrate, network, profile
from horovod.planner.calibrate import Point
from horovod.planner.network import Layout
from horovod.planner.simulate import Settings
from tests.documents import ROOT
from tests.runner.launching import run_job

RING = Settings(algorithm="ring")


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools/planner_networks.py"))


def test_constants_are_found_again_and_what_is_held_back_is_ignored() -> None:
    net = network.assumed("gpu", 25e9 / 8)
    real = msgspec.structs.replace(net, efficiency=0.6, overhead=0.08)
    points = [
        Point(shape, layout, Point(shape, layout, 1.0).predicted(real, RING))
        for shape in map(profile.load, ("vgg16", "resnet50"))
        for layout in (Layout(4, 4), Layout(16, 4))
    ]
    wrong = Point(profile.load("vgg16"), Layout(8, 4), 1.0, held_back=True)
    found = calibrate.fit([*points, wrong], net, RING)
    assert found.efficiency == pytest.approx(0.6, abs=0.005)
    assert found.overhead == pytest.approx(0.08, abs=0.005)
    assert (found.workers, found.calibrated_at) == ((16, 64), net.bandwidth)


def test_a_fit_needs_as_many_points_as_constants() -> None:
    point = Point(profile.load("vgg16"), Layout(4, 4), 1000.0)
    with pytest.raises(ValueError, match="at least 2 points that are not held back, got 1"):
        calibrate.fit([point], network.assumed("gpu", 1e9), RING)


def test_published_cells_that_were_not_fitted_are_predicted(published: dict[str, Any]) -> None:
    """Errors as in docs/planner.md; those of VGG-16 on other clusters are large, as the page says."""
    make, tcp, rdma = published["points"], network.load("published-tcp"), network.load("published-rdma")
    for net, kind in ((tcp, "tcp"), (rdma, "rdma")):
        inception, _, _ = make(published["SINGLE_16"], Layout(4, 4), published["TABLE_16"][kind], True)
        assert inception.held_back
        assert abs(inception.error(net, RING)) < 0.05
    faster = msgspec.structs.replace(tcp, bandwidth=40e9 / 8)
    cells = make(published["SINGLE_64"], Layout(16, 4), published["TABLE_64"], False)
    errors = [abs(cell.error(faster, RING)) for cell in cells]
    assert max(errors[:2]) < 0.06
    assert errors[2] < 0.21
    differences = [float(row[3].split()[0]) for row in published["efficiency_512"](rdma)[1:]]
    assert max(map(abs, differences[:2])) < 1
    assert abs(differences[2]) < 11


def test_fit_writes_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "points.csv"
    table.write_text(
        "profile,nodes,workers_per_node,samples_per_second,held_back\n"
        "vgg16,1,1,130.9,\nresnet101,1,1,119.4,\ninception3,1,1,134.4,\n"
        "vgg16,4,4,1787.4,\nresnet101,4,4,1746.2,\ninception3,4,4,2022.6,yes\n"
    )
    argv = ["--bandwidth", "25Gbit", "--algorithm", "ring", "-o", str(tmp_path / "net.json")]
    assert program.main(["fit", str(table), *argv]) == 0
    out = capsys.readouterr().out
    assert "held back" in out
    assert "Points held back: mean error" in out
    assert network.load(tmp_path / "net.json").workers == (16, 16)


def test_an_invalid_table_names_the_line(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text("profile,nodes\nvgg16,4\n")
    with pytest.raises(ValueError, match="missing: workers_per_node, samples_per_second"):
        calibrate.read_points(table)
    table.write_text("profile,nodes,workers_per_node,samples_per_second\nvgg16,4,4,fast\n")
    with pytest.raises(ValueError, match=r"points.csv, line 2: could not convert"):
        calibrate.read_points(table)


@pytest.mark.heavy
def test_the_links_of_a_job_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    done = run_job(["-np", "2", "python", "-m", "horovod.planner", "--calibrate", str(path)])
    assert done.code == 0, done.err
    assert "between ranks over TCP" in done.out
    net = network.load(path)
    assert net.workers == (2, 2)
    # A fit to the times of a busy machine may leave out the latency or the time per byte, but not both.
    assert 0 <= net.latency < 10
    assert 0 <= net.intra_latency < 10
    assert 1e-7 < net.latency + 2**20 / net.bandwidth < 100
    assert 1e-8 < net.intra_latency + 2**20 / net.intra_bandwidth < 100
