"""The programs run by pods, without a cluster."""

import os
import re
import socket
import subprocess
import sys

import pytest

from horovod._version import __version__
from horovod.common.contract import boot
from horovod.runner.base.job_result import LaunchError
from horovod.runner.cluster import Gathering
from horovod.runner.kubernetes import launcher, worker
from horovod.runner.kubernetes.values import make_token, token_key

pytestmark = pytest.mark.timeout(60)


def orders(*rest, port="41000", slots="1"):
    return launcher.orders(["--of-version", __version__, "--port", port, "--slots-per-pod", slots, *rest])


def test_flags_of_the_job_reach_its_settings():
    parsed = orders("--", "-np", "4", "--fusion-threshold-mb", "2", "--", "python", "train.py", "--", "x", slots="2")
    settings, options = launcher.settings(parsed, {})
    assert settings.command == ["python", "train.py", "--", "x"]
    assert [slot.local_size for slot in settings.slots] == [2] * 4
    assert settings.variables["HOROVOD_FUSION_THRESHOLD"] == str(2 << 20)
    assert (settings.options.whole_environment, settings.elastic, options.start_timeout) == (True, None, 600.0)


def test_elastic_jobs_have_only_their_pods_as_hosts():
    parsed = orders("--", "-np", "2", "--min-np", "1", "--max-np", "4", "--start-timeout", "9", "--", "x")
    settings, options = launcher.settings(parsed, {})
    assert (settings.elastic.start, settings.elastic.least, settings.elastic.max_np) == (2, 1, 4)
    assert settings.elastic.hosts == ()
    assert options.start_timeout == 9


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-np", "2", "x"], "two words `--` are missing"),
        (["--", "--", "x"], "-np is missing"),
        (["--", "-np", "3", "--", "x"], "-np must be a multiple of --slots-per-pod 2, got 3"),
        (["--", "-np", "2", "-H", "a:2", "--", "x"], "--hosts has no meaning on Kubernetes"),
        (["--", "-np", "2", "--"], "the command is missing"),
    ],
)
def test_arguments_that_the_launcher_refuses(argv, message):
    with pytest.raises(LaunchError, match=re.escape(message)):
        launcher.settings(orders(*argv, slots="2"), {})


def test_tokens():
    assert len(token_key(make_token())) == 32
    assert token_key("x" * 32) == token_key("x" * 32 + "\n") != token_key("y" * 32)
    with pytest.raises(ValueError, match=r"HOROVOD_POD_TOKEN must have at least 32 characters, .* got 3"):
        token_key("abc")


def test_missing_launcher():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        with pytest.raises(TimeoutError, match=rf"waited 0\.2 s .*127\.0\.0\.1:{port}: no answer"):
            worker.find(["127.0.0.1"], port, 0.2)
    with pytest.raises(TimeoutError, match=r"the name 'nobody\.invalid' cannot be resolved"):
        worker.find(["nobody.invalid"], 41000, 0.0)


def test_a_pod_with_the_token_of_another_job():
    with Gathering("rank", token=token_key("x" * 32)) as gathering:
        port = next(each.port for each in gathering.ticket.endpoints if each.loopback)
        environ = {**os.environ, "HOROVOD_POD_TOKEN": "y" * 32, "JOB_COMPLETION_INDEX": "0"}
        command = [
            sys.executable,
            *boot.arguments_elsewhere("horovod.runner.kubernetes.worker"),
            "--launcher",
            "127.0.0.1",
        ]
        done = subprocess.run(
            [*command, "--port", str(port), "--patience", "5"], env=environ, capture_output=True, text=True, timeout=40
        )
        assert done.returncode == 1
        assert "horovod pod: error: host" in done.stderr
        assert gathering.take()[0] == []


def test_launcher_without_pods_times_out():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [
        sys.executable,
        *boot.arguments_elsewhere("horovod.runner.kubernetes.launcher"),
        "--port",
        str(port),
        "--",
    ]
    environ = {**os.environ, "HOROVOD_POD_TOKEN": make_token()}
    argv = [*command, "-np", "2", "--start-timeout", "1", "--", "true"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=40)
    assert done.returncode == 1
    assert "error: waited 1 s for 2 ranks to start and call the launcher, 0 have." in done.stderr
    assert "`horovodrun kubernetes status` say what keeps the others" in done.stderr
