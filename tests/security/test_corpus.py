"""Inputs of fuzzing, and inputs that once broke something, on every Python parser."""

import pytest

from fuzz.targets import CORPUS, TARGETS, seeds

FILES = [(name, path) for name in TARGETS for path in sorted((CORPUS / name).glob("*"))]


@pytest.mark.parametrize(("name", "path"), FILES, ids=[f"{name}/{path.name}" for name, path in FILES])
def test_input(name, path):
    TARGETS[name](path.read_bytes())


def test_every_fuzz_target_has_valid_inputs():
    assert {name for name, _ in FILES} == set(TARGETS)
    for name, _, data in seeds():
        TARGETS[name](data)
