"""Created objects, also checked against the Kubernetes schemas if they are available."""

import importlib.util

import pytest

from horovod.runner.base.job_result import LaunchError
from horovod.runner.kubernetes import flags, manifests
from horovod.runner.kubernetes.request import from_command_line

TOKEN = "x" * 64


def objects(*argv, template=None):
    request = from_command_line(flags.split([*argv, "--", "python", "train.py"]), "train", {})
    if template is not None:
        request = request.__class__(**{**request.__dict__, "template": template})
    return manifests.all_of(request, TOKEN)


def container(job):
    return job["spec"]["template"]["spec"]["containers"][0]


FULL = (
    *("-np", "8", "--min-np", "4", "--slots-per-pod", "2", "--image", "app:1", "--gpus", "2", "--cpu", "4"),
    *("--memory", "16Gi", "--shm-size", "2Gi", "--env", "A=b", "--volume", "pvc:data:/data:ro", "--namespace", "ml"),
    *("--volume", "empty:/scratch", "--working-dir", "/app", "--image-pull-policy", "IfNotPresent", "--grace", "90"),
    *("--image-pull-secret", "reg", "--label", "team=a", "--annotation", "x/y=z", "--service-account", "runner"),
    *("--node-selector", "pool=gpu", "--toleration", "nvidia.com/gpu:NoSchedule", "--priority-class", "high"),
)


@pytest.mark.parametrize("name", ["HOROVOD_POD_TOKEN", "HOROVOD_POD_NAME", "JOB_COMPLETION_INDEX"])
def test_reserved_pod_variables_are_not_replaced(name):
    """Of two variables with one name Kubernetes takes the last."""
    for text in (name, f"{name}=mine"):
        with pytest.raises(LaunchError, match=f"--env must be NAME=VALUE .*, got '{text}'"):
            objects("-np", "1", "--image", "i", "--env", text)
    template = {"spec": {"containers": [{"name": "horovod", "env": [{"name": name, "value": "mine"}]}]}}
    _, _, _, workers = objects("-np", "1", "--image", "i", template=template)
    entries = [each for each in container(workers)["env"] if each["name"] == name]
    assert entries != [{"name": name, "value": "mine"}] or name == "JOB_COMPLETION_INDEX"
    assert len(entries) == 1


def test_names_owners_and_labels():
    launcher, secret, service, workers = objects("-np", "2", "--image", "i", "--label", "team=a")
    assert [each["kind"] for each in (launcher, secret, service, workers)] == ["Job", "Secret", "Service", "Job"]
    assert [each["metadata"]["name"] for each in (launcher, secret, service, workers)] == [
        *["train"] * 3,
        "train-workers",
    ]
    for each in (launcher, secret, service, workers):
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "train"
        assert each["metadata"]["labels"]["team"] == "a"
        assert "namespace" not in each["metadata"]
    labels = launcher["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert not service["spec"]["selector"].items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    owner = {"metadata": {"name": "train", "uid": "u-1"}}
    assert manifests.owned(secret, owner)["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert "ownerReferences" not in secret["metadata"]
    assert manifests.suspended(launcher)["spec"]["suspend"] is True


def test_rank_pods_get_requested_resources_and_the_launcher_few():
    launcher, _, service, workers = objects(*FULL)
    spec, worker = workers["spec"]["template"]["spec"], container(workers)
    resources = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
    assert worker["resources"] == {"limits": resources, "requests": resources}
    assert container(launcher)["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}}
    assert {"name": "horovod-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in spec["volumes"]
    assert {"name": "horovod-shm", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    assert {"name": "horovod-volume-0", "mountPath": "/data", "readOnly": True} in worker["volumeMounts"]
    assert {"name": "A", "value": "b"} in worker["env"]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "gpu"}, "high")
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("runner", False)
    assert (spec["terminationGracePeriodSeconds"], spec["restartPolicy"]) == (90, "Never")
    assert worker["workingDir"] == "/app"
    assert service["metadata"]["namespace"] == "ml"
    assert workers["spec"]["template"]["metadata"]["annotations"] == {"x/y": "z"}
    assert launcher["spec"]["template"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_the_first_failed_pod_ends_only_jobs_of_fixed_size():
    *_, fixed = objects("-np", "4", "--image", "i")
    assert (fixed["spec"]["completionMode"], fixed["spec"]["parallelism"], fixed["spec"]["completions"]) == (
        *("Indexed", 4, 4),
    )
    assert fixed["spec"]["backoffLimit"] == 0
    assert "--elastic" not in container(fixed)["command"]
    *_, elastic = objects(*FULL)
    assert (elastic["spec"]["parallelism"], elastic["spec"]["backoffLimit"]) == (4, manifests.RETRIES)
    assert elastic["spec"]["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert "--elastic" in container(elastic)["command"]


def test_the_token_is_in_the_secret_only():
    launcher, secret, service, workers = objects("-np", "2", "--image", "i")
    assert secret["data"]["token"]
    for each in (launcher, service, workers):
        assert TOKEN not in str(each)
        assert secret["data"]["token"] not in str(each)


def test_templates_are_extended():
    side = {"name": "side", "image": "proxy"}
    expected = {
        "name": "horovod",
        "image": "old",
        "args": ["x"],
        "securityContext": {"runAsUser": 7},
        "env": [{"name": "T", "value": "1"}, {"name": "A", "value": "old"}],
        "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm"}],
        "resources": {"limits": {"rdma/ib": "1"}},
    }
    template = {
        "metadata": {"labels": {"l": "1"}, "annotations": {"n": "2"}},
        "spec": {"hostNetwork": True, "containers": [side, expected], "volumes": [{"name": "mine", "emptyDir": {}}]},
    }
    launcher, _, _, workers = objects("-np", "2", "--image", "new", "--cpu", "1", "--env", "A=new", template=template)
    spec = workers["spec"]["template"]["spec"]
    assert spec["hostNetwork"] is True
    assert [each["name"] for each in spec["containers"]] == ["horovod", "side"]
    assert [each["name"] for each in launcher["spec"]["template"]["spec"]["containers"]] == ["horovod"]
    assert spec["volumes"] == [{"name": "mine", "emptyDir": {}}]
    assert container(workers)["image"] == "new"
    assert container(workers)["securityContext"] == {"runAsUser": 7}
    assert "args" not in container(workers)
    assert container(workers)["env"][0] == {"name": "T", "value": "1"}
    assert [each for each in container(workers)["env"] if each["name"] == "A"] == [{"name": "A", "value": "new"}]
    assert container(workers)["resources"]["limits"] == {"rdma/ib": "1", "cpu": "1"}
    assert workers["spec"]["template"]["metadata"]["labels"]["l"] == "1"
    assert workers["spec"]["template"]["metadata"]["annotations"] == {"n": "2"}
    assert template["spec"]["containers"][1]["image"] == "old"  # other containers are unchanged


@pytest.mark.parametrize("argv", [("-np", "2", "--image", "i"), FULL])
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_schemas(argv, version):
    if not importlib.util.find_spec("kubernetes_validate"):
        pytest.skip("kubernetes_validate is not installed")
    import kubernetes_validate

    for each in objects(*argv):
        kubernetes_validate.validate(each, version, strict=True)
