"""Submit the jobs defined in this folder with Azure ML's SDK (v2), from a notebook or as a program:

    pip install azure-ai-ml azure-identity
    python deploy/azureml/submit.py --nodes 2 --distribution mpi

The workspace is read from config.json, which can be downloaded from the studio.
"""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from azure.ai.ml import MpiDistribution, Output, PyTorchDistribution, command
from azure.ai.ml.entities import BuildContext, Command, Environment

HERE = Path(__file__).resolve().parent
CHECKPOINTS = "azureml://datastores/workspaceblobstore/paths/checkpoints/digits-"


def job(nodes: int, each: int, distribution: str, compute: str, *words: str) -> Command:
    """Return a job for Azure ML.

    Args:
        nodes: Number of machines, at least 1.
        each: Number of ranks on each machine.
        distribution: "mpi" or "pytorch".
        compute: Name of the compute cluster.
        *words: Further arguments of the program.

    Raises:
        ValueError: If an argument is invalid. The message names it.
    """
    if nodes < 1 or each < 1:
        raise ValueError(f"nodes is {nodes} and each is {each}, accepted are integers of at least 1")
    kinds = {"mpi": MpiDistribution, "pytorch": PyTorchDistribution}
    if distribution not in kinds:
        raise ValueError(f"distribution is {distribution!r}, accepted are {' and '.join(kinds)}")
    variables = {"HOROVOD_RESUME": "1"}
    if distribution == "pytorch":
        # Ranks authenticate each other with this key. Create a new key for each job, because the job's description
        # contains it.
        variables["HOROVOD_JOB_KEY"] = secrets.token_hex(32)
    return command(
        experiment_name="digits",
        code=str(HERE.parents[1] / "examples" / "mlflow"),
        command=" ".join(["python digits.py --checkpoints ${{outputs.checkpoints}}", *words]),
        environment=Environment(name="horovod", build=BuildContext(path=str(HERE / "environment"))),
        compute=compute,
        instance_count=nodes,
        distribution=kinds[distribution](process_count_per_instance=each),
        environment_variables=variables,
        outputs={"checkpoints": Output(type="uri_folder", mode="rw_mount", path=CHECKPOINTS + secrets.token_hex(4))},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Submit the training of examples/mlflow to Azure ML.")
    parser.add_argument("--nodes", type=int, default=1, help="machines (default %(default)s)")
    parser.add_argument("--each", type=int, default=2, help="ranks of a machine: its GPUs (default %(default)s)")
    parser.add_argument("--distribution", default="mpi", choices=["mpi", "pytorch"], help="(default %(default)s)")
    parser.add_argument("--compute", default="cpu-cluster", help="(default %(default)s)")
    args = parser.parse_args()

    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential

    client = MLClient.from_config(DefaultAzureCredential())
    made = client.jobs.create_or_update(job(args.nodes, args.each, args.distribution, args.compute, "--epochs 20"))
    print(made.studio_url)
    client.jobs.stream(made.name)


if __name__ == "__main__":
    main()
