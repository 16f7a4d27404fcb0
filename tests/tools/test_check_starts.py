"""tools/check_starts.py finds unsafe starts of Python; `make lint` runs it on this repository."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_starts  # noqa: E402

SAFE = "import sys; sys.path[:] = [p for p in sys.path if p]; "


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('run([sys.executable, "-m", "horovod.timeline"])', [1]),
        ('run([python, "-c", code])', [1]),
        ('run([sys.executable, *boot.arguments("horovod.timeline")])', []),
        ("run([sys.executable, str(script)])", []),
    ],
)
def test_commands_in_python(text, found):
    assert list(check_starts.in_python(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("command:\n- python\n- -m\n- horovod.x", [3]),
        ("x=$(python - <<'PY'\nimport os\nPY\n)", [1]),
        (f"x=$(python - <<'PY'\n{SAFE}\nimport os\nPY\n)", []),
        ('CMD ["python", "-c", "import horovod._core"]', [1]),
        ('CMD ["python", "-I", "-c", "import horovod._core"]', []),
    ],
)
def test_commands_in_manifests_and_scripts(text, found):
    assert list(check_starts.in_text(text)) == found
