import socket

import pytest

from horovod.runner.plan import hosts
from horovod.runner.plan.hosts import Host


def test_hosts_are_read():
    assert hosts.parse_hosts("a:2,b-1.example:3,[::1]:1") == [Host("a", 2), Host("b-1.example", 3), Host("::1", 1)]
    assert hosts.parse_hosts("a:1,b:1,a:2") == [Host("a", 3), Host("b", 1)]


@pytest.mark.parametrize(
    "text", ["", "a", "a:", "a:0", "a:-1", "a:x", "a:1,", "a b:1", "a:1;b:1", "fe80::1:1", "ä:1", "a:" + "9" * 5000]
)
def test_wrong_hosts_are_named_with_the_expected_form(text):
    with pytest.raises(ValueError, match="must be name:slots") as caught:
        hosts.parse_hosts(text)
    assert repr(text) in str(caught.value)


def test_hostfile_forms_of_other_launchers():
    text = "\ufeffa:2\nb\r\nb max-slots=4\n[fe80::1]:3\nc slots=4 max_slots = 8 # spare\nd python=/d\n"
    read = [Host("a", 2), Host("b", 2), Host("fe80::1", 3), Host("c", 4), Host("d", 1, "/d")]
    assert hosts.parse_hostfile(text, "f") == read


@pytest.mark.parametrize(
    "line",
    [
        *("a 2", "a slots=", "a slots=0", "a slots=-2", "slots=2", "a slots=2 x", "a:", "a:0", "a:2 slots=2"),
        *("a slots=2 slots=3", "a max_slots=x", "a slots=2 cpus=3", "a,b", "a:2,b:2", "::1"),
        *("a:" + "9" * 5000, "a slots=" + "9" * 5000, "a max_slots=" + "9" * 5000),
    ],
)
def test_wrong_hostfile_line_is_named(line):
    with pytest.raises(ValueError, match=r"file, line 2 must be .*slots=N") as caught:
        hosts.parse_hostfile(f"ok slots=1\n{line}\n", "file")
    assert repr(line) in str(caught.value)


def test_empty_hostfile_is_an_error():
    with pytest.raises(ValueError, match="must name at least one host"):
        hosts.parse_hostfile("# nothing\n", "file")


def test_ranks_fill_one_host_after_the_other():
    slots = hosts.assign([Host("a", 2), Host("b", 1), Host("c", 4)], 5)
    assert [slot.hostname for slot in slots] == ["a", "a", "b", "c", "c"]
    assert [slot.rank for slot in slots] == list(range(5))
    assert [slot.local_rank for slot in slots] == [0, 1, 0, 0, 1]
    assert [slot.local_size for slot in slots] == [2, 2, 1, 2, 2]
    # Local rank 1 exists on a and c only, so its cross group has two members.
    assert [(slot.cross_rank, slot.cross_size) for slot in slots] == [(0, 3), (0, 2), (1, 3), (2, 3), (1, 2)]
    assert {slot.size for slot in slots} == {5}


def test_too_few_slots_name_both_numbers():
    with pytest.raises(ValueError, match=r"5 processes.*only 3 slots"):
        hosts.assign([Host("a", 2), Host("b", 1)], 5)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.2", "::1", socket.gethostname()])
def test_this_machine_is_recognised(name):
    assert hosts.is_local(name)


def test_one_local_address_is_enough(monkeypatch):
    """For a name of several networks; and with addresses that this machine does not have."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert hosts.is_local("cluster-name")
    del found[1]
    assert not hosts.is_local("cluster-name")


def test_a_host_file_names_interpreters():
    text = "a slots=2 python=/opt/a/bin/python\nb slots=1\nb slots=2 python = /b\n"
    read = hosts.parse_hostfile(text, "hosts")
    assert read == [Host("a", 2, "/opt/a/bin/python"), Host("b", 3, "/b")]
    assert [slot.python for slot in hosts.assign(read, 3)] == ["/opt/a/bin/python"] * 2 + ["/b"]
    # The first name for a host is used for all of its lines.
    assert hosts.parse_hostfile("a slots=1 python=/a\na slots=2\na slots=1 python=/a\n", "f") == [Host("a", 4, "/a")]
