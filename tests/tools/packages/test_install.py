"""Packages are installed with uv as pip would install them, and with pip where uv cannot."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.packages import install

ROOT = Path(__file__).resolve().parents[3]
NAME = "hvd_test_package"


def make_wheel(folder, version):
    """Write a wheel of a module whose VERSION is the package's."""
    folder.mkdir(exist_ok=True)
    info = f"{NAME}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{NAME}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{NAME}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def configure_pip(tmp_path, monkeypatch):
    """Return a function that sets PIP_* variables and hides this user's own settings."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))

    def configure(**settings):
        for name, value in {"config_file": os.devnull, **settings}.items():
            monkeypatch.setenv(f"PIP_{name.upper()}", str(value))

    configure()
    return configure


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_build_with_a_local_label_is_found_in_a_folder(tmp_path, configure_pip, installer):
    if installer == "uv" and not shutil.which("uv"):
        pytest.skip("uv is not installed")
    make_wheel(tmp_path / "plain", "1.0")
    make_wheel(tmp_path / "wheels", "1.0+cpu")
    make_wheel(tmp_path / "wheels", "2.0")
    (tmp_path / "constraint.txt").write_text(f"{NAME}<2\n")
    configure_pip(
        no_index=1,
        find_links=f"/is/not/there {tmp_path / 'plain'} {tmp_path / 'wheels'}",
        constraint=tmp_path / "constraint.txt",
    )
    command = [sys.executable, "-m", "tools.packages", "install", "--no-deps", "--target", str(tmp_path / "there")]
    environ = {**os.environ, "INSTALLER": installer}
    done = subprocess.run([*command, NAME], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "there" / f"{NAME}.py").read_text() == "VERSION = '1.0+cpu'\n"
    assert not (tmp_path / "there" / "__pycache__").exists(), "compiled at the first import, not here"


@pytest.fixture
def fake_uv(tmp_path, monkeypatch):
    """Return a function that installs a fake uv with an exit code; the fake writes its arguments to a file."""
    log = tmp_path / "told"

    def put(code):
        program = tmp_path / "uv"
        program.write_text(f'#!/bin/sh\necho "$UV_FIND_LINKS|$*" >>{log}\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setattr(install, "find_uv", lambda: str(program))
        monkeypatch.setattr(install, "built_wheels", lambda cache: ["/cache/x"])
        return log

    return put


@pytest.fixture
def by_pip(monkeypatch):
    """Return the arguments passed to pip."""
    found = []
    monkeypatch.setattr(install, "with_pip", lambda arguments: found.append(arguments) or 0)
    return found


def test_uv_finds_what_pip_finds(tmp_path, configure_pip, fake_uv, by_pip, capfd):
    log = fake_uv(0)
    configure_pip(find_links=tmp_path)
    assert install.install(["--no-deps", "a", "b"]) == 0
    assert log.read_text() == f"{tmp_path},/cache/x|pip install -q --python {sys.executable} --no-deps a b\n"
    assert (by_pip, capfd.readouterr().err) == ([], "")


def test_pip_installs_where_uv_fails(configure_pip, fake_uv, by_pip, capfd):
    fake_uv(3)
    assert install.install(["a"]) == 0
    assert by_pip == [["a"]]
    assert capfd.readouterr().err == "pip installs a, because uv failed with code 3\n"


def test_pip_installs_with_settings_unknown_to_uv(configure_pip, fake_uv, by_pip, capfd):
    log = fake_uv(0)
    configure_pip(only_binary=":all:")
    assert install.install(["a"]) == 0
    assert by_pip == [["a"]]
    assert not log.exists()
    assert "pip's setting only-binary" in capfd.readouterr().err
