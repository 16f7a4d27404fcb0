"""The folder of reports, and removal of old ones."""

import os
import re
import stat
import tempfile

import pytest

from horovod.common.contract import reports


def test_user_and_job_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reports.folder_of_user("") == f"{tempfile.gettempdir()}/horovod-{os.getuid()}"
    assert reports.folder_of_user("mine") == str(tmp_path / "mine")
    folder = reports.folder_of_job("mine")
    assert re.fullmatch(rf"{tmp_path}/mine/\d{{8}}-\d{{6}}-{os.getpid()}", folder)
    assert not os.path.exists(folder)
    assert reports.process_of(folder) == reports.process_of(folder + "/") == os.getpid()
    assert reports.process_of("/tmp") is None


def test_the_oldest_jobs_are_removed_and_nothing_else(tmp_path):
    for number in range(reports.MAX_REPORTS + 3):
        (tmp_path / f"20260101-{number:06}-17").mkdir()
        (tmp_path / f"20260101-{number:06}-17" / "hang.txt").touch()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "20250101-000000-1").touch()
    reports.prune(str(tmp_path / "20260102-000000-17"))
    left = sorted(os.listdir(tmp_path))
    assert len(left) == reports.MAX_REPORTS + 2
    assert {"thesis", "20250101-000000-1", "20260101-000003-17"} <= set(left)
    reports.prune(str(tmp_path / "none" / "20260102-000000-17"))


def test_folders_with_other_content_are_kept(tmp_path):
    for number in range(reports.MAX_REPORTS + 4):
        (tmp_path / f"20260101-{number:06}-17").mkdir()
    (tmp_path / "20260101-000000-17" / "model.pt").touch()
    (tmp_path / "20260101-000001-17" / "hang.txt").mkdir()
    for name in ("hang.txt", "recorder.rank12.jsonl", "stacks.rank0.txt", "hang.txt.part17", "hang.txt.part17-2"):
        (tmp_path / "20260101-000002-17" / name).touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "hang.txt").touch()
    (tmp_path / "20250101-000000-17").symlink_to(elsewhere)
    reports.prune(str(tmp_path / "20260102-000000-17"))
    left = set(os.listdir(tmp_path))
    assert {"20260101-000000-17", "20260101-000001-17", "20250101-000000-17"} <= left
    assert not {"20260101-000002-17"} & left
    assert (elsewhere / "hang.txt").exists()
    assert (tmp_path / "20260101-000000-17" / "model.pt").exists()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return this user's default folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"horovod-{os.getuid()}"


def test_the_default_folder_is_only_for_this_user(place):
    folder = reports.folder_of_job("")
    assert os.path.dirname(folder) == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert not os.path.exists(folder)
    assert reports.on_this_host(folder) == folder


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "another user's"])
def test_a_default_folder_of_another_user_is_not_used(place, tmp_path, kind):
    if kind == "a link":
        (tmp_path / "home").mkdir()
        place.symlink_to(tmp_path / "home")
    elif kind == "a file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777 if kind == "open to others" else 0o700)
    if kind == "another user's":
        if os.geteuid() != 0:
            pytest.skip("needs root, to make a file of another user's")
        os.chown(place, 65534, 65534)
    folder = reports.folder_of_job("")
    fresh = os.path.dirname(folder)
    assert re.fullmatch(rf"{place}-\w+", fresh)
    assert stat.S_IMODE(os.stat(fresh).st_mode) == 0o700
    assert reports.on_this_host(folder) == folder
    expected = os.path.join(place, os.path.basename(folder))  # as named by rank 0 on another host
    assert os.path.dirname(reports.on_this_host(expected)) not in (str(place), fresh)
