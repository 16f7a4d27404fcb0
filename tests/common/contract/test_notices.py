"""Notices about settings that have no effect."""

import re

import pytest

from horovod.common.contract.notices import notices, sentences, unheard


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, ""),
        ({"HOROVOD_CYCLE_TIME": "5", "HOROVOD_CACHE_CAPACITY": "0"}, ""),
        ({"HOROVOD_AUTOTUNE": "no", "HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOROVOD_TIMELINE": ""}, ""),
        (
            {"HOROVOD_ENABLE_XLA_OPS": "yes"},
            "HOROVOD_ENABLE_XLA_OPS is 'yes', but what it controls is not part of this version yet",
        ),
        ({"HOROVOD_HIERARCHICAL_ALLGATHER": "1"}, "this has no effect and is not needed: ranks of a host"),
        ({"HOROVOD_CACHE_CAPACITY": "True"}, "is 'True', but that is not a number and is read as 0; use an"),
        (
            {"HOROVOD_START_TIMEOUT": "yes"},
            "HOROVOD_START_TIMEOUT is 'yes', but that is not a number and is read as 30;",
        ),
        ({"HOROVOD_CPU_OPERATIONS": "gloo"}, ""),
        ({"HOROVOD_CPU_OPERATIONS": "CCL"}, "HOROVOD_CPU_OPERATIONS is 'CCL', but this version does not .* gloo"),
        ({"HOROVOD_CPU_OPERATIONS": "mpi"}, ""),
    ],
)
def test_notices(environ, message):
    messages = sentences(environ)
    assert list(notices(environ)) == list(environ)[: len(messages)]
    assert len(messages) == (1 if message else 0), messages
    assert all(re.search(message, text) for text in messages), messages


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, ""),
        ({"HOROVOD_GPUS_PER_WORKER": "0", "HOROVOD_GPU_AFFINITY": ""}, ""),
        (
            {"HOROVOD_GPUS_PER_WORKER": "1"},
            "HOROVOD_GPUS_PER_WORKER is '1', but only horovodrun acts upon it, and it has not started this job: each",
        ),
        ({"HOROVOD_GPU_AFFINITY": "1"}, "HOROVOD_GPU_AFFINITY is '1', but only horovodrun acts upon it"),
    ],
)
def test_variables_only_for_the_launcher(environ, message):
    messages = unheard(environ)
    assert len(messages) == (1 if message else 0), messages
    assert all(text.startswith(message) for text in messages), messages
