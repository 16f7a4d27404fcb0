"""Checkpoints at URLs are complete or absent, in object stores and on file systems that show growing files."""

import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import fsspec
import pytest

from horovod.common.elastic import Checkpoint
from horovod.common.elastic.checkpoint_files import name_of
from horovod.common.elastic.checkpoint_place import without_password
from tests.common.elastic.places import Growing, names
from tests.common.elastic.saving import dump_until_full, saved

pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "growing"])
def url(request):
    result = f"{request.param}://bucket/{os.urandom(4).hex()}/run"
    yield result
    filesystem, path = fsspec.core.url_to_fs(result)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)


def test_the_last_checkpoints_are_kept_and_the_newest_is_found(url):
    assert Checkpoint(url).load() is None
    checkpoint = saved(url, 5, 50, 500, 5000, 5000, keep=3)
    assert checkpoint.steps() == [5000, 500, 50]
    assert (checkpoint.directory, Checkpoint(url + "/").load()) == (url, (5000, {"step": 5000}))
    assert checkpoint.load(50).value == {"step": 50}
    with pytest.raises(FileNotFoundError):
        checkpoint.load(5)
    assert names(url) == [name_of(step) for step in (50, 500, 5000)]
    filesystem, path = fsspec.core.url_to_fs(f"{url}/{name_of(5000)}")
    filesystem.pipe_file(path, filesystem.cat_file(path)[:-1])
    assert checkpoint.load().step == 500
    assert checkpoint.torn == [f"{url}/{name_of(5000)} does not end as a checkpoint does: it is torn, or no checkpoint"]


def test_checkpoints_of_another_job_are_set_aside(url, capfd):
    saved(url, 80, 90)
    saved(url, 10, keep=1)
    assert f"they are in {url}/earlier-1 now" in capfd.readouterr().err
    assert Checkpoint(f"{url}/earlier-1").steps() == [90, 80]
    saved(url, 20, keep=1, job=lambda: "a")
    newcomer = saved(url, 15, keep=1, job=lambda: "a")
    assert newcomer.steps() == [15, 10], "20 is of a future that did not come"
    saved(url, 5, job=lambda: "b")
    assert Checkpoint(f"{url}/earlier-2").steps() == [15, 10]


def test_write_failures_are_harmless(url, capfd):
    checkpoint = Checkpoint(url, dump=dump_until_full, load=lambda file: file.read())
    checkpoint.save(1, "good")
    checkpoint.wait()
    checkpoint.save(2, "bad")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.wait()
    assert names(url) == [name_of(1)]
    message = f"step 2 could not be written into {url}: OSError: [Errno 28] No space left on device; training goes on"
    assert message in capfd.readouterr().err


def test_an_incomplete_upload_is_not_a_checkpoint(monkeypatch):
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


def test_old_files_of_killed_writers_are_removed(monkeypatch):
    url = f"growing://bucket/{os.urandom(4).hex()}"
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.makedirs(path)
    old, new = (f".step-{step:012d}.77.abcd.tmp" for step in (1, 2))
    for name, age in ((old, 2), (new, 0)):
        filesystem.pipe_file(f"{path}/{name}", b"half")
        filesystem.store[f"{path}/{name}"].modified = datetime.now(timezone.utc) - timedelta(hours=age)
    saved(url, 3)
    assert names(url) == sorted([new, name_of(3)])


@pytest.mark.parametrize(
    ("directory", "options", "error", "says"),
    [
        ("nowhere://bucket/x", None, ValueError, "directory is 'nowhere://bucket/x', of which fsspec says: .*nowhere"),
        ("", None, ValueError, "directory must be .*, got ''"),
        (b"x", None, ValueError, "directory must be .*, got b'x'"),
        (Path("s3://bucket/x"), None, ValueError, "which has lost a slash"),
        ("here", {"key": "a"}, ValueError, "storage_options are given for the directory 'here'"),
        ("memory://bucket/x", {"protocol": "nowhere"}, ValueError, "of which fsspec says: .*nowhere"),
    ],
)
def test_invalid_arguments(directory, options, error, says):
    with pytest.raises(error, match=says):
        Checkpoint(directory, storage_options=options)


@pytest.mark.parametrize(
    ("missing", "url", "says"),
    [
        ("fsspec", "s3://bucket/x", r"a URL, for which fsspec is needed: pip install 'horovod\[s3\]'"),
        ("s3fs", "s3://bucket/x", r"of which fsspec says: .*s3fs.* \(pip install 'horovod\[s3\]'\)"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, missing, url, says):
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(ImportError, match=f"^directory is '{url}', .*{says}"):
        Checkpoint(url)


def test_a_file_url_is_a_directory(tmp_path):
    checkpoint = saved(f"file://{tmp_path}/run", 1)
    assert checkpoint.directory == tmp_path / "run"
    assert os.listdir(tmp_path / "run") == [name_of(1)]


def growing_with(monkeypatch, move):
    """Return a place with one written step, in which ``move`` replaces the rename that it is given."""
    url = f"growing://bucket/{os.urandom(4).hex()}"
    saved(url, 1)
    renamed = Growing.mv
    monkeypatch.setattr(Growing, "mv", lambda self, old, new, **_: move(self, old, new, renamed))
    return url


def written_again(url):
    with Checkpoint(url) as checkpoint:
        checkpoint.save(1, "again")


def test_a_failed_rename_keeps_the_previous_checkpoint(monkeypatch):
    def move(self, old, new, renamed):
        if self.size(old) == size or not self.exists(old):  # the previous checkpoint
            return renamed(self, old, new)
        raise OSError("refused")

    url = growing_with(monkeypatch, move)
    filesystem, path = fsspec.core.url_to_fs(f"{url}/{name_of(1)}")
    size = filesystem.size(path)
    with pytest.raises(OSError, match="refused"):
        written_again(url)
    assert (Checkpoint(url).load().value, names(url)) == ({"step": 1}, [name_of(1)])


def test_passwords_are_not_printed(capfd, monkeypatch):
    monkeypatch.setattr(Growing, "breaks", True)
    directory = f"growing://user:se@cret@host/{os.urandom(4).hex()}"
    checkpoint = Checkpoint(directory)
    checkpoint.save(1, None)
    with pytest.raises(ConnectionResetError):
        checkpoint.close()
    assert checkpoint.directory == directory.replace("se@cret", "***")
    for wrong in ("nowhere://user:secret@host/x", Path("sftp://user:secret@host/x")):
        with pytest.raises(ValueError, match=r"user:\*\*\*@host/x'") as raised:
            Checkpoint(wrong)
        assert "secret" not in str(raised.value)
    output = capfd.readouterr().err
    assert (checkpoint.directory in output, "cret@" in output) == (True, False)
    assert without_password("growing://host:22/a:b@c") == "growing://host:22/a:b@c"
