"""Rank and size from the variables that launchers set.

The variables of Open MPI, MPICH, Slurm and torchrun were recorded from real launchers (tests/launchers runs them).
"""

import pytest

from horovod.common import launchers
from horovod.common.launchers import find


def variables(text):
    """Return an environment from words NAME=value."""
    return dict(pair.split("=", 1) for pair in text.split())


OPENMPI = variables(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "PMIX_NAMESPACE=prterun-host1-6998@1 PMIX_RANK=3"
)
MPICH = variables("PMI_RANK=3 PMI_SIZE=4 PMI_FD=9 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
SRUN = variables(
    "SLURM_PROCID=3 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1 "
    "SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_ID=0 SLURM_JOB_ID=17 SLURM_CLUSTER_NAME=test SLURMD_NODENAME=n2"
)
TORCHRUN = variables(
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=host1 MASTER_PORT=29500 "
    "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"
)
PYTORCHJOB = variables("RANK=3 WORLD_SIZE=4 MASTER_ADDR=train-master-0 MASTER_PORT=23456")
JSRUN = variables(
    "JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2 LSB_JOBID=4711 "
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4"
) | {"LSB_MCPU_HOSTS": "batch1 1 node1 40 node2 40"}
ALL = [
    pytest.param("Open MPI", OPENMPI, (1, 2), id="Open MPI"),
    pytest.param("MPICH", MPICH, (1, 2), id="MPICH"),
    pytest.param("srun", SRUN, (0, 1), id="srun"),
    pytest.param("torchrun", TORCHRUN, (1, 2), id="torchrun"),
    pytest.param("PyTorchJob", PYTORCHJOB, (None, None), id="PyTorchJob"),
    pytest.param("jsrun", JSRUN, (1, 2), id="jsrun"),
]


@pytest.mark.parametrize(("name", "env", "local"), ALL)
def test_rank_size_and_local_ranks_as_far_as_known(name, env, local):
    place = find(env)
    assert (place.launcher, place.rank, place.size) == (name, 3, 4)
    assert (place.local_rank, place.local_size) == local
    assert place.mpi == (name in ("Open MPI", "MPICH", "jsrun"))
    assert not place.one_host


def test_nodes_of_azure_ml():
    env = {**PYTORCHJOB, "AZUREML_RUN_ID": "r"}
    assert find({**env, "AZUREML_NODE_COUNT": "2"}).local_size == 2
    assert find({**env, "AZUREML_NODE_COUNT": "3"}).local_size is None, "4 are not shared out evenly"
    for host in ("localhost", "127.0.0.1", "::1"):
        for nodes in ("2", "two"):
            place = find({**env, "MASTER_ADDR": host, "AZUREML_NODE_COUNT": nodes})
            assert place.one_host, "ranks started by hand on one of the nodes"
    assert find({**env, "LOCAL_WORLD_SIZE": "2", "AZUREML_NODE_COUNT": "two"}).local_size == 2
    with pytest.raises(ValueError, match="AZUREML_NODE_COUNT must be an integer of 0 or more, got 'two'"):
        find({**env, "AZUREML_NODE_COUNT": "two"})


@pytest.mark.parametrize("name", ["PMI_FD", "PMI_RANK", "PMIX_RANK"])
def test_srun_is_an_mpi_launcher_with_pmi(name):
    assert find({**SRUN, name: "3"}).mpi
    assert not find({**SRUN, name: ""}).mpi


def test_no_launcher():
    assert find({}) is None
    assert find({"PATH": "/bin", "RANK": "", "WORLD_SIZE": "2"}) is None


@pytest.mark.parametrize("env", [OPENMPI, MPICH, SRUN, TORCHRUN, PYTORCHJOB, JSRUN])
def test_horovods_variables_have_priority(env):
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        assert find({**env, name: "1"}) is None
        assert find({**env, name: ""}) is not None


# A batch script, a shell of salloc, an interactive step: not started by srun.
FIRST = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SHELLS = {
    "sbatch": {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_NODELIST": "n[1-2]", **FIRST},
    "salloc": {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"},
    "interactive step": {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "batch step": {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFB)},
}  # fmt: skip


ONE_A_NODE = {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("inner", "outer", "name"),
    [
        # mpirun and mpiexec reach the nodes of an allocation by srun, one process a node
        (OPENMPI, ONE_A_NODE, "Open MPI"),
        (MPICH, ONE_A_NODE, "MPICH"),
        (OPENMPI, SHELLS["sbatch"], "Open MPI"),
        (TORCHRUN, ONE_A_NODE, "torchrun"),
        (TORCHRUN, {**OPENMPI, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "torchrun"),
        # srun --mpi=pmi2 sets variables of PMI too
        (SRUN, {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "11", "PMI_JOBID": "17.0"}, "srun"),
        # scripts for torch.distributed export these under any launcher
        (SRUN, {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, "srun"),
    ],
)  # fmt: skip
def test_the_innermost_launcher_counts(inner, outer, name):
    place = find({**outer, **inner})
    assert (place.launcher, place.rank, place.size) == (name, 3, 4)


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "4"}, ["Open MPI", "got 4 of 4"]),
        ({**OPENMPI, "OMPI_COMM_WORLD_RANK": "-1"}, ["OMPI_COMM_WORLD_RANK must be an integer of 0 or more, got '-1'"]),
        ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "0"}, ["Open MPI", "got 3 of 0"]),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, ["local rank", "got 2 of 2"]),
        ({**MPICH, "PMI_SIZE": "four"}, ["PMI_SIZE must be an integer of 0 or more, got 'four'"]),
        ({**TORCHRUN, "RANK": "1e1"}, ["RANK must be", "got '1e1'"]),
        ({**SRUN, "SLURM_STEP_NODELIST": "n[1-"}, ["n[1-", "brackets"]),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x"}, ["2(x", "N(xM)"]),
    ],
)
def test_invalid_variables_are_named(env, parts):
    with pytest.raises(ValueError) as caught:
        find(env)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("env", "hosts"),
    [
        ({"LSB_MCPU_HOSTS": "batch1 1 node1 40 node2 40"}, ["node1", "node2"]),
        ({"LSB_MCPU_HOSTS": "node1 40 node2 40"}, ["node1", "node2"]),
        ({"LSB_MCPU_HOSTS": "node1 1"}, ["node1"]),
        ({"LSB_MCPU_HOSTS": "a 1 b 1"}, ["a", "b"]),
        ({"LSB_HOSTS": "batch1 node1 node1 node2 node2"}, ["node1", "node2"]),
        ({"LSB_HOSTS": "node1 node1"}, ["node1"]),
        ({}, []),
    ],
)
def test_hosts_of_an_lsf_job(env, hosts):
    assert launchers.compute_hosts(env) == hosts
