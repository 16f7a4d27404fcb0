"""The pure parts of benchmarks/: what is measured, and how samples become a table."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cases, compression, report = load("cases"), load("compression"), load("report")


def test_resnet_has_its_known_size() -> None:
    shapes = cases.resnet50()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032


@pytest.mark.parametrize(("nbytes", "label"), [(4, "4 B"), (1024, "1 KiB"), (1 << 20, "1 MiB"), (256 << 20, "256 MiB")])
def test_cases_by_size(nbytes: int, label: str) -> None:
    case = cases.allreduce(nbytes)
    assert (case.label, case.bytes, case.shapes) == (label, nbytes, [(nbytes // 4,)])
    assert case.samples >= 4


def test_a_sample_is_as_slow_as_the_slowest_rank() -> None:
    assert report.slowest([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]
    with pytest.raises(ValueError, match="zip"):
        report.slowest([[1.0], [2.0, 3.0]])


def test_quantiles() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [report.quantile(values, q) for q in (0.0, 0.5, 1.0)] == [1.0, 3.0, 5.0]


def test_the_table_takes_each_peers_best_mode_and_compares_with_ours() -> None:
    ours = report.Cell({"allreduce_": [10e-6] * 3})
    peer = report.Cell({"async": [90e-6] * 3, "blocking": [25e-6] * 3})
    broken = report.Cell(failure="died")
    text = report.table(2, ["horovod", "gloo", "DDP", "MPI"], {"4 B": {"horovod": ours, "gloo": peer, "MPI": broken}})
    row = text.splitlines()[-1]
    assert row == "| 4 B | 10.0 (10.0-10.0) | 25.0 (25.0-25.0) blocking **2.50x** | - | failed |"


def test_the_share_of_the_limit() -> None:
    cells = {"horovod shared": report.Cell({"shared": [10e-6, 20e-6, 30e-6]}), "limit": report.Cell({"": [15e-6] * 3})}
    assert report.of_limit({"1 MiB": cells, "4 B": {}}) == "- horovod shared, share of the limit's speed: 1 MiB 75%"
    assert report.of_limit({"1 MiB": {"limit": cells["limit"]}}) == ""


def test_training_steps_are_given_as_units_per_second() -> None:
    steps = cases.training_steps()
    assert {case.kind for case in steps} == set(cases.TRAINING)
    assert all(case.kind in cases.COLUMNS[column][1] for case in steps for column in ("horovod", "DDP"))
    rows = {"net, 4 a rank": {"horovod": report.Cell({"step": [0.5] * 3}), "DDP": report.Cell(failure="died")}}
    text = report.throughput(2, ["horovod", "DDP"], rows, {"net, 4 a rank": (4 * 100, "images")})
    assert text == "- net, 4 a rank: horovod 1,600 images per second"


PRINTED = """[0]<stdout>:step    1/4  loss 5.0000  characters/s 9 per worker, 18 in total
[0]<stdout>:step    2/4  loss 4.5000  characters/s 9 per worker, 18 in total
[0]<stdout>:step    4/4  loss 3.5000  characters/s 9 per worker, 18 in total
[0]<stdout>:final held-out loss 3.2500 nats per character
[0]<stdout>:parameters identical on all 2 ranks: sha256 0123456789abcdef
[0]<stdout>:bytes sent by rank 0: 4000
"""


def test_loss_curves_are_read_and_compared_with_the_first() -> None:
    plain = compression.parse(PRINTED)
    assert plain == compression.Curve({1: 5.0, 2: 4.5, 4: 3.5}, 3.25, 4000, True)
    less = compression.parse(PRINTED.replace(": 4000", ": 1000").replace("identical", "different"))
    assert compression.table({"none": plain, "wire_int8": less}, 4).splitlines() == [
        "| compression | step 2 | step 4 | held-out | bytes a step | share | ranks equal |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| none | 4.5000 | 3.5000 | 3.2500 | 1,000 | 1.000 | yes |",
        "| wire_int8 | 4.5000 | 3.5000 | 3.2500 | 250 | 0.250 | NO |",
    ]
    with pytest.raises(ValueError, match="did not print"):
        compression.parse(PRINTED.splitlines()[0])
