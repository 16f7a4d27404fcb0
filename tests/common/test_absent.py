"""Modules of Horovod that are not there yet."""

import importlib
import sys
from importlib.util import find_spec

import pytest

import horovod
from horovod.common import absent

# Those below import TensorFlow; the finder does not tell them apart.
LIGHT = [name for name in absent.ABSENT if not name.startswith(("horovod.keras.", "horovod.tensorflow."))]


@pytest.mark.parametrize("name", LIGHT)
def test_an_import_says_that_it_is_not_there_yet(name):
    parent, _, last = name.rpartition(".")
    said = f"^{name} is not in this version of Horovod yet: "
    with pytest.raises(ModuleNotFoundError, match=said):
        importlib.import_module(name)
    with pytest.raises(ModuleNotFoundError, match=said):
        importlib.import_module(f"{name}.deeper")
    with pytest.raises(ImportError, match=said):
        exec(f"from {parent} import {last}")


def test_attributes_say_so_too():
    import horovod.torch as hvd

    assert not hasattr(horovod, "elastic")
    with pytest.raises(AttributeError, match=r"^horovod.elastic is not in this version of Horovod yet"):
        horovod.elastic  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'horovod.torch' has no attribute 'elastik'$"):
        hvd.elastik  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod.elastik'$"):
        importlib.import_module("horovod.elastik")


def test_what_the_faces_have_is_not_in_the_package():
    import horovod.torch as hvd

    assert set(dir(hvd)) >= absent.IN_FACES
    with pytest.raises(AttributeError, match=r"has no attribute 'init'; init is in .* `import horovod.torch as hvd`"):
        horovod.init()


def test_what_is_there_is_found_first(tmp_path, monkeypatch):
    (tmp_path / "elastic.py").write_text("there = True\n")
    monkeypatch.setattr(horovod, "__path__", [*horovod.__path__, str(tmp_path)])
    assert find_spec("horovod.elastic") is not None
    assert importlib.import_module("horovod.elastic").there
    del sys.modules["horovod.elastic"], horovod.elastic
