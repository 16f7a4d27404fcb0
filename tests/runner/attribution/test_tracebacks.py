"""Displayed tracebacks: the user's frames, once."""

import re
import sys

from horovod.runner.attribution import first_failure
from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.attribution.tracebacks import HEADER, shortened
from horovod.runner.output.display import FirstException
from horovod.runner.output.repeats import TRACEBACK_DELAY, Farewells
from tests.runner.launching import run_job

LIB = "/venv/lib/python3.11/site-packages"


def frame(path, name="f", code="    call()"):
    return [f'  File "{path}", line 7, in {name}', code, "    ~~~~^^"]


def test_the_users_frames_stay():
    torch, data = frame(f"{LIB}/torch/nn/module.py"), frame(f"{LIB}/datasets/table.py")
    lines = [*frame("train.py", "main"), *torch, *torch, *data, *frame("net.py", "forward"), *torch, "ValueError: bad"]
    assert shortened(lines) == [
        '  File "train.py", line 7, in main',
        "    call()",
        "  ... 3 frames in torch, datasets ...",
        '  File "net.py", line 7, in forward',
        "    call()",
        "  ... 1 frame in torch ...",
        "ValueError: bad",
    ]


def test_the_explanation_names_the_users_frame():
    library = "\n".join(frame(f"{LIB}/torch/nn/module.py") * 20)
    own = "\n".join(frame("train.py", "step"))
    tail = f"Traceback (most recent call last):\n{own}\n{library}\nValueError: bad\n"
    judged = first_failure.judge([RankEnd(0, "h", 1, tail)])
    assert judged.text.splitlines()[1:] == [
        "its exception:",
        '      File "train.py", line 7, in step',
        "        call()",
        "      ... 20 frames in torch ...",
        "    ValueError: bad",
    ]


def block(message):
    return [b"Traceback (most recent call last):\n", b'  File "a.py", line 7, in f\n', message]


def test_the_same_traceback_of_several_ranks_is_shown_once():
    farewells = Farewells(range(4))
    assert farewells.add(0, [b"word\n", *block(b"E: rank 1 in flight on rank 0\n")], 0.0) == [b"word\n"]
    assert farewells.add(2, block(b"E: rank 1 in flight on rank 2\n"), 0.1) == []
    assert farewells.add(1, block(b"ValueError: other\n"), 0.2) == []
    assert farewells.add(3, [b"word\n"], 0.2) == [b"word\n"]
    assert farewells.next_due() == TRACEBACK_DELAY
    assert farewells.take(0.5) == []
    header, code, _ = block(b"")
    assert farewells.take(TRACEBACK_DELAY) == [
        ([0, 2], header),
        ([0, 2], code),
        ([0], b"E: rank 1 in flight on rank 0\n"),
        ([2], b"E: rank 1 in flight on rank 2\n"),
    ]
    for rank in range(4):
        farewells.end(rank)
    assert farewells.take(0.6) == [([1], line) for line in block(b"ValueError: other\n")]
    assert farewells.next_due() is None


def test_a_traceback_of_a_victim_is_shown_without_frames_of_libraries():
    library = [b'  File "/usr/lib/python3/site-packages/torch/x.py", line 3, in g\n', b"    h()\n", b"    ^^^\n"]
    farewells = Farewells(range(3))
    for rank in (0, 2):
        header, code, message = block(b"HorovodInternalError: rank 1 has left; in flight on rank %d\n" % rank)
        assert farewells.add(rank, [header, code, *library, message, b"later \xff"], 0.0) == []
    own = [*block(b"")[:2], *library, b"ValueError: the cause\n"]
    assert farewells.add(1, own, 0.0) == []
    shown = farewells.take(TRACEBACK_DELAY)
    header, code, _ = block(b"")
    assert shown == [
        ([0, 2], header),
        ([0, 2], code),
        ([0, 2], b"  ... 1 frame in torch ...\n"),
        ([0], b"HorovodInternalError: rank 1 has left; in flight on rank 0\n"),
        ([2], b"HorovodInternalError: rank 1 has left; in flight on rank 2\n"),
        ([0, 2], b"later \xff"),
        *(([1], line) for line in own),
    ]


FAILING = """
import os, sys
sys.path.insert(0, {folder!r})
import layers
def step():
    layers.call(4, lambda: int(os.environ["WORD"]))
step()
"""


def test_a_failing_job_shows_its_traceback_once(tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "layers.py").write_text("def call(n, f):\n    return call(n - 1, f) if n else f()\n")
    script = tmp_path / "train.py"
    script.write_text(FAILING.format(folder=str(folder)))
    environment = {"WORD": "many"}
    done = run_job(["-np", "3", sys.executable, str(script)], environment=environment)
    assert done.code == 1
    assert done.err.count("Traceback (most recent call last)") == 1
    assert "[0-2]<stderr>:ValueError" in done.err  # all three, as the rank wrote it
    last = done.err[done.err.index("failed first") :].splitlines()
    lines = [line.removeprefix("horovodrun: ").strip() for line in last[1:]]
    assert re.fullmatch(r"ranks \d[-, ]+\d also failed \(exit code 1\)", lines[0])
    assert re.fullmatch(r"the exception of rank \d:", lines[1])
    assert lines[2:] == [
        f'File "{script}", line 7, in <module>',
        "step()",
        f'File "{script}", line 6, in step',
        'layers.call(4, lambda: int(os.environ["WORD"]))',
        "... 5 frames in layers ...",
        f'File "{script}", line 6, in <lambda>',
        'layers.call(4, lambda: int(os.environ["WORD"]))',
        "ValueError: invalid literal for int() with base 10: 'many'",
    ]


def test_only_the_first_exception_is_shortened_to_its_message():
    cut = FirstException()
    lines = [f"{line}\n".encode() for line in ("loading", HEADER, *frame("train.py"), "ValueError: bad", "batch")]
    assert (cut(lines), cut(lines)) == (5, 0)
