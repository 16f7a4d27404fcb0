import signal

from horovod.runner.attribution.first_failure import RankEnd, judge
from horovod.runner.attribution.tracebacks import last_lines

BAR = "loading\n\r  1%|#\r  2%|##\r\x1b[31m  3%|###\x1b[0m"


def test_of_a_progress_bar_the_last_state_is_told():
    failure = judge([RankEnd(0, "h", -signal.SIGKILL, BAR)])
    assert failure.text.splitlines()[1:] == ["its last lines on stderr:", "    loading", "      3%|###"]


def test_as_a_terminal_would_show_them():
    assert last_lines("a\r\n\n\x1b]0;title\x07b\tc\x00\x1b[2K\n   \n", 8) == ["a", "b\tc"]
    assert last_lines("\router 1%\n\rinner 1%\x1b[A\n\rinner 2%\x1b[A\n\rinner 3%\x1b[A", 8) == ["outer 1%", "inner 3%"]
    assert last_lines("\r50%\r   \r", 8) == ["50%"]  # better than nothing
    assert last_lines("1\n2\n3\n", 2) == ["2", "3"]
