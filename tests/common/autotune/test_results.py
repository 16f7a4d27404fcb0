"""Stored results: found again for the same job only, private, and shown."""

import pytest

from horovod.common.autotune import results


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "horovod"


def result(model="a" * 16, hosts=("a", "a", "b"), **settings):
    key = results.Key(model, list(hosts), settings)
    return results.Result(results.FORMAT, key, {"fusion_bytes": 4096}, 12.5, 0.25, 3 << 20, 1.7e9)


def test_stored_and_found(cache):
    one = result()
    path = results.store(one)
    assert path.parent == cache
    assert path.stat().st_mode & 0o777 == 0o600
    assert results.load(one.key) == one
    for other in (result(model="b" * 16), result(hosts="aab"), result(hosts="abb"), result(HOROVOD_CYCLE_TIME="3")):
        assert (results.load(other.key) == one) == (other.key == one.key)
    path.write_text("{}")
    assert results.load(one.key) is None
    results.store(one)
    path.chmod(0o644)  # others could read it, so it may not be ours
    assert results.load(one.key) is None


def test_stored_results_are_shown(cache):
    assert results.table(results.stored()) == (
        f"no results of autotune are stored in {cache}; horovodrun --autotune stores one"
    )
    results.store(result())
    results.store(result(hosts=["c"], HOROVOD_CYCLE_TIME="3"))
    (cache / "autotune-damaged.json").write_text("{")
    shown = results.table(results.stored())
    assert "a:2,b:1  steps that reduce 3.0 MiB (model aaaaaaaa): 12.50 ms, 25.0% less than initially" in shown
    assert "  fusion_bytes=4096\n" in shown
    assert "  with HOROVOD_CYCLE_TIME=3\n" in shown
    assert shown.count("12.50 ms") == 2
