"""The visible screen: real jobs in a pseudo terminal, with the launcher's output in a terminal emulator."""

import contextlib
import fcntl
import os
import random
import re
import select
import signal
import struct
import sys
import termios
import time

import pyte
import pytest

from horovod.runner.output.bars import MARGIN
from horovod.runner.output.display import Display
from horovod.runner.output.output import OutputSink
from horovod.runner.output.row import Colours
from horovod.runner.output.terminal import HOLD, Canvas
from tests.runner.launching import MARK, marked_environment, processes_with

OUT, ERR = 1, 2
UP = "\x1b[A"


class Emulator:
    """A terminal of that size that keeps lines scrolled off the top."""

    def __init__(self, columns, lines):
        self.screen = pyte.HistoryScreen(columns, lines, history=100_000)
        self.stream = pyte.ByteStream(self.screen)

    def feed(self, data):
        self.stream.feed(data)

    def lines(self):
        """Return all lines from the first to that of the cursor."""
        screen = self.screen
        past = ["".join(line[x].data for x in range(screen.columns)) for line in screen.history.top]
        return [line.rstrip() for line in past + screen.display[: screen.cursor.y + 1]]


class Job(Emulator):
    """A shell command in a pseudo terminal."""

    def __init__(self, command, columns, lines):
        super().__init__(columns, lines)
        self.environment = {**marked_environment(), "TERM": "xterm-256color"}
        self.pid, self.fd = os.forkpty()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.execvpe("bash", ["bash", "-c", command], self.environment)

    def until(self, condition, seconds=60.0):
        """Read until the lines are as wanted, and return them."""
        end = time.monotonic() + seconds
        while not condition(lines := self.lines()):
            if not select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0]:
                pytest.fail("not within the time:\n" + "\n".join(lines))
            try:
                self.feed(os.read(self.fd, 65536))
            except OSError:
                pytest.fail("ended:\n" + "\n".join(lines))
        return lines

    def type(self, keys):
        os.write(self.fd, keys)

    def resize(self, columns, lines):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)


@contextlib.contextmanager
def job(program, tmp_path, *, columns=80, lines=24, ranks=2, before="", after=""):
    (tmp_path / "program.py").write_text(program)
    launch = f"{sys.executable} -m horovod.runner -np {ranks} {sys.executable} program.py"
    job = Job(f"cd {tmp_path}; {before} {launch}; {after} echo code $?", columns, lines)
    try:
        yield job
    finally:
        for left in {job.pid, *processes_with(job.environment[MARK])}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        os.waitpid(job.pid, 0)
        os.close(job.fd)


# Draws as tqdm and Keras do: a bar that begins with \r, one below it, one that uses \b, colours, lines
# between.
BARS = """
import os, sys, time
rank = os.environ["HOROVOD_RANK"]
def err(text):
    sys.stderr.write(text); sys.stderr.flush()
def wait(name):
    while not os.path.exists(name):
        bars("/"); time.sleep(0.05); bars("|")
def bars(what, part=50):  # in one piece: a rank may stand still between two for longer than a line stays open
    outer, inner = f"\\router {part:3}% {what} \\u4e2d\\u2588", f"\\r\\x1b[32minner\\x1b[0m {part:3}% {what} "
    err(outer + "\\n" + inner + "x" * 300 + "\\x1b[A")
for part in range(0, 51, 5):
    bars("-", part)
    if part % 25 == 0:
        print("loss", part, flush=True)
wait("half")
err("\\n\\r" + " " * 400 + "\\r\\x1b[A")
print("later", flush=True)
err("\\router 100% done  \\n")
width = 0
for part in range(20):
    text = f"\\x1b[1m{part + 1:2}/20\\x1b[0m epoch"
    sys.stdout.write("\\b" * width + "\\r" + text); sys.stdout.flush()
    width = len(text)
sys.stdout.write("\\n")
print("end")
"""


def is_half(columns):
    """Return True if both ranks' bars are at 50%, complete and at the bottom."""

    def check(lines):
        ends = [line[:columns] for line in lines[-4:]]
        return sum("loss 50" in line for line in lines) == 2 and [line.split("%")[0] for line in ends] == [
            f"[{rank}]<stderr>:{bar}  50" for rank in (0, 1) for bar in ("outer", "inner")
        ]

    return check


