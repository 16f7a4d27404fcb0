"""The launcher's display of workers that start and end."""

import pytest

from horovod.runner.agent.messages import Output
from horovod.runner.output.display import Screen
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from tests.runner.output.sinks import Kept


def screen_of(*workers, files=None):
    settings = LaunchSettings(["x"], [], elastic=ElasticSettings(2, 1), output_filename=files and str(files))
    kept = Kept(together=False)
    screen = Screen(settings, kept, hosts=dict.fromkeys(workers, "a"), rank_of=lambda number: number)
    for worker in workers:
        screen.join(worker)
    return screen, kept


@pytest.mark.parametrize("writes_files", [False, True])
def test_output_of_children_continues_after_a_worker_ends(tmp_path, writes_files):
    files = tmp_path / "logs" if writes_files else None
    screen, kept = screen_of(1, 3, files=files)
    screen.show(Output(1, 2, b"error\n"))
    screen.show(Output(3, 1, b"hello\n"))
    for worker in (1, 3):
        screen.finish(worker)
        screen.show(Output(worker, 2, b"late\n"))
    assert screen.tail(1) == "error\nlate\n"
    for worker in (1, 3):
        screen.forget(worker)
        screen.show(Output(worker, 1, b"later"))
        screen.show(Output(worker, 2, b"later\n"))
    assert screen.tail(1) == ""
    assert screen.tails() == {}
    assert kept.shown[2] == (
        b"[1]<stderr>:error\n[1]<stderr>:late\n[3]<stderr>:late\n[1]<stderr>:later\n[3]<stderr>:later\n"
    )
    assert b"[1]<stdout>:later\n" in kept.shown[1]
    screen.close()
    if files is not None:
        assert (files / "rank.1" / "stderr").read_text() == "error\nlate\nlater\n"
        assert (files / "worker.3" / "stdout").read_text() == "hello\nlater"
