"""The file of measured sizes, and how engines get it."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from horovod.common.bootstrap.calibration import World, load, path_of, store
from tests.runner.launching import python, run_job

WORLD = World("host/x86_64/cpu/2", 2, 2, 1, "auto")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_stored_results_apply_only_to_the_same_world(cache: Path) -> None:
    assert load(WORLD) == ("", "")
    path = store(WORLD, {"chunk_bytes": 65536, "direct_bytes": 0}, {"allreduce": {"default": 2.0, "tuned": 1.0}})
    assert path.parent == cache / "horovod"
    assert load(WORLD) == ("chunk_bytes=65536,direct_bytes=0", "")
    assert load(World(WORLD.machine, 3, 3, 1, "auto")) == ("", "")
    assert load(World("other", 2, 2, 1, "auto")) == ("", "")
    store(WORLD, {})
    assert load(WORLD) == ("", "")


def test_only_the_owner_has_access_and_nothing_else_is_left(cache: Path) -> None:
    before = os.umask(0)
    try:
        path = store(WORLD, {"chunk_bytes": 65536})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def edited(**changes: object) -> str:
    content = {"format": 1, "world": json.loads(path_of(WORLD).read_text())["world"], "tuning": {}, "measured": {}}
    return json.dumps({**content, **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lambda: "", "is not used"),
        (lambda: "{", "is not used"),
        (lambda: "x" * 70000, "it has 70000 bytes"),
        (lambda: edited(format=2), "of another version or world"),
        (lambda: edited(tuning={"chunk_bytes": "many"}), "Expected `int`"),
        (lambda: edited(tuning={"chunk_bytes": 1}), "'chunk_bytes=1' in the tuning: the value must be 4096 to"),
        (lambda: edited(tuning={"chonk": 1}), "got 'chonk'"),
        (lambda: edited(extra=1), "unknown field"),
    ],
)
def test_damaged_files_are_skipped_with_a_reason(cache: Path, text: Callable[[], str], reason: str) -> None:
    path = store(WORLD, {})
    path.write_text(text())
    found, why = load(WORLD)
    assert found == ""
    assert str(path) in why
    assert reason in why
    assert "\n" not in why


def test_files_that_others_can_write_are_ignored(cache: Path) -> None:
    path = store(WORLD, {"chunk_bytes": 65536})
    path.chmod(0o622)
    assert load(WORLD)[0] == ""
    assert "only this user" in load(WORLD)[1]
    target = path.with_suffix(".real")
    path.chmod(0o600)
    path.rename(target)
    path.symlink_to(target)
    assert load(WORLD)[0] == ""
    path.unlink()
    path.mkdir()
    assert load(WORLD)[0] == ""
    assert str(path) in load(WORLD)[1]


def test_values_that_the_engine_would_refuse_are_not_stored(cache: Path) -> None:
    with pytest.raises(ValueError, match="chunk_bytes=1"):
        store(WORLD, {"chunk_bytes": 1})
    assert list(cache.iterdir()) == []


SHOW = """
import sys
from horovod import _core
create = _core.Engine
def spy(config):
    sys.stdout.write(f"tuning {config.rank} {config.tuning!r}\\n")
    return create(config)
_core.Engine = spy
from horovod.common.basics import HorovodBasics
basics = HorovodBasics("test")
basics.init()
basics.shutdown()
"""


def test_all_ranks_get_what_rank_0_finds(cache: Path) -> None:
    store(World.here(2, 2, 1, "auto"), {"chunk_bytes": 65536})
    environment = {"HOROVOD_CALIBRATE": None, "XDG_CACHE_HOME": str(cache)}
    done = run_job(["-np", "2", *python(SHOW)], environment=environment)
    assert (done.code, done.err) == (0, "")
    assert sorted(line.partition(":")[2] for line in done.out.splitlines()) == [
        f"tuning {rank} 'chunk_bytes=65536'" for rank in (0, 1)
    ]
