"""Storage of the Job fields that Kubernetes 1.20 lacks: they are kept in an annotation of the Job.

Clients see the fields in the Job's spec. The test cluster's controller implements them, and the API server only stores
them.
"""

import json
from typing import Any

FIELDS = (
    *("completionMode", "suspend", "podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes"),
    *("podReplacementPolicy", "successPolicy"),
)
DEFAULTS = {"completionMode": "NonIndexed", "suspend": False}
ANNOTATION = "kubernetes-bed/kept"


def stored(job: dict[str, Any]) -> dict[str, Any]:
    """Convert a client's Job to the form in which the server stores it."""
    spec = job.get("spec") or {}
    found = {name: spec[name] for name in FIELDS if name in spec}
    if not found:
        return job
    rest = {name: value for name, value in spec.items() if name not in FIELDS}
    return {**job, "metadata": _annotated(job.get("metadata") or {}, json.dumps(found)), "spec": rest}


def shown(job: dict[str, Any]) -> dict[str, Any]:
    """Convert a Job stored by the server to the form that clients see. The inverse of `stored`."""
    if "spec" not in job:
        return job
    metadata = dict(job["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop(ANNOTATION, None)
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {**job, "metadata": metadata, "spec": {**job["spec"], **fields(job)}}


def fields(job: dict[str, Any]) -> dict[str, Any]:
    """Return a Job's fields that Kubernetes 1.20 lacks, with defaults."""
    return {**DEFAULTS, **json.loads((job["metadata"].get("annotations") or {}).get(ANNOTATION, "{}"))}


def patched(change: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Convert a client's merge patch of a Job to one that the server accepts.

    `job` is the Job as the server stores it.
    """
    spec = change.get("spec") or {}
    found = {name: spec[name] for name in FIELDS if name in spec}
    if not found:
        return change
    after = {name: value for name, value in {**fields(job), **found}.items() if value is not None}
    rest = {name: value for name, value in spec.items() if name not in FIELDS}
    result = {**change, "metadata": _annotated(change.get("metadata") or {}, json.dumps(after)), "spec": rest}
    if not rest:
        del result["spec"]
    return result


def _annotated(metadata: dict[str, Any], text: str) -> dict[str, Any]:
    return {**metadata, "annotations": {**(metadata.get("annotations") or {}), ANNOTATION: text}}
