"""Stacks as faulthandler writes them, and the user's line in them."""

import pytest

from horovod.common.telemetry.stacks import Frame, Thread, main_thread, parse, place

TORCH = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
QUEUE = "/usr/lib/python3.11/queue.py"
TEXT = f"""Thread 0x00007f8ed9dff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/src/horovod/common/telemetry/message_bus.py", line 88 in _read

Current thread 0x00007f8eda51eb80 [python] (most recent call first):
  File "{QUEUE}", line 180 in get
  File "{TORCH}", line 1133 in _try_get_data
  File "{TORCH}", line 630 in __next__
  File "/home/me/my "project"/train.py", line 88 in main
  File "/home/me/my "project"/train.py", line 120 in <module>
"""


def test_threads_frames_and_the_current_line():
    threads = parse("noise\n" + TEXT)
    assert [thread.ident for thread in threads] == [0x7F8ED9DFF6C0, 0x7F8EDA51EB80]
    assert [thread.is_telemetry for thread in threads] == [True, False]
    main = threads[1]
    assert main.frames[3] == Frame('/home/me/my "project"/train.py', 88, "main")
    assert main.own == 3
    assert main_thread(threads, None) is main
    assert main_thread(threads, 0x7F8ED9DFF6C0) is threads[0]
    assert place(main) == "in DataLoader.__next__ at train.py:88 in main"


@pytest.mark.parametrize(
    ("frames", "source", "expected"),
    [
        ([("/home/me/train.py", 7, "load")], "time.sleep(60)", "at train.py:7 in load (`time.sleep(60)`)"),
        ([("/home/me/train.py", 7, "load")], "", "at train.py:7 in load"),
        ([(QUEUE, 5, "get"), ("/home/me/train.py", 7, "load")], "x", "in queue.get at train.py:7 in load"),
        ([("/src/horovod/torch/ops/x.py", 5, "_wait"), ("/home/me/t.py", 7, "f")], "", "in hvd.wait at t.py:7 in f"),
        ([(QUEUE, 5, "get")], "", "in queue.get (queue.py:5)"),
        ([("/e/site-packages/big/__init__.py", 5, "run"), ("/home/me/t.py", 7, "f")], "", "in big.run at t.py:7 in f"),
        (
            [(TORCH, 9, "__next__"), ("/src/horovod/torch/monitoring.py", 5, "__next__"), ("/home/me/t.py", 7, "f")],
            "",
            "in DataLoader.__next__ at t.py:7 in f",
        ),
        ([("/home/me/train.py", 7, "<lambda>")], "f()", "at train.py:7 (`f()`)"),
        ([], "", ""),
    ],
)
def test_place_of_a_thread(frames, source, expected):
    assert place(Thread(1, tuple(Frame(*frame) for frame in frames)), source) == expected
