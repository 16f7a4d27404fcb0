"""Flags that make a job elastic, and errors for conflicting flags."""

import pytest

from horovod.runner.plan.settings import ElasticSettings
from tests.runner.command.test_cli import read

SCRIPT = ("--host-discovery-script", "./hosts.sh")


def test_host_discovery_script():
    parsed = read(
        "-np", "4", "--min-np", "2", "--max-np", "8", *SCRIPT, "--slots-per-host", "3", "--elastic-timeout", "9"
    )
    assert parsed.elastic == ElasticSettings(4, 2, 8, timeout=9.0, script="./hosts.sh", slots=3)
    assert parsed.slots == []
    assert parsed.size == 4
    assert read("-np", "4", *SCRIPT).elastic == ElasticSettings(4, 4, script="./hosts.sh"), "min-np: as at the start"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max-np 4", "--max-np.* needs an elastic job; add --min-np N or --host-discovery-script FILE"),
        ("--reset-limit 4", "--reset-limit needs an elastic job"),
        ("--min-np 3 -H a:1,b:1", "--min-np <= -np <= --max-np, got --min-np 3, -np 2 and --max-np any number"),
        ("--min-np 1 --max-np 1 -H a:1,b:1", "got --min-np 1, -np 2 and --max-np 1"),
        ("--min-np 1 -H a:4", "must have at least 2 of them, got 1"),
        ("--min-np 1", "must have at least 2 of them, got 1; with --host-discovery-script one host is enough"),
        ("--min-np 1 -H a:1,b:1 -np 3", "3 processes asked for, but the hosts a:1,b:1 have only 2 slots"),
        ("--mpi --min-np 1 -H a:1,b:1", "needs the controller --gloo, got --mpi: mpirun cannot start and end single"),
        ("--jsrun --host-discovery-script x", "needs the controller --gloo, got --jsrun"),
        ("--min-np 1 -H a:1,b:1 --blacklist-cooldown-range 9 3", r"cooldown range must be two .*, got \(9, 3\)"),
        ("--min-np 1 -H a:1,b:1 --elastic-timeout 0", "--elastic-timeout: must be .*, got '0'"),
        (
            "--min-np 1 -H a:1,b:1 --gpus-per-worker 1",
            "GPUS_PER_WORKER must not be set for an elastic job, got 1: the free GPUs",
        ),
        ("--min-np 1 -H a:1,b:1 --debug-rank 0", "DEBUG_RANK must not be set for an elastic job, got 0: processes"),
        ("--min-np 1 -H a:1,b:1 --dashboard", "DASHBOARD must not be set for an elastic job, got True"),
    ],
)
def test_conflicting_flags(flags, message):
    with pytest.raises(ValueError, match=message):
        read("-np", "2", *flags.split())


@pytest.mark.parametrize("elastic", [(), ("--min-np", "1", *SCRIPT)])
def test_invalid_faults_are_reported_before_anything_starts(elastic):
    assert read("-np", "2", *elastic, "--chaos", "kill rank=1 step=5").variables["HOROVOD_CHAOS"]
    with pytest.raises(
        ValueError, match=r"--chaos \(HOROVOD_CHAOS\) .*: chaos: 'kil rank=1': must begin with one of kill,"
    ):
        read("-np", "2", *elastic, "--chaos", "kil rank=1")
    with pytest.raises(ValueError, match=r"'kill rank=-1 step=5': rank must be an integer from 0 to"):
        read("-np", "2", *elastic, environ={"HOROVOD_CHAOS": "kill rank=-1 step=5"})
