"""The programs for plain arrays in docs run unchanged."""

import pytest

from tests.documents import programs

ORDER = ["in short", "handles", "elastic"]


def run(texts):
    left = {"__name__": "__main__"}
    for text in texts:
        exec(compile(text, "program", "exec"), left)
    return {
        name: getattr(left[name], "tolist", lambda: None)() for name in ("mean", "sums", "rows", "total", "second")
    }, (left["loss"], left["state"].weights.tolist())


def test_every_program_runs(pool):
    found = programs("numpy")
    if not found:
        pytest.skip("the documents are not here")
    assert set(found) == set(ORDER)
    results = pool(2).run(run, [found[name].text for name in ORDER])
    for rank, (arrays, rest) in enumerate(results):
        assert arrays == {
            "mean": [1.5] * 3,
            "sums": [3.0] * 3,
            "rows": [2 * rank, 2 * rank + 1] * 2,
            "total": [2.0] * 3,
            "second": [1.0] * 6,
        }
        assert rest == (0.25, [10.0] * 3)
