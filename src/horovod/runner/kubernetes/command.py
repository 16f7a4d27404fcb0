"""Command `horovodrun kubernetes`, which creates, follows, lists and deletes jobs on a cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import yaml

from horovod.runner.base.job_result import LaunchError
from horovod.runner.kubernetes import flags, manifests, pods, request
from horovod.runner.kubernetes.api import Api, ApiError
from horovod.runner.kubernetes.follow import ConnectionLost, Follower
from horovod.runner.kubernetes.manifests import COMPONENT, INSTANCE, LAUNCHER, MANAGED, MANAGER, selector, workers_name
from horovod.runner.kubernetes.values import make_token

USAGE_ERROR = 2
DELETE_SECONDS = 15.0
"""Seconds for pods to end, in addition to their own grace period."""
EVERY = 0.5  # Seconds between two checks for whether the pods have terminated
ARRIVES_SECONDS = 3.0
"""Seconds in which an unanswered request to create a job can still reach the API server."""
_TEMPORARY = 8  # Number of random characters at the end of a generated job name


class Interrupted(BaseException):
    """Exception that a signal handler raises to end the command. `number` is the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str]) -> int:
    """Run `horovodrun kubernetes` with the given arguments, and return its exit code.

    Raises:
        LaunchError: If an argument is invalid.
    """
    actions = {"attach": _attach, "status": _status, "delete": _delete}
    action = arguments[0] if arguments and arguments[0] in actions else ""
    split = flags.split(arguments) if not action else flags.CommandLine()
    if "help" in split.values or any(word in flags.HELP for word in (arguments if action else ())):
        print(flags.text(), end="")
        return 0
    try:
        if action:
            return actions[action](*_parse_named(action, arguments[1:]))
        return _run(split)
    except (ApiError, ConnectionLost) as error:
        log(f"error: {error}")
        return 1


def log(text: str) -> None:
    """Print a message to stderr, prefixing each line with the command's name."""
    for line in text.splitlines():
        print(f"horovodrun: {line}", file=sys.stderr, flush=True)


def _run(line: flags.CommandLine) -> int:
    made_up = f"horovod-{secrets.token_hex(_TEMPORARY // 2)}"
    spec = request.from_command_line(line, made_up, os.environ)
    if line.values.get("dry_run"):
        print(yaml.safe_dump_all(manifests.applicable(manifests.all_of(spec, make_token())), sort_keys=False), end="")
        return 0
    api = _api(line.values)
    with _signals():
        try:
            _create(api, manifests.all_of(spec, make_token()))
        except Interrupted as interrupt:
            return 128 + interrupt.number
        try:
            first = " at first" if spec.elastic else ""
            log(f"job {spec.name} in namespace {api.namespace}: {spec.size} ranks{first}, {spec.pods} pods for them")
            if line.values.get("detach"):
                log(f"it goes on by itself: `horovodrun kubernetes attach {spec.name}` shows it")
                return 0
            code = _follow(api, spec.name)
        except Interrupted as interrupt:
            code = 128 + interrupt.number
            log(f"stopped by {signal.Signals(interrupt.number).name}; deleting job {spec.name}")
        except ConnectionLost as error:
            log(f"error: {error}")
            log(f"the job goes on: `horovodrun kubernetes attach {spec.name}`")
            return 1
        except BaseException:
            # Ignore errors of the deletion, because the original error is more important.
            with contextlib.suppress(ApiError):
                _delete_parts(api, spec.name)
            raise
    if "keep" not in line.values or code >= 128:
        try:
            _remove(api, spec.name, spec.grace)
        except KeyboardInterrupt:
            log(f"not waited for the pods of job {spec.name}, which is deleted, to be gone")
            return 128 + signal.SIGINT
        except ApiError as error:  # The job has ended, so only report the error, and return the job's exit code.
            log(f"error: job {spec.name} has ended and could not be deleted: {error}")
    return code


def _api(values: Mapping[str, Any]) -> Api:
    return Api(values.get("kubeconfig", ""), values.get("context", ""), values.get("namespace", ""))


