"""Jobs on a real cluster, created by or given to `make test-kubernetes`: API server, scheduler, kubelets."""

import signal

import yaml

from horovod.runner.kubernetes.api import Api
from tests.runner.kubernetes.real import CLUSTER, CONFIG, FOREVER, NAMESPACE, SUM, Running, ask, nothing_left, pods, run

pytestmark = CLUSTER


def test_the_api_server_accepts_elastic_job_objects(capfd):
    assert run("hvd-dry", "-np", "2", "--min-np", "1", "--max-np", "4", "--dry-run", "--", "true") == 0
    api = Api(CONFIG, namespace=NAMESPACE)
    for each in yaml.safe_load_all(capfd.readouterr().out):
        created = api.create(each, dry=True)
        if each["kind"] == "Job" and "completionMode" in each["spec"]:
            assert created["spec"]["completionMode"] == "Indexed"  # from Kubernetes 1.24 on


def test_a_job_trains(capfd):
    size, slots = 4, 2
    args = ("-np", str(size), "--slots-per-pod", str(slots), "--env", "A=b")
    assert run("hvd-train", *args, "--", "python", "-c", SUM) == 0
    out, err = capfd.readouterr()
    total = size * (size + 1) / 2
    for rank in range(size):
        assert f"[{rank}]<stdout>:rank {rank} of {size} local {rank % slots} sums {total}" in out
    assert f"job hvd-train in namespace {NAMESPACE}: {size} ranks, {size // slots} pods for them" in err
    assert f"waiting for {size} ranks in {size // slots} pods" in err
    assert nothing_left("hvd-train", seconds=5)


def test_missing_image(capfd):
    assert run("hvd-image", "-np", "1", "--image", "registry.invalid/none:1", "--", "true") == 1
    err = capfd.readouterr().err
    assert "cannot start: " in err
    assert "image registry.invalid/none:1" in err
    assert nothing_left("hvd-image")


def test_a_small_dev_shm(capfd, tmp_path):
    template = tmp_path / "pod.yaml"
    volume = {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    container = {"name": "horovod", "volumeMounts": [{"name": "small", "mountPath": "/dev/shm"}]}
    template.write_text(yaml.safe_dump({"spec": {"containers": [container], "volumes": [volume]}}))
    program = SUM + "big = hvd.allreduce(np.ones(1 << 20, np.float32), op=hvd.Sum); print(big[0], flush=True)"
    args = ("-np", "2", "--slots-per-pod", "2", "--keep", "60", "--pod-template", str(template))
    assert run("hvd-shm", *args, "--", "python", "-c", program) == 0
    (pod,) = pods("hvd-shm")
    log = b"\n".join(Api(CONFIG, namespace=NAMESPACE).log(pod, "horovod")).decode()
    assert ask("delete", "hvd-shm") == 0
    assert nothing_left("hvd-shm")
    assert "[0]<stdout>:2.0" in capfd.readouterr().out
    assert "warning: /dev/shm has 16 MiB, which NCCL and data loaders soon fill" in log


def test_too_little_memory(capfd):
    program = SUM + "hold = [bytearray(1 << 24) for _ in range(1000)]" + "\nhvd.barrier()"
    assert run("hvd-memory", "-np", "1", "--memory", "200Mi", "--", "python", "-c", program) != 0
    err = capfd.readouterr().err
    assert "OOMKilled" in err or "exit code 137" in err or "SIGKILL" in err
    assert nothing_left("hvd-memory")


def test_a_signal_deletes_all():
    with Running("hvd-stop", "-np", "2", "--", "python", "-c", FOREVER) as job:
        job.wait_for("of 2")
        job.process.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143
        assert "stopped by SIGTERM; deleting job hvd-stop" in job.text
        assert nothing_left("hvd-stop", seconds=60)


def test_a_kept_job_is_deleted_after_its_time():
    assert run("hvd-short", "-np", "1", "--detach", "--keep", "1", "--", "python", "-c", SUM) == 0
    assert ask("attach", "hvd-short") == 0
    assert nothing_left("hvd-short")
