"""Checkpoints at URLs: whole or not at all in object stores, and on file systems that show a file while it grows."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from horovod.common.elastic import Checkpoint, ObjectState
from horovod.common.elastic.checkpoint_files import TornCheckpointError, name_of
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from tests import s3
from tests.common.elastic.ranks import Face, Job


class Growing(MemoryFileSystem):
    """Shows a file while it grows, and does not rename over one: as HDFS."""

    protocol = "growing"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    sent: list = []  # noqa: RUF012
    breaks = False

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).replace("growing://", "memory://"))

    def put_file(self, lpath, rpath, **kwargs):
        self.sent.append(rpath.rpartition("/")[2])
        super().put_file(lpath, rpath, **kwargs)
        if self.breaks:
            self.pipe_file(rpath, self.cat_file(rpath)[:10])
            raise ConnectionResetError("the connection is lost")

    def mv(self, path1, path2, **kwargs):
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, **kwargs)


fsspec.register_implementation("growing", Growing, clobber=True)


@pytest.fixture(params=["memory", "growing"])
def url(request):
    made = f"{request.param}://bucket/{os.urandom(4).hex()}/run"
    yield made
    filesystem, path = fsspec.core.url_to_fs(made)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)


def saved(url, *steps, **kwargs):
    with Checkpoint(url, **kwargs) as checkpoint:
        for step in steps:
            checkpoint.save(step, {"step": step})
            checkpoint.wait()
    return checkpoint


def names(url):
    filesystem, path = fsspec.core.url_to_fs(url)
    return sorted(name.rpartition("/")[2] for name in filesystem.ls(path, detail=False))


def test_the_last_few_are_kept_and_the_newest_is_found(url):
    assert Checkpoint(url).load() is None
    checkpoint = saved(url, 5, 50, 500, 5000, 5000, keep=3)
    assert checkpoint.steps() == [5000, 500, 50]
    assert (checkpoint.directory, Checkpoint(url + "/").load()) == (url, (5000, {"step": 5000}))
    assert checkpoint.load(50).value == {"step": 50}
    with pytest.raises(FileNotFoundError):
        checkpoint.load(5)
    assert names(url) == [name_of(step) for step in (50, 500, 5000)]


def test_a_torn_one_is_passed_over_and_named(url):
    checkpoint = saved(url, 1, 2)
    filesystem, path = fsspec.core.url_to_fs(url)
    newest = f"{path}/{name_of(2)}"
    filesystem.pipe_file(newest, filesystem.cat_file(newest)[:-1])
    assert checkpoint.load().step == 1
    assert checkpoint.torn == [f"{url}/{name_of(2)} does not end as a checkpoint does: it is torn, or no checkpoint"]
    with pytest.raises(TornCheckpointError, match="does not end"):
        checkpoint.load(2)


def test_what_a_job_has_not_gone_on_from_is_put_aside(url, capfd):
    saved(url, 80, 90)
    saved(url, 10, keep=1)
    assert f"they are in {url}/earlier-1 now" in capfd.readouterr().err
    saved(url, 5)
    assert [Checkpoint(f"{url}/{folder}").steps() for folder in (".", "earlier-1", "earlier-2")][1:] == [[90, 80], [10]]
    assert Checkpoint(url).steps() == [5]


def test_a_newcomer_knows_what_its_job_has_written(url):
    with Checkpoint(url, keep=2, job=lambda: "a") as first:
        for step in (10, 20):
            first.save(step, None)
            first.wait()
    with Checkpoint(url, keep=1, job=lambda: "a") as newcomer:
        newcomer.save(15, None)
        newcomer.wait()
        assert newcomer.steps() == [15], "20 is of a future that did not come"
    with Checkpoint(url, keep=1, job=lambda: "b") as other:
        other.save(12, None)
    assert Checkpoint(f"{url}/earlier-1").steps() == [15]


def test_a_failure_to_write_spoils_nothing(url, capfd):
    def dump(value, file):
        file.write(b"some" * 1000)
        if value == "bad":
            raise OSError(28, "No space left on device")

    checkpoint = Checkpoint(url, dump=dump, load=lambda file: file.read())
    checkpoint.save(1, "good")
    checkpoint.wait()
    checkpoint.save(2, "bad")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.wait()
    assert names(url) == [name_of(1)]
    said = f"step 2 could not be written into {url}: OSError: [Errno 28] No space left on device; training goes on"
    assert said in capfd.readouterr().err


def test_a_broken_upload_is_not_a_checkpoint_where_files_grow(monkeypatch):
    url = f"growing://bucket/{os.urandom(4).hex()}"
    saved(url, 1)
    Growing.sent.clear()
    monkeypatch.setattr(Growing, "breaks", True)
    checkpoint = Checkpoint(url)
    checkpoint.save(2, None)
    with pytest.raises(ConnectionResetError):
        checkpoint.close()
    (sent,) = Growing.sent
    assert (sent.startswith(".step-000000000002."), names(url)) == (True, [name_of(1)])


def test_what_the_killed_left_is_removed_when_it_is_old(monkeypatch):
    url = f"growing://bucket/{os.urandom(4).hex()}"
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.makedirs(path)
    old, new = (f".step-{step:012d}.77.abcd.tmp" for step in (1, 2))
    for name, age in ((old, 2), (new, 0)):
        filesystem.pipe_file(f"{path}/{name}", b"half")
        filesystem.store[f"{path}/{name}"].modified = datetime.now(timezone.utc) - timedelta(hours=age)
    saved(url, 3)
    assert names(url) == sorted([new, name_of(3)])


def test_states_resume_from_a_url(url, monkeypatch):
    saved(url, 7)
    monkeypatch.setenv("HOROVOD_RESUME", "1")
    face = Face()
    made = ObjectState(face.broadcast, face.rank, face.gather, step=0)
    face.number = 1
    assert StateCheckpoint(url, rank=face.rank, size=lambda: 1, copied=dict).resume(made) is None
    face.join(Job(1), 0)
    made.sync()
    assert made.step == 7, "the new rank 0 has read it"


def test_nothing_is_left_on_this_host(url, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []
    checkpoint = Checkpoint(url, dump=lambda value, file: seen.append(os.listdir(tmp_path)) or file.write(b"x" * 99))
    checkpoint.save(1, None)
    checkpoint.close()
    Checkpoint(url, load=lambda file: seen.append(os.listdir(tmp_path))).load()
    assert seen == [[], []], "files here have no names"


@pytest.mark.parametrize(
    ("directory", "options", "error", "says"),
    [
        ("nowhere://bucket/x", None, ValueError, "directory is 'nowhere://bucket/x', of which fsspec says: .*nowhere"),
        ("", None, ValueError, "directory is '', accepted is"),
        (b"x", None, ValueError, "directory is b'x', accepted is"),
        (Path("s3://bucket/x"), None, ValueError, "of which a slash is lost"),
        ("here", {"key": "a"}, ValueError, "storage_options are given for the directory 'here'"),
        ("memory://bucket/x", {"protocol": "nowhere"}, ValueError, "of which fsspec says: .*nowhere"),
    ],
)
def test_what_is_not_accepted(directory, options, error, says):
    with pytest.raises(error, match=says):
        Checkpoint(directory, storage_options=options)


@pytest.mark.parametrize(
    ("missing", "url", "says"),
    [
        ("fsspec", "s3://bucket/x", r"a URL, for which fsspec is needed: pip install 'horovod\[s3\]'"),
        ("s3fs", "s3://bucket/x", r"of which fsspec says: .*s3fs.* \(pip install 'horovod\[s3\]'\)"),
        ("gcsfs", "gs://bucket/x", r"pip install 'horovod\[gs\]'"),
    ],
)
def test_a_missing_package_is_named(missing, url, says):
    program = f"""
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
from horovod.common.elastic import Checkpoint
try:
    Checkpoint({url!r})
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"directory is {url!r}")
    assert re.search(says, done.stdout), done.stdout


