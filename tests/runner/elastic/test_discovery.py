"""Host discovery: the script's output, and its possible errors."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.common.contract.membership import HostUpdateResult
from horovod.runner.base.arguments import FLAGS, HOROVOD_RUN
from horovod.runner.elastic.discovery import FixedHosts, HostDiscoveryScript, HostManager, HostState
from horovod.runner.elastic.script import ScriptRun, parse


@pytest.fixture
def script(tmp_path):
    def make(text: str, mode: int = 0o755) -> str:
        path = tmp_path / "hosts.sh"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return make


def test_hosts_keep_the_order_of_output(script):
    path = script("#!/bin/sh\necho b:2\necho\necho '  a.example-1:4 '\necho [fe80::1%eth0]:3\necho [::1]\necho c\n")
    found = HostDiscoveryScript(path, 7).find_available_hosts_and_slots()
    assert list(found.items()) == [("b", 2), ("a.example-1", 4), ("fe80::1%eth0", 3), ("::1", 7), ("c", 7)]


@given(
    st.dictionaries(
        st.from_regex(r"[\w.-]{1,20}", fullmatch=True, alphabet=st.characters(codec="ascii")), st.integers(1, 99)
    )
)
def test_printed_hosts_are_parsed_unchanged(hosts):
    assert list(parse("\n".join(f"{h}:{n}" for h, n in hosts.items()), None, "s").items()) == list(hosts.items())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hello world", r"line 2 of the output .* must be 'name' or 'name:slots'.*, got 'hello world'"),
        ("a:", r"line 2 .* must be .*, got 'a:'"),
        ("a:0", r"line 2 .* must give at least 1 slot, got 'a:0'; leave out hosts without slots"),
        ("a:-1", r"line 2 .* must be .*, got 'a:-1'"),
        ("a", r"line 2 .* must give slots, got 'a'; print 'a:N', or give --slots-per-host"),
        ("first:3", r"line 2 .* must name another host, got 'first:3': line 1 names 'first' already"),
        ("fe80::1:4", r"an IPv6 address as \[address\]"),
        ("a:65537", r"line 2 .* must give at most 65536 slots, got 'a:65537'"),
        ("a:" + "9" * 5000, r"must give at most 65536 slots, got '.*9\.\.\.'"),
        ("x" * 500, r"got '" + "x" * 80 + r"\.\.\.'"),
    ],
)
def test_invalid_lines(line, message):
    with pytest.raises(ValueError, match=message):
        parse(f"first:1\n{line}\n", None, "./hosts.sh")


def test_the_maximum_number_of_slots_per_host():
    assert parse("a:65536\nb:0000001\nc\n", 65536, "s") == {"a": 65536, "b": 1, "c": 65536}
    with pytest.raises(ValueError, match=r"at most 65536 slots, got 'a' \(--slots-per-host 65537\)"):
        parse("a", 65537, "s")


@pytest.mark.parametrize("called", [FLAGS, HOROVOD_RUN])
def test_errors_use_the_callers_names(script, tmp_path, called):
    with pytest.raises(ValueError, match=rf"line 1 .* must give slots, got 'a'; print 'a:N', or give {called.slots}$"):
        ScriptRun(script("#!/bin/sh\necho a\n"), None, names=called).finish()
    with pytest.raises(ValueError, match=rf"at most 65536 slots, got 'a' \({called.slots} 65537\)"):
        ScriptRun(script("#!/bin/sh\necho a\n"), 65537, names=called).finish()
    with pytest.raises(ValueError, match=rf"^{called.script} must be an executable file, got '.*', a directory"):
        ScriptRun(str(tmp_path), None, names=called)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("#!/bin/sh\necho a:1\n", 0o644, r"which is not executable; run `chmod \+x .*hosts.sh`"),
        ("#!/no/such/shell\n", 0o755, r"whose interpreter \(in its first line\) does not exist"),
        ("#!/bin/sh\necho no cluster >&2\nexit 3\n", 0o755, r"hosts.sh ended: .*3\n    no cluster$"),
        ("#!/bin/sh\nkill -9 $$\n", 0o755, r"hosts.sh ended: .*SIGKILL"),
        ("#!/bin/sh\nprintf '\\377'\n", 0o755, "must print UTF-8 text"),
        ("#!/bin/sh\nyes\n", 0o755, r"must print at most 1048576 bytes"),
    ],
)
def test_scripts_that_do_not_work(script, text, mode, message):
    if mode == 0o644 and os.geteuid() == 0:
        mode = 0o600  # even root cannot execute a file without execute permission
    with pytest.raises(ValueError, match=message):
        HostDiscoveryScript(script(text, mode), None).find_available_hosts_and_slots()


@pytest.mark.parametrize("text", ["echo a:1\nfor i in 2; do echo b:$i; done\n", "\necho a:1; echo b:2"])
def test_a_script_without_a_shebang_is_run_by_the_shell(script, text):
    assert HostDiscoveryScript(script(text, 0o755), None).find_available_hosts_and_slots() == {"a": 1, "b": 2}


def test_a_slow_script_ends_with_its_descendants(script, tmp_path):
    path = script(f"#!/bin/sh\nsleep 300 & echo $! > {tmp_path}/pid\necho a:1\nwait\n")
    begin = time.monotonic()
    run = ScriptRun(path, None, 0.3)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert time.monotonic() - begin < 120
        time.sleep(0.01)
    with pytest.raises(ValueError, match=r"must end within 0.3 s, but did not; it is run every second"):
        run.finish()
    assert time.monotonic() - begin < 200
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_manager_lists_usable_hosts():
    hosts = {"b": 2, "a": 2}
    discovery = FixedHosts({})
    discovery.find_available_hosts_and_slots = lambda: dict(hosts)
    manager = HostManager(discovery)
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    del hosts["b"]
    hosts.update({"b": 3, "c": 1})
    assert manager.update_available_hosts() == HostUpdateResult.added
    found = manager.current_hosts
    assert found.host_assignment_order == ["b", "a", "c"], "the order in which they came first"
    assert (found.get_slots("b"), found.get_slots("x"), found.count_available_slots()) == (3, 0, 6)
    hosts["b"] = 1
    hosts["d"] = 1
    assert manager.update_available_hosts() == HostUpdateResult.mixed
    manager.blacklist("a")
    assert manager.is_blacklisted("a")
    assert manager.current_hosts.available_hosts == {"b", "c", "d"}
    assert manager.update_available_hosts() == HostUpdateResult.removed


def test_host_state():
    state = HostState((1, 10))
    assert not state.is_blacklisted()
    state.blacklist()
    assert state.is_blacklisted()
    assert state.get_event().is_set()
    with pytest.raises(ValueError, match="cooldown range"):
        HostState((0, 10))
