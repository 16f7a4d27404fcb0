"""Samples in tar archives."""

import pickle
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.data import TarFiles
from tests.data.sources import all_samples, archive

SAMPLES = [
    (f"{number:04}", {"jpg": bytes([number]) * (number * 37), "cls.txt": b"%d" % number}) for number in range(40)
]


def expected(samples):
    return [{"__key__": key, **parts} for key, parts in samples]


@given(st.integers(1, 50000), st.integers(0, 40))
def test_samples(tmp_path_factory, block_bytes, count):
    path = archive(tmp_path_factory.mktemp("tars") / "a.tar", SAMPLES[:count])
    source = pickle.loads(pickle.dumps(TarFiles(path, block_bytes)))
    assert all_samples(source) == expected(SAMPLES[:count])


def test_long_names_folders_and_other_entries(tmp_path):
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
        assert all_samples(TarFiles(tmp_path, block_bytes)) == [
            {"__key__": long, "jpg": b"x"},
            {"__key__": "x.y/c", "jpg": b"x", "cls": b"x"},
        ]


def test_archives_truncated_at_each_position(tmp_path):
    """Every block boundary (512 bytes) up to the end of the last sample, and positions within blocks."""
    path = archive(tmp_path / "a.tar", SAMPLES[:5])
    with open(path, "rb") as file:
        data = file.read()
    end = TarFiles(path, 1)._blocks[-1][1].end
    for cut in (*range(0, end + 1, 512), 1, 100, 511, 1500):
        (tmp_path / "a.tar").write_bytes(data[:cut])
        with pytest.raises(ValueError, match=r"a\.tar is damaged"):
            TarFiles(path)


def test_damaged_middle(tmp_path):
    path = archive(tmp_path / "a.tar", SAMPLES)
    source = TarFiles(path, 2000)
    begin = source._blocks[3][1].begin
    with open(path, "r+b") as file:
        file.seek(begin + 100)
        file.write(b"\xff" * 300)
    with pytest.raises(ValueError, match=r"a\.tar is damaged"):
        TarFiles(path)
    with pytest.raises(ValueError, match=rf"a\.tar is damaged in bytes {begin} to \d+: bad checksum"):
        source.load(3)


def test_invalid_archives(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ValueError, match=r"a.tar is damaged, or not a tar archive"):
        TarFiles(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"a.tar must not be compressed"):
        TarFiles(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("1.jpg"))
    with pytest.raises(ValueError, match=r"it has 1.jpg twice"):
        TarFiles(tmp_path)


def header(name, size, kind=b"0"):
    """Return a member's header; ``size``: any number, as GNU tar writes large and negative ones."""
    field = b"%011o\0" % size if 0 <= size < 1 << 33 else (b"\xff" if size < 0 else b"\x80")
    if len(field) == 1:
        field += (size & ((1 << 88) - 1)).to_bytes(11, "big")
    block = bytearray(512)
    parts = ((0, name), (100, b"0000644\0"), (108, b"0000000\0" * 2), (124, field), (136, b"00000000000\0"))
    for place, part in (*parts, (156, kind), (257, b"ustar  \0"), (148, b" " * 8)):
        block[place : place + len(part)] = part
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % 512)


def attribute(key, value):
    """Return a record of an extended header."""
    text = b" %s=%s\n" % (key, value)
    length = len(text) + 1
    while len(b"%d" % length) + len(text) != length:
        length = len(b"%d" % length) + len(text)
    return b"%d" % length + text


def extended(records, kind=b"x"):
    return header(b"pax", len(records), kind) + padded(records)


END = bytes(1024)
EMPTY = header(b"1.txt", 0)
HOSTILE = {
    "a size that leads back": header(b"1.a", 0) + header(b"2.a", 0) + header(b"3.a", -1024) + END,
    "a first member of negative size": header(b"1.txt", -512) + END,
    "a member of an unknown kind that leads back": EMPTY + header(b"2.txt", -1024, b"7") + END,
    "more bytes than there are": header(b"1.txt", 1 << 60) + END,
    "more bytes than a number has": header(b"1.txt", 1 << 80) + END,
    "an attribute that leads back": extended(attribute(b"size", b"-1024")) + EMPTY + END,
    "an attribute of more bytes than there are": extended(attribute(b"size", b"%d" % (1 << 62))) + EMPTY + END,
    "an attribute without a length": extended(b"0 a=b\n") + EMPTY + END,
    "an attribute with a long length": extended(b"9" * 100000 + b" a=b\n") + EMPTY + END,
    "attributes that overlap": extended(b"1 " * 100000 + b"=") + EMPTY + END,
    "an attribute of many digits": extended(attribute(b"a", b"9" * 500000)) + EMPTY + END,
    "a huge header": header(b"pax", 1 << 40, b"x") + END,
    "a huge header of all members": extended(attribute(b"a", b"b" * (1 << 17)), b"g") + EMPTY + END,
    "a huge long name": header(b"././@LongLink", 1 << 40, b"L") + END,
    "long names one after the other": (header(b"././@LongLink", 4, b"L") + padded(b"abc\0")) * 3000 + EMPTY + END,
    "attributes one after the other": extended(attribute(b"a", b"b")) * 3000 + EMPTY + END,
    "many attributes of all members": b"".join(
        extended(b"".join(attribute(b"%d" % n, b"b") for n in range(k, k + 500)), b"g") + EMPTY
        for k in range(0, 2000, 500)
    )
    + END,
    "a header that leads back": EMPTY + header(b"././@LongLink", -1024, b"L") + EMPTY + END,
    "a key of its own": header(b"1.__key__", 4) + padded(b"evil") + END,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_malicious_archives(tmp_path, kind, block_bytes):
    (tmp_path / "a.tar").write_bytes(HOSTILE[kind])
    with pytest.raises(ValueError, match=r"a\.tar is damaged"):
        all_samples(TarFiles(tmp_path / "a.tar", block_bytes))
