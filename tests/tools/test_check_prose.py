"""tools/check_prose.py finds wording to avoid and holds each rule to its budget."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_prose  # noqa: E402


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('"""Whether it is on."""', "fragment"),
        ('"""Is it on?"""', "fragment"),
        ('"""The clock."""', "fragment"),
        ('"""Return the time of the first message of a rank."""', None),
        ('x = "a is 3, accepted is a number"', "accepted is"),
        ("# nobody waits here", "unnamed subject"),
        ("# it waits in vain", "old idiom"),
    ],
)
def test_wording_is_found_where_it_counts(tmp_path, text, rule):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text(text + "\n")
    places = check_prose.found(tmp_path)
    assert {name for name, where in places.items() if where} == ({rule} if rule else set())


def test_a_budget_is_not_exceeded_and_can_be_lowered(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(check_prose, "RULES", {"old": check_prose._rule("in vain", "a verb", 1)})
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("# in vain\n")
    assert check_prose.main([str(tmp_path)]) == 0
    (tmp_path / "src/a.py").write_text("# in vain\n# in vain\n")
    assert check_prose.main([str(tmp_path)]) == 1
    assert "at most 1 places allowed, got 2" in capsys.readouterr().out
    (tmp_path / "src/a.py").write_text("")
    assert check_prose.main([str(tmp_path)]) == 0
    assert "lower its budget of 1" in capsys.readouterr().out
