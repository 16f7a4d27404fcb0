"""Horovod modules that do not exist yet."""

import importlib
import pickle
from importlib.util import find_spec

import pytest

import horovod
from horovod import _absent as absent


@pytest.mark.parametrize("name", absent.ABSENT)
def test_imports_report_modules_that_do_not_exist_yet(name):
    parent, _, last = name.rpartition(".")
    message = f"^{name} is not in this version of Horovod yet: "
    assert find_spec(name) is None
    for module in (name, f"{name}.deeper"):
        with pytest.raises(ModuleNotFoundError, match=message):
            importlib.import_module(module)
    with pytest.raises(ImportError, match=message):
        exec(f"from {parent} import {last}")


def test_missing_attributes_are_reported_too():
    assert not hasattr(horovod, "elastic")
    with pytest.raises(AttributeError, match=r"^horovod.elastic is not in this version of Horovod yet"):
        horovod.elastic  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'walk'$"):
        horovod.walk  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod.elastik'$"):
        importlib.import_module("horovod.elastik")


@pytest.mark.parametrize(("former", "name"), [("common.elastic.batch", "Batch"), ("common.evaluation", "Metric")])
def test_pickles_of_earlier_versions_find_moved_classes(former, name):
    found = pickle.loads(f"chorovod.{former}\n{name}\n.".encode())
    assert found.__name__ == name
    assert found.__module__ != f"horovod.{former}"
