"""Errors when the native extension is missing or does not fit the system."""

import importlib.util
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from horovod import _absent
from horovod._native_words import Running, explained, obstacle, python_version_of

PACKAGE = Path(_absent.__file__).parent
CORE = Path(importlib.util.find_spec("horovod._core").origin)
OLD = Running((3, 10), False, "x86_64", "/py/python")
NEW = Running((3, 13), False, "x86_64", "/py/python")
THREADED = Running((3, 14), True, "x86_64", "/py/python")
ANEW = (
    "install it anew with this Python, from its source or a wheel: /py/python -m pip install --force-reinstall "
    "FOLDER_OR_WHEEL"
)


@pytest.mark.parametrize(
    ("file", "pythons"),
    [
        ("_core.abi3.so", "CPython 3.12 and later, with the GIL"),
        ("_core.cpython-310-x86_64-linux-gnu.so", "CPython 3.10 on x86_64"),
        ("_core.cpython-313t-aarch64-linux-gnu.so", "CPython 3.13t on aarch64"),
        ("_core.so", "another Python"),
    ],
)
def test_python_versions_of_a_file(file, pythons):
    assert python_version_of(file) == pythons


def test_matching_extensions_are_loaded():
    assert obstacle("/p/_core.abi3.so", ["_core.abi3.so"], "/p", NEW) is None
    own = "_core.cpython-310-x86_64-linux-gnu.so"
    assert obstacle(f"/p/{own}", [own], "/p", OLD) is None


def test_the_stable_abi_excludes_older_and_free_threaded_pythons():
    for running in (OLD, THREADED):
        err = obstacle("/p/_core.abi3.so", ["_core.abi3.so"], "/p", running)
        assert err == (
            f"Horovod's native part does not fit this Python, {running}: /p has _core.abi3.so "
            f"(for CPython 3.12 and later, with the GIL); {ANEW}"
        )
    assert str(THREADED) == "CPython 3.14t on x86_64"


def elf(machine: int) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little")


def test_errors_of_the_loader():
    text = "/lib/libc.so.6: version `GLIBC_2.9' not found (...), /lib/libc.so.6: version `GLIBC_2.28' not found (...)"
    err = explained(text, "/p/_core.so", elf(62), "2.17", NEW)
    assert "/p/_core.so needs glibc 2.28 or later, and this system has 2.17, which is older; take a newer system" in err
    assert "/py/python -m pip install --force-reinstall FOLDER_OF_ITS_SOURCE (the loader says: " in err
    assert "needs glibc, and this system has another C library" in explained("?", "/p/_core.so", elf(62), "", NEW)
    assert "_core.so is for aarch64, and this is CPython 3.13 on x86_64" in explained(
        "", "_core.so", elf(183), "2.36", NEW
    )
    assert "_core.so is for CPU number 243, and" in explained("", "_core.so", elf(243), "2.36", NEW)
    assert "_core.so is not a library, and" in explained("", "_core.so", b"text", "2.36", NEW)
    assert "cannot be loaded: undefined symbol: f; " in explained(
        "undefined symbol: f", "_core.so", elf(62), "2.36", NEW
    )


def imported(folder: Path, program: str = "from horovod import _core") -> str:
    """Return the last line printed by importing a copy of the package, in ``folder``, without its native extension."""
    shutil.copytree(
        PACKAGE, folder / "horovod", ignore=shutil.ignore_patterns("*.so", "__pycache__"), dirs_exist_ok=True
    )
    # Without site, because an editable installation would find its own extension.
    path = [str(folder), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path}\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.heavy
def test_unbuilt_packages_are_reported(tmp_path):
    assert "ImportError: Horovod's native part is not built: " in imported(tmp_path)
    assert "ImportError: Horovod's native part is not built: " in imported(tmp_path, "import horovod.numpy")
    looked = "from importlib.util import find_spec; print(find_spec('horovod._core').origin)"
    assert imported(tmp_path, looked) == "None"
    from_it = "from horovod._core import Engine"
    assert "ImportError: Horovod's native part is not built: " in imported(tmp_path, from_it)


def test_an_extension_of_another_python_is_named(tmp_path):
    (tmp_path / "horovod").mkdir()
    shutil.copy(CORE, tmp_path / "horovod/_core.cpython-39-x86_64-linux-gnu.so")
    assert "has _core.cpython-39-x86_64-linux-gnu.so (for CPython 3.9 on x86_64); install it anew" in imported(tmp_path)


def test_a_system_that_is_too_old_is_named(tmp_path):
    """Load a real library that needs a glibc version that no system has yet."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    (tmp_path / "horovod").mkdir()
    (tmp_path / "libc.c").write_text("void newest(void) {}\n")
    (tmp_path / "libc.map").write_text("GLIBC_2.99 { newest; };\n")
    (tmp_path / "core.c").write_text("void newest(void);\nvoid *PyInit__core(void) { newest(); return 0; }\n")
    libc = ["-Wl,-soname,libc.so.6", "-Wl,--version-script=libc.map", "libc.c", "-o", "libc.so.6"]
    file = f"horovod/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    for part in (libc, ["core.c", "libc.so.6", "-o", file]):
        subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", *part], cwd=tmp_path, check=True, timeout=60)
    err = imported(tmp_path)
    assert f"{tmp_path}/{file} needs glibc 2.99 or later, and this system has {platform.libc_ver()[1]}, which" in err


def test_reloaded_packages_find_the_same_object():
    code = (
        "import importlib, sys, horovod._absent\n"
        "importlib.reload(horovod._absent)\n"
        "importlib.reload(horovod)\n"
        "import horovod._core\n"
        "print(sum(getattr(one, '__module__', '') == 'horovod._absent' for one in sys.meta_path))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr
