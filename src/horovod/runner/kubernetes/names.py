"""Checks of Kubernetes' names, quantities, labels and environment variables. Pure."""

from __future__ import annotations

import re

LONGEST = 50
"""Maximum length of a job's name: with the suffixes of its parts and pods, a label of 63 characters."""
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
    """Return the name of a job. Raises ValueError."""
    return _checked(text, len(text) <= LONGEST and bool(_LABEL.fullmatch(text)))


def namespace(text: str) -> str:
    """Return the name of a namespace. Raises ValueError."""
    return _checked(text, len(text) <= 63 and "." not in text and bool(_SUBDOMAIN.fullmatch(text)))


def object_name(text: str) -> str:
    """Return the name of an object, such as a service account, claim or secret. Raises ValueError."""
    return _checked(text, len(text) <= 253 and bool(_SUBDOMAIN.fullmatch(text)))


def quantity(text: str) -> str:
    """Return a quantity above 0. Raises ValueError."""
    return _checked(text, bool(_QUANTITY.fullmatch(text)) and amount(text) > 0)


def amount(text: str) -> float:
    """Return the value of a quantity in cores or bytes. Raises ValueError."""
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"must be {QUANTITY}, got {text!r}")
    number = re.match(r"[0-9.]+", text)
    assert number is not None
    return float(number.group()) * _UNITS[text[number.end() :]]


def pair(text: str) -> tuple[str, str]:
    """Return key and value of a label or node selector. Raises ValueError."""
    key, equals, value = text.partition("=")
    _checked(text, bool(equals) and bool(_KEY.fullmatch(key)) and bool(_VALUE.fullmatch(value)))
    return key, value


def annotation(text: str) -> tuple[str, str]:
    """Return key and value of an annotation; the value may be any text. Raises ValueError."""
    key, equals, value = text.partition("=")
    _checked(text, bool(equals) and bool(_KEY.fullmatch(key)))
    return key, value


def resource(text: str) -> str:
    """Return the name of a type of device, such as nvidia.com/gpu. Raises ValueError."""
    return _checked(text, "/" in text and bool(_KEY.fullmatch(text)))


def variable(text: str) -> tuple[str, str | None]:
    """Return name and value, or None without `=`. Raises ValueError, also for variables reserved for Horovod's pods."""
    name, equals, value = text.partition("=")
    _checked(text, bool(_VARIABLE.fullmatch(name)) and not _RESERVED.fullmatch(name))
    return name, value if equals else None


def toleration(text: str) -> dict[str, str]:
    """Return the toleration of KEY[=VALUE][:EFFECT], where the key `*` matches all keys. Raises ValueError."""
    rest, colon, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    _checked(text, not colon or effect in ("NoSchedule", "PreferNoSchedule", "NoExecute"))
    _checked(text, (key == "*" and not equals) or bool(_KEY.fullmatch(key) and _VALUE.fullmatch(value)))
    made = {} if key == "*" else {"key": key}
    made.update({"operator": "Equal", "value": value} if equals else {"operator": "Exists"})
    return {**made, "effect": effect} if effect else made


def literal(text: str) -> str:
    """Return a word of a command or a variable's value so that Kubernetes passes it on as it is.

    It would replace $(NAME) by a variable of the container otherwise.
    """
    return text.replace("$", "$$")


def _checked(text: str, good: bool) -> str:
    if not good:
        raise ValueError(text)
    return text
