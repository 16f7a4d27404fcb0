import os
import random
import re

import pytest

from horovod.runner import output
from horovod.runner.output import LinePrefixer, OutputQueue, RankFiles


def lines_of(*pieces, **options):
    prefixer = LinePrefixer(3, 1, **options)
    return b"".join([*(prefixer.feed(piece) for piece in pieces), prefixer.finish()])


def test_lines_get_a_prefix():
    assert lines_of(b"a\nb\n") == b"[3]<stdout>:a\n[3]<stdout>:b\n"
    assert LinePrefixer(12, 2).feed(b"x\n") == b"[12]<stderr>:x\n"


def test_nothing_is_given_out_before_the_line_is_whole():
    prefixer = LinePrefixer(0, 1)
    assert prefixer.feed(b"ab") == b""
    assert prefixer.feed(b"cd\nef") == b"[0]<stdout>:abcd\n"
    assert prefixer.finish() == b"[0]<stdout>:ef\n"
    assert prefixer.finish() == b""


def test_progress_bars_are_given_out_at_every_return():
    assert lines_of(b"\r 10%", b"\r 20%\r", b" 30%\n") == (b"\r[3]<stdout>: 10%\r[3]<stdout>: 20%\r[3]<stdout>: 30%\n")


def test_a_return_with_nothing_before_it_gets_no_prefix():
    assert lines_of(b"a\r\r\rb\n") == b"[3]<stdout>:a\r\r\r[3]<stdout>:b\n"
    assert lines_of(b"\r", b"b\n") == b"\r[3]<stdout>:b\n"
    assert lines_of(b"a\n\r") == b"[3]<stdout>:a\n\r"
    assert lines_of(b"\r", b"\n") == lines_of(b"\r\n") == b"[3]<stdout>:\r\n"


def test_return_and_newline_are_one_end_of_line_even_when_torn():
    assert lines_of(b"a\r\nb\r\n") == b"[3]<stdout>:a\r\n[3]<stdout>:b\r\n"
    assert lines_of(b"a\r", b"\nb\r", b"\n") == b"[3]<stdout>:a\r\n[3]<stdout>:b\r\n"
    assert lines_of(b"a\r", b"b\n") == b"[3]<stdout>:a\r[3]<stdout>:b\n"


def test_empty_lines_and_odd_bytes_are_kept():
    assert lines_of(b"\n\n\xff\x00\x85\x1c\xe2\x80\xa8\n") == (
        b"[3]<stdout>:\n[3]<stdout>:\n[3]<stdout>:\xff\x00\x85\x1c\xe2\x80\xa8\n"
    )


def test_any_cutting_gives_the_same_text():
    random.seed(7)
    text = bytes(random.choice(b"abc\r\n") for _ in range(400))
    whole = lines_of(text)
    for _ in range(200):
        cuts = sorted(random.sample(range(400), 30))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 400], strict=True)]
        assert lines_of(*pieces) == whole


def test_a_line_without_end_is_cut_at_the_limit(monkeypatch):
    monkeypatch.setattr(output, "LINE_LIMIT", 100)
    prefixer = LinePrefixer(0, 1)
    given = [prefixer.feed(b"x" * 40) for _ in range(5)]
    assert given == [b"", b"", b"[0]<stdout>:" + b"x" * 120 + b"\n", b"", b""]


def test_timestamp():
    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[3\]<stdout>:a\n", lines_of(b"a\n", timestamp=True))


def test_the_host_is_in_the_prefix_when_asked_for():
    assert lines_of(b"a\n", host="node-7") == b"[3@node-7]<stdout>:a\n"
    assert lines_of(b"a\n", host="node-7", prefix=False) == b"a\n"


@pytest.mark.parametrize(("size", "folder"), [(1, "rank.0"), (10, "rank.9"), (11, "rank.09"), (101, "rank.009")])
def test_folders_are_padded_to_the_widest_rank(tmp_path, size, folder):
    files = RankFiles(str(tmp_path / "deep" / "logs"), size)
    rank = int(folder.split(".")[1])
    files.write(rank, 2, b"raw\xff")
    files.close()
    assert (tmp_path / "deep" / "logs" / folder / "stderr").read_bytes() == b"raw\xff"
    assert (tmp_path / "deep" / "logs" / folder / "stdout").read_bytes() == b""


def test_the_queue_never_blocks_and_loses_nothing():
    read_end, write_end = os.pipe()
    queue = OutputQueue(write_end, write_end)
    data = os.urandom(300_000)
    queue.put(1, data[:100_000])
    queue.put(2, data[100_000:])
    got = b""
    while len(got) < len(data):
        queue.write()  # returns although nobody reads at the same time
        got += os.read(read_end, 1 << 20)
    assert got == data
    assert queue.pending == 0
    os.close(read_end)
    os.close(write_end)


def test_a_reader_that_goes_away_is_noticed():
    read_end, write_end = os.pipe()
    queue = OutputQueue(write_end, 2)
    os.close(read_end)
    queue.put(1, b"x\n")
    queue.write()
    assert queue.broken
    assert queue.waiting_for() is None
    os.close(write_end)
