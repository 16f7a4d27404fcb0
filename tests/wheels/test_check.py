"""Checks of libraries and wheels."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("elftools")
from tools.wheels import check
from tools.wheels.plan import LIBRARIES

pytestmark = pytest.mark.heavy
CORE = Path(importlib.util.find_spec("horovod._core").origin)


def test_symbols_needed_by_a_library():
    """Uses the extension of this checkout, built against this system's libraries."""
    expected = {name: (version, weak) for name, version, weak in check.undefined(CORE.read_bytes())}
    assert expected["PyModule_GetState" if "PyModule_GetState" in expected else "PyErr_SetString"] == (None, False)
    version, weak = expected["memcpy"]
    assert version is not None
    assert version.startswith("GLIBC_2.")
    assert not weak
    assert "PyInit__core" in check.defined(CORE.read_bytes())
    assert "libc.so.6" in check.libraries_needed(CORE.read_bytes())


def test_a_library_of_this_system_does_not_suit_older_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_output", lambda *args: (0, 'platform tag: "linux_x86_64"'))
    wheel = tmp_path / "horovod-1.0-cp312-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name in ("horovod/_core.abi3.so", *LIBRARIES[1:]):
            packed.write(CORE, name)
    message = "\n".join(check.complaints(wheel))
    assert "horovod/_jax/_jax.so is missing" in message
    assert "horovod/_core.abi3.so: needs libstdc++.so.6" in message
    assert 'auditwheel: platform tag: "linux_x86_64"' in message
