"""Validated request for a job on a cluster, built from the command line and the `--pod-template` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from horovod.runner.base.job_result import LaunchError
from horovod.runner.base.linux import SHM_DEFAULT
from horovod.runner.command import cli
from horovod.runner.command.command_line import through_env
from horovod.runner.kubernetes import flags, values
from horovod.runner.kubernetes.values import Volume

CONTAINER = "horovod"
"""Name of the container that runs the ranks, and of the container in the launcher's pod."""


@dataclass(frozen=True)
class Request:
    """Checked values from which the Kubernetes objects of a job are created.

    Attributes:
        size: Initial number of ranks.
        pods: Number of worker pods. In an elastic job, this is the maximum.
        arguments: Flags of horovodrun to pass to the launcher's pod.
        elastic: True for an elastic job.
        patience: Seconds within which all pods must start.
        slots: Number of ranks in each pod.
        template: Pod template of the user, or an empty dict if the user gave none.
        keep: Seconds until Kubernetes deletes ended Jobs.
        grace: Seconds between a pod's termination signal and SIGKILL.
    """

    name: str
    image: str
    size: int
    pods: int
    arguments: list[str]
    command: list[str]
    elastic: bool = False
    patience: float = flags.PATIENCE
    slots: int = 1
    namespace: str = ""
    gpus: int = 0
    gpu_resource: str = flags.DEFAULT_GPU
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    env: dict[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    directory: str = ""
    python: str = "python"
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    template: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    account: str = ""
    port: int = flags.DEFAULT_PORT
    selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    priority: str = ""
    keep: int = flags.DEFAULT_KEEP
    grace: int = flags.DEFAULT_GRACE


def from_command_line(line: flags.CommandLine, name: str, environ: Mapping[str, str]) -> Request:
    """Check the command line and return the request.

    `name` is the name of the job if the user did not give --name.

    Raises:
        LaunchError: If a value is invalid or missing.
    """
    values = line.values
    namespace, _ = cli.parse([*line.job, "--", "true"])
    size, max_size = _sizes(namespace, values.get("slots_per_pod", 1))
    command = through_env(line.command)
    if not command:
        raise LaunchError(
            "the command is missing: it comes after the flags, as in `horovodrun kubernetes -np 8 --image IMAGE -- "
            "python train.py`"
        )
    template = _template(values["pod_template"]) if "pod_template" in values else {}
    image = values.get("image") or container_of(template).get("image")
    if not image:
        raise LaunchError("--image is missing: all pods run it; it has horovod, the program and what that needs")
    slots = values.get("slots_per_pod", 1)
    _check_memory(values)
    return Request(
        name=values.get("name", name),
        image=image,
        size=size,
        pods=max_size // slots,
        arguments=list(line.job),
        command=command,
        elastic=namespace.min_num_proc is not None,
        patience=patience(namespace),
        slots=slots,
        namespace=values.get("namespace", ""),
        gpus=values.get("gpus", 0),
        gpu_resource=values.get("gpu_resource", flags.DEFAULT_GPU),
        cpu=values.get("cpu", ""),
        memory=values.get("memory", ""),
        shm=values.get("shm_size", ""),
        env=_variables(values.get("env", ()), environ),
        volumes=tuple(values.get("volume", ())),
        directory=values.get("working_dir", ""),
        python=values.get("python", "python"),
        pull_policy=values.get("image_pull_policy", ""),
        pull_secrets=tuple(values.get("image_pull_secret", ())),
        template=template,
        labels=dict(values.get("label", ())),
        annotations=dict(values.get("annotation", ())),
        account=values.get("service_account", ""),
        port=values.get("port", flags.DEFAULT_PORT),
        selector=dict(values.get("node_selector", ())),
        tolerations=tuple(values.get("toleration", ())),
        priority=values.get("priority_class", ""),
        keep=values.get("keep", flags.DEFAULT_KEEP),
        grace=values.get("grace", flags.DEFAULT_GRACE),
    )


def patience(namespace: Any) -> float:
    """Return the time limit for all pods to start, in seconds, from the --start-timeout flag."""
    given = namespace.start_timeout
    return flags.PATIENCE if given is None else float(given)


def check_job(namespace: Any) -> None:
    """Raise LaunchError if the user gave a flag of horovodrun that does not work in pods."""
    for dest, reason in flags.NOT_THERE.items():
        if getattr(namespace, dest) is not None:
            raise LaunchError(f"--{dest.replace('_', '-')} has no meaning on Kubernetes: {reason}")


def check_elastic(namespace: Any, slots: int) -> None:
    """Raise LaunchError if an elastic job has only one pod, because no rank would survive that pod's failure."""
    if namespace.min_num_proc is not None and max_size(namespace) // slots < 2:
        raise LaunchError(
            f"--max-np must be at least {2 * slots} with --min-np, got {max_size(namespace)} with --slots-per-pod "
            f"{slots}: a job of 1 pod has nothing left after a failure; raise --max-np, or leave out --min-np"
        )


def max_size(namespace: Any) -> int:
    """Return the maximum number of ranks that horovodrun's flags request."""
    return int(namespace.max_num_proc or namespace.num_proc)


def _sizes(namespace: Any, slots: int) -> tuple[int, int]:
    """Return the initial and maximum numbers of ranks."""
    check_job(namespace)
    size: int | None = namespace.num_proc
    if size is None:
        raise LaunchError(
            "-np is missing: say how many processes to start, as in `horovodrun kubernetes -np 8 --image IMAGE -- "
            "python train.py`"
        )
    if namespace.min_num_proc is None and namespace.max_num_proc is not None:
        raise LaunchError("--max-np needs an elastic job; add --min-np N")
    largest = max_size(namespace)
    least: int = namespace.min_num_proc or size
    if not least <= size <= largest:
        raise LaunchError(
            f"the sizes must be --min-np <= -np <= --max-np, got --min-np {least}, -np {size} and --max-np {largest}"
        )
    for flag, value in (("-np", size), ("--max-np", largest)):
        if value % slots:
            raise LaunchError(
                f"{flag} must be a multiple of --slots-per-pod {slots}, such as {max(1, value // slots) * slots}, got "
                f"{value}"
            )
    check_elastic(namespace, slots)
    return size, largest


def _check_memory(resources: Mapping[str, Any]) -> None:
    shm, memory = resources.get("shm_size"), resources.get("memory")
    if shm and memory and values.amount(shm) > values.amount(memory):
        raise LaunchError(f"--shm-size must be at most --memory {memory}, of which /dev/shm is a part, got {shm}")
    if shm and values.amount(shm) < SHM_DEFAULT:
        raise LaunchError(f"--shm-size must be at least 64Mi, got {shm}: data loaders and NCCL share data in /dev/shm")


def _variables(pairs: Sequence[tuple[str, str | None]], environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in pairs:
        if value is None and name not in environ:
            raise LaunchError(f"--env must be NAME=VALUE or a variable that is set here, got {name}")
        found[name] = environ[name] if value is None else value
    return found


def _template(path: str) -> dict[str, Any]:
    """Read a pod template from a file.

    The file contains a pod, an object with a `template`, or the template itself.

    Raises:
        LaunchError: If the file is invalid.
    """
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchError(f"--pod-template {path}: cannot be read: {error}") from None
    if isinstance(found, dict) and isinstance(found.get("template"), dict):
        found = found["template"]
    if not isinstance(found, dict) or not isinstance(found.get("spec"), dict):
        raise LaunchError(
            f"--pod-template must be a file with a pod (a mapping with `spec`, and perhaps `metadata`), got {path}"
        )
    containers = found["spec"].get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(each, dict) for each in containers):
        raise LaunchError(f"--pod-template {path}: spec.containers must be a list of containers")
    return {key: found[key] for key in ("metadata", "spec") if isinstance(found.get(key), dict)}


def container_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of the template in which the ranks run.

    This is the container named CONTAINER, or the first one if no container has this name. If the template has no
    containers, return {}.
    """
    containers: list[dict[str, Any]] = template.get("spec", {}).get("containers", [])
    named = [each for each in containers if each.get("name") == CONTAINER]
    return (named or containers or [{}])[0]
