"""Build settings of the wheels."""

import sys
from pathlib import Path

import pytest

from tools.wheels import build
from tools.wheels.build import find_pythons
from tools.wheels.sysroot import Missing

THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_a_python_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(
        Missing, match=r"there is no Python 3\.99, for which a wheel is to be built: --python PATH names"
    ):
        find_pythons(["3.99"], [])
    with pytest.raises(Missing, match=r"--python /nowhere/python does not run; it takes interpreters of CPython"):
        find_pythons([], [Path("/nowhere/python")])


def test_a_folder_of_somebodys_is_left_alone(tmp_path):
    (tmp_path / "horovod-1.0.tar.gz").write_text("")
    build.empty(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(build.BuildFailed, match=r"has 'thesis\.tex' in it"):
        build.empty(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
