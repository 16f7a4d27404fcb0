"""examples/mlflow, with an MLflow server, in a job as Azure ML starts it.

Its machine is preempted, the job is restarted, and one run contains everything.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.clouds import azureml
from tests.later import need
from tests.launchers import programs

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "mlflow" / "digits.py"
pytestmark = pytest.mark.heavy


@pytest.fixture
def tracking(tmp_path, monkeypatch):
    """The URL of a server, set for this process, too."""
    need("mlflow", "sklearn", "torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    stores = [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/runs.db",
        "--artifacts-destination",
        str(tmp_path / "files"),
    ]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    log = tmp_path / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen([*command, *stores], stdout=file, stderr=file, cwd=tmp_path, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def test_a_job_continues_after_a_machine_is_removed(tracking, tmp_path):
    import mlflow
    import torch

    mlflow.set_tracking_uri(tracking)
    client = mlflow.MlflowClient()
    run = client.create_run(client.create_experiment("digits")).info.run_id  # as the service does
    variables = {
        "HOROVOD_JOB_KEY": azureml.KEY,
        "HOROVOD_RESUME": "1",
        "MLFLOW_TRACKING_URI": tracking,
        "MLFLOW_RUN_ID": run,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(SCRIPT), "--checkpoints", str(tmp_path / "checkpoints")]
    running = azureml.start(2, 1, [*command, "--epochs", "1000", "--pause", "0.02"], **variables)
    deadline = time.monotonic() + 180
    while not client.get_metric_history(run, "loss"):
        assert time.monotonic() < deadline, programs.finish(running, 1).text
        time.sleep(0.2)
    running[1].send_signal(signal.SIGTERM)  # only one of them
    first = programs.finish(running, 120)
    assert first.code == 0, first.text
    assert f"begins at step 0 with 2 ranks, run {run}" in first.text
    (step,) = [int(line.split()[3].rstrip(",")) for line in first.text.splitlines() if line.startswith("KILLED after")]
    assert client.get_run(run).info.status == "KILLED"

    # It continues with another number of ranks.
    second = programs.finish(azureml.start(1, 3, [*command, "--epochs", "6"], **variables), 240)
    assert second.code == 0, second.text
    assert f"begins at step {step} with 3 ranks, run {run}" in second.text

    found = client.get_run(run)
    assert found.info.status == "FINISHED"
    assert found.data.params == {"lr": "0.02", "batch_size": "32", "ranks": "2"}
    assert found.data.metrics["accuracy"] > 0.9
    steps = [metric.step for metric in client.get_metric_history(run, "loss")]
    assert steps == sorted(set(steps)), "no step twice, none after another's later one"
    assert steps[0] == 10
    assert any(logged > step for logged in steps)
    (model,) = client.search_logged_models([found.info.experiment_id])
    network = mlflow.pytorch.load_model(model.model_uri)
    network = network.module() if hasattr(network, "module") else network
    with torch.no_grad():
        assert network(torch.zeros(5, 64)).shape == (5, 10)