def _create(api: Api, parts: Sequence[manifests.Manifest]) -> None:
    """Create all objects of the job.

    If an object cannot be created, delete those that were already created, and raise ApiError.
    """
    launcher, *needed, workers = parts
    name, mark = launcher["metadata"]["name"], secrets.token_hex(16)
    # Objects created so far. They are deleted if a later object cannot be created.
    created: list[tuple[str, str]] = []

    def create(part: manifests.Manifest) -> dict[str, Any]:
        try:
            there = api.create(part)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            raise _is_there(api, part, name) from None
        created.append((part["kind"], part["metadata"]["name"]))
        return there

    try:
        owner = create(manifests.marked(manifests.suspended(launcher), mark))
        for part in needed:
            create(manifests.owned(part, owner))
        # Start the launcher's pod before creating the workers, because they connect to it.
        api.patch("Job", name, {"spec": {"suspend": False}})
        create(manifests.owned(workers, owner))
    except BaseException as error:
        # Ignore errors of the deletion, because the error of the creation is more important.
        with contextlib.suppress(ApiError):
            if created or _was_created(api, name, mark, error):
                _delete_all(api, created or [("Job", name)])
        raise


def _is_there(api: Api, part: manifests.Manifest, name: str) -> ApiError:
    kind, there = part["kind"], part["metadata"]["name"]
    what = f"a job {name}"
    if (kind, there) != ("Job", name):
        what = f"a {kind} {there}, perhaps left by another job {name},"
    removed = f"`horovodrun kubernetes delete {name}` removes what is of such a job"
    if kind == "Secret":
        removed += f" (`kubectl delete secret {there}` a Secret that is alone)"
    text = f"there is {what} in namespace {api.namespace} already; {removed}, --name gives this one another name"
    return ApiError(text, 409, "AlreadyExists")


def _was_created(api: Api, name: str, mark: str, error: BaseException) -> bool:
    """Return True if this command created the launcher's Job although no answer arrived.

    Raises:
        ApiError: If the Job does not exist, or the API server did not answer.
    """
    if isinstance(error, ApiError) and 400 <= error.status < 500:
        return False  # A client error (4xx) means that the API server rejected the request and did not create a Job.
    until = time.monotonic() + ARRIVES_SECONDS
    while True:
        try:
            return manifests.has_mark(api.get("Job", name), mark)
        except ApiError as missing:
            if missing.status != 404 or time.monotonic() >= until:
                raise
        time.sleep(EVERY)


