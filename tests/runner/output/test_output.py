import contextlib
import os
import random
import re
import resource
import signal

import pytest

from horovod.runner.output import terminal as lines
from horovod.runner.output.display import Display
from horovod.runner.output.output import OutputQueue
from horovod.runner.output.rank_files import RankFileError, RankFiles


class Shown:
    """Replaces the queue and keeps everything that is put there."""

    def __init__(self, terminal=False):
        self.terminal = terminal
        self.text = b""

    def put(self, stream, data):
        self.text += data

    def is_terminal(self, stream):
        return self.terminal

    def shows_bars(self, stream):
        return False

    def next_due(self):
        return None

    def take(self):
        text, self.text = self.text, b""
        return text


def lines_of(*pieces, rank=3, terminal=False, **options):
    shown = Shown(terminal)
    display = Display(shown, {rank: "node-7"}, **options)
    for piece in pieces:
        display.show(rank, 1, piece, 0.0)
    display.finish(rank, 0.0)
    return shown.text


def test_lines_get_a_prefix():
    assert lines_of(b"a\nb\n") == b"[3]<stdout>:a\n[3]<stdout>:b\n"
    shown = Shown()
    Display(shown, {12: "h"}).show(12, 2, b"x\n", 0.0)
    assert shown.text == b"[12]<stderr>:x\n"


def test_incomplete_lines_are_held_back():
    shown = Shown()
    display = Display(shown, {0: "h"})
    display.show(0, 1, b"ab", 0.0)
    assert shown.take() == b""
    display.show(0, 1, b"cd\nef", 0.0)
    assert shown.take() == b"[0]<stdout>:abcd\n"
    display.finish(0, 0.0)
    assert shown.take() == b"[0]<stdout>:ef\n"
    display.finish(0, 0.0)
    assert shown.take() == b""


def test_any_chunks_give_the_same_text():
    random.seed(7)
    text = bytes(random.choice(b"abc\r\n") for _ in range(400))
    whole = lines_of(text)
    for _ in range(200):
        cuts = sorted(random.sample(range(400), 30))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 400], strict=True)]
        assert lines_of(*pieces) == whole


def test_a_line_without_end_is_cut_at_the_limit(monkeypatch):
    monkeypatch.setattr(lines, "LINE_LIMIT", 100)
    shown = Shown()
    display = Display(shown, {0: "h"})
    reads = []
    for _ in range(5):
        display.show(0, 1, b"x" * 40, 0.0)
        reads.append(shown.take())
    assert reads == [b"", b"", b"[0]<stdout>:" + b"x" * 120 + b"\n", b"", b""]


def test_timestamp():
    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[3\]<stdout>:a\n", lines_of(b"a\n", timestamp=True))


def test_the_prefix_includes_the_host_on_request():
    assert lines_of(b"a\n", with_host=True) == b"[3@node-7]<stdout>:a\n"
    assert lines_of(b"a\n", with_host=True, prefix=False) == b"a\n"


RED, GREEN, OFF = b"\x1b[31m", b"\x1b[32m", b"\x1b[0m"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([RED + b"a" + OFF + b"b\n"], [RED + b"a" + OFF + b"b\n"]),
        ([RED + b"a\nb\nc" + OFF + b"\nd\n"], [RED + b"a" + OFF + b"\n", RED + b"b" + OFF + b"\n"]
         + [RED + b"c" + OFF + b"\n", b"d\n"]),
        ([RED + b"a" + GREEN + b"b\nc\n"], [RED + b"a" + GREEN + b"b" + OFF + b"\n", GREEN + b"c" + OFF + b"\n"]),
        ([b"\x1b[1;38;5;0;4ma\nb\x1b[22;24;39mc\nd\n"],
         [b"\x1b[1;38;5;0;4ma" + OFF + b"\n", b"\x1b[1;38;5;0;4mb\x1b[22;24;39mc\n", b"d\n"]),
        ([b"\x1b[48;2;0;0;0ma\nb\x1b[m\nc\n"],
         [b"\x1b[48;2;0;0;0ma" + OFF + b"\n", b"\x1b[48;2;0;0;0mb\x1b[m\n", b"c\n"]),
        ([b"\x1b[4:3;38:2::1:2:3ma\nb\x1b[4:0;39m\nc\n"],
         [b"\x1b[4:3;38:2::1:2:3ma" + OFF + b"\n", b"\x1b[4:3;38:2::1:2:3mb\x1b[4:0;39m\n", b"c\n"]),
        ([b"\x1b[0;31ma\x1b[31;0m\nb\n"], [b"\x1b[0;31ma\x1b[31;0m\n", b"b\n"]),
        ([b"\x1b[?25la\x1b[38m\x1b[38;5m\x1b[;m\n"], [b"\x1b[?25la\x1b[38m\x1b[38;5m\x1b[;m\n"]),
        ([b"\x1b[" + b"1" * 5000 + b"ma\n"], [b"\x1b[" + b"1" * 5000 + b"ma\n"]),
    ],
)  # fmt: skip
def test_colours_do_not_leak_into_other_lines(pieces, expected):
    assert lines_of(*pieces, terminal=True) == b"".join(b"[3]<stdout>:" + line for line in expected)
    assert lines_of(*pieces) == lines_of(b"".join(pieces))  # on other platforms they are passed unchanged
    assert lines_of(*pieces).replace(b"[3]<stdout>:", b"") == b"".join(pieces)


