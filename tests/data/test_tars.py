"""Samples in tar archives."""

import pickle
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.data import StreamingDataset, TarFiles
from tests.data.sources import archive, everything, flat

SAMPLES = [
    (f"{number:04}", {"jpg": bytes([number]) * (number * 37), "cls.txt": b"%d" % number}) for number in range(40)
]


def expected(samples):
    return [{"__key__": key, **parts} for key, parts in samples]


@given(st.integers(1, 50000), st.integers(0, 40))
def test_samples(tmp_path_factory, block_bytes, count):
    path = archive(tmp_path_factory.mktemp("tars") / "a.tar", SAMPLES[:count])
    source = pickle.loads(pickle.dumps(TarFiles(path, block_bytes)))
    assert everything(source) == expected(SAMPLES[:count])


def test_a_stream_of_shards(tmp_path):
    for number in range(4):
        archive(tmp_path / f"shard-{number}.tar", SAMPLES[number * 10 : number * 10 + 10])
    source = TarFiles(f"{tmp_path}/shard-{{0..3}}.tar", 4000)
    assert len(source.lengths) > 8
    got = flat(flat(StreamingDataset(source, 3, mix=2, rank=lambda r=rank: r, size=lambda: 5)) for rank in range(5))
    assert sorted(got, key=lambda one: one["__key__"]) == expected(SAMPLES)


def test_long_names_folders_and_what_is_no_sample(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    long = "a" * 150 + "/" + "b" * 120
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(tmp_path / "file", "README")
        tar.add(tmp_path / "file", ".hidden")
        tar.add(tmp_path, "folder.d", recursive=False)
        tar.add(tmp_path / "file", f"{long}.jpg")
        tar.add(tmp_path / "file", "x.y/c.jpg")
        tar.add(tmp_path / "file", "NOTES")
        tar.add(tmp_path / "file", "x.y/c.cls")
    for block_bytes in (1, 1 << 20):
        assert everything(TarFiles(tmp_path, block_bytes)) == [
            {"__key__": long, "jpg": b"x"},
            {"__key__": "x.y/c", "jpg": b"x", "cls": b"x"},
        ]


@pytest.mark.parametrize("cut", [1, 100, 511, 512, 1024, 1500, 2048, 5000, 9000])
def test_one_that_is_torn_anywhere(tmp_path, cut):
    with open(archive(tmp_path / "a.tar", SAMPLES[:4]), "rb") as file:
        data = file.read()
    end = max(index for index, byte in enumerate(data) if byte) + 1
    (tmp_path / "a.tar").write_bytes(data[: min(cut, end)])
    with pytest.raises(ValueError, match=r"a\.tar is torn"):
        TarFiles(tmp_path)


def test_each_place_where_one_can_be_torn(tmp_path):
    """Every block of 512 bytes up to the end of the last sample."""
    path = archive(tmp_path / "a.tar", SAMPLES[:5])
    with open(path, "rb") as file:
        data = file.read()
    end = TarFiles(path, 1)._blocks[-1][1].end
    for cut in range(0, end + 1, 512):
        (tmp_path / "a.tar").write_bytes(data[:cut])
        with pytest.raises(ValueError, match=r"a\.tar is torn"):
            TarFiles(path)


def test_damage_in_the_middle(tmp_path):
    path = archive(tmp_path / "a.tar", SAMPLES)
    source = TarFiles(path, 2000)
    begin = source._blocks[3][1].begin
    with open(path, "r+b") as file:
        file.seek(begin + 100)
        file.write(b"\xff" * 300)
    with pytest.raises(ValueError, match=r"a\.tar is torn"):
        TarFiles(path)
    with pytest.raises(ValueError, match=rf"a\.tar is torn in bytes {begin} to \d+: bad checksum"):
        source.load(3)


def test_what_is_no_archive(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ValueError, match=r"a.tar is torn, or no tar archive"):
        TarFiles(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"a.tar is compressed"):
        TarFiles(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("1.jpg"))
    with pytest.raises(ValueError, match=r"it has 1.jpg twice"):
        TarFiles(tmp_path)
