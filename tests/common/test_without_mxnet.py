"""Behaviour without MXNet: an import that says what to install, and the native library."""

import ctypes
import importlib
import sys
from pathlib import Path

import pytest

from horovod import _core

SAID = (
    r"^horovod.mxnet needs MXNet 1.9.1, which cannot be imported \(.*{why}.*\); install it, .* in an environment of "
    r"Python 3.11 or older: pip install mxnet==1.9.1 numpy==1.23.5. The project Apache MXNet is retired"
)


@pytest.fixture
def fresh_imports(monkeypatch, tmp_path):
    """Import modules of these names again, from ``tmp_path`` first; restore everything afterwards."""
    for name in list(sys.modules):
        if name.split(".")[0] == "mxnet" or name.startswith("horovod.mxnet"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in list(sys.modules):
        if name.split(".")[0] == "mxnet" or name.startswith("horovod.mxnet"):
            del sys.modules[name]


def test_imports_report_what_to_install_and_the_retired_project(fresh_imports, monkeypatch):
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(ImportError, match=SAID.format(why="mxnet")):
        importlib.import_module("horovod.mxnet")
    with pytest.raises(ImportError, match=SAID.format(why="mxnet")):
        importlib.import_module("horovod.mxnet.mpi_ops")


def test_an_incompatible_numpy_is_reported_for_mxnet(fresh_imports):
    (fresh_imports / "mxnet.py").write_text("import numpy\nnumpy.boole\n")
    with pytest.raises(ImportError, match=SAID.format(why="boole")):
        importlib.import_module("horovod.mxnet")


@pytest.mark.parametrize(("text", "found"), [("__version__ = '2.0.0'\ngluon = 1\n", "2.0.0"), ("", "a module without")])
def test_another_mxnet_is_refused(fresh_imports, text, found):
    (fresh_imports / "mxnet.py").write_text(text)
    with pytest.raises(ImportError, match=f"^horovod.mxnet needs MXNet 1.9.1, got {found}"):
        importlib.import_module("horovod.mxnet")


def test_the_reason_of_an_unusable_library_is_reported():
    library = ctypes.CDLL(str(Path(_core.__file__).parent / "mxnet" / "_mxnet.so"))
    library.hvd_mxnet_attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    message = ctypes.create_string_buffer(200)
    assert library.hvd_mxnet_attach(None, None, message, 200) == 1
    assert message.value.startswith(b"horovod._core has version 0 of the frontend interface")
    no_mxnet = ctypes.CDLL(_core.__file__)._handle
    assert library.hvd_mxnet_attach(_core.frontend_api(), no_mxnet, message, 200) == 1
    assert message.value == b"MXNet's library has no function MXEnginePushAsyncND"
    assert library.hvd_mxnet_attach(_core.frontend_api(), no_mxnet, message, 8) == 1
    assert message.value == b"MXNet's"
