"""tools/check_starts.py: starts of Python that are not safe, in made-up text and in this repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_starts  # noqa: E402

SAFE = "import sys; sys.path[:] = [p for p in sys.path if p]; "


def test_all_starts_in_this_repository_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_starts.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('run([sys.executable, "-m", "horovod.timeline"])', True),
        ('run([python, "-c", code])', True),
        ('run((self.python, "-", *more))', True),
        ('run([python or sys.executable, "-uc", code])', True),
        ('run([sys.executable, *boot.words("horovod.timeline")])', False),
        ("run([sys.executable, str(script)])", False),
        ('run(["/bin/sh", "-c", "true"])', False),
        ('flags = ["-m", "x"]', False),
    ],
)
def test_commands_in_python(text: str, found: bool) -> None:
    assert list(check_starts.in_python(text)) == ([1] if found else [])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("command:\n- python\n- -m\n- horovod.x", 3),
        ("  exec python3 -m horovod.x", 1),
        ('CMD ["python", "-m", "horovod.x"]', 1),
        ("x=$(python - <<'PY'\nimport os\nPY\n)", 1),
        (f"x=$(python - <<'PY'\n{SAFE}\nimport os\nPY\n)", 0),
        ("command:\n- python\n- -c\n- 'from horovod.x import main; main()'", 4),
        (f"command:\n- python\n- -c\n- '{SAFE}from horovod.x import main; main()'", 0),
        ('CMD ["python", "-c", "import horovod._core"]', 1),
        ('CMD ["python", "-I", "-c", "import horovod._core"]', 0),
        ("RUN python3 -m venv /opt/x", 0),
    ],
)
def test_commands_in_manifests_and_scripts(text: str, line: int) -> None:
    assert list(check_starts.in_text(text)) == ([line] if line else [])
