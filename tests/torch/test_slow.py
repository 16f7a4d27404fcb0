"""Jobs that are slow for a known reason, and what the line at their end says of it; figures while they run."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest

import horovod.torch as hvd
from tests.runner.launching import run_job

SCRIPT = """
import json, os, socket, sys, time, urllib.request
import torch
from torch.utils.data import DataLoader, Dataset
import horovod.torch as hvd

torch.set_num_threads(1)
STEPS, WAIT, NAME = 60, 0.03, "läyer \\"7\\"\\n日本"
taken = socket.socket()

class Rows(Dataset):
    def __init__(self, wait):
        self.wait = wait
    def __len__(self):
        return STEPS
    def __getitem__(self, i):
        time.sleep(self.wait)
        return torch.ones(64)

def train(wait_for_data=0.0, wait=0.0):
    model = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    for batch in DataLoader(Rows(wait_for_data)):
        time.sleep(wait)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

def slow_rank():
    hvd.report(loss=0.5, rank=hvd.rank(), **{NAME: 1.5})
    train(wait=WAIT if hvd.rank() == 1 else 0.0)
    if hvd.rank() == 0:
        page = urllib.request.urlopen("http://127.0.0.1:" + os.environ["HOROVOD_METRICS_PORT"] + "/metrics", timeout=20)
        print("METRICS", json.dumps(page.read().decode()))
    print("STATS", json.dumps(hvd.stats()))

def slow_loader():
    train(wait_for_data=WAIT if hvd.rank() == 0 else 0.0)

try:
    hvd.stats()
except ValueError as error:
    print("BEFORE", error)
for phase in (slow_rank, slow_loader):
    if phase is slow_loader:
        os.environ["HOROVOD_STATS_FILE"] = "/dev/full"
        if os.environ["HOROVOD_RANK"] == "0":
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            os.environ["HOROVOD_METRICS_PORT"] = str(taken.getsockname()[1])
    hvd.init()
    phase()
    hvd.shutdown()
os.environ["HOROVOD_STATS_SUMMARY"] = "0"
hvd.init()
slow_loader()
hvd.shutdown()
"""


ODD = """läyer "7"\n日本"""


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One job that is slow in several ways, one after another."""
    folder: Path = tmp_path_factory.mktemp("slow")
    stats = folder / "stats.jsonl"
    flags = ["--stats-file", str(stats), "--metrics-port", str(free_port())]
    done = run_job(["-np", "2", *flags, sys.executable, "-c", SCRIPT])
    assert done.code == 0, done.err
    lines = [line.partition("[horovod] ")[2] for line in done.err.splitlines() if "[horovod] 2 workers" in line]
    assert len(lines) == 2, done.err
    return done, lines, [json.loads(line) for line in stats.read_text().splitlines()]


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(group) for group in found.groups()]


def test_a_slow_rank_is_named(job):
    share, by = numbers(r"; rank 1 was last in (\d+)% of steps, by (\d+) ms;", job[1][0])
    assert share > 60
    assert by > 20
    linear, exposed, step = numbers(
        r"^2 workers, 60 steps, (\d+)% of linear; .*; (\d+) ms of each (\d+) ms step were exposed communication\b",
        job[1][0],
    )
    assert 10 < exposed < step  # half of what the one waits for the other
    assert abs(linear - 100 * (1 - exposed / step)) < 5


def test_a_slow_loader_is_named(job):
    (by,) = numbers(
        r"rank 0 was last in \d+% of steps, by \d+ ms \(it waited (\d+) ms longer for its data\)", job[1][1]
    )
    assert by > 20
    (data,) = numbers(r"; rank 0 waited (\d+) ms of each step for data\b", job[1][1])
    assert data >= 30


def test_figures_of_the_program_while_it_runs(job):
    done, _, lines = job
    assert done.out.count("BEFORE Horovod has not been initialized in this process; call hvd.init() first") == 2
    told = [json.loads(line.partition("STATS ")[2]) for line in done.out.splitlines() if "STATS " in line]
    first, second = sorted(told, key=lambda stats: stats["rank"])
    assert "job" not in second
    assert second["made"] == 60
    assert second["steps"] + second["pauses"] == 57
    parts = [second[f"{part}_seconds"] for part in ("data", "compute", "exposed")]
    assert sum(parts) == pytest.approx(second["step_seconds"], rel=0.01)
    assert first["exposed_seconds"] > max(0.02, second["exposed_seconds"])
    assert second["reported"] == {"loss": 0.5, "rank": 1.0, ODD: 1.5}
    assert first["job"]["ranks"][1]["reported"] == second["reported"]
    assert first["job"]["last"]["rank"] == 1
    (page,) = (json.loads(line.partition("METRICS ")[2]) for line in done.out.splitlines() if "METRICS " in line)
    assert 'horovod_reported{name="loss",rank="0"} 0.5' in page
    assert """horovod_reported{name="läyer \\\\"7\\\\"\\\\n日本",rank="0"} 1.5""".replace("\\\\", "\\") in page
    # The file: lines of the first job, whose last ones know everything.
    assert all(line["size"] == 2 for line in lines)
    assert any(line["sentence"] == job[1][0] for line in lines)
    assert any(line["ranks"][0]["reported"].get(ODD) == 1.5 for line in lines)
    assert done.err.count("no figures in HOROVOD_STATS_FILE=/dev/full: something else is there") >= 1


def test_a_port_that_is_taken(job):
    done = job[0]
    assert done.err.count("Address already in use; training goes on") >= 1
    assert done.err.count("no figures at HOROVOD_METRICS_PORT=") == done.err.count("Address already in use")


def on_its_own():
    import threading
    import time

    import torch

    before = threading.active_count()
    hvd.allreduce(torch.ones(1))
    time.sleep(0.1)
    idle = [t.name for t in threading.enumerate() if t.name == "hvd-steps"]
    errors = []
    for values in ({"loss": "high"}, {"loss": [1, 2]}, {f"x{i}": i for i in range(101)}):
        try:
            hvd.report(**values)
        except ValueError as error:
            errors.append(str(error))
    hvd.report(loss=torch.tensor(2.5))
    first, second = object(), object()
    from horovod.common.steps import marks

    for who in (first, second, first, second, second, second, first):
        marks.optimizer(who)
    made = hvd.stats()["made"]
    written = {}

    class Board:
        def add_scalar(self, name, value, step):
            written[name] = (value, step)

    for _ in range(10):
        hvd.step()
    hvd.log_stats(Board())
    return idle, errors, hvd.stats()["reported"], made, written, before


def test_a_job_without_steps_has_no_thread_and_of_several_optimizers_one_counts(pool):
    idle, errors, reported, made, written, _ = pool(2).run(on_its_own)[1]
    assert idle == []
    assert errors[:2] == [
        "report: loss is 'high'; accepted are numbers",
        "report: loss is [1, 2]; accepted are numbers",
    ]
    assert errors[2].startswith("report: more than 100 names")
    assert reported == {"loss": 2.5}
    # Two of the first one; then the second one takes over, with its second step in a row.
    assert made == 4
    assert written["horovod/step_ms"][1] >= 10
