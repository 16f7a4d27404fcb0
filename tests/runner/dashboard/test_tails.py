"""The last lines of a rank: any output is bounded and becomes valid text."""

from horovod.runner.dashboard.history import CUT, Tail, text


def lines(tail):
    return [line.text for line in tail.lines]


def test_lines_come_in_any_pieces_of_two_streams():
    tail = Tail(10)
    for piece in (b"a", b"b\nc", b"", b"d"):
        tail.feed(1, 1, piece)
    tail.feed(2, 2, b"error\n")
    assert (lines(tail), tail.now, tail.count) == (["ab", "error"], "", 2)
    tail.feed(3, 1, b"\n")
    assert [(line.stream, line.text) for line in tail.lines] == [(1, "ab"), (2, "error"), (1, "cd")]
    assert tail.lines[-1].version == 3


def test_what_has_begun_is_shown_and_bars_as_they_stand():
    tail = Tail(10)
    tail.feed(1, 1, b" 10%\r 20%\r")
    assert (tail.now, tail.last) == (" 20%", " 20%")
    tail.feed(2, 1, b" 30%")
    assert tail.now == " 30%"
    tail.feed(3, 1, b"\r100%\r\n")
    assert (lines(tail), tail.now) == (["100%"], "")
    tail.feed(4, 1, b"dos\r\nlines\r\n")
    assert lines(tail)[1:] == ["dos", "lines"]


def test_a_line_of_10_mb_is_cut_and_never_held():
    tail = Tail(10)
    for _ in range(160):
        tail.feed(1, 1, b"x" * 65536)
        assert sum(len(line._data) for line in tail._open.values()) <= 4 * CUT
    assert tail.now == "x" * CUT + " … (10,485,760 bytes)"
    tail.feed(1, 1, b"y\nshort\n")
    assert lines(tail) == ["x" * CUT + " … (10,485,761 bytes)", "short"]


def test_only_the_last_lines_are_kept_and_all_are_counted():
    tail = Tail(3)
    tail.feed(1, 1, b"begun ")
    tail.feed(1, 1, b"".join(b"%d\n" % i for i in range(1000)) + b"rest")
    assert (lines(tail), tail.now, tail.count) == (["997", "998", "999"], "rest", 1000)


def test_colours_and_controls_are_left_out_and_letters_stay():
    tail = Tail(10)
    tail.feed(1, 1, '\x1b[31;1mGröße\x1b[0m 日本語 "<b>" \'\x07\x00\x9b\t\x1b]0;title\x07end\xff\n'.encode())
    tail.feed(1, 1, b"not \xff UTF-8\n")
    assert lines(tail) == ['Größe 日本語 "<b>" \'\tendÿ', "not \ufffd UTF-8"]
    assert text("\udcff\n") == "? "
