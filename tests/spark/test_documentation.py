"""The Spark programs in docs run unchanged."""

import pytest

from tests.documents import programs


@pytest.mark.heavy
def test_every_program_runs(spark):
    pytest.importorskip("torch")
    found = programs("spark")
    if not found:
        pytest.skip("the documents are not here")
    left = {"__name__": "__main__"}
    for name in ("in short", "elastic"):
        exec(compile(found[name].text, "program", "exec"), left)
    exec(compile(found["a notebook"].text, "program", "exec"), left)
    assert (left["tried"], left["trained"]) == (2, 2)
    results = left["results"]
    assert [place[:2] for place in results] == [(rank, rank) for rank in range(4)]
    assert len({bias for *_, bias in results}) == 1
    assert len(left["sizes"]) == 2