def test_a_file_url_is_a_directory(tmp_path):
    checkpoint = saved(f"file://{tmp_path}/run", 1)
    assert checkpoint.directory == tmp_path / "run"
    assert os.listdir(tmp_path / "run") == [name_of(1)]


# S3


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """The URL of a server with a bucket named `training`."""
    with s3.server(tmp_path_factory.mktemp("moto"), "training") as url:
        yield url


def test_on_s3(endpoint, capfd):
    given = {"storage_options": s3.options(endpoint)}
    checkpoint = saved("s3://training/a/run", 1, 2, 3, 4, keep=2, **given)
    assert checkpoint.steps() == [4, 3]
    assert Checkpoint("s3://training/a/run", **given).load() == (4, {"step": 4})
    saved("s3://training/a/run", 2, **given)
    assert "they are in s3://training/a/run/earlier-1 now" in capfd.readouterr().err
    assert checkpoint.steps() == [2]
    assert Checkpoint("s3://training/a/run/earlier-1", **given).steps() == [4, 3]
    with Checkpoint("s3://elsewhere/run", **given) as lost:
        assert lost.load() is None
        lost.save(1, None)
        with pytest.raises(OSError, match="bucket"):
            lost.wait()


WRITER = """
import os, sys
from horovod.common.elastic import Checkpoint

checkpoint = Checkpoint("s3://training/killed", dump=lambda value, file: file.write(value))
checkpoint.save(1, b"x" * 1000)
checkpoint.wait()
print("one", flush=True)
step = 2
while True:
    checkpoint.save(step, os.urandom(12 << 20))
    checkpoint.wait()
    step += 1
"""


@pytest.mark.heavy
def test_who_is_killed_while_sending_to_s3_leaves_whole_ones_only(endpoint, tmp_path):
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-west-1"}
    env = {**os.environ, **variables, "AWS_ENDPOINT_URL": endpoint, "TMPDIR": str(tmp_path)}
    for seconds in (0.3, 1.1):
        with subprocess.Popen([sys.executable, "-c", WRITER], env=env, stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"one\n"
            time.sleep(seconds)
            child.send_signal(signal.SIGKILL)
        reader = Checkpoint("s3://training/killed", storage_options=s3.options(endpoint), load=lambda file: file.read())
        assert reader.load() is not None
        assert reader.torn == []
        for step in reader.steps():
            assert len(reader.load(step).value) in (1000, 12 << 20)
    assert os.listdir(tmp_path) == [], "what a killed process was sending is gone with it"
