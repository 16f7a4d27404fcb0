"""HOROVOD_GPU_OPERATIONS and related settings."""

import pytest

from horovod.common.bootstrap.engine_start import NcclOperations, nccl_operations
from horovod.common.contract.notices import notices
from horovod.common.contract.settings import Settings


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, NcclOperations()),
        ({"HOROVOD_GPU_OPERATIONS": "NCCL"}, NcclOperations()),
        ({"HOROVOD_GPU_OPERATIONS": "Gloo"}, NcclOperations(False, False, False, False, False)),
        ({"HOROVOD_GPU_OPERATIONS": "MPI"}, NcclOperations(False, False, False, False, False)),
        (
            {"HOROVOD_GPU_OPERATIONS": "MPI", "HOROVOD_GPU_ALLREDUCE": "NCCL"},
            NcclOperations(True, False, False, False, False),
        ),
        (
            {"HOROVOD_GPU_BROADCAST": "MPI", "HOROVOD_GPU_REDUCESCATTER": "gloo"},
            NcclOperations(True, True, False, True, False),
        ),
        (
            {"HOROVOD_GPU_ALLGATHER": "ccl", "HOROVOD_GPU_ALLTOALL": "ddl"},
            NcclOperations(True, False, True, False, True),
        ),
    ],
)
def test_libraries_of_operations(environ, found):
    assert nccl_operations(Settings.from_environ(environ)) == found


def test_notices_about_operations():
    assert notices({"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_GPU_ALLREDUCE": "nccl"}) == {}
    messages = notices({"HOROVOD_GPU_OPERATIONS": "MPI", "HOROVOD_GPU_BROADCAST": "ddl"})
    assert list(messages) == ["HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_BROADCAST"]
    assert set(messages.values()) == {
        "this version does not have that; instead the built-in engine, gloo, carries tensors of GPUs"
    }
    with pytest.raises(ValueError, match="HOROVOD_GPU_ALLTOALL must be nccl, gloo, mpi, ddl, ccl, got 'ib'"):
        notices({"HOROVOD_GPU_ALLTOALL": "ib"})
