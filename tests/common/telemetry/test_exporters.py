"""Exporters of metrics: a file of JSON lines, a port, OpenTelemetry, and writers of scalars."""

import json
import math
import re
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from horovod.common.telemetry import exporters
from horovod.common.telemetry.exporters import LinesFile
from horovod.common.telemetry.steps import Sums, figures, mean


def job():
    sums = Sums(
        steps=10, time=10**9, data=10**8, blocked=2 * 10**8, collectives=10**8, hidden=10**7, bytes=50, moved=100
    )
    rank = {
        "rank": 0,
        "made": 13,
        **figures(sums),
        "late": {"share": 0.5, "seconds": 0.01},
        "reported": {'lo"ss\nä': 2.5, "none": math.nan},
    }
    last = {"rank": 0, "share": 0.5, "seconds": 0.01}
    return {"size": 1, **mean([rank]), "ranks": [rank], "last": last, "lately": {**mean([rank]), "last": last}}


def test_the_file_has_one_json_line_per_report(tmp_path):
    path = tmp_path / "stats.jsonl"
    path.write_text('{"of": "a job before"}\n{"cut')
    warnings = []
    out = LinesFile(str(path), job, warnings.append)
    out.write()
    second = LinesFile(str(path), job, warnings.append)
    second.write()
    second.close()
    out.write()
    out.close()
    assert warnings == [f"no figures in HOROVOD_STATS_FILE={path}: another job is writing it"]
    text = path.read_text().splitlines()
    assert text[:2] == ['{"of": "a job before"}', '{"cut']  # existing lines are kept
    records = [json.loads(line) for line in text[2:]]
    assert len(records) == 2
    assert records[0]["step_seconds"] == 0.1
    assert records[0]["ranks"][0]["reported"] == {'lo"ss\nä': 2.5, "none": None}
    assert records[0]["time"] > 1.7e9


def test_an_unwritable_file_is_reported_once(tmp_path):
    warnings = []
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "file", "No such file"),
        ("/dev/full", "it must be a plain file"),
    ):
        out = LinesFile(str(path), job, warnings.append)
        out.write()
        out.write()
        out.close()
        assert len(warnings) == 1
        assert f"HOROVOD_STATS_FILE={path}: {why}" in warnings.pop()


def scrape(port, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.headers["Content-Type"], response.read().decode()


def test_the_port_serves_the_prometheus_format():
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        warnings = []
        assert exporters.serve_metrics(job, "127.0.0.1", port, warnings.append) is None
        assert warnings == [
            f"no figures at HOROVOD_METRICS_PORT={port} on 127.0.0.1: Address already in use; training goes on"
        ]
    server = exporters.serve_metrics(job, "127.0.0.1", port, warnings.append)
    try:
        kind, text = scrape(port, Accept="application/openmetrics-text; version=1.0.0")
        assert "openmetrics" in kind
        for line in (
            "horovod_workers 1.0",
            'horovod_steps_total{rank="0"} 13.0',
            'horovod_step_seconds_total{part="exposed",rank="0"} 0.2',
            'horovod_step_seconds_total{part="data",rank="0"} 0.1',
            'horovod_late_share{rank="0"} 0.5',
            'horovod_reported{name="lo\\"ss\\nä",rank="0"} 2.5',
        ):
            assert line in text.splitlines(), text
        assert text.endswith("# EOF\n")
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_gauges_of_opentelemetry(monkeypatch):
    created = {}
    fake = SimpleNamespace(
        get_meter=lambda name: SimpleNamespace(
            create_observable_gauge=lambda name, callbacks, unit: created.__setitem__(name, callbacks[0])
        ),
        Observation=lambda value, attributes: (value, attributes),
    )
    monkeypatch.setitem(sys.modules, "opentelemetry", SimpleNamespace(metrics=fake))
    monkeypatch.setattr(exporters, "_created", False)
    gauges = exporters.Gauges(job)
    exporters.Gauges(job)  # the next job of the process creates no second set
    assert created["horovod.step.exposed"](None) == [(pytest.approx(0.02), {"horovod.rank": 0})]
    assert created["horovod.bandwidth"](None) == [(pytest.approx(1000.0), {"horovod.rank": 0})]
    gauges.close()
    assert created["horovod.step.exposed"](None) == []


def test_scalars_for_writers():
    stats = {"made": 13, "job": job()}
    numbers = exporters.scalars(stats)
    assert numbers["horovod/step_ms"] == pytest.approx(100)
    assert numbers["horovod/exposed_ms"] == pytest.approx(20)
    assert numbers["horovod/last_ms"] == pytest.approx(10)
    written = []
    board = SimpleNamespace(add_scalar=lambda *args: written.append(args))
    exporters.send(board, numbers, 13)
    assert ("horovod/efficiency", numbers["horovod/efficiency"], 13) in written
    exporters.send(SimpleNamespace(log_metrics=lambda args, step: written.append((args, step))), numbers, 14)
    assert written[-1] == (numbers, 14)
    with pytest.raises(ValueError, match=r"log_stats: to must be .*mlflow.*, got a list"):
        exporters.send([], numbers, 1)
    alone = {"made": 3, **figures(Sums(steps=3, time=3 * 10**6, unattended=1), data_known=False)}
    assert exporters.scalars(alone) == {"horovod/step_ms": pytest.approx(1.0)}


def test_the_board_shows_what_is_exported():
    board = Path(__file__).parents[3].joinpath("deploy", "grafana", "horovod.json").read_text()
    json.loads(board)
    exported = {sample.name for family in exporters.families(job()) for sample in family.samples}
    shown = set(re.findall(r"horovod_\w+", board))
    assert shown
    assert shown <= exported
