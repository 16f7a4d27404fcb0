"""horovodrun --doctor: conclusions from the hosts' reports, output, and probes."""

import os
import re
import resource
import subprocess
import sys

import msgspec
import pytest

from horovod._version import __version__
from horovod.common.devices.nvml import Survey
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import Address, Endpoint, Interface
from horovod.runner.doctor import findings, probe, table
from horovod.runner.doctor.report import (
    FAIL,
    OK,
    WARN,
    ConnectionAttempt,
    DeviceReport,
    Diagnosis,
    HostReport,
    HostResult,
    LinkSpeed,
)
from tests.runner.launching import executable, run_job

GIB = 1 << 30


def interface(name="eth0", text="10.0.0.1", mtu=1500, speed=10000, physical=True, up=True):
    return Interface(name, up, name == "lo", physical, mtu, speed, [Address(text, 24)])


GOOD = HostReport(
    version=__version__,
    python="3.11.2",
    executable="/usr/bin/python3",
    kernel="6.1",
    engine_error="",
    ciphers=["aes-256-gcm"],
    frameworks={"torch": "2.13.0", "numpy": "2.0"},
    interfaces=[interface("lo", "127.0.0.1"), interface()],
    wanted_interfaces="",
    cores=8,
    all_cores=8,
    quota=None,
    load=0.1,
    memory=64 * GIB,
    memory_available=60 * GIB,
    memfd_error="",
    shm_free=8 * GIB,
    limits={"nofile": (65536, 65536), "nproc": (resource.RLIM_INFINITY, resource.RLIM_INFINITY)},
    devices=DeviceReport(Survey(reason="no driver")),
)


def reply(name="a", rank=0, slots=2, report=GOOD, **changes):
    return HostResult(name, slots, rank=rank, report=report, **changes)


def with_report(**changes):
    return msgspec.structs.replace(GOOD, **changes)


def problems(replies, check):
    """Return (level, host, text) of the problems that the check finds."""
    found = list(check(replies))
    assert all(finding.advice for finding in found if finding.level != OK)
    return [(finding.level, finding.host, finding.text) for finding in found if finding.level != OK]


ALONE = [
    # check, changes of the report, level, text
    (findings.engine, {"engine_error": "ImportError: no"}, FAIL, "the engine cannot be loaded: ImportError: no"),
    (findings.processors, {"cores": 1}, WARN, "2 ranks on 1 cores"),
    (findings.processors, {"quota": 1.5}, WARN, "2 ranks on 1.5 cores, the container's quota"),
    (findings.processors, {"load": 5.0}, WARN, "its load is 5.0 on 8 cores: something else is running"),
    (findings.memory, {"memfd_error": "File too large"}, FAIL, "ranks there cannot share memory: File too large"),
    (findings.memory, {"memory_available": GIB}, WARN, "only 1.0 GiB of memory is available"),
    (
        findings.limits,
        {"limits": {"nofile": (128, 128)}},
        FAIL,
        "a process may open 128 files and sockets; 2 ranks need about 264",
    ),
    (
        findings.limits,
        {"limits": {"nproc": (100, 100)}},
        WARN,
        "the user may have 100 processes and threads; frameworks start many",
    ),
    (findings.frameworks, {"frameworks": {"numpy": "2.1"}}, WARN, "no usable framework is installed"),
]


@pytest.mark.parametrize(("check", "changes", "level", "text"), ALONE)
def test_findings_of_one_host(check, changes, level, text):
    assert problems([reply()], check) == []
    ((found_level, found_host, found_text),) = problems([reply(report=with_report(**changes))], check)
    assert (found_level, found_text) == (level, text)
    assert found_host == ("" if check is findings.frameworks else "a")


TOGETHER = [
    (findings.versions, {"python": "3.12.1"}, WARN, "differs: 3.11 on a; 3.12 on b"),
    (findings.frameworks, {"frameworks": {"torch": "2.1", "numpy": "2.0"}}, WARN, "differs: 2.1 on b; 2.13.0 on a"),
    (findings.frameworks, {"frameworks": {"numpy": "2.0"}}, WARN, "differs: 2.13.0 on a; none on b"),
    (findings.engine, {"ciphers": []}, FAIL, "no library to encrypt connections between hosts with"),
    (
        findings.interfaces,
        {"interfaces": [interface("lo", "127.0.0.1")]},
        FAIL,
        "no interface is up and has an address",
    ),
    (
        findings.interfaces,
        {"interfaces": [interface(text="10.0.0.2", mtu=9000)]},
        WARN,
        "hosts on 10.0.0.0/24 send packets of different sizes (MTU 1500 on a, 9000 on b)",
    ),
    (findings.reachability, {"pairs_error": "no store"}, FAIL, "connections could not all be tried: no store"),
]


