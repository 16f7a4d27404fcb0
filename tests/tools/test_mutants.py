"""tools/mutants: the mutations, and detection of surviving mutants."""

from pathlib import Path

import pytest

from tools.mutants import by_hand, python_mutants
from tools.mutants.__main__ import HERE, known
from tools.mutants.python_mutants import Target

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.heavy  # runs tests many times
def test_mutants_are_tried_without_touching_the_tree(tmp_path):
    (tmp_path / "src/shop").mkdir(parents=True)
    (tmp_path / "src/shop/__init__.py").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    source = "def total(n):\n    return n + 1\n\n\ndef unseen(n):\n    return n - 1\n"
    (tmp_path / "src/shop/till.py").write_text(source)
    (tmp_path / "test_till.py").write_text("from shop.till import total\ndef test_total():\n    assert total(1) == 2\n")
    (tmp_path / "test_other.py").write_text("def test_nothing():\n    pass\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeError, match="no effect"):
        python_mutants.patience(tmp_path, Target("src/shop/till.py", ("test_other.py",)))
    mutants = python_mutants.try_all(
        tmp_path, Target("src/shop/till.py", ("test_till.py",)), 100, 1, 2, lambda mutant: None
    )
    assert [(mutant.line, mutant.outcome) for mutant in mutants] == [(2, "killed")] * 3 + [(6, "lives")] * 3
    chosen = by_hand.table("src/shop/till.py: test_till.py\n- n + 1\n+ n + 2\n")
    assert [mutant.outcome for mutant in by_hand.try_python(tmp_path, chosen, 1, lambda mutant: None)] == ["killed"]
    assert sorted(tmp_path.rglob("*")) == before


def test_the_lists_name_files_that_exist():
    for target in python_mutants.targets((HERE / "modules.txt").read_text()):
        for path in (target.file, *target.tests):
            assert (ROOT / path).exists(), path
    for chosen in by_hand.table((HERE / "by_hand.txt").read_text()):
        for path in (chosen.file, *([] if chosen.binary else chosen.tests.split())):
            assert (ROOT / path).exists(), path
    for (file, change, at), why in known((HERE / "known.txt").read_text()).items():
        assert (ROOT / file).exists(), file
        assert at, f"no line for {change}"
        assert why, f"no reason for {change}"
