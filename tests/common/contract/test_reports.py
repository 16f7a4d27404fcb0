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
