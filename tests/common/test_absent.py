"""Horovod modules that do not exist yet."""

import importlib
import sys
from importlib.util import find_spec

import pytest

import horovod
import horovod.numpy as hvd
from horovod.common import absent


@pytest.mark.parametrize("name", absent.ABSENT)
def test_an_import_says_that_the_module_does_not_exist_yet(name):
    parent, _, last = name.rpartition(".")
    said = f"^{name} is not in this version of Horovod yet: "
    assert find_spec(name) is None
    for module in (name, f"{name}.deeper"):
        with pytest.raises(ModuleNotFoundError, match=said):
            importlib.import_module(module)
    with pytest.raises(ImportError, match=said):
        exec(f"from {parent} import {last}")


def test_attributes_say_so_too():
    assert not hasattr(horovod, "elastic")
    with pytest.raises(AttributeError, match=r"^horovod.elastic is not in this version of Horovod yet"):
        horovod.elastic  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'walk'$"):
        horovod.walk  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod.elastik'$"):
        importlib.import_module("horovod.elastik")


def test_names_of_the_frontends_are_not_in_the_package():
    assert set(dir(hvd)) >= absent.IN_FACES - {"DistributedOptimizer"}
    with pytest.raises(AttributeError, match=r"has no attribute 'init'; init is in .* `import horovod.torch as hvd`"):
        horovod.init()


def test_an_existing_module_is_found_first(tmp_path, monkeypatch):
    (tmp_path / "elastic.py").write_text("there = True\n")
    monkeypatch.setattr(horovod, "__path__", [*horovod.__path__, str(tmp_path)])
    assert find_spec("horovod.elastic") is not None
    assert importlib.import_module("horovod.elastic").there
    del sys.modules["horovod.elastic"], horovod.elastic