@pytest.mark.parametrize(("columns", "then"), [(80, 80), pytest.param(200, 60, marks=pytest.mark.heavy)])
def test_bars_stay_at_the_bottom_and_lines_scroll_above(tmp_path, columns, then):
    with job(BARS, tmp_path, columns=columns) as run:
        lines = run.until(is_half(columns))
        for line, bar in zip(lines[-4:], ("outer", "inner") * 2, strict=True):
            assert line.endswith("\u4e2d\u2588") if bar == "outer" else len(line) == columns - MARGIN
        above = lines[:-4]
        text = [line for line in above if not line.startswith("horovodrun: ")]
        assert sorted(text) == sorted(f"[{rank}]<stdout>:loss {part}" for rank in (0, 1) for part in (0, 25, 50))
        if then != columns:
            run.resize(then, 24)
            lines = run.until(lambda lines: is_half(columns)(lines) and len(lines[-1]) == then - MARGIN)
            assert len(lines[-3]) == then - MARGIN
        (tmp_path / "half").touch()
        lines = run.until(lambda lines: "code 0" in lines)
    assert "" not in lines[: lines.index("code 0")]
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[{rank}]")]
        out = [line.removeprefix(f"[{rank}]<stdout>:") for line in own if "stdout" in line]
        assert out == ["loss 0", "loss 25", "loss 50", "later", "20/20 epoch", "end"]
        bars = [line for line in own if "stderr" in line]
        # A bar that was being drawn when the terminal became narrower may stay unchanged.
        assert (bars if then == columns else bars[-1:]) == [f"[{rank}]<stderr>:outer 100% done"]


def test_the_canvas_shows_what_a_terminal_shows():
    random.seed(11)
    pieces = ["\r", "\n", "a", "bcd", "e\u0301", "\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[J", "\x1b[2D", "\x1b[C",
              "\x1b[3G", "\b", "\t", "\x1b[31m", "\x1b[0m"]  # fmt: skip
    for up in (False, True):
        for _ in range(15):
            text = "".join(random.choice([*pieces, UP] if up else pieces) for _ in range(40))
            start = "\r." + "\n\r." * 20 + UP * 10 if up else ""  # it does not move back to completed lines
            terminal, canvas = Emulator(120, 50), Canvas(Colours())
            terminal.feed((start + text).replace("\n", "\r\n").encode())
            lines = canvas.feed(start + text, 0.0) + canvas.finish()
            colourless = Emulator(120, 50)
            colourless.feed(b"".join(lines).replace(b"\n", b"\r\n"))
            shown = ["".join(line).rstrip() for line in terminal.screen.display]
            assert [line for line in colourless.lines() if line] == [line for line in shown if line], text


BEGINS = re.compile(r"(\d{4}-\d\d-\d\d [\d:.]+ )?\[[-0-9,]+(@h)?\]<std")


class Kept(OutputSink):
    def __init__(self):
        super().__init__((OUT, ERR), merged=True, full=True)
        self.terminal = Emulator(120, 12)  # wide enough to compare lines easily; bars are cut earlier

    def _size(self, stream):
        return 60, 12

    def _emit(self, stream, data):
        self.terminal.feed(data.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"collapse": True}, marks=pytest.mark.heavy),
        pytest.param({"with_host": True, "timestamp": True}, marks=pytest.mark.heavy),
    ],
)
def test_lines_stay_complete_with_bars_below(options):
    random.seed(1)
    sink = Kept()
    display = Display(sink, dict.fromkeys(range(5), "h"), **options)
    now = 0.0
    for step in range(120):
        rank, stream = random.randrange(5), random.choice((OUT, ERR))
        text = random.choice(
            ["line\n", "\r5%", f"\r{step}% " + "#" * 40, "\n", "\r   \r", f"\n\rlow{step}" + UP, "\r100%\n"]
        )
        display.show(rank, stream, text.encode(), now)
        now += random.choice((0.01, 0.1, HOLD))
        display.tick(now)
        sink.refresh(now)
        if step % 20:
            continue
        lines = sink.terminal.lines()
        drawn = sink._areas[ERR]._drawn
        whole = lines[: len(lines) - len(drawn)] if drawn else lines[:-1]
        assert [line.rstrip() for line in drawn] == (lines[-len(drawn) :] if drawn else [])
        assert all(BEGINS.match(line) and line.count("<std") == 1 for line in whole), whole
        assert len(drawn) <= 11
    display.flush()
    sink.end_bars()
    assert all(BEGINS.match(line) and line.count("<std") == 1 for line in sink.terminal.lines()[:-1])
    assert sink.terminal.lines()[-1] == ""