@pytest.mark.parametrize(("size", "folder"), [(1, "rank.0"), (10, "rank.9"), (11, "rank.09"), (101, "rank.009")])
def test_folders_are_padded_to_the_widest_rank(tmp_path, size, folder):
    files = RankFiles(str(tmp_path / "deep" / "logs"), size)
    rank = int(folder.split(".")[1])
    files.write(rank, 2, b"raw\xff")
    files.close()
    assert (tmp_path / "deep" / "logs" / folder / "stderr").read_bytes() == b"raw\xff"
    assert (tmp_path / "deep" / "logs" / folder / "stdout").read_bytes() == b""


def test_a_file_that_reaches_its_limit_is_named(tmp_path):
    # by this process's file size limit, which fails in the middle of a write like a full disk
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    files = RankFiles(str(tmp_path), 1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(RankFileError, match=rf"{tmp_path}/rank.0/stderr: File too large"):
            files.write(0, 2, b"x" * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
        files.close()
    assert (tmp_path / "rank.0" / "stderr").read_bytes() == b"x" * 10


def opened_below(folder):
    """Return the files in the folder that this process has open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [link for link in links if link.startswith(str(folder))]


def test_files_that_cannot_be_created_are_named(tmp_path):
    (tmp_path / "rank.1").write_text("")
    with pytest.raises(RankFileError, match=f"rank file {tmp_path}/rank.1: Not a directory"):
        RankFiles(str(tmp_path), 2)
    assert opened_below(tmp_path) == []


def link(path, target):
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


PREPARED = {
    "a folder that leads elsewhere": (
        lambda logs, own: link(logs / "rank.1", own.parent),
        "rank.1: it is a symbolic",
    ),
    "a folder that is missing there": (lambda logs, own: link(logs / "rank.1", "absent"), "rank.1: it is a symbolic"),
    "a file that leads elsewhere": (lambda logs, own: link(logs / "rank.1/stdout", own), "stdout: it is a symbolic"),
    "a file yet to be made": (
        lambda logs, own: link(logs / "rank.1/stderr", own.parent / "new"),
        "stderr: it is a symbolic",
    ),
    "another name of a file": (
        lambda logs, own: ((logs / "rank.1").mkdir(), (logs / "rank.1/stdout").hardlink_to(own)),
        "rank.1/stdout: it must be a plain file",
    ),
    "a pipe": (
        lambda logs, own: ((logs / "rank.1").mkdir(), os.mkfifo(logs / "rank.1/stdout")),
        "rank.1/stdout: No such device",
    ),
}


@pytest.mark.parametrize("trap", PREPARED)
def test_a_prepared_tree_does_not_lead_to_other_files(tmp_path, trap):
    """In a directory where other users may write, such as /tmp."""
    own, logs = tmp_path / "mine" / "stdout", tmp_path / "logs"
    own.parent.mkdir()
    own.write_text("dear to me")
    logs.mkdir()
    prepare, message = PREPARED[trap]
    prepare(logs, own)
    with pytest.raises(RankFileError, match=f"rank file {logs}/.*{message}"):
        RankFiles(str(logs), 2)
    assert opened_below(tmp_path) == []
    assert own.read_text() == "dear to me"
    assert list(own.parent.iterdir()) == [own]


def test_the_queue_never_blocks_and_loses_nothing():
    read_end, write_end = os.pipe()
    queue = OutputQueue(write_end, write_end)
    data = os.urandom(300_000).replace(b"\r", b"r")
    queue.put(1, data[:100_000])
    queue.put(2, data[100_000:])
    got = b""
    while len(got) < len(data):
        queue.write()  # returns although there is no concurrent reader
        got += os.read(read_end, 1 << 20)
    assert got == data
    assert queue.pending == 0
    os.close(read_end)
    os.close(write_end)


def test_changing_workers_are_shown_by_current_ranks():
    shown, hosts, ranks = Shown(), {0: "a", 1: "b"}, {0: 0, 1: 1}
    display = Display(shown, hosts, with_host=True, rank_of=ranks.get)
    display.show(1, 1, b"x\n", 0.0)
    assert shown.take() == b"[1@b]<stdout>:x\n"
    hosts[7] = "b"
    display.join(7)
    display.show(7, 2, b"warms up\n", 0.0)
    assert shown.take() == b"[new 7@b]<stderr>:warms up\n"
    display.finish(0, 0.0)
    display.forget(0)
    ranks.update({1: 0, 7: 1})
    display.show(7, 1, b"x\n", 0.0)
    display.show(1, 1, b"x\n", 0.0)
    assert shown.take() == b"[1@b]<stdout>:x\n[0@b]<stdout>:x\n"
