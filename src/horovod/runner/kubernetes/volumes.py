"""Volumes of `--volume`: parsing, and the parts of a pod. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from horovod.runner.kubernetes import names

ACCEPTED = "pvc:CLAIM:/PATH[:ro], host:/DIR:/PATH[:ro], config:NAME:/PATH, secret:NAME:/PATH or empty:/PATH"


@dataclass(frozen=True)
class Volume:
    """Volume that a pod mounts.

    Attributes:
        kind: "pvc", "host", "config", "secret" or "empty".
        source: Name of the object, or directory on the node.
        path: Where it is mounted.
        read_only: True if containers cannot write to it.
    """

    kind: str
    source: str
    path: str
    read_only: bool = False

    def manifest(self, name: str) -> dict[str, Any]:
        """Return the entry for the pod's volumes."""
        what: dict[str, dict[str, Any]] = {
            "pvc": {"persistentVolumeClaim": {"claimName": self.source}},
            "host": {"hostPath": {"path": self.source}},
            "config": {"configMap": {"name": self.source}},
            "secret": {"secret": {"secretName": self.source}},
            "empty": {"emptyDir": {}},
        }
        return {"name": name, **what[self.kind]}

    def mount(self, name: str) -> dict[str, Any]:
        """Return the entry for the container's mounts."""
        mounted: dict[str, Any] = {"name": name, "mountPath": self.path}
        return {**mounted, "readOnly": True} if self.read_only else mounted


def parse(text: str) -> Volume:
    """Parse one of the ACCEPTED forms. Raises ValueError."""
    kind, _, rest = text.partition(":")
    parts = rest.split(":")
    read_only = len(parts) > 1 and parts[-1] in ("ro", "rw")
    if read_only:
        read_only = parts.pop() == "ro"
    if kind == "empty":
        parts.insert(0, "")
    if kind not in ("pvc", "host", "config", "secret", "empty") or len(parts) != 2 or not parts[1].startswith("/"):
        raise ValueError(text)
    source, path = parts
    if kind == "host" and not source.startswith("/"):
        raise ValueError(text)
    if kind in ("pvc", "config", "secret"):
        names.object_name(source)
    return Volume(kind, source, path, read_only)
