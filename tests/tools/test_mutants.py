"""tools/mutants: what it changes, and that it tells a mutant that lives from one that does not."""

from pathlib import Path

import pytest

from tools.mutants import native_mutants, python_mutants
from tools.mutants.__main__ import HERE, known, outdated, summary
from tools.mutants.changes import applied, changes_of
from tools.mutants.python_mutants import Mutant, Target

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""Doc."""
LIMIT = 1 << 20
if TYPE_CHECKING:
    import shop

def low(a: "int | None", b=2) -> "list[int]":
    """Doc 1."""
    assert a < 5
    if a <= b and not b:
        raise ValueError(f"{a + 1} is too little")
    return [a + 1, "text"]
'''


def test_changes_are_small_and_each_is_a_program():
    changes = changes_of(SOURCE)
    assert [(change.line, str(change)) for change in changes] == [
        (6, "2  ->  (3)"),
        (9, "a <= b  ->  (a < b)"),
        (9, "a <= b and not b  ->  (a <= b or not b)"),
        (9, "a <= b and not b  ->  (not (a <= b and (not b)))"),
        (9, "not b  ->  (b)"),
        (10, 'raise ValueError(f"{a + 1} is too little")  ->  pass'),
        (11, 'return [a + 1, "text"]  ->  return None'),
        (11, "a + 1  ->  (a - 1)"),
        (11, "1  ->  (2)"),
    ]
    for change in changes:
        text = applied(SOURCE, change)
        compile(text, "mutant", "exec")
        assert text.count("\n") == SOURCE.count("\n")
        assert text != SOURCE


def test_what_only_asserts_is_left_alone():
    assert changes_of("for _ in zip(a, b, strict=True):\n    assert b > 2\n") == []


def test_text_before_a_change_may_be_of_any_letters():
    assert [applied('x = "ä" + "ö"; y = 1\n', change) for change in changes_of('x = "ä" + "ö"; y = 1\n')] == [
        'x = ("ä" - "ö"); y = 1\n'.replace('"', "'"),
        'x = "ä" + "ö"; y = (2)\n',
    ]


@pytest.mark.heavy  # runs tests many times
def test_mutants_are_tried_without_touching_the_tree(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    source = "def total(n):\n    return n + 1\n\n\ndef unseen(n):\n    return n - 1\n"
    (tmp_path / "shop/till.py").write_text(source)
    (tmp_path / "test_till.py").write_text(
        "import subprocess, sys\n"
        "code = 'from shop.till import total; print(total(1))'\n"
        "def test_total():\n"
        "    assert subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE).stdout == b'2\\n'\n"
    )
    before = sorted(tmp_path.rglob("*"))
    seen: list[Mutant] = []
    target = Target("shop/till.py", ("test_till.py",))
    made = python_mutants.try_all(tmp_path, target, 100, 1, 2, seen.append)
    assert sorted(map(str, seen)) == sorted(map(str, made))
    assert [(m.line, m.change, m.outcome) for m in made] == [
        (2, "return n + 1  ->  return None", "killed"),
        (2, "n + 1  ->  (n - 1)", "killed"),
        (2, "1  ->  (2)", "killed"),
        (6, "return n - 1  ->  return None", "lives"),
        (6, "n - 1  ->  (n + 1)", "lives"),
        (6, "1  ->  (2)", "lives"),
    ]
    assert sorted(tmp_path.rglob("*")) == before
    assert python_mutants.run_tests(tmp_path, target, "while True: pass\n", 1.0) == "hung"
    with pytest.raises(RuntimeError, match=r"shop/till.py: its tests nothing.py failed without any change"):
        python_mutants.try_all(tmp_path, Target("shop/till.py", ("nothing.py",)), 1, 1, 1, seen.append)


def test_the_lists_are_in_order():
    """Files and tests that they name are there. What became of the lines that they name `make mutants` says: somebody
    who changes one has other things in mind."""
    for target in python_mutants.targets((HERE / "modules.txt").read_text()):
        for path in (target.file, *target.tests):
            assert (ROOT / path).exists(), path
    for native in native_mutants.table((HERE / "native.txt").read_text()):
        assert (ROOT / native.file).exists(), native.file
    for (file, change, at), why in known((HERE / "known.txt").read_text()).items():
        assert (ROOT / file).exists(), file
        assert at, f"no line for {change}"
        assert why, f"no reason for {change}"


def test_what_is_not_there_any_more_is_told(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    (tmp_path / "a.cc").write_text("int x = 1;\n")
    change = "1  ->  (2)"
    assert outdated(tmp_path, {("a.py", change, "y = 1"): "", ("a.cc", "x -> y", "int x = 1;"): ""}) == []
    for key in (("a.py", change, "z = 1"), ("a.cc", "x -> y", "int y = 1;"), ("b.py", change, "y = 1")):
        (said,) = outdated(tmp_path, {key: ""})
        assert said == f"known.txt: {key[0]} has no {key[1]!r} in {key[2]!r} any more"
    natives = [native_mutants.Native(file, "test", "*", "x = 1", "x = 2") for file in ("a.cc", "b.cc", "a.py")]
    assert native_mutants.outdated(tmp_path, [natives[0], natives[2]]) == []
    assert len(native_mutants.outdated(tmp_path, natives)) == 1


def test_wrong_lists_are_refused():
    with pytest.raises(ValueError, match=r"line 2: 'b\.py'; accepted"):
        python_mutants.targets("a.py tests/a\nb.py\n")
    with pytest.raises(ValueError, match=r"accepted are `file binary: tests`"):
        native_mutants.table("core/a.cc test_engine\n- x\n+ y\n")
    native = native_mutants.table("core/a.cc test_engine: *x*\n-   x\n+\n")[0]
    assert (native.before, native.after) == ("  x", "")
    with pytest.raises(ValueError, match="is there 2 times; accepted is once"):
        native_mutants.mutated("  x\n  x\n", native)


def test_the_summary_counts_and_gives_reasons():
    mutants = [Mutant("a.py", 1, "x", "killed"), Mutant("b.py", 3, "z", "hung")]
    mutants += [Mutant("a.py", 2, "y", "lives", "y = 1"), Mutant("a.py", 4, "y", "lives", "y = 2")]
    lines = summary(mutants, known("# more\na.py: y\n    in: y = 1\n    nobody\n    can tell\n"))
    assert [" ".join(line.split()) for line in lines] == [
        "a.py 1 of 3 33.3 %",
        "b.py 1 of 1 100.0 %, of them 1 by a deadline",
        "all 2 of 4 50.0 %, of them 1 by a deadline",
        "lives: a.py:2: y nobody can tell",
        "lives: a.py:4: y nobody has looked into it",
    ]
