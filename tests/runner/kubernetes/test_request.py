"""Command line to request, and rejected command lines."""

import re

import pytest

from horovod.runner.base.job_result import LaunchError
from horovod.runner.kubernetes import flags
from horovod.runner.kubernetes.request import from_command_line
from horovod.runner.kubernetes.values import Volume, parse


def parsed(*argv, environ=()):
    return from_command_line(flags.split(argv), "made-up", dict(environ))


def test_flags_of_both_kinds_may_be_mixed():
    job = parsed(
        *("-np", "8", "--image=app:1", "--slots-per-pod", "4", "--timeline-filename", "/t.json", "--gpus", "4"),
        *("--env", "A=1", "--env", "B", "--volume", "pvc:data:/data:ro", "--", "python", "train.py", "--gpus", "9"),
        environ={"B": "2"},
    )
    assert (job.name, job.image, job.size, job.pods, job.slots, job.gpus) == ("made-up", "app:1", 8, 2, 4, 4)
    assert job.arguments == ["-np", "8", "--timeline-filename", "/t.json"]
    assert job.command == ["python", "train.py", "--gpus", "9"]
    assert job.env == {"A": "1", "B": "2"}
    assert job.volumes == (Volume("pvc", "data", "/data", True),)
    assert not job.elastic


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--image i -- x", "-np is missing"),
        ("-np 2 --image i", "the command is missing"),
        ("-np 2 -- x", "--image is missing"),
        ("-np 3 --slots-per-pod 2 --image i -- x", "-np must be a multiple of --slots-per-pod 2, such as 2, got 3"),
        ("-np 2 --max-np 4 --image i -- x", "--max-np needs an elastic job; add --min-np N"),
        ("-np 2 --min-np 3 --image i -- x", "<= -np <= --max-np, got --min-np 3, -np 2 and --max-np 2"),
        ("-np 1 --min-np 1 --image i -- x", "--max-np must be at least 2 with --min-np, got 1 with --slots-per-pod 1"),
        ("-np 2 --min-np 2 --slots-per-pod 2 --image i -- x", "--max-np must be at least 4 with --min-np, got 2"),
        ("-np 2 --image i -H a:2 -- x", "--hosts has no meaning on Kubernetes: the cluster chooses the nodes"),
        ("-np 2 --image i --mpi -- x", "--mpi has no meaning on Kubernetes"),
        ("-np 2 --image i --version -- x", "--version has no meaning on Kubernetes: no job runs by it"),
        ("-np 2 --image i --benchmark", "--benchmark has no meaning on Kubernetes: `python -m horovod.benchmark`"),
        ("-np 2 --image i --name Train -- x", "--name must be a DNS label of at most 50 characters"),
        ("-np 2 --image i --memory 2GB -- x", "--memory must be a quantity such as 2, 500m, 16Gi, got '2GB'"),
        ("-np 2 --image i --gpus -1 -- x", "--gpus must be an integer from 0 to 1024, got '-1'"),
        ("-np 2 --image i --shm-size 32Mi -- x", "--shm-size must be at least 64Mi, got 32Mi: data loaders"),
        (
            "-np 2 --image i --memory 1Gi --shm-size 2Gi -- x",
            "--shm-size must be at most --memory 1Gi, of which /dev/shm is a part, got 2Gi",
        ),
        (
            "-np 2 --image i --env NOT_THERE -- x",
            "--env must be NAME=VALUE or a variable that is set here, got NOT_THERE",
        ),
        ("-np 2 --image i --volume data:/d -- x", "--volume must be pvc:CLAIM"),
        ("-np 2 --image i --namespace a.b -- x", "--namespace must be a DNS label of at most 63 characters"),
        ("-np 2 --image i --detach=1 -- x", "--detach takes no value, got '1'"),
        ("-np 2 --imag i -- x", "unknown flag --imag; did you mean --image?"),
        ("-np 2 --image", "--image must be text that is not empty, got no value"),
        ("-np two --image i -- x", "--num-proc: must be an integer of at least 1, got 'two'"),
        ("-np 2 --image i --pod-template /none.yaml -- x", "--pod-template /none.yaml: cannot be read"),
    ],
)
def test_refused_arguments(argv, message):
    with pytest.raises(LaunchError, match=re.escape(message)):
        parsed(*argv.split(" "))


def test_templates(tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text("kind: Pod\nmetadata: {labels: {a: b}}\nspec: {containers: [{name: x, image: mine}]}\nstatus: {}\n")
    job = parsed("-np", "1", "--pod-template", str(path), "--", "x")
    assert job.image == "mine"
    assert job.template == {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "x", "image": "mine"}]},
    }
    path.write_text("template: {spec: {hostNetwork: true}}")
    assert parsed("-np", "1", "--image", "i", "--pod-template", str(path), "--", "x").template == {
        "spec": {"hostNetwork": True}
    }
    for text, message in [
        ("[1]", "must be a file with a pod"),
        ("{", "cannot be read"),
        ("spec: {containers: 3}", "must be a list"),
    ]:
        path.write_text(text)
        with pytest.raises(LaunchError, match=message):
            parsed("-np", "1", "--image", "i", "--pod-template", str(path), "--", "x")


@pytest.mark.parametrize(
    ("text", "volume", "manifest"),
    [
        ("pvc:data:/d", Volume("pvc", "data", "/d"), {"persistentVolumeClaim": {"claimName": "data"}}),
        ("host:/mnt/x:/d:ro", Volume("host", "/mnt/x", "/d", True), {"hostPath": {"path": "/mnt/x"}}),
        ("config:c:/d", Volume("config", "c", "/d"), {"configMap": {"name": "c"}}),
        ("secret:s:/d", Volume("secret", "s", "/d"), {"secret": {"secretName": "s"}}),
        ("empty:/d", Volume("empty", "", "/d"), {"emptyDir": {}}),
    ],
)
def test_volumes(text, volume, manifest):
    assert parse(text) == volume
    assert volume.manifest("v") == {"name": "v", **manifest}


def test_help_names_every_flag():
    text = flags.text()
    for flag in flags.FLAGS:
        assert flag.names[0] in text
    assert max(map(len, text.splitlines())) <= 100
