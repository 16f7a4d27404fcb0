"""Names and words of horovod.common that programs in use rely on; each test names what."""

import inspect

import pytest

from horovod.common import exceptions, util
from horovod.common.job import Access


def test_not_initialized_is_said_in_these_words():
    """ "Horovod has not been initialized" in a ValueError: queries and collectives before init and after shutdown."""
    access = Access()
    for use in (access.require_job, access.require_engine, access.submit, access.run):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            use()
    access.close()
    for use in (access.require_job, access.require_engine, access.submit, access.run):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            use()
    for use in (access.require_engine, access.submit, access.run):
        with pytest.raises(exceptions.HorovodInternalError, match="has been shut down"):
            use()


def test_parameter_names_that_are_passed_by_keyword():
    """split_list(l, n), is_iterable(x), extension_available(ext_base_name, verbose=False)."""
    assert util.split_list(l=[1, 2, 3], n=2) == [[1, 2], [3]]
    assert util.is_iterable(x=[]) is True
    assert util.extension_available(ext_base_name="nothing", verbose=False) is False
    assert str(inspect.signature(util.extension_available)) == "(ext_base_name: str, verbose: bool = False) -> bool"