def _follow(api: Api, name: str) -> int:
    outcome = Follower(api, name, log).run()
    for line in outcome.lines:
        log(line)
    return outcome.code


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Raise Interrupted in the main thread on the first signal. The second signal has its default effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, _frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        raise Interrupted(number)

    for number in numbers:
        if before[number] != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse_named(action: str, arguments: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the flags that select the cluster, and the name of the job. The name is empty if the user gave none.

    Raises:
        LaunchError: If a flag or the name is invalid.
    """
    table = {name: flag for flag in flags.FLAGS if flag.names[0] in flags.OF_ALL for name in flag.names}
    values: dict[str, Any] = {}
    names: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in table:
            text = value if equals else next(rest, None)
            if text is None:
                raise LaunchError(f"{name} needs a value")
            flags.take(values, table[name], text)
        elif argument.startswith("-"):
            raise LaunchError(f"unknown flag {name}; `horovodrun kubernetes {action}` takes {', '.join(flags.OF_ALL)}")
        else:
            names.append(argument)
    if len(names) > 1 or (not names and action != "status"):
        given_names = ", ".join(names) or "none"
        raise LaunchError(f"horovodrun kubernetes {action} takes the name of one job; given is {given_names}")
    return values, names[0] if names else ""


def _attach(values: Mapping[str, Any], name: str) -> int:
    api = _api(values)
    _require(api, name)
    with _signals():
        try:
            return _follow(api, name)
        except Interrupted as interrupt:
            log(f"the job goes on; `horovodrun kubernetes delete {name}` ends it")
            return 128 + interrupt.number


def _status(values: Mapping[str, Any], name: str) -> int:
    api = _api(values)
    if name:
        job = _require(api, name)
        found = pods.views(api.list("Pod", labelSelector=selector(name))["items"])
        print(f"job {name} in namespace {api.namespace}: {pods.job_state(job)}")
        print(pods.table(found))
        with contextlib.suppress(ApiError):  # Some users do not have permission to read events.
            of_job = f"involvedObject.kind=Job,involvedObject.name={workers_name(name)}"
            for line in pods.not_created(api.list("Event", fieldSelector=of_job)["items"]):
                print(line)
        return 0
    for job in api.list("Job", labelSelector=f"{MANAGER}={MANAGED},{COMPONENT}={LAUNCHER}")["items"]:
        print(f"{job['metadata']['labels'][INSTANCE]}\t{pods.job_state(job)}")
    return 0


def _delete(values: Mapping[str, Any], name: str) -> int:
    api = _api(values)
    job = _launcher(api, name)
    if job is None and not _has_pods(api, name):
        raise _no_job(api, name)
    template = job["spec"]["template"]["spec"] if job else {}
    return 0 if _remove(api, name, int(template.get("terminationGracePeriodSeconds", flags.DEFAULT_GRACE))) else 1


def _require(api: Api, name: str) -> dict[str, Any]:
    """Return the launcher's Job. Raises LaunchError if it does not exist or if horovodrun did not create it."""
    job = _launcher(api, name)
    if job is None:
        raise _no_job(api, name)
    return job


def _no_job(api: Api, name: str) -> LaunchError:
    return LaunchError(
        f"there is no job {name} in namespace {api.namespace}; `horovodrun kubernetes status` lists them"
    )


def _launcher(api: Api, name: str) -> dict[str, Any] | None:
    """Return the launcher's Job, or None if it does not exist.

    Raises:
        LaunchError: If another program created a Job with this name.
        ApiError: If the API server answers with another error than "not found".
    """
    try:
        job = api.get("Job", name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    if not manifests.is_part(job, name):
        raise LaunchError(f"job {name} in namespace {api.namespace} is none of horovodrun's")
    return job


def _has_pods(api: Api, name: str) -> bool:
    """Return True if parts of the job still exist after its launcher's Job was deleted.

    This happens for jobs created by `kubectl apply`, because their parts have no owner.
    """
    return any(_is_of(api, kind, part, name) for kind, part in (("Job", workers_name(name)), ("Service", name)))


def _is_of(api: Api, kind: str, part: str, name: str) -> bool | None:
    """Return True if the object belongs to the job, or None if the object cannot be read."""
    try:
        return manifests.is_part(api.get(kind, part), name)
    except ApiError:
        return None


def _delete_parts(api: Api, name: str) -> None:
    """Delete all parts of the job, but no objects of other programs.

    If some parts cannot be deleted, delete the others, and then raise the first ApiError. The Secret is deleted without
    checking its owner, because reading it would disclose its contents.
    """
    parts = [("Job", name), ("Job", workers_name(name)), ("Service", name)]
    _delete_all(api, [*(part for part in parts if _is_of(api, *part, name) is not False), ("Secret", name)])


def _delete_all(api: Api, parts: Sequence[tuple[str, str]]) -> None:
    # Delete the launcher's Job first, so that the cluster deletes what it owns even if this command is interrupted.
    refusals = []
    for kind, part in parts:
        try:
            api.delete(kind, part)
        except ApiError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _remove(api: Api, name: str, grace: int) -> bool:
    """Delete all parts of the job and wait until its pods have terminated. Return False if some pods remain."""
    _delete_parts(api, name)
    until = time.monotonic() + grace + DELETE_SECONDS
    while True:
        left = [each["metadata"]["name"] for each in api.list("Pod", labelSelector=selector(name))["items"]]
        if not left:
            return True
        if time.monotonic() >= until:
            log(f"pods {', '.join(left)} are still there; their nodes may be away")
            return False
        time.sleep(EVERY)
