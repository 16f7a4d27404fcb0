"""The YAML file passed with `--config-file`.

Its keys are setting names. The values are converted to environment variables.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.common.contract.setting import Setting
from horovod.common.contract.settings import TABLE
from horovod.runner.base.job_result import LaunchError
from horovod.runner.command.flags import FLAGS, Flag

if TYPE_CHECKING:
    import yaml

CONTROLLERS = ("gloo", "mpi")
KEYS: dict[str, Setting] = {setting.yaml: setting for setting in TABLE if setting.yaml}
SECTIONS = ("controller", *dict.fromkeys(key.split(".")[0] for key in KEYS))

_FLAG_OF: dict[str, Flag] = {flag.variable: flag for flag in FLAGS if flag.variable is not None}


@dataclass(frozen=True)
class Config:
    """Contents of a config file.

    Attributes:
        controller: Controller that the file selects, or None.
        variables: Value of each environment variable.
        keys: For each variable, the key in the file that set it.
    """

    controller: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)


def read(path: str) -> Config:
    """Read a config file.

    Raises:
        LaunchError: If it is invalid. The message names the file, line, key and valid values.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--config-file {path}: cannot be read: {error}") from None
    return parse(text, path)


def parse(text: str, path: str) -> Config:
    """Parse a config file's text. Raises LaunchError if it is invalid. `path` is used only in error messages."""
    try:
        import yaml  # Import lazily, because most jobs do not use a config file.
    except ImportError:
        raise LaunchError(f"--config-file {path}: PyYAML is not installed; `pip install pyyaml` adds it") from None
    try:
        return _Reader(path, yaml.SafeLoader(text)).config()
    except RecursionError:
        raise LaunchError(f"--config-file {path} is nested too deeply") from None
    except yaml.YAMLError as error:
        raise LaunchError(f"--config-file {path} is not valid YAML: {' '.join(str(error).split())}") from None


class _Reader:
    """Reader for the YAML nodes of a config file. Unlike plain values, nodes keep line numbers and duplicate keys."""

    def __init__(self, path: str, loader: yaml.SafeLoader) -> None:
        self._path = path
        self._loader = loader

    def config(self) -> Config:
        root = self._loader.get_single_node()
        controller: str | None = None
        variables: dict[str, str] = {}
        keys: dict[str, str] = {}
        if root is None or self._value(root) is None:
            return Config()
        for section, node in self._entries(root, "the file"):
            if section == "controller":
                controller = self._controller(node)
                continue
            if section not in SECTIONS:
                raise self._error(node, f"unknown section {section!r}{_hint('', section)}")
            if self._value(node) is None:  # Ignore an empty section, in which all keys are commented out.
                continue
            for name, value in self._entries(node, f"section {section}"):
                key = f"{section}.{name}"
                if key not in KEYS:
                    raise self._error(value, f"unknown key {key!r}{_hint(section, name)}")
                variable = KEYS[key].name
                variables[variable] = self._text(key, value)
                keys[variable] = key
        return Config(controller, variables, keys)

    def _entries(self, node: yaml.Node, what: str) -> Iterator[tuple[str, yaml.Node]]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what} must be a mapping of names to values, got {self._shown(node)}")
        self._loader.flatten_mapping(node)
        seen: set[str] = set()
        for key_node, value_node in node.value:
            name = str(self._value(key_node))
            if name in seen:
                raise self._error(key_node, f"{what} has {name!r} twice")
            seen.add(name)
            yield name, value_node

    def _controller(self, node: yaml.Node) -> str:
        """Return the controller. It is written as `controller: mpi`, or as a section that contains `mpi: true`."""
        value = self._value(node)
        if isinstance(value, dict) and len(value) == 1 and next(iter(value.values())) is True:
            value = next(iter(value))
        if isinstance(value, str) and value.lower() in CONTROLLERS:
            return value.lower()
        raise self._error(node, f"controller must be {' or '.join(CONTROLLERS)}, got {self._shown(node)}")

    def _text(self, key: str, node: yaml.Node) -> str:
        """Return the key's value as text for its environment variable."""
        setting = KEYS[key]
        flag = _FLAG_OF.get(setting.name)
        kind = flag.value if flag is not None else None
        accepted = "true or false" if setting.kind == "bool" else kind.accepted if kind else setting.accepted()
        value = self._value(node)
        if value is None:
            raise self._error(node, f"{key} must be {accepted}, got no value; remove the key to use its default")
        try:
            text = _plain_text(setting, value)
            return text if setting.kind == "bool" or kind is None else str(kind.parse(text))
        except ValueError:
            raise self._error(node, f"{key} must be {accepted}, got {self._shown(node)}") from None

    def _value(self, node: yaml.Node) -> object:
        try:
            return self._loader.construct_object(node, deep=True)
        # The value is an invalid date, or it does not match its tag, as in `!!bool maybe`.
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise self._error(node, f"cannot be read: {type(error).__name__}: {error}") from None

    def _shown(self, node: yaml.Node) -> str:
        value = self._value(node)
        return str(value).lower() if isinstance(value, bool) else reprlib.repr(value)

    def _error(self, node: yaml.Node, text: str) -> LaunchError:
        return LaunchError(f"--config-file {self._path}, line {node.start_mark.line + 1}: {text}")


def _plain_text(setting: Setting, value: object) -> str:
    """Convert a value to text for its environment variable. Raises ValueError if its type is wrong."""
    if setting.kind == "bool":
        if value not in (True, False):
            raise ValueError
        return "1" if bool(value) != setting.yaml_inverted else "0"
    if setting.kind in ("ints", "patterns") and isinstance(value, list):
        item = int if setting.kind == "ints" else str
        if not all(isinstance(part, item) and not isinstance(part, bool) for part in value):
            raise ValueError
        return ",".join(map(str, value))
    numeric = setting.kind in ("int", "float", "ints")
    if isinstance(value, str) or (numeric and isinstance(value, (int, float)) and not isinstance(value, bool)):
        return str(value)
    raise ValueError


def _hint(section: str, name: str) -> str:
    """Suggest the known key or section that is most similar to an unknown one.

    Return an empty string if there is none.
    """
    given = f"{section}.{name}" if section else name
    same_name = [key for key in KEYS if key.split(".")[1] == name]
    known = [*KEYS, *SECTIONS] if not section else list(KEYS)
    import difflib

    near = same_name or difflib.get_close_matches(given, known, 1, 0.6)
    if not near:
        last = difflib.get_close_matches(name, [key.split(".")[1] for key in KEYS], 1, 0.6)
        near = [key for key in KEYS if last and key.split(".")[1] == last[0]]
    if near:
        return f"; did you mean {near[0]}?"
    here = [key for key in KEYS if section and key.startswith(f"{section}.")]
    return f"; must be one of {', '.join(here or SECTIONS)}"
