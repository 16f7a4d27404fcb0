"""Converts pip's settings to environment variables for uv, which does not read pip's settings."""

import ast
import re
from collections.abc import Iterable, Mapping

Settings = dict[str, str]
"""Values by pip's name of an option, such as "find-links"; lists are separated by white space."""

_LINE = re.compile(r"(:env:|\w+)\.([\w-]+)=(.*)")
_OFF = {"0", "false", "no", "off", "n", "f", ""}
_FLAGS = {"no-index", "no-cache-dir"}
_IRRELEVANT = {
    "break-system-packages", "cache-dir", "color", "config-file", "debug", "disable-pip-version-check", "log",
    "no-color", "no-compile", "no-input", "no-python-version-warning", "no-warn-script-location", "progress-bar",
    "quiet", "require-virtualenv", "retries", "root-user-action", "verbose",
}  # fmt: skip
"""Settings without influence on which packages are installed in a virtual environment, and from where."""
_UV = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "constraint": "UV_CONSTRAINT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_INDEX_URL",
    "no-cache-dir": "UV_NO_CACHE",
    "no-index": "UV_NO_INDEX",
    "proxy": "HTTPS_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
_SEPARATORS = {"find-links": ","}
"""Separators of uv's lists, where they are not spaces."""


def parse(listing: str) -> Settings:
    """Parse the output of ``pip config list``, dropping flags that are off.

    As in pip, variables (`:env:`) take precedence over files. In files, `[install]` takes precedence over `[global]`.
    """
    sections: dict[str, Settings] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match and match[1] in sections:
            sections[match[1]][match[2]] = " ".join(str(ast.literal_eval(match[3])).split())
    found = {**sections["global"], **sections["install"], **sections[":env:"]}
    return {name: value for name, value in found.items() if value.lower() not in _OFF or name not in _FLAGS}


def unknown(settings: Settings) -> list[str]:
    """Return the settings of pip that uv does not support.

    If there are any, the packages must be installed with pip.
    """
    return sorted(settings.keys() - _UV.keys() - _IRRELEVANT)


def uv_environment(settings: Settings, wheels: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make uv find the same packages as pip.

    Args:
        settings: pip's settings.
        wheels: Folders of wheels that pip has built and cached, which uv does not need to build again.
        environ: This process's environment. Its UV_* variables take precedence over pip's settings.
    """
    # Like pip, choose the best version among all indexes and use the system's certificates.
    extra = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    for name, variable in _UV.items():
        if settings.get(name):
            value = "1" if name in _FLAGS else settings[name]
            extra[variable] = value.replace(" ", _SEPARATORS.get(name, " "))
    if wheels := list(wheels):
        extra["UV_FIND_LINKS"] = ",".join(filter(None, [extra.get("UV_FIND_LINKS"), *wheels]))
    return {**environ, **{name: value for name, value in extra.items() if name not in environ or name[:3] != "UV_"}}