@pytest.mark.parametrize(("check", "changes", "level", "text"), TOGETHER)
def test_findings_of_two_hosts(check, changes, level, text):
    works = [ConnectionAttempt(1, "10.0.0.2", "eth0", "")], [ConnectionAttempt(0, "10.0.0.1", "eth0", "")]
    reports = [msgspec.structs.replace(GOOD, tried=tried) for tried in works]
    assert problems([reply(report=reports[0]), reply("b", 1, report=reports[1])], check) == []
    changed = msgspec.structs.replace(reports[1], **changes)
    found = problems([reply(report=reports[0]), reply("b", 1, report=changed)], check)
    assert [(one[0], one[2]) for one in found] == [(level, text)]


def test_connections_and_clocks():
    failed = HostResult("a", 1, failure="ssh refuses this user or key\ntry it by hand")
    assert problems([failed], findings.connection) == [(FAIL, "a", "ssh refuses this user or key")]
    assert next(findings.connection([failed])).advice == "try it by hand"
    missing = HostResult("a", 1, rank=0)
    (finding,) = findings.connection([missing])
    assert (finding.level, finding.text) == (FAIL, "the checks there did not finish")
    slow = reply(remote=True, connect_seconds=9.0)
    assert problems([slow], findings.connection) == [(WARN, "a", "it took 9.0 s until the agent answered")]
    assert problems([reply(clock_offset=-60.0)], findings.clocks) == [
        (WARN, "a", "its clock is 60.0 s behind this machine's")
    ]
    assert problems([reply(clock_offset=0.5)], findings.clocks) == []


def tried(peer, *outcomes):
    return [ConnectionAttempt(peer, f"10.{n}.0.{peer + 1}", f"eth{n}", outcome) for n, outcome in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("forward", "backward", "requested", "expected"),
    [
        (["", "refused"], ["", ""], "", []),
        (["no answer", ""], ["no answer", ""], "", []),  # one working network of two is enough
        (
            ["no answer", "refused"],
            ["", ""],
            "",
            [
                (
                    WARN,
                    "a does not reach b, only the other way round: "
                    "10.0.0.2 (eth0): no answer; 10.1.0.2 (eth1): refused",
                )
            ],
        ),
        ([""], ["refused"], "", [(WARN, "b does not reach a, only the other way round: 10.0.0.1 (eth0): refused")]),
        (["refused"], ["refused"], "", [(FAIL, "a and b do not reach each other: 10.0.0.2 (eth0): refused")]),
        ([], [], "", [(FAIL, "a and b do not reach each other: they have no network in common")]),
        (
            ["", "refused"],
            ["", "refused"],
            "eth1",
            [(FAIL, "a and b do not reach each other: 10.0.0.2 (eth0): answers; 10.1.0.2 (eth1): refused")],
        ),
    ],
)
def test_unreachable_hosts_are_found(forward, backward, requested, expected):
    """Hosts are identified by probe rank, not by position in the list: an unreachable host has no rank."""
    replies = [
        reply("a", 0, report=with_report(tried=tried(1, *forward), wanted_interfaces=requested)),
        HostResult("gone", 1, failure="unreachable"),
        reply("b", 1, report=with_report(tried=tried(0, *backward), wanted_interfaces=requested)),
    ]
    assert [(level, text) for level, _, text in problems(replies, findings.reachability)] == expected


@pytest.mark.parametrize(
    ("measured", "interfaces", "level"),
    [
        (LinkSpeed(1, "10.0.0.2", "eth0", 50.0, 9.0), [interface()], OK),
        (LinkSpeed(1, "10.0.0.2", "eth0", 50.0, 1.0), [interface()], WARN),  # of 10 Gbit/s
        (LinkSpeed(1, "10.0.0.2", "eth0", 50.0, 1.0), [interface(physical=False)], OK),
        (LinkSpeed(1, "10.0.0.2", "eth0", 50.0, 9.0), [interface(speed=400000)], OK),
        (LinkSpeed(1, "10.0.0.2", "eth0", 50.0, 0.1), [], WARN),
        (LinkSpeed(1, "10.0.0.2", "eth0", 5000.0, 9.0), [], WARN),
        (LinkSpeed(1, "10.0.0.2", "eth0", error="a stream of large packets: no answer"), [], FAIL),
    ],
)
def test_speeds(measured, interfaces, level):
    report = with_report(measured=[measured], interfaces=interfaces)
    (finding,) = findings.speeds([reply(report=report), reply("b", 1)])
    assert finding.level == level
    assert finding.text.startswith("a to b at 10.0.0.2: ")


