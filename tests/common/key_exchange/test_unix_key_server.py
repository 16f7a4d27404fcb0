"""Which local processes get the job's key, and which cannot impersonate rank 0.

Strangers are processes in separate namespaces that share the network namespace with this one, like containers of a
pod and containers with the host's network.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from horovod.common.contract.worker_env import make_key
from horovod.common.key_exchange import unix_key_server
from horovod.common.key_exchange.methods import Group, MeetingError, OneHost
from horovod.common.key_exchange.unix_key_server import receive_local, serve_local
from horovod.common.launchers import Place
from horovod.common.security.auth import AuthError
from horovod.common.store import StoreClient
from tests.runner.launching import ROOT

SECONDS = 60.0
NEW_USERS, NEW_PIDS = 0x10000000, 0x20000000  # CLONE_NEWUSER, CLONE_NEWPID

# A process that enters other namespaces and switches user as its first argument says, then runs the second
# one.
STRANGER = """
import ctypes, os, sys
sys.path.insert(0, {root!r})
import contextlib, socket, time
from horovod.common.key_exchange import unix_key_server as same_user
from horovod.common.key_exchange.unix_key_server import _open_names, receive_local, serve_local
from horovod.common.security.auth import AuthError

def unshare(flags, uid_map=None):
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise SystemExit(f"unshare: {{os.strerror(ctypes.get_errno())}}")
    if uid_map:
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(uid_map)
        os.setresuid(*[int(uid_map.split()[0])] * 3)
    if flags & {new_pids}:
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

def take(start):
    # Whatever anybody gives at sockets of that name, with and without answering what is asked.
    got = b""
    for name in _open_names(start):
        for answer in (False, True):
            with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
                sock.settimeout(0.5)
                sock.connect("\\0" + name)
                if answer:
                    sock.sendall(bytes(32))
                    sock.sendall(sock.recv(64)[:32])
                while more := sock.recv(1000):
                    got += more
    return got

job = sys.argv[3] if len(sys.argv) > 3 else ""
exec(sys.argv[1])
exec(sys.argv[2])
"""


def stranger(place, program, *arguments, **options):
    code = STRANGER.format(root=str(ROOT), new_pids=NEW_PIDS)
    command = [sys.executable, "-c", code, place, program, *arguments]
    return subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, cwd="/", **options)


def ask(place, program, *arguments):
    """Return a stranger's output; skip the test if the system does not allow these namespaces."""
    process = stranger(place, program, *arguments)
    out, err = process.communicate(timeout=SECONDS)
    if "unshare: " in err or "PermissionError" in err:
        pytest.skip(f"no other namespaces here: {err.strip().splitlines()[-1]}")
    assert process.returncode == 0, err
    return out.strip()


ELSEWHERE = {
    "a pid namespace": f"unshare({NEW_PIDS})",
    "a user namespace": f"unshare({NEW_USERS}, '{os.geteuid()} {os.geteuid()} 1')",
    "a container": f"unshare({NEW_USERS} | {NEW_PIDS}, '{os.geteuid()} {os.geteuid()} 1')",
    "a user namespace without users": f"unshare({NEW_USERS})",
}
SECRET = b"the secret of this job"


@pytest.fixture
def job():
    return f"door {os.getpid()} {time.monotonic_ns()}"


@pytest.fixture
def server(job):
    with contextlib.closing(serve_local(job, SECRET)) as server:
        yield server


def start(job, key=None):
    return unix_key_server._start_of_name(job, key)


def test_processes_of_this_user_get_the_key(job, server):
    assert receive_local(job, SECONDS) == SECRET
    assert ask("pass", "print(bytes(receive_local(job, 30)))", job) == repr(SECRET)


@pytest.mark.parametrize(
    "place", [name if name == "a container" else pytest.param(name, marks=pytest.mark.heavy) for name in ELSEWHERE]
)
def test_a_process_with_the_same_uid_elsewhere_gets_nothing(job, server, place):
    got = ask(ELSEWHERE[place], "print(take(job))", start(job))
    assert got == "b''"
    assert receive_local(job, SECONDS) == SECRET


