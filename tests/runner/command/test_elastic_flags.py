"""Flags that make a job elastic, and errors for conflicting flags."""

import pytest

from horovod.runner.plan.hosts import Host
from horovod.runner.plan.settings import ElasticSettings
from tests.runner.command.test_cli import read

SCRIPT = ("--host-discovery-script", "./hosts.sh")


def test_without_them_a_job_has_its_ranks_from_start_to_end():
    made = read("-np", "3")
    assert made.elastic is None
    assert made.size == len(made.slots) == 3


def test_a_script():
    made = read(
        "-np", "4", "--min-np", "2", "--max-np", "8", *SCRIPT, "--slots-per-host", "3", "--elastic-timeout", "9"
    )
    assert made.elastic == ElasticSettings(4, 2, 8, timeout=9.0, script="./hosts.sh", slots=3)
    assert made.slots == []
    assert made.size == 4
    assert read("-np", "4", *SCRIPT).elastic == ElasticSettings(4, 4, script="./hosts.sh"), "min-np: as at the start"


def test_the_same_hosts_always():
    flags = ("--min-num-proc", "1", "--reset-limit", "5", "--blacklist-cooldown-range", "10", "60")
    made = read("-np", "2", "-H", "a:1,b:2", *flags, environ={"HOROVOD_ELASTIC_TIMEOUT": "7"})
    hosts = (Host("a", 1), Host("b", 2))
    assert made.elastic == ElasticSettings(2, 1, None, 5, 7.0, hosts=hosts, cooldown=(10, 60))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--max-np 4", "--max-np.* is for elastic jobs, which --min-np N or --host-discovery-script FILE makes"),
        ("--reset-limit 4", "--reset-limit is for elastic jobs"),
        ("--min-np 3 -H a:1,b:1", "--min-np is 3, -np 2 and --max-np any number; accepted is 1 <= --min-np <= -np"),
        ("--min-np 1 --max-np 1 -H a:1,b:1", "--min-np is 1, -np 2 and --max-np 1"),
        ("--min-np 1 -H a:4", "has 1 of them, accepted are at least 2"),
        ("--min-np 1", "has 1 of them, accepted are at least 2; with --host-discovery-script one host will do"),
        ("--min-np 1 -H a:1,b:1 -np 3", "3 processes asked for, but the hosts a:1,b:1 have only 2 slots"),
        ("--mpi --min-np 1 -H a:1,b:1", "--mpi is given for an elastic job .*mpirun cannot start and end single"),
        ("--jsrun --host-discovery-script x", "--jsrun is given for an elastic job"),
        ("--min-np 1 -H a:1,b:1 --blacklist-cooldown-range 9 3", r"cooldown range is \(9, 3\), accepted are two"),
        ("--min-np 1 -H a:1,b:1 --elastic-timeout 0", "--elastic-timeout: '0' is not accepted; expected"),
        (
            "--min-np 1 -H a:1,b:1 --gpus-per-worker 1",
            "GPUS_PER_WORKER is 1 in an elastic job, but whose GPUs are free",
        ),
        ("--min-np 1 -H a:1,b:1 --debug-rank 0", "DEBUG_RANK is 0 in an elastic job, but ranks are other processes"),
        ("--min-np 1 -H a:1,b:1 --dashboard", "DASHBOARD is True in an elastic job"),
    ],
)
def test_what_does_not_fit_together(flags, said):
    with pytest.raises(ValueError, match=said):
        read("-np", "2", *flags.split())


def test_slots_that_only_a_script_needs():
    with pytest.warns(UserWarning, match="--slots-per-host has no effect without --host-discovery-script"):
        read("-np", "2", "--min-np", "1", "-H", "a:1,b:1", "--slots-per-host", "2")


@pytest.mark.parametrize("elastic", [(), ("--min-np", "1", *SCRIPT)])
def test_faults_that_nobody_can_read_are_told_before_anything_starts(elastic):
    assert read("-np", "2", *elastic, "--chaos", "kill rank=1 step=5").variables["HOROVOD_CHAOS"]
    said = (
        r"--chaos \(HOROVOD_CHAOS\) is 'kil rank=1', which cannot be read: chaos: 'kil rank=1': 'kil' is none of kill,"
    )
    with pytest.raises(ValueError, match=said):
        read("-np", "2", *elastic, "--chaos", "kil rank=1")
    with pytest.raises(ValueError, match=r"'kill rank=-1 step=5': rank is '-1', accepted is an integer of 0 to"):
        read("-np", "2", *elastic, environ={"HOROVOD_CHAOS": "kill rank=-1 step=5"})
