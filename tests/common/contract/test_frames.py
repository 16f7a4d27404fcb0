"""The source line that a warning points at."""

import types
from pathlib import Path

from horovod.common.contract import log

PACKAGES = "/venv/lib/python3.11/site-packages"


def module(name, code):
    """Return a module of this name, made of the code."""
    module = types.ModuleType(name)
    module.__dict__["frames"] = log
    exec(compile(code, f"/lib/{name}.py", "exec"), module.__dict__)
    return module


def test_libraries_of_frames():
    library_of = log.library_of
    assert library_of("/home/me/train.py") == library_of("train.py") == library_of("/home/me/lib/python/net.py") == ""
    assert library_of(f"{PACKAGES}/torch/nn/modules/module.py") == "torch"
    assert library_of(f"{PACKAGES}/typing_extensions.py") == "typing_extensions"
    assert library_of("/usr/lib/python3/dist-packages/numpy/core.py") == "numpy"
    assert library_of("/usr/lib64/python3.12/runpy.py") == library_of("<frozen importlib._bootstrap>") == "Python"
    assert library_of("/src/horovod/torch/ops/allreduce.py") == "horovod"
    assert library_of("<stdin>") == library_of("/home/me/.cache/ipykernel_1/cell.py") == ""


def test_all_package_folders_count_as_library_code():
    package = Path(log.__file__).parents[2]
    assert package.name == "horovod"
    parts = [part for part in package.iterdir() if part.is_dir() and part.name != "__pycache__"]
    assert len(parts) > 10
    assert [part.name for part in parts if log.library_of(f"/src/horovod/{part.name}/x.py") != "horovod"] == []
