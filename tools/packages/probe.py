"""Gathers the facts that determine which PyTorch build to install: GPUs, local wheels, and PyTorch's index."""

import ctypes.util
import os
import re
import shutil
import ssl
import threading
import urllib.parse
import urllib.request
from pathlib import Path

from tools.packages.pytorch import CPU_INDEX, Choice, choose, cpu_build
from tools.packages.settings import Settings

DEADLINE = 5.0
"""Seconds to wait for the index's complete answer."""


def gpu() -> str | None:
    """Return the path of a file whose existence indicates an NVIDIA GPU, or None."""
    if program := shutil.which("nvidia-smi"):
        return program
    if Path("/proc/driver/nvidia").exists():
        return "/proc/driver/nvidia"
    return ctypes.util.find_library("cuda")


def tags() -> frozenset[str]:
    """Return the wheel tags that this Python accepts, using the `packaging` library bundled with pip."""
    from pip._vendor.packaging.tags import sys_tags

    return frozenset(map(str, sys_tags()))


def local_wheels(find_links: list[str]) -> list[str]:
    """Return the names of the files in pip's find-links folders, excluding URLs."""
    names = []
    for link in find_links:
        path = Path(urllib.request.url2pathname(urllib.parse.urlparse(link).path) if "://" in link else link)
        if (link.startswith("file:") or "://" not in link) and path.expanduser().is_dir():
            names += sorted(os.listdir(path.expanduser()), reverse=True)
    return names


def read_index(index: str, certificates: str | None, deadline: float) -> list[str]:
    """Return the file names of PyTorch's wheels on a package index.

    Args:
        index: URL of the index.
        certificates: File of certificate authorities, or None for the system's.
        deadline: Seconds for the whole query, including name resolution.

    Raises:
        OSError: If no complete answer arrives in time.
    """
    results: list[list[str] | OSError] = []

    def ask() -> None:
        try:
            context = ssl.create_default_context(cafile=certificates)
            with urllib.request.urlopen(f"{index}/torch/", timeout=deadline, context=context) as response:
                page = response.read().decode(errors="replace")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            results.append(OSError(str(reason)))
        else:
            links = re.findall(r'href="([^"#]+)', page)
            results.append(
                [urllib.parse.unquote(urllib.parse.urlparse(link).path).rpartition("/")[2] for link in links]
            )

    # Query in a thread, to limit the total time. A socket timeout covers neither name resolution nor a slow but steady
    # response.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline)
    result = results[0] if results else TimeoutError(f"no answer within {deadline:g} s")
    if isinstance(result, OSError):
        raise result
    return result


def pytorch(version: str, settings: Settings, index: str = CPU_INDEX, deadline: float = DEADLINE) -> Choice:
    """Return the PyTorch build for this machine.

    The package index is queried only if the choice depends on it.

    Args:
        version: Public version of PyTorch, such as "2.13.0".
        settings: pip's settings, which say where local wheels are and which certificates to trust.
        index: URL of PyTorch's own index.
        deadline: Seconds for the index's whole answer.
    """
    if found := gpu():
        return choose(version, found, None)
    accepted = tags()
    if local := cpu_build(version, local_wheels(settings.get("find-links", "").split()), accepted):
        return choose(version, None, local)
    remote = None
    if "no-index" in settings:
        missing = "pip is set to use no index"
    else:
        try:
            remote = cpu_build(version, read_index(index, settings.get("cert"), deadline), accepted)
            missing = f"{index} has none of {version} for this Python"
        except OSError as error:
            missing = f"{index} cannot be read: {error}"
    return choose(version, None, None, remote, missing, index)
