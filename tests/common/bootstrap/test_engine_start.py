"""Errors if the native engine and the Python files are of different source versions."""

import dataclasses

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.bootstrap import engine_start


def test_a_native_engine_that_lacks_a_setting_is_said_to_be_older(monkeypatch):
    first = engine_start.TABLE[0]
    newer = dataclasses.replace(first, engine="of_tomorrow")
    monkeypatch.setattr(engine_start, "TABLE", (newer,))
    with pytest.raises(
        ImportError, match=r"_core.*older than the Python files.*of_tomorrow.*install the package again"
    ):
        HorovodBasics("tests").init()
