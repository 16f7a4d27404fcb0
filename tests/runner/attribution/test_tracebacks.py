"""Displayed tracebacks: the user's frames, once."""

import re
import sys

import pytest

import horovod
from horovod.runner.attribution import first_failure
from horovod.runner.attribution.first_failure import RankEnd
from horovod.runner.attribution.tracebacks import MOST, shortened
from horovod.runner.output.repeats import LONG_DELAY, TRACEBACK_DELAY, Farewells
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


def test_odd_tracebacks():
    """Without a user frame; a recursion; a SyntaxError; a group of exceptions."""
    torch = frame(f"{LIB}/torch/run.py")
    assert shortened([*torch * 9, "X"]) == ["  ... 7 frames in torch ...", *torch[:2], *torch[:2], "X"]
    deep = shortened([line for n in range(99) for line in frame("a.py", f"f{n}")] + ["RecursionError: x"])
    assert len(deep) == 2 * MOST + 2
    assert "in f0" in deep[0]
    assert "in f98" in deep[-3]
    assert f"  ... {99 - MOST} frames ..." in deep
    syntax = ['  File "a.py", line 1', "    x = (", "        ^", "SyntaxError: never closed"]
    assert shortened(syntax) == syntax
    group = [
        '  |   File "a.py", line 1, in f',
        "  |     g()",
        f'  |   File "{LIB}/torch/x.py", line 1, in f',
        "  | E: x",
    ]
    assert shortened(group) == [*group[:2], "  |   ... 1 frame in torch ...", "  | E: x"]


def test_the_verdict_has_the_users_frame():
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


def test_marks_without_indentation():
    """Python 3.11 prints these marks below a call over several lines: they are not the exception."""
    odd = [f'  File "{LIB}/torch/x.py", line 7, in f', "    work = start(", "^^^^^"]
    lines = [*frame("train.py", "step"), *odd, *frame(f"{LIB}/torch/y.py")]
    error = "horovod.common.exceptions.HorovodInternalError: rank 1 (host h, pid 7) has left the job: the process ended"
    assert shortened(lines)[2:] == ["  ... 2 frames in torch ..."]
    tail = "\n".join([first_failure._HEADER, *lines, error, ""])
    assert first_failure.find_exception(tail) == ([first_failure._HEADER, *lines, error], True)
    judged = first_failure.judge([RankEnd(1, "h", 0), RankEnd(0, "h", 1, tail)])
    assert judged.text.splitlines()[2:] == ["what rank 0 on host h says:", f"    {error}"]


def test_a_debugger_without_a_terminal():
    tail = "\n".join([first_failure._HEADER, *frame("train.py"), "bdb.BdbQuit", ""])
    assert "`horovodrun --debug-rank 3`" in first_failure.judge([RankEnd(3, "h", 1, tail)]).headline
    assert "debug" not in first_failure.judge([RankEnd(3, "h", 1, tail.replace("bdb.BdbQuit", "ValueError"))]).headline


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


def test_little_is_held_after_a_traceback():
    farewells = Farewells(range(2))
    assert farewells.add(1, block(b"E\n"), 0.2) == []
    assert len(farewells.add(1, [b"x" * (1 << 16)], 0.2)) == 4
    assert farewells.next_due() is None


def test_what_is_told_elsewhere_is_left_out_of_last_words():
    farewells = Farewells(range(2), lambda lines: len(lines) - 1)
    farewells.add(0, block(b"logged\n"), 0.0)
    assert farewells.take(LONG_DELAY) == [([0], line) for line in block(b"logged\n")]  # it did not end
    farewells.add(1, block(b"E\n"), 10.0)
    farewells.end(1)
    assert farewells.take(10.0 + LONG_DELAY) == [([1], b"E\n")]


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
    told = [line.removeprefix("horovodrun: ").strip() for line in last[1:]]
    assert re.fullmatch(r"ranks \d[-, ]+\d also failed \(exit code 1\)", told[0])
    assert re.fullmatch(r"the exception of rank \d:", told[1])
    assert told[2:] == [
        f'File "{script}", line 7, in <module>',
        "step()",
        f'File "{script}", line 6, in step',
        'layers.call(4, lambda: int(os.environ["WORD"]))',
        "... 5 frames in layers ...",
        f'File "{script}", line 6, in <lambda>',
        'layers.call(4, lambda: int(os.environ["WORD"]))',
        "ValueError: invalid literal for int() with base 10: 'many'",
    ]


def test_a_failing_function_shows_its_traceback_once(capfd):
    def fail():
        raise ValueError("no data")

    with pytest.raises(ValueError, match=r"(?s)Traceback.*in fail.*ValueError: no data") as caught:
        horovod.run(fail, num_proc=2)
    shown = capfd.readouterr().err
    assert len(re.findall("Traceback", shown + str(caught.value))) == 1
    assert shown == "[0-1]<stderr>:ValueError: no data\n"
