"""Keys are not readable by other users, and are not shown by the processes that have them."""

import os
import pickle
import re
import stat
import traceback
from pathlib import Path

import pytest

from horovod.common.contract.private_files import Secret
from horovod.common.contract.worker_env import WorkerEnv, make_key, make_key_fd, read_key_fd, read_key_file
from horovod.common.security import auth
from horovod.common.store.messages import curve_pair
from horovod.runner.agent.messages import StartJob, Worker
from tests.runner.launching import python, run_job, running
from tests.runner.test_launch import by_rank
from tests.security.jobs import PATIENCE, WORKER, environment_of, wait_for, workers_of

KEY = bytes(range(65, 97))


def shown(*values):
    """Return a value in all of its usual text representations."""
    texts = []
    for value in values:
        texts += [repr(value), str(value), f"{value}", f"{[value]}"]
        texts += [f"{value:>40}"] if isinstance(value, Secret) else []
    return "\n".join(texts)


def forms(key):
    """Return the forms in which a key can appear in a text."""
    return [repr(bytes(key))[2:-1], key.hex(), str(list(key))[1:-1]]


def test_secrets_do_not_show_their_bytes(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    fd = make_key_fd(KEY)
    try:
        keys = [read_key_fd(fd), read_key_file(str(path)), auth.derive_key(KEY, "links"), make_key()]
        keys += [WorkerEnv(key_fd=fd).job_key(), curve_pair(KEY, "server")[1]]
    finally:
        os.close(fd)
    assert keys[0] == keys[1] == KEY
    for key in keys:
        text = shown(key)
        assert not any(form in text for form in forms(key))
        assert "secret of" in text
        assert pickle.loads(pickle.dumps(key)) == bytes(key)


def test_messages_hide_keys_and_variables():
    worker = Worker(0, [(b"MY_TOKEN", b"for-me-only")])
    job = StartJob([b"train"], b"/", [(b"PASSWORD", b"of-the-user")], [worker], KEY)
    text = shown(job, worker) + str(job.__rich_repr__())
    assert not any(form in text for form in forms(KEY))
    assert "for-me-only" not in text
    assert "of-the-user" not in text
    assert "PASSWORD" in text
    assert "MY_TOKEN" in text
    assert "train" in text


def test_tracebacks_that_show_variables_do_not_show_keys(tmp_path):
    """Notebooks and test runners show the variables of every frame."""
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    found = read_key_file(str(path))
    try:
        auth.Connector(found, auth.Place(1, 2, 3, 4)).feed(b"x" * 64)
    except auth.AuthError as error:
        text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "the job's key" in text
    assert not any(form in text for form in forms(KEY))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Yield (a running job at log level trace, its control directory, its key)."""
    place = tmp_path_factory.mktemp("job")
    (place / "go").touch()
    with running(["-np", "2", "--verbose", "--log-level", "TRACE", *python(WORKER), str(place)]) as job:
        wait_for(lambda: list(place.glob("formed-*")), 2)
        workers = workers_of(job)
        environ = environment_of(workers[0])
        key = read_key_file(environ["HOROVOD_KEY_FILE"])
        assert read_key_file(f"/proc/{workers[0]}/fd/{environ['HOROVOD_KEY_FD']}") == key
        yield job, place, key


def test_the_key_is_in_no_argument_and_no_environment(job):
    running, _, key = job
    pids = running.left()
    assert len(pids) >= 5  # launcher, guard, agent, two workers
    for pid in pids:
        for entry in ("cmdline", "environ", "comm"):
            content = Path(f"/proc/{pid}/{entry}").read_bytes()
            assert bytes(key) not in content
            assert not any(form.encode() in content for form in forms(key))


def test_only_this_user_can_open_the_key(job):
    running, _, _ = job
    found = 0
    for pid in running.left():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if re.match(r"/memfd:horovod-(key|function|result)", os.readlink(entry)):
                assert stat.S_IMODE(os.stat(entry).st_mode) == 0o600
                assert os.stat(entry).st_uid == os.getuid()
                found += 1
    assert found >= 3  # the agent and its workers


def test_the_key_is_in_no_output_at_level_trace(job):
    running, place, key = job
    (place / "end").touch()
    done = running.finish(PATIENCE)
    assert done.code == 0, done.err
    assert done.out.count("all sums right") == 2
    assert "store on 127.0.0.1" in done.err
    for text in (done.out, done.err):
        assert not any(form in text for form in [*forms(key), *forms(auth.derive_key(key, "links"))])


CHILDREN = """
import os, subprocess, sys
from horovod.common.basics import HorovodBasics

fd = int(os.environ["HOROVOD_KEY_FD"])
hvd = HorovodBasics("torch")
hvd.init()

os.system("ls -l /proc/self/fd | grep -c horovod-key")  # C's system() passes on whatever may be inherited
user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
listed = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, cwd="/", stdout=subprocess.PIPE, **user)
print("program", listed.returncode, listed.stdout.count(b"horovod-key"))

sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        print("child", len(os.pread(fd, 32, 0)))
    except OSError as error:
        print("child", error.strerror)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
hvd.shutdown()
hvd.init()  # this process still has it
print("size", hvd.size())
hvd.shutdown()
"""


@pytest.mark.parametrize("np", [pytest.param(1, marks=pytest.mark.heavy), 2])
def test_children_do_not_get_the_keys_descriptor(np):
    """Even children that drop privileges: they could read the key through an open descriptor."""
    done = run_job(["-np", str(np), *python(CHILDREN)])
    assert done.code == 0, done.err
    expected = ["0", "program 0 0", "child Bad file descriptor", f"size {np}"]
    for rank in range(np):
        assert by_rank(done.out)[rank] == expected, done.out + done.err
