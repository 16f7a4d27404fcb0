"""Checkpoints on disk are complete or absent, whatever happens to the writer or the file."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.common.contract.worker_env import make_key_fd
from horovod.common.elastic import Checkpoint, ObjectState
from horovod.common.elastic.checkpoint_files import TornCheckpointError, name_of, read, write
from horovod.common.elastic.checkpoint_place import job_tag
from horovod.common.elastic.state_checkpoint import StateCheckpoint
from tests.common.elastic.ranks import FakeFrontend, Job, run
from tests.common.elastic.saving import dump_until_full, saved


def test_the_last_checkpoints_are_kept_and_the_newest_is_found(tmp_path):
    checkpoint = saved(tmp_path / "a" / "b", 5, 50, 500, 5000, keep=3)
    assert checkpoint.steps() == [5000, 500, 50]
    assert Checkpoint(tmp_path / "a" / "b").load() == (5000, {"step": 5000})
    assert checkpoint.load(50).value == {"step": 50}
    with pytest.raises(FileNotFoundError):
        checkpoint.load(5)
    assert Checkpoint(tmp_path / "none").load() is None


def test_writes_do_not_block_and_the_newest_wins(tmp_path):
    go, started = threading.Event(), threading.Event()

    def dump(value, file):
        started.set()
        assert go.wait(30)
        file.write(value)

    checkpoint = Checkpoint(tmp_path, dump=dump, load=lambda file: file.read())
    checkpoint.save(1, b"one")
    assert started.wait(30)
    checkpoint.save(2, b"two")
    checkpoint.save(3, b"three")
    assert not checkpoint.wait(0.01)
    go.set()
    checkpoint.close()
    assert (checkpoint.steps(), checkpoint.load()) == ([3, 1], (3, b"three"))


def test_torn_checkpoints_are_skipped_and_named(tmp_path):
    checkpoint = saved(tmp_path, 1, 2)
    newest = tmp_path / name_of(2)
    newest.write_bytes(newest.read_bytes()[:-1])
    assert checkpoint.load().step == 1
    (text,) = checkpoint.torn
    assert text == f"{newest} does not end as a checkpoint does: it is torn, or no checkpoint"
    with pytest.raises(TornCheckpointError, match="does not end as a checkpoint does"):
        checkpoint.load(2)


def test_only_checkpoints_of_the_job_are_removed(tmp_path, capfd):
    saved(tmp_path, 80, 90, 100)
    anew = saved(tmp_path, 10, 20, 30, 85, keep=1)
    assert (anew.steps(), capfd.readouterr().err.count(f"they are in {tmp_path / 'earlier-1'} now")) == ([85], 1)
    assert Checkpoint(tmp_path / "earlier-1").steps() == [100, 90, 80]
    # Another process of this job takes over as the writer, and restarts before the last checkpoint.
    first = Checkpoint(tmp_path)
    with Checkpoint(tmp_path, keep=2, writes=iter([False] * 2 + [True] * 9).__next__) as other:
        assert other.load().step == 85
        for step in (90, 95):
            other.save(step, None)
            first.save(step, None)
            first.wait()
        other.save(92, None)
        other.wait()
        assert other.steps() == [92, 90], "the next one was requested, from which no rank continues"
        first.save(93, None)  # a late writer
        first.close()
        assert other.steps() == [93, 92, 90]
        other.save(94, None)
    assert other.steps() == [94, 93, 92]


@given(st.binary(max_size=60), st.data())
def test_all_damage_is_detected(tmp_path_factory, payload, data):
    directory = tmp_path_factory.mktemp("damage")
    path = write(directory, 1, lambda file: file.write(payload))
    assert read(directory, 1, lambda file: file.read()) == payload
    whole = bytearray(path.read_bytes())
    damage = data.draw(st.sampled_from(["cut", "bit", "longer", "zeros"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    if damage == "cut":
        del whole[place:]
    elif damage == "bit":
        whole[place] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "longer":
        whole += b"x"
    else:  # as file systems leave pages that were not written
        whole[place:] = bytes(len(whole) - place)
        if whole == path.read_bytes():
            return
    path.write_bytes(whole)
    with pytest.raises(TornCheckpointError):
        read(directory, 1, lambda file: pytest.fail("nothing is read before it is checked"))


def test_readers_see_their_own_file(tmp_path):
    write(tmp_path, 1, lambda file: file.write(bytes(range(100))))

    def load(file):
        assert file.seek(0, os.SEEK_END) == 100
        assert file.seek(-10, os.SEEK_END) == 90
        assert file.read() == bytes(range(90, 100))
        assert file.read() == b""
        file.seek(5)
        return file.read(3)

    assert read(tmp_path, 1, load) == bytes([5, 6, 7])


def test_write_failures_are_reported_at_once_and_harmless(tmp_path, capfd):
    checkpoint = Checkpoint(tmp_path, dump=dump_until_full, load=lambda file: file.read())
    checkpoint.save(1, "good")
    checkpoint.wait()
    checkpoint.save(2, "bad")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.wait()
    assert os.listdir(tmp_path) == [name_of(1)]
    text = f"step 2 could not be written into {tmp_path}: OSError: [Errno 28] No space left on device; training goes on"
    assert text in capfd.readouterr().err
    for step in (3, 4):
        checkpoint.save(step, "bad")  # raises nothing, even if the previous write failed
    while checkpoint._thread is not None:
        time.sleep(0.01)
    checkpoint.save(5, "good")
    checkpoint.close()
    assert checkpoint.steps() == [5, 1]


def test_a_kill_while_writing_keeps_the_last_checkpoint(tmp_path):
    program = f"""
