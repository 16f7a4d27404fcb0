import pytest

from horovod.runner.job.progress import Host, Progress, State, StatusUpdate

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}


def init(*joined, size=6, group="init"):
    return State(groups={group: (size, frozenset(joined))})


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (init(0, 1, 2, 4), "hvd.init() on rank 3 (b), rank 5 (c)"),
        (init(1), "hvd.init() on rank 0 (a), ranks 2-3 (b), ranks 4-5 (c)"),
        (init(0, 1, 2, 4, 5, group="formed 1"), "connections to the other ranks on rank 3 (b)"),
        (State(connecting=[Host("b", [2, 3])]), "host b (ranks 2-3)"),
        (
            State(connecting=[Host("b", [2, 3], "Connection refused"), Host("c", [4])]),
            "host b (ranks 2-3: Connection refused), host c (rank 4)",
        ),
        (
            State(connecting=[Host(name, [number]) for number, name in enumerate("uvwxyz")]),
            "host u (rank 0), host v (rank 1), host w (rank 2), host x (rank 3) and 2 more hosts",
        ),
        (State(starting=[Host("c", [4, 5])]), "the processes of host c (ranks 4-5)"),
    ],
)
def test_progress_names_the_missing_workers(state, text):
    log = Progress(HOSTS, terminal=False)
    assert log.update(100.0, state) == StatusUpdate()
    assert log.next_time() == 105.0
    assert log.update(105.0, state) == StatusUpdate(line=f"waiting 5 s for {text}")


@pytest.mark.parametrize("state", [State(), init(0, 1, size=2), init(0, group="init 0,1"), State(groups={})])
def test_progress_without_waiting(state):
    for is_terminal in (False, True):
        progress = Progress(HOSTS, is_terminal)
        assert progress.update(1.0, state) == StatusUpdate()
        assert progress.next_time() is None
        assert progress.update(100.0, state) == StatusUpdate()


def test_a_log_gets_a_line_at_5_10_20_40_seconds():
    log = Progress(HOSTS, terminal=False)
    lines = {}
    for tenths in range(1000):
        shown = log.update(tenths / 10, init(0, 1, 2, 3, 4))
        if shown.line:
            lines[tenths / 10] = shown.line
    assert list(lines) == [5.0, 10.0, 20.0, 40.0, 80.0]
    assert lines[40.0] == "waiting 40 s for hvd.init() on rank 5 (c)"


def test_a_terminal_gets_a_line_every_second_after_a_while():
    shown = Progress(HOSTS, terminal=True)
    assert shown.update(10.0, init(0, 1, 2)) == StatusUpdate()
    assert shown.next_time() == 12.0
    assert shown.update(12.0, init(0, 1, 2)) == StatusUpdate(
        status="[#####.....] 3/6 waiting 2 s for hvd.init() on rank 3 (b), ranks 4-5 (c)"
    )
    assert shown.next_time() == 13.0
    # Changes are shown at once.
    assert shown.update(12.5, init(0, 1, 2, 3, 4)) == StatusUpdate(
        status="[########..] 5/6 waiting 2 s for hvd.init() on rank 5 (c)"
    )
    assert shown.update(12.6, State()) == StatusUpdate()
