"""The pure parts of horovod.benchmark: options, cases, the cost model's fit, tables, pictures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horovod import _core
from horovod.benchmark import calibrate, options, report

FLAT = [0, 1, 2, 3]
LOCAL = [0, 0, 0, 0]
FLOAT32 = 7


def test_sizes_are_parsed_and_shown() -> None:
    assert [options.parse_size(text) for text in ("4", "64K", "16 MiB", "8b")] == [4, 65536, 16 << 20, 8]
    assert [options.size_label(nbytes) for nbytes in (4, 1536, 256 << 20)] == ["4 B", "1.5 KiB", "256 MiB"]


def test_cases_have_integers_on_each_rank() -> None:
    assert [case.bytes for case in options.make_cases("allreduce", (1, 4, 6, 4096), 3)] == [4, 8, 4096]
    assert [case.bytes for case in options.make_cases("alltoall", (4, 4096), 3)] == [12, 4104]
    assert [case.bytes for case in options.make_cases("barrier", (4, 8), 3)] == [0]
    assert all(case.samples >= 4 for case in options.make_cases("allreduce", options.FULL, 2))


def test_options() -> None:
    chosen, np = options.parse(["-np", "3", "--collectives", "all", "--sizes", "4,1K", "--peers", "none"])
    assert np == 3
    assert chosen.collectives == options.COLLECTIVES
    assert (chosen.sizes, chosen.peers, chosen.rounds, chosen.pin) == ((4, 1024), (), 5, True)
    quick, _ = options.parse(["--quick", "--algorithms", "ring, tree"])
    assert (quick.sizes, quick.rounds, quick.algorithms) == (options.QUICK, 2, ("ring", "tree"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--sizes", "4,zero"], "must be bytes from 1 to 16G, as in 4,64K,16M, got 'zero'"),
        (["--peers", "nccl"], "must have names of gloo, mpi, none, or all, got 'nccl'"),
    ],
)
def test_wrong_options_are_named(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.parse(argv)
    assert message in capsys.readouterr().err


def test_algorithms_formulas_and_choices() -> None:
    assert set(_core.algorithms("allreduce")) >= {"shm", "ring", "rabenseifner", "recursive_doubling", "tree", "naive"}
    assert _core.cost_formula("allreduce", "naive") == "(P-1) (a + N (b + g))"
    assert _core.addition_order("allreduce", "ring") == "by slice"
    assert _core.addition_order("allreduce", "driver") == "fixed"
    assert _core.addition_order("broadcast", "tree") == ""
    assert _core.runs_in("allreduce", "shm", LOCAL)
    assert not _core.runs_in("allreduce", "ring", LOCAL)
    assert _core.choose_algorithm("allreduce", FLOAT32, 4, LOCAL) == "shm"
    assert _core.choose_algorithm("allreduce", FLOAT32, 4, FLAT) == "recursive_doubling"
    assert _core.choose_algorithm("allreduce", FLOAT32, 4, FLAT, "allreduce=naive") == "naive"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _core.algorithms("reduce"), "collective must be one of allreduce, broadcast.*, got 'reduce'"),
        (lambda: _core.cost_formula("broadcast", "ring"), "algorithm of broadcast must be one of shm, .*, got 'ring'"),
        (lambda: _core.predict("barrier", "shm", 0, FLAT, {"delta": 1.0}), "must be alpha, .*, got 'delta'"),
        (lambda: _core.predict("barrier", "shm", 0, FLAT, {"beta": -1.0}), "beta must be 0 or more seconds, got -1"),
        (lambda: _core.choose_algorithm("barrier", 11, 0, FLAT), "dtype must be 0 to 10, got 11"),
    ],
)
def test_invalid_queries_are_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_fit_recovers_the_true_parameters() -> None:
    pairs = (("barrier", "dissemination"), ("alltoall", "pairwise"), ("reducescatter", "pairwise"))
    true = {**dict.fromkeys(_core.cost_model(), 0.0), "alpha": 20e-6, "beta": 1e-9, "gamma": 0.2e-9}
    measured = [
        (collective, algorithm, nbytes, _core.predict(collective, algorithm, nbytes, FLAT, true))
        for collective, algorithm in pairs
        for nbytes in (4096, 1 << 20, 16 << 20)
    ]
    found = calibrate.fit(measured, FLAT, ("alpha", "beta", "gamma"))
    assert found == pytest.approx({"alpha": 20e-6, "beta": 1e-9, "gamma": 0.2e-9}, rel=1e-6)


def results() -> list[report.Result]:
    results = []
    for nbytes in (4, 1 << 20):
        more = {"algorithm": "shm", "order": "fixed", "formula": "a", "predicted": 5e-6}
        horovod = report.result("allreduce", nbytes, "horovod", [9e-6, 10e-6, 20e-6], 1.0, **more)
        results += [horovod, report.result("allreduce", nbytes, "gloo", [90e-6, 100e-6, 110e-6], 1.0)]
    return results


LABELS = {4: "4 B", 1 << 20: "1 MiB"}


def test_tables_show_peers_as_multiples_of_horovod() -> None:
    lines = report.comparison(results(), LABELS).splitlines()
    assert lines[0].split() == ["horovod,", "us", "bus", "GB/s", "algorithm", "gloo,", "us"]
    assert lines[1].split() == ["4", "B", "10.0", "(9.0-20.0)", "0.00", "shm", "100", "(90.0-110)", "10.00x"]
    assert lines[2].split()[:5] == ["1", "MiB", "10.0", "(9.0-20.0)", "104.86"]


def test_the_fit_gives_no_negative_times() -> None:
    assert calibrate.least_squares([([1.0, 1.0], 1.0), ([1.0, 2.0], 0.5)])[1] == 0.0
    assert calibrate.least_squares([([1e-9], 1.0), ([0.0], 1.0)]) == pytest.approx([1e9])  # whatever the units
    with pytest.raises(ValueError, match="above 0"):
        calibrate.least_squares([([1.0], 1.0), ([1.0], 0.0)])
