"""Which checkpoints are trusted: unpickling can run any code, and their directory may be writable by others."""

import hashlib
import os
import pickle

import pytest

from horovod.common.elastic import Checkpoint, checkpoint_files
from horovod.common.elastic.checkpoint_files import TornCheckpointError, Trust, UntrustedCheckpointError, name_of
from tests.common.elastic.saving import saved

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user's")


class Marks:
    """An object that records when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def planted(directory, step, value):
    """Write a checkpoint as any user can who knows its format."""
    body = pickle.dumps(value)
    length = len(body).to_bytes(8, "big")
    path = directory / name_of(step)
    path.write_bytes(body + length + hashlib.sha256(body + length).digest() + b"HVDCKPT1")
    return path


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "checkpoints"
    saved(path, 1)
    return path


@needs_root
def test_checkpoints_of_another_user_are_refused_unless_allowed(directory, tmp_path, monkeypatch):
    path = planted(directory, 7, Marks(tmp_path / "ran"))
    os.chown(path, STRANGER, STRANGER)
    for step in (None, 7):
        with pytest.raises(UntrustedCheckpointError, match=r"step-0+7.ckpt belongs to user 65534, not to 0"):
            Checkpoint(directory).load(step)
    assert not (tmp_path / "ran").exists()
    assert Checkpoint(directory).load(1).value == {"step": 1}
    monkeypatch.setenv("HOROVOD_CHECKPOINT_OWNERS", "any")
    Checkpoint(directory).load()
    assert (tmp_path / "ran").exists()


def test_world_writable_checkpoints_are_refused(directory, tmp_path):
    path = planted(directory, 7, Marks(tmp_path / "ran"))
    path.chmod(0o666)
    with pytest.raises(UntrustedCheckpointError, match="can be written by every user"):
        Checkpoint(directory).load()
    assert not (tmp_path / "ran").exists()
    path.chmod(0o664)  # a common file mode
    Checkpoint(directory).load()
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("user", [STRANGER, None])
def test_a_file_system_without_owners_and_modes(directory, monkeypatch, user):
    """On such file systems all files look alike, including newly created ones."""
    path = directory / name_of(1)
    path.chmod(0o777)
    if user is not None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to make a file of another user's")
        os.chown(path, user, user)
    with pytest.raises(UntrustedCheckpointError):
        Checkpoint(directory).load()
    monkeypatch.setattr(checkpoint_files, "probe_owner", lambda directory: path.stat())
    assert Checkpoint(directory).load().value == {"step": 1}


@pytest.fixture
def key(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    monkeypatch.setenv("HOROVOD_CHECKPOINT_KEY_FILE", str(path))
    return path


@pytest.mark.parametrize("url", ["{}", "memory://{}"])
def test_checkpoints_sealed_with_a_key(tmp_path, key, monkeypatch, url):
    if "://" in url:
        pytest.importorskip("fsspec")
    place = url.format(tmp_path / "sealed")
    saved(place, 3)
    assert Checkpoint(place).load().value == {"step": 3}
    other = tmp_path / "other"
    other.write_bytes(os.urandom(32))
    other.chmod(0o600)
    monkeypatch.setenv("HOROVOD_CHECKPOINT_KEY_FILE", str(other))
    assert Checkpoint(place).load() is None  # its MAC does not match
    monkeypatch.delenv("HOROVOD_CHECKPOINT_KEY_FILE")
    with pytest.raises(UntrustedCheckpointError, match="is sealed with a key; HOROVOD_CHECKPOINT_KEY_FILE has to name"):
        Checkpoint(place).load()


def test_with_a_key_files_without_a_mac_are_refused(directory, tmp_path, key):
    planted(directory, 7, Marks(tmp_path / "ran"))
    with pytest.raises(UntrustedCheckpointError, match="not sealed with the key in HOROVOD_CHECKPOINT_KEY_FILE"):
        Checkpoint(directory).load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", [0o664, 0o666])
def test_a_sealed_checkpoint_that_changes_after_its_mac_was_checked(tmp_path, key, mode):
    """If others can write to the file, the loaded bytes must be the checked ones."""
    trust = Trust(key_file=str(key))
    path = checkpoint_files.write(tmp_path, 3, lambda file: file.write(b"good" * 1000), trust)
    path.chmod(mode)

    def load(file):
        with open(path, "r+b") as changed:
            changed.write(b"evil" * 1000)
        return file.read()

    assert checkpoint_files.read(tmp_path, 3, load, trust) == b"good" * 1000


def test_sealed_checkpoints_are_bound_to_their_step(tmp_path, key):
    place = tmp_path / "sealed"
    saved(place, 3)
    (place / name_of(3)).rename(place / name_of(9))
    with pytest.raises(TornCheckpointError):
        Checkpoint(place).load(9)


def test_key_file_that_others_can_read(tmp_path, key):
    key.chmod(0o644)
    with pytest.raises(ValueError, match="HOROVOD_CHECKPOINT_KEY_FILE must be a regular file of this user"):
        Checkpoint(tmp_path)


def test_a_missing_key_file_fails_reads_and_writes(directory, key, capfd):
    """As on hosts without rank 0."""
    key.unlink()
    checkpoint = Checkpoint(directory)
    with pytest.raises(ValueError, match=r"HOROVOD_CHECKPOINT_KEY_FILE is .* which cannot be opened"):
        checkpoint.load()
    checkpoint.save(2, "x")
    with pytest.raises(ValueError, match="HOROVOD_CHECKPOINT_KEY_FILE"):
        checkpoint.close()
    assert "the checkpoint of step 2 could not be written" in capfd.readouterr().err
    assert checkpoint.steps() == [1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a pipe", "a directory", "a device", "a link to nothing"])
def test_entries_that_are_not_files_are_skipped(directory, kind):
    path = directory / name_of(9)
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "a device" else "/nonexistent")
    os.mkfifo(directory / ".step-000000000009.1.abcd.tmp")
    assert Checkpoint(directory).load() == (1, {"step": 1})
    saved(directory, 10)