@pytest.mark.parametrize("place", [pytest.param("a pid namespace", marks=pytest.mark.heavy), "a container"])
def test_a_process_elsewhere_is_not_mistaken_for_rank_0(job, place):
    """Its socket name begins like rank 0's, and it sends arbitrary data."""
    program = (
        "import horovod.common.key_exchange.unix_key_server as d\n"
        "d.check_self = lambda: None; d.Peer = lambda sock: type('P', (), "
        "{'confirm': lambda *_: None, 'close': lambda *_: None})()\n"
        "d._start_of_name = lambda *_: job\n"
        "doors = [serve_local('', b'a false key') for _ in range(8)]; print('ready', flush=True); sys.stdin.read()"
    )
    with stranger(ELSEWHERE[place], program, start(job)) as squatter:
        try:
            if squatter.stdout.readline() != "ready\n":
                pytest.skip(f"no other namespaces here: {squatter.stderr.read()}")
            with pytest.raises(AuthError, match=r"another (pid|user) namespace.* listens in its place.*_KEY_FILE"):
                receive_local(job, 0.5)
            with contextlib.closing(serve_local(job, SECRET)):
                assert receive_local(job, SECONDS) == SECRET
        finally:
            squatter.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_gets_nothing_and_is_not_trusted(job):
    become = "os.setgroups([]); os.setgid(65534); os.setuid(65534)"
    squat = (
        "held = []\n"
        "for number in range(2):\n"
        "    held.append(socket.socket(socket.AF_UNIX)); held[-1].bind(f'\\0{job}{number}'); held[-1].listen()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with stranger(become, squat, start(job)) as squatter:
        try:
            assert squatter.stdout.readline() == "ready\n"
            with pytest.raises(AuthError, match=r"a process of user 65534, not 0 listens in its place"):
                receive_local(job, 0.3)
            with contextlib.closing(serve_local(job, SECRET)):
                assert receive_local(job, SECONDS) == SECRET
                assert ask(become, "print(take(job))", start(job)) == "b''"
        finally:
            squatter.kill()


def test_processes_speaking_for_another_get_nothing(job, server):
    """Otherwise it could wait until that process's pid is reused."""
    program = (
        "sock = socket.socket(socket.AF_UNIX)\n"
        "same_user.enable_credentials(sock); sock.connect('\\0' + _open_names(job)[0])\n"
        "if os.fork(): os._exit(0)\n"
        "sock.settimeout(10); sock.sendall(bytes(32)); got = sock.recv(1000)\n"
        "with contextlib.suppress(OSError): sock.sendall(got[:32]); got += sock.recv(1000)\n"
        "print(got[64:])"
    )
    assert ask("pass", program, start(job)) == "b''"


def test_a_key_overrides_the_user_id(job):
    """For example ranks in separate containers; being the same user is not enough then."""
    key = make_key()
    with contextlib.closing(serve_local(job, SECRET, key)):
        assert receive_local(job, SECONDS, key) == SECRET
        for place in ("a container", "a user namespace without users"):
            read = "print(bytes(receive_local(job, 30, bytes.fromhex(sys.stdin.readline()))))"
            process = stranger(ELSEWHERE[place], read, job)
            out, err = process.communicate(bytes(key).hex() + "\n", timeout=SECONDS)
            if "unshare: " in err:
                pytest.skip(err)
            assert out.strip() == repr(SECRET), err
        assert ask("pass", "print(take(job))", start(job, key)).count("secret") == 0
        with pytest.raises(AuthError, match="did not appear"):
            receive_local(job, 0.2, make_key())


def test_names_that_look_like_other_lines_are_harmless(job, server):
    """A name may contain line ends, followed by text chosen by its creator."""
    with contextlib.ExitStack() as held:
        for line in ("0: 0 0 no-number 1 1 1 @", "0: 0 0 00010000 1 1 1 @", "@", "0: @"):
            sock = held.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(f"\0x\n{line}{start(job)}")
            sock.listen()
        assert receive_local(job, SECONDS) == SECRET


def test_names_differ_each_time(job):
    names = set()
    for _ in range(3):
        with contextlib.closing(serve_local(job, SECRET)):
            names.update(unix_key_server._open_names(start(job)))
    assert len(names) == 3
    assert all(len(name) == len(start(job)) + 32 for name in names)


IN_USERS = f"unshare({NEW_USERS}, '65534 {os.geteuid()} 1')"  # the user number that stands for all unknown ones


def test_the_overflow_user_is_asked_for_a_key(job):
    program = (
        "for call in (lambda: serve_local(job, b'x'), lambda: receive_local(job, 0)):\n"
        "    try: call()\n"
        "    except AuthError as error: print(error)\n"
    )
    output = ask(IN_USERS, program, job).splitlines()
    assert len(output) == 2
    assert all("runs as user 65534 in a user namespace" in line and "HOROVOD_KEY_FILE=FILE" in line for line in output)


def ranks(job, key):
    place = {"local_rank": 0, "local_size": 2, "job": job}
    return [Group(Place("a launcher", rank, 2, **place), (), key) for rank in range(2)]


@pytest.mark.parametrize("key", [None, make_key()], ids=["kernel", "key"])
def test_ranks_of_one_host_meet(job, key):
    lead, follow = ranks(job, key)
    served, found = lead.job_key(make_key()), []
    waiting = threading.Thread(target=lambda: found.append(OneHost().follow(follow, SECONDS)))
    waiting.start()
    meeting = OneHost().lead(lead, served)
    try:
        waiting.join(SECONDS)
        assert found[0].key == served
        assert found[0].address == "127.0.0.1"
        with StoreClient(found[0].key, found[0].address, found[0].port) as store:
            store.set("x", b"y")
        meeting.formed()
        with pytest.raises(MeetingError, match=r"its socket on this host did not appear$"):
            OneHost().follow(follow, 0.1)
    finally:
        meeting.formed()
        meeting.server.close()
