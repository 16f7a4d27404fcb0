"""The programs of docs/ray.md run unchanged."""

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

from tests.documents import programs

# The page shows them in sequence; here they form one program, in a running Ray.
ORDER = ["in short", "an exception", "elastic"]


def test_every_program_runs(local, capsys):
    found = programs("ray")
    if not found:
        pytest.skip("the documents are not here")
    assert set(found) == set(ORDER)
    texts = {name: found[name].text for name in ORDER}
    begin, _, end = texts["in short"].partition("executor.shutdown()\n")
    whole = "".join([begin, texts["an exception"], "executor.shutdown()\n", end, texts["elastic"]])
    left = {"__name__": "__main__"}
    exec(compile(whole.replace("ray.init()\n", ""), "train.py", "exec"), left)
    assert [rank for rank, _ in left["results"]] == [0, 1]
    assert all(abs(loss - 0.05) < 1e-6 for _, loss in left["results"])
    assert "rank 0 on host" in capsys.readouterr().out
    assert left["sizes"] == [2, 2]