def test_a_healthy_job_has_no_advice():
    reports = [
        with_report(tried=tried(1, ""), measured=[LinkSpeed(1, "10.0.0.2", "eth0", 50.0, 9.0)]),
        with_report(tried=tried(0, "")),
    ]
    replies = [reply(report=reports[0]), reply("b", 1, report=reports[1], remote=True, connect_seconds=0.3)]
    diagnosis = Diagnosis(replies, findings.judge(replies))
    assert diagnosis.healthy
    assert {finding.level for finding in diagnosis.findings} == {OK}


def test_the_doctors_table():
    measured = [LinkSpeed(1, "10.0.0.2", "eth0", 50.4, 9.25), LinkSpeed(1, "10.0.0.2", "eth0", error="no answer")]
    replies = [
        reply(report=with_report(measured=measured, tried=tried(1, ""))),
        reply(
            "b",
            1,
            remote=True,
            connect_seconds=0.31,
            clock_offset=61.5,
            report=with_report(quota=1.0, tried=tried(0, "")),
        ),
        HostResult("c", 1, failure="its name cannot be resolved\ncheck the name"),
    ]
    diagnosis = Diagnosis(replies, findings.judge(replies))
    assert not diagnosis.healthy
    wide, narrow = table.show(diagnosis, 200), table.show(diagnosis, 60)
    assert re.search(r"^ +a +b$", wide, re.MULTILINE)
    assert re.search(r"^connection +this machine +ssh, 0\.3 s$", wide, re.MULTILINE)
    assert re.search(r"^cores +8 of 8, load 0\.1 +8 of 8, quota 1, load 0\.1$", wide, re.MULTILINE)
    assert re.search(r"^on all hosts\n  horovod", narrow, re.MULTILINE)
    assert re.search(r"^a\n  connection  this machine\n  cores       8 of 8, load 0\.1$", narrow, re.MULTILINE)
    for text in (wide, narrow):
        assert "not examined: c\n" in text
        assert re.search(r"^a -> b +10\.0\.0\.2 \(eth0\)  50 us +9\.25 Gbit/s$", text, re.MULTILINE)
        assert "WARN clock: b: its clock is 61.5 s ahead of this machine's\n     -> let NTP" in text
        assert "FAIL connection: c: its name cannot be resolved\n     -> check the name\n" in text
        assert text.index("WARN") < text.index("FAIL")
        assert re.search(r"\d+ checks OK, 2 warnings, 2 failures\n$", text)
    assert "horovod " + __version__ + ", 1 host\n" in table.show(Diagnosis([reply()]), 80)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_rounds_consist_of_disjoint_pairs(count):
    every = probe.rounds(count, 100)
    for round_ in every:
        ranks = [rank for pair in round_ for rank in pair]
        assert len(set(ranks)) == len(ranks)
    flat = sorted(pair for round_ in every for pair in round_)
    assert flat == [(i, j) for i in range(count) for j in range(i + 1, count)]
    assert len(probe.rounds(count, 2)) == min(2, count - 1 + count % 2)


def test_this_host_is_examined():
    report = probe.examine()
    assert (report.version, report.executable) == (__version__, sys.executable)
    assert report.cores == len(os.sched_getaffinity(0))
    assert report.engine_error == ""
    assert report.memfd_error == ""
    assert report.memory > report.memory_available > 0
    assert report.limits["nofile"] == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert any(each.loopback for each in report.interfaces)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=HostReport) == report


KEY = b"k" * 32


@pytest.fixture
def server():
    listeners = Listeners([Endpoint("lo", "127.0.0.1", 8)], 16)
    server = probe.Server(listeners, KEY, 1)
    yield listeners.endpoints[0]
    server.close()


def test_a_pair_is_measured(server):
    found = probe.measure(server, KEY, 0, 1)
    assert found.error == ""
    assert 0 < found.round_trip_us < 1e6
    assert found.gigabits > 0.001
    assert found.peer == 1


def test_the_command_examines_this_machine():
    command = [sys.executable, "-m", "horovod.runner.launch", "--doctor", "-np", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"horovod {__version__}, 1 host\n")
    assert " 0 failures\n" in done.stdout
    assert done.stderr == ""


@pytest.mark.heavy
def test_elastic_jobs_start_on_currently_found_hosts(tmp_path):
    script = executable(tmp_path / "hosts.sh", "#!/bin/sh\necho localhost:2\n")
    done = run_job(["--doctor", "-np", "1", "--min-np", "1", "--host-discovery-script", str(script)])
    assert done.code == 0, done.out + done.err
    assert re.search(r"[1-9]\d* checks OK", done.out), done.out
    script.write_text("#!/bin/sh\n")
    done = run_job(["--doctor", "--host-discovery-script", str(script)])
    assert done.code == 2
    assert "hosts.sh finds no host now, so there is nothing to check" in done.err
