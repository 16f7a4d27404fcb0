"""Lines, whole files, and selection of files."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.data import LineFiles, WholeFiles
from horovod.data.source import find_files
from tests.data.sources import all_samples


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        (tmp_path / f"shard-{number:03}.txt").write_text("".join(f"{number}-{line}\n" for line in range(number * 5)))
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden").write_text("")
    return tmp_path


def test_files_folders_patterns_and_rows(folder):
    all_four = [str(folder / f"shard-{number:03}.txt") for number in range(4)]
    assert (
        find_files(folder)
        == find_files(folder, ".txt")
        == find_files(f"{folder}/*.txt")
        == find_files(f"{folder}/shard-{{000..003}}.txt")
        == all_four
    )
    assert find_files(f"{folder}/sh?rd-00{{2..3}}*") == all_four[2:]
    assert find_files([all_four[2], folder / "shard-000.txt"]) == [all_four[2], all_four[0]]
    assert find_files(f"{folder}/shard-{{003..001}}.txt") == all_four[:0:-1]
    (folder / "in" / "side").mkdir(parents=True)
    os.rename(all_four[3], folder / "in" / "side" / "x.txt")
    assert find_files(f"{folder}/**/*.txt") == [str(folder / "in" / "side" / "x.txt"), *all_four[:3]]
    for number in (8, 9, 10):
        (folder / f"{number}").write_text("")
    assert [os.path.basename(one) for one in find_files(f"{folder}/{{10..8}}")] == ["10", "9", "8"]
    (folder / "a[1].txt").write_text("x")
    assert find_files(folder / "a[1].txt") == [f"{folder}/a[1].txt"]


def test_missing_shard(folder):
    os.remove(folder / "shard-002.txt")
    with pytest.raises(ValueError, match=r"paths must name existing files, got \S+/shard-002.txt"):
        LineFiles(f"{folder}/shard-{{000..003}}.txt")
    with pytest.raises(ValueError, match=r"shard-004.txt, \S+shard-005.txt, \S+shard-006.txt and 3 more"):
        LineFiles(f"{folder}/shard-{{004..009}}.txt")


def test_patterns_without_a_file_or_with_duplicates(folder):
    (folder / "empty").mkdir()
    for wrong, message in [
        (f"{folder}/*.tar", "a pattern that no file fits"),
        (folder / "empty", "a folder without files"),
        ([], r"paths must name at least one file, got \[\]"),
        ([folder, folder / "shard-001.txt"], "shard-001.txt twice"),
        ("", "must name existing files"),
        (f"{folder}/x-{{000000000000..999999999999}}.txt", "at most 1048576 names, got .* 1000000000000"),
        (f"{folder}/{{0..9999}}/{{9999..0}}/x.txt", "which expands to 100000000"),
    ]:
        with pytest.raises(ValueError, match=message):
            LineFiles(wrong)
    with pytest.raises(ValueError, match=r"a folder without files \*\.tar"):
        find_files(folder, ".tar")
    with pytest.raises(ValueError, match="block_bytes must be an integer of at least 1, got 0"):
        LineFiles(folder, 0)


@given(
    st.lists(st.lists(st.text("ab\r é", max_size=5), max_size=9), min_size=1, max_size=3),
    st.booleans(),
    st.integers(1, 40),
)
def test_lines(tmp_path_factory, files, ended, block_bytes):
    folder = tmp_path_factory.mktemp("lines")
    expected = []
    for number, lines in enumerate(files):
        data = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")
        (folder / f"{number}.txt").write_bytes(data)
        expected += [line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")] if data else []
    source = pickle.loads(pickle.dumps(LineFiles(folder, block_bytes)))
    assert all_samples(source) == expected
    assert sum(source.lengths) == len(expected)


def test_changed_file(folder):
    source, path = LineFiles(folder), folder / "shard-003.txt"
    path.write_text(path.read_text().replace("\n", " ", 1))
    with pytest.raises(ValueError, match=r"shard-003.txt had 15 records in bytes 0 to 65 .* but has 14 now"):
        all_samples(source)
    path.write_text("cut off")
    with pytest.raises(ValueError, match=r"shard-003.txt had 65 bytes when the source was created, but has 7 now"):
        all_samples(source)
    path.unlink()
    with pytest.raises(ValueError, match=r"shard-003.txt can no longer be read: .*No such file"):
        all_samples(source)


def test_file_without_read_permission(folder, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os.path, "getsize", refused)
    for kind in (LineFiles, WholeFiles):
        with pytest.raises(ValueError, match=r"shard-000.txt cannot be read: Permission denied"):
            kind(f"{folder}/shard-000.txt")


def test_complete_files(folder):
    source = pickle.loads(pickle.dumps(WholeFiles(folder, block_files=3)))
    assert source.lengths == [3, 1]
    assert dict(all_samples(source)) == {str(path): path.read_bytes() for path in folder.glob("shard*")}
    os.remove(folder / "shard-001.txt")
    with pytest.raises(ValueError, match=r"shard-001.txt can no longer be read"):
        source.load(0)


def missing(folder):
    try:
        LineFiles(f"{folder}/{{0..1}}.txt")
    except ValueError as error:
        return str(error)


def test_each_rank_reports_missing_files(pool, tmp_path):
    (tmp_path / "0.txt").write_text("a\n")
    message = [f"paths must name existing files, got {tmp_path}/1.txt (rank {rank})" for rank in range(2)]
    assert pool(2).run(missing, str(tmp_path)) == message