import sys
from horovod.common.elastic import Checkpoint
def dump(value, file):
    file.write(b"x" * (1 << 21))
    if value == "slow":
        print("writing", flush=True)
        sys.stdin.read()
checkpoint = Checkpoint({str(tmp_path)!r}, dump=dump)
checkpoint.save(1, "quick"); checkpoint.wait(); checkpoint.save(2, "slow")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"writing\n"
        child.send_signal(signal.SIGKILL)
    assert len(os.listdir(tmp_path)) == 2, "its unfinished file is there"
    checkpoint = Checkpoint(tmp_path, load=lambda file: len(file.read()))
    assert checkpoint.load() == (1, 1 << 21)
    saved(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == [name_of(1), name_of(3)]


def test_ranks_that_do_not_write_can_read(tmp_path):
    saved(tmp_path, 1)
    other = Checkpoint(tmp_path, writes=lambda: False)
    other.save(2, "not this")
    other.close()
    assert other.load() == (1, {"step": 1})


def test_invalid_arguments(tmp_path):
    for keep in (0, True, "3"):
        with pytest.raises(ValueError, match="keep must be"):
            Checkpoint(tmp_path, keep=keep)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="which is a file"):
        Checkpoint(tmp_path / "file")
    with pytest.raises(ValueError, match=r"step must be .*, got -1"):
        Checkpoint(tmp_path).save(-1, 0)


def resumed(frontend, directory, **kwargs):
    """Return the state after a sync in a job of this rank alone; the rank is 0 now and was 1 when it resumed."""
    state = ObjectState(frontend.broadcast, frontend.rank, frontend.gather, **kwargs)
    frontend.number = 1
    assert StateCheckpoint(directory, rank=frontend.rank, size=lambda: 1, copied=dict).resume(state) is None
    frontend.join(Job(1), 0)
    state.sync()
    return state


def test_a_new_rank_0_continues_writing(tmp_path, monkeypatch):
    saved(tmp_path, 7)
    monkeypatch.setenv("HOROVOD_RESUME", "1")
    assert resumed(FakeFrontend(), tmp_path, step=0).step == 7
    with pytest.raises(ValueError, match=r"rank 0 was lost before it resumed from .*none, and the new rank 0 has no"):
        resumed(FakeFrontend(), tmp_path / "none", step=0)
    (tmp_path / "empty").mkdir()
    assert resumed(FakeFrontend(), tmp_path / "empty", step=0).step == 0


def test_newcomers_get_the_state_of_others(tmp_path, monkeypatch):
    saved(tmp_path, 7)
    monkeypatch.setenv("HOROVOD_RESUME", "1")

    def work(frontend):
        state = ObjectState(frontend.broadcast, frontend.rank, frontend.gather, step=frontend.rank())
        state._new = frontend.rank() == 0
        StateCheckpoint(tmp_path, rank=lambda: 1, size=lambda: 2, copied=dict).resume(state)
        state.sync()
        return state.step

    assert run(2, work) == [1, 1]


@pytest.mark.parametrize(("wrote", "called"), [(2, []), (3, [7, 7]), (None, [])])
def test_checkpoints_of_other_rank_counts_report_changed_members(tmp_path, monkeypatch, wrote, called):
    """Reset callbacks see the loaded state, once; checkpoints without a size trigger none."""
    monkeypatch.setenv("HOROVOD_RESUME", "1")
    if wrote is None:
        saved(tmp_path, 7)
    else:
        with StateCheckpoint(tmp_path, rank=lambda: 0, size=lambda: wrote, copied=dict) as checkpoint:
            checkpoint.save(7, {"step": 7})
            checkpoint.wait()
            assert checkpoint.load() == (7, {"step": 7})
    seen = []

    def work(frontend):
        state = ObjectState(frontend.broadcast, frontend.rank, frontend.gather, step=0)
        StateCheckpoint(tmp_path, rank=frontend.rank, size=lambda: 2, copied=dict).resume(state)
        state.register_reset_callbacks([lambda: seen.append(state.step)])
        for _ in range(2):
            state.sync()
            state.on_resumed()
        return state.step

    assert run(2, work) == [7, 7]
    assert seen == called


def test_only_elastic_workers_get_a_job_id(monkeypatch):
    monkeypatch.delenv("HOROVOD_WORKER", raising=False)
    assert job_tag() == ""
    tags = []
    for key in (b"k" * 32, b"k" * 32, b"l" * 32):
        fd = make_key_fd(key)
        monkeypatch.setenv("HOROVOD_KEY_FD", str(fd))
        monkeypatch.setenv("HOROVOD_WORKER", str(len(tags)))
        tags.append(job_tag())
        os.close(fd)
    assert tags[0] == tags[1] != tags[2]
    assert (b"k" * 32).hex() not in tags[0]


def test_files_and_directory_entries_are_synced_to_disk(tmp_path, monkeypatch):
    """Without cutting the power, only the order of the sync calls can be checked."""
    done = []
    fsync, rename = os.fsync, os.rename

    def name(fd):
        return os.readlink(f"/proc/self/fd/{fd}")

    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(("fsync", name(fd))), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda *names: (done.append(("rename", *map(str, names))), rename(*names)))
    path = write(tmp_path, 7, lambda file: file.write(b"x"))
    (first, unfinished), (then, *names), *rest = done
    assert (first, then, names) == ("fsync", "rename", [unfinished, str(path)])
    assert rest == [("fsync", str(tmp_path))]
    assert path.stat().st_size > 1


def test_without_locks_only_old_temporary_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    old, new = (tmp_path / f".step-{step:012d}.{step}.tmp" for step in (1, 2))
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    saved(tmp_path, 3)
    assert sorted(os.listdir(tmp_path)) == sorted([new.name, name_of(3)])
