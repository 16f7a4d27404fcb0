"""Install packages into this Python's environment, with uv if it is available and otherwise with pip."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools.packages import settings

_LONG = 600.0


def read_settings() -> settings.Settings:
    """Return pip's settings from its configuration files and environment variables."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, timeout=_LONG
    )
    return settings.parse(done.stdout)


def find_uv() -> str | None:
    """Return the path of uv, or None if uv is not available.

    The function installs uv if it is neither in this environment nor on the PATH.
    """
    here = Path(sys.prefix) / "bin" / "uv"
    if found := shutil.which("uv", path=f"{here.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"):
        return found
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check", "uv"]
    subprocess.run(pip, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return str(here) if here.exists() else None


def pip_cache(found: settings.Settings) -> Path:
    """Return pip's cache directory."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(found.get("cache-dir") or f"{caches}/pip").expanduser()


def built_wheels(cache: Path) -> list[str]:
    """Return the folders of cached wheels that pip has built from released source archives.

    Building PySpark's wheel, for example, takes a minute. Wheels that pip has built from an archive without a release
    name are left out, because they can differ from the release of the same version.
    """
    folders = []
    for origin in sorted(cache.glob("wheels/*/*/*/*/origin.json")):
        try:
            source = json.loads(origin.read_text())["url"].rpartition("/")[2]
        except (OSError, ValueError, KeyError):
            continue
        release = re.sub(r"\.(tar\.gz|zip)$", "", source).replace("-", "_").lower()
        if any("_".join(wheel.name.split("-")[:2]).lower() == release for wheel in origin.parent.glob("*.whl")):
            folders.append(str(origin.parent))
    return folders


def with_uv(arguments: list[str]) -> str | None:
    """Install packages with uv, using pip's settings.

    Returns:
        None on success, or the reason why pip must be used instead.
    """
    found = read_settings()
    if names := settings.unknown(found):
        return f"uv has no counterpart of pip's setting {names[0]}"
    uv = find_uv()
    if uv is None:
        return "uv cannot be installed"
    # Omit missing folders, because uv rejects them (pip ignores them).
    links = [os.path.expanduser(link) for link in found.get("find-links", "").split()]
    found["find-links"] = " ".join(link for link in links if "://" in link or os.path.exists(link))
    environ = settings.uv_environment(found, built_wheels(pip_cache(found)), os.environ)
    command = [uv, "pip", "install", "-q", "--python", sys.executable, *arguments]
    code = subprocess.run(command, env=environ, check=False).returncode
    return f"uv failed with code {code}" if code else None


def with_pip(arguments: list[str]) -> int:
    """Install packages with pip, and return the exit code."""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", "--disable-pip-version-check"]
    return subprocess.run([*pip, *arguments], check=False).returncode


def install(arguments: list[str]) -> int:
    """Install packages, and return the exit code.

    The arguments are those of ``pip install``. A lock serializes installations into one environment, because `make` can
    run several steps in parallel.
    """
    with open(Path(sys.prefix) / ".install.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install(arguments)


def _install(arguments: list[str]) -> int:
    if os.environ.get("INSTALLER", "uv") == "pip":
        return with_pip(arguments)
    reason = with_uv(arguments)
    if reason is None:
        return 0
    print(f"pip installs {' '.join(arguments)}, because {reason}", file=sys.stderr)
    return with_pip(arguments)
