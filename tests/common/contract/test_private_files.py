"""Folders and files in places where other users may write: which are opened, and which are refused."""

import os
import stat

import pytest

from horovod.common.contract.private_files import NotPrivateError, closing, open_file, open_folder, open_private_folder


def test_private_folders_are_only_for_this_user(tmp_path):
    for _ in range(2):
        with closing(open_private_folder(str(tmp_path / "mine"))) as fd:
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o700
            assert os.listdir(fd) == []


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_folders_that_others_can_write_are_not_private(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(NotPrivateError, match="others can write to it"):
        open_private_folder(str(tmp_path / "open"))


def test_links_are_not_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "to_folder").symlink_to(tmp_path / "folder")
    (tmp_path / "to_file").symlink_to(tmp_path / "file")
    (tmp_path / "to_nothing").symlink_to(tmp_path / "new")
    for opened in (open_folder, open_private_folder):
        with pytest.raises(OSError, match="it is a symbolic link"):
            opened(str(tmp_path / "to_folder"))
    for name in ("to_file", "to_nothing"):
        with pytest.raises(OSError, match="it is a symbolic link"):
            open_file(str(tmp_path / name), os.O_WRONLY)
    assert not (tmp_path / "new").exists()
    (tmp_path / "folder" / "x").touch()
    with closing(open_file(str(tmp_path / "to_folder" / "x"), os.O_WRONLY)):  # the user has named the folder
        pass


def test_only_plain_files_with_one_name_are_opened(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "second").hardlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    for name in ("second", "pipe"):
        with pytest.raises(OSError):
            open_file(str(tmp_path / name), os.O_WRONLY)
    with closing(os.open(tmp_path / "pipe", os.O_RDWR)), pytest.raises(OSError, match="a plain file"):
        open_file(str(tmp_path / "pipe"), os.O_WRONLY)
    assert (tmp_path / "file").read_text() == "mine"
