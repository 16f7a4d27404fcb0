"""The last lines of a rank: any output is bounded and becomes valid text."""

from horovod.runner.dashboard.history import Tail, text


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


def test_colours_and_controls_are_left_out_and_letters_stay():
    tail = Tail(10)
    tail.feed(1, 1, '\x1b[31;1mGröße\x1b[0m 日本語 "<b>" \'\x07\x00\x9b\t\x1b]0;title\x07end\xff\n'.encode())
    tail.feed(1, 1, b"not \xff UTF-8\n")
    assert lines(tail) == ['Größe 日本語 "<b>" \'\tendÿ', "not \ufffd UTF-8"]
    assert text("\udcff\n") == "? "
