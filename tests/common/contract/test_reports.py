"""Where reports go, and what becomes of old ones."""

import os
import re
import tempfile

from horovod.common.contract import reports


def test_a_folder_for_the_user_and_one_for_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert reports.folder_of_user("") == f"{tempfile.gettempdir()}/horovod-{os.getuid()}"
    assert reports.folder_of_user("mine") == str(tmp_path / "mine")
    folder = reports.folder_of_job("mine")
    assert re.fullmatch(rf"{tmp_path}/mine/\d{{8}}-\d{{6}}-{os.getpid()}", folder)
    assert not os.path.exists(folder)
    assert reports.process_of(folder) == reports.process_of(folder + "/") == os.getpid()
    assert reports.process_of("/tmp") is None


def test_the_oldest_jobs_are_removed_and_nothing_else(tmp_path):
    for number in range(reports.KEPT + 3):
        (tmp_path / f"20260101-{number:06}-17").mkdir()
        (tmp_path / f"20260101-{number:06}-17" / "hang.txt").touch()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "20250101-000000-1").touch()
    reports.prune(str(tmp_path / "20260102-000000-17"))
    left = sorted(os.listdir(tmp_path))
    assert len(left) == reports.KEPT + 2
    assert {"thesis", "20250101-000000-1", "20260101-000003-17"} <= set(left)
    reports.prune(str(tmp_path / "none" / "20260102-000000-17"))


def test_folders_of_that_name_with_something_else_in_them_stay(tmp_path):
    for number in range(reports.KEPT + 4):
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


def test_a_host_without_a_folder_for_temporary_files(monkeypatch):
    """As containers with a read-only file system have none: the job has to start all the same."""

    def none():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert reports.folder_of_user("") == f"/tmp/horovod-{os.getuid()}"
