"""The pure parts of benchmarks/: what is measured, and how samples become a table."""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.examples.benchmark_modules import FOLDER, load, loaded

cases, compression, report = load("cases"), load("compression"), load("report")


@pytest.fixture(scope="module")
def hosts() -> Iterator[ModuleType]:
    with loaded("hosts", "namespaces", "cases", "jobs", "report") as module:
        yield module


@pytest.fixture(scope="module")
def tensorflow_run() -> Iterator[ModuleType]:
    beside = ("cases", "jobs", "report", "run", "peers", "peers.limit", "tensorflow_cases")
    with loaded("with_tensorflow", *beside) as module:
        yield module


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


def test_the_default_optimizer_has_a_column_of_its_own() -> None:
    job, modes = cases.COLUMNS["optimizer"]
    assert "optimizer" in cases.DEFAULT
    assert {kind: modes[kind] for kind in ("many", "resnet")} == {"many": ["optimizer"], "resnet": ["optimizer"]}
    assert "optimizer" not in cases.COLUMNS["horovod"][1]["many"]
    assert job == cases.COLUMNS["horovod"][0]


@pytest.mark.heavy
def test_what_the_optimizer_adds_is_measured_beside_raw_calls_and_ddp() -> None:
    words = [str(FOLDER / "optimizer.py"), "--rounds", "1", "--steps", "2", "--cases", "many"]
    command = [sys.executable, "-m", "horovod.runner", "-np", "2", sys.executable, *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    rows = [line.split("|")[1].strip() for line in run.stdout.splitlines() if "|" in line]
    for row in ("backward alone", "raw asynchronous calls", "optimizer, addition", "DDP, addition"):
        assert row in rows, run.stdout
    assert "hooks that do nothing, addition" in rows


def test_what_is_measured_of_tensorflow_has_columns_and_parts(tensorflow_run: ModuleType) -> None:
    columns = tensorflow_run.TENSORFLOW_COLUMNS
    for case in tensorflow_run.tensorflow_cases():
        assert case.kind in columns["horovod"][1]
        assert tensorflow_run.PARTS[case.kind] >= 1
        assert (case.kind in columns["no operation"][1]) == (case.label.startswith("one"))
        if case.kind != "eager":  # the peer has no eager collectives
            assert case.kind in columns["MultiWorkerMirrored"][1]


def test_a_failing_job_leaves_its_column_and_no_other(
    tensorflow_run: ModuleType, capsys: pytest.CaptureFixture
) -> None:
    jobs, case = sys.modules["jobs"], tensorflow_run.tensorflow_cases()[0]

    class Fake:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def ask(self, request: dict, timeout: float) -> list[list[float]]:
            if not self.seconds and "case" in request:
                raise jobs.JobError("on purpose")
            return [[self.seconds], [self.seconds / 2]]

        def close(self) -> None:
            pass

    args = argparse.Namespace(columns=["horovod", "MultiWorkerMirrored"], rounds=1, timeout=1.0)
    run = tensorflow_run.TensorFlowRun(args, io.StringIO())
    cells = run.measure_case(2, {"horovod-keras2": Fake(1.0), "mwms": Fake(0.0)}, case)
    assert cells["horovod"].best() == ("op", [0.01]), "a hundredth of the slower rank's second"
    row = report.table(2, args.columns, {case.label: cells}).splitlines()[-1]
    assert row == f"| {case.label} | 10,000 (10,000-10,000) | failed |"
    assert "on purpose" in capsys.readouterr().err


def test_each_worker_of_the_strategy_is_told_all_addresses_and_its_place(tensorflow_run: ModuleType) -> None:
    started = sys.modules["jobs"].commands("mwms", 3, "/socket", "")
    configs = [json.loads(environment["TF_CONFIG"]) for _, environment in started]
    assert [c["task"] for c in configs] == [{"type": "worker", "index": rank} for rank in range(3)]
    assert len(set(configs[0]["cluster"]["worker"])) == 3
    assert all(c["cluster"] == configs[0]["cluster"] for c in configs)


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


def test_between_hosts_only_what_leaves_a_host_counts(hosts: ModuleType) -> None:
    assert hosts.moved(2, 1000) == 1000
    assert hosts.moved(4, 1000) == 1500
    assert hosts.gbit(2, 125_000_000, 1.0) == pytest.approx(1.0)


def test_ranks_on_hosts_are_numbered_host_by_host(hosts: ModuleType) -> None:
    ours = hosts.environments(hosts.Column("horovod", "horovod", {"X": "1"}), 2, 3, ("10.0.0.254", 4000), "/key")
    places = [(e["HOROVOD_RANK"], e["HOROVOD_HOSTNAME"], e["HOROVOD_LOCAL_RANK"]) for e in ours]
    assert places == [
        ("0", "host0", "0"),
        ("1", "host0", "1"),
        ("2", "host0", "2"),
        ("3", "host1", "0"),
        ("4", "host1", "1"),
        ("5", "host1", "2"),
    ]
    assert all(e["X"] == "1" and e["HOROVOD_SIZE"] == "6" and e["HOROVOD_KEY_FILE"] == "/key" for e in ours)
    gloo = hosts.environments(hosts.Column("gloo", "gloo"), 2, 3, ("", 0), "")
    assert [e["RANK"] for e in gloo] == list("012345")
    assert {e["MASTER_ADDR"] for e in gloo} == {"10.0.0.1"}
    bare = hosts.environments(hosts.Column("bare", "bare"), 2, 2, ("", 0), "")
    assert bare[3]["BENCH_ADDRESSES"].split(",") == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2"]


def test_a_variant_is_ours_with_other_variables(hosts: ModuleType) -> None:
    ring = hosts.parse_variant("flat ring:HOROVOD_TRANSPORT=tcp;HOROVOD_ALGORITHM=allreduce=ring")
    assert (ring.name, ring.kind) == ("flat ring", "horovod")
    assert ring.environ == {"HOROVOD_TRANSPORT": "tcp", "HOROVOD_ALGORITHM": "allreduce=ring"}
    assert hosts.parse_variant("two:BENCH_STREAMS=2").kind == "bare"
    for wrong in ("ring", ":A=1", "ring:", "ring:A"):
        with pytest.raises(ValueError, match="accepted is name:VARIABLE=value"):
            hosts.parse_variant(wrong)


def test_a_row_between_hosts_compares_time_and_processor_time(hosts: ModuleType) -> None:
    cells = {
        "horovod": hosts.Cell([0.008] * 3, [0.002]),
        "gloo": hosts.Cell([0.016] * 3, [0.003]),
        "bare": hosts.Cell(),
    }
    row = hosts.line("1 MB", 2, 1_000_000, cells)
    assert row == (
        "| 1 MB | 8.000 (8.000-8.000), 1.00; cpu 2.000 "
        "| 16.000 (16.000-16.000), 0.50 **2.00x**; cpu 3.000 1.50x | failed |"
    )


def test_wrong_arguments_are_named(hosts: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, text in (
        (["--hosts", "1"], "--hosts: 1 is below 2"),
        (["--rate", "0"], "--rate: 0 is not above 0"),
        (["--sizes", "6"], "--sizes: [6] are not all multiples"),
        (["--variant", "x"], "--variant is 'x'"),
    ):
        with pytest.raises(SystemExit):
            hosts.parse_args(argv)
        assert text in capsys.readouterr().err
    assert [c.name for c in hosts.parse_args(["--variant", "r:A=1"]).columns] == ["horovod", "gloo", "bare", "r"]
