"""The source line that a warning points at."""

import functools
import types
import warnings
from pathlib import Path

from horovod.common.contract import log

PACKAGES = "/venv/lib/python3.11/site-packages"


def module(name, code):
    """Return a module of this name, made of the code."""
    made = types.ModuleType(name)
    made.__dict__["frames"] = log
    exec(compile(code, f"/lib/{name}.py", "exec"), made.__dict__)
    return made


OURS = module("horovod.somewhere", "def deep(): return warn()\ndef warn(): frames.warn_user('hear', FutureWarning)\n")
THEIRS = module("torch.optim", "def wrap(function):\n    return function()\n")
LIBRARY = module("lightning.loop", "def run(function):\n    return function()\n")


def blamed(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    (warning,) = caught
    assert (str(warning.message), warning.category) == ("hear", FutureWarning)
    return warning.filename


def test_frames_of_ours_and_of_frameworks_are_passed_over():
    assert blamed(lambda: OURS.deep()) == __file__
    assert blamed(lambda: THEIRS.wrap(OURS.deep)) == __file__
    assert blamed(lambda: THEIRS.wrap(functools.partial(THEIRS.wrap, OURS.warn))) == __file__
    # Another library counts as a user of Horovod.
    assert blamed(lambda: LIBRARY.run(functools.partial(THEIRS.wrap, OURS.deep))) == "/lib/lightning.loop.py"


def test_whose_a_frame_is():
    library_of = log.library_of
    assert library_of("/home/me/train.py") == library_of("train.py") == library_of("/home/me/lib/python/net.py") == ""
    assert library_of(f"{PACKAGES}/torch/nn/modules/module.py") == "torch"
    assert library_of(f"{PACKAGES}/typing_extensions.py") == "typing_extensions"
    assert library_of("/usr/lib/python3/dist-packages/numpy/core.py") == "numpy"
    assert library_of("/usr/lib64/python3.12/runpy.py") == library_of("<frozen importlib._bootstrap>") == "Python"
    assert library_of("/src/horovod/torch/ops/allreduce.py") == "horovod"
    assert library_of("<stdin>") == library_of("/home/me/.cache/ipykernel_1/cell.py") == ""


def test_all_folders_of_the_package_are_known_as_ours():
    package = Path(log.__file__).parents[2]
    assert package.name == "horovod"
    parts = [part for part in package.iterdir() if part.is_dir() and part.name != "__pycache__"]
    assert len(parts) > 10
    assert [part.name for part in parts if log.library_of(f"/src/horovod/{part.name}/x.py") != "horovod"] == []
