"""Parsers that validate Kubernetes names, quantities, labels, variables, volumes and tokens in flags."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from horovod.common.contract.private_files import Secret

LONGEST = 50
"""Maximum length of a job's name. With the suffixes of its parts and pods, labels have up to 63 characters."""
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = re.compile(r"HOROVOD_POD_\w*|JOB_COMPLETION_INDEX")
_UNITS = {
    "": 1.0,
    "m": 1e-3,
    **{unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)},
    **{unit + "i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)},
}

JOB_NAME = f"a DNS label of at most {LONGEST} characters: lower-case letters, digits and -, a letter first, no - last"
NAMESPACE = "a DNS label of at most 63 characters: lower-case letters, digits and -, no - first or last"
OBJECT = "the name of an object: lower-case letters, digits, - and ., a letter or digit first and last"
QUANTITY = "a quantity such as 2, 500m, 16Gi"
VARIABLE = "NAME=VALUE or NAME, letters, digits and _, none of the pods' own (HOROVOD_POD_*)"
PAIR = "NAME=VALUE as of a label: letters, digits, -, _ and ., with a letter or digit first and last"


def job_name(text: str) -> str:
    """Return `text` if it is a valid job name. Otherwise, raise ValueError."""
    return _checked(text, len(text) <= LONGEST and bool(_LABEL.fullmatch(text)))


def namespace(text: str) -> str:
    """Return `text` if it is a valid namespace. Raises ValueError if it is not."""
    return _checked(text, len(text) <= 63 and "." not in text and bool(_SUBDOMAIN.fullmatch(text)))


def object_name(text: str) -> str:
    """Return `text` if it is a valid name of an object, such as a service account. Raises ValueError if it is not."""
    return _checked(text, len(text) <= 253 and bool(_SUBDOMAIN.fullmatch(text)))


def quantity(text: str) -> str:
    """Return `text` if it is a valid Kubernetes quantity above 0, such as 500m or 2Gi. Otherwise, raise ValueError."""
    return _checked(text, bool(_QUANTITY.fullmatch(text)) and amount(text) > 0)


def amount(text: str) -> float:
    """Convert a quantity such as 500m or 2Gi to cores or bytes. Raises ValueError if it is invalid."""
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"must be {QUANTITY}, got {text!r}")
    number = re.match(r"[0-9.]+", text)
    assert number is not None
    return float(number.group()) * _UNITS[text[number.end() :]]


def pair(text: str) -> tuple[str, str]:
    """Parse a label or node selector into (key, value). Raises ValueError if it is invalid."""
    key, equals, value = text.partition("=")
    _checked(text, bool(equals) and bool(_KEY.fullmatch(key)) and bool(_VALUE.fullmatch(value)))
    return key, value


def annotation(text: str) -> tuple[str, str]:
    """Parse an annotation into (key, value). The value can be any text. Raises ValueError if the key is invalid."""
    key, equals, value = text.partition("=")
    _checked(text, bool(equals) and bool(_KEY.fullmatch(key)))
    return key, value


def resource(text: str) -> str:
    """Return `text` if it is a valid extended resource name, such as nvidia.com/gpu. Otherwise, raise ValueError."""
    return _checked(text, "/" in text and bool(_KEY.fullmatch(text)))


def variable(text: str) -> tuple[str, str | None]:
    """Parse NAME or NAME=VALUE into (name, value), where the value can be None.

    Raises:
        ValueError: If the name is invalid or reserved for Horovod's pods.
    """
    name, equals, value = text.partition("=")
    _checked(text, bool(_VARIABLE.fullmatch(name)) and not _RESERVED.fullmatch(name))
    return name, value if equals else None


def toleration(text: str) -> dict[str, str]:
    """Parse KEY[=VALUE][:EFFECT] into a toleration. The key `*` matches all keys.

    Raises:
        ValueError: If the text is invalid.
    """
    rest, colon, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    _checked(text, not colon or effect in ("NoSchedule", "PreferNoSchedule", "NoExecute"))
    _checked(text, (key == "*" and not equals) or bool(_KEY.fullmatch(key) and _VALUE.fullmatch(value)))
    made = {} if key == "*" else {"key": key}
    made.update({"operator": "Equal", "value": value} if equals else {"operator": "Exists"})
    return {**made, "effect": effect} if effect else made


def literal(text: str) -> str:
    """Escape `$` in an argument or value, because Kubernetes replaces $(NAME) with the value of variable NAME."""
    return text.replace("$", "$$")


def _checked(text: str, good: bool) -> str:
    if not good:
        raise ValueError(text)
    return text


ACCEPTED = "pvc:CLAIM:/PATH[:ro], host:/DIR:/PATH[:ro], config:NAME:/PATH, secret:NAME:/PATH or empty:/PATH"


@dataclass(frozen=True)
class Volume:
    """Volume that a pod mounts.

    Attributes:
        kind: "pvc", "host", "config", "secret" or "empty".
        source: Name of the object, or directory on the node.
        path: Path in the container at which the volume is mounted.
        read_only: True if containers cannot write to it.
    """

    kind: str
    source: str
    path: str
    read_only: bool = False

    def manifest(self, name: str) -> dict[str, Any]:
        """Return the entry for this volume in the pod's list of volumes."""
        what: dict[str, dict[str, Any]] = {
            "pvc": {"persistentVolumeClaim": {"claimName": self.source}},
            "host": {"hostPath": {"path": self.source}},
            "config": {"configMap": {"name": self.source}},
            "secret": {"secret": {"secretName": self.source}},
            "empty": {"emptyDir": {}},
        }
        return {"name": name, **what[self.kind]}

    def mount(self, name: str) -> dict[str, Any]:
        """Return the entry for the container's list of mounts that mounts the volume under the given name."""
        mounted: dict[str, Any] = {"name": name, "mountPath": self.path}
        return {**mounted, "readOnly": True} if self.read_only else mounted


def parse(text: str) -> Volume:
    """Parse a value of `--volume` into a Volume. Raises ValueError if the text is invalid."""
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
        object_name(source)
    return Volume(kind, source, path, read_only)


LEAST = 32
"""Minimum number of characters."""


def make_token() -> str:
    """Return a random 256-bit token, which pods use to prove to the launcher that they belong to its job."""
    return secrets.token_hex(32)


def token_key(text: str) -> Secret:
    """Derive a 32-byte key from the token. Raises ValueError if the token is too short."""
    text = text.strip()
    if len(text) < LEAST:
        raise ValueError(
            f"HOROVOD_POD_TOKEN must have at least {LEAST} characters, from the job's Secret, got {len(text)}"
        )
    return Secret(hashlib.sha256(b"horovod pod token\0" + text.encode()).digest())
