"""Builder of a release's sdist, and of wheels from the sdist."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tools.wheels import sysroot
from tools.wheels.plan import WANTED, Wanted, platform_tag

ROOT = Path(__file__).resolve().parents[2]
# Maximum seconds for one build on a slow machine.
DEADLINE = 3600
TOOLS = ("build", "nanobind", "scikit-build-core")


class BuildFailed(RuntimeError):
    """Raised when a build fails. The build's own output has already been printed."""


def version() -> str:
    """Read Horovod's version from the sources."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/horovod/_version.py").read_text())
    assert found, "src/horovod/_version.py names no version"
    return found[1]


def compiler_version(arch: sysroot.Arch) -> str:
    """Return the C++ compiler's version for a CPU architecture."""
    command = [arch.tool("g++"), "-dumpfullversion"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def requirements(archive: Path) -> list[str]:
    """Read the package's requirements from an sdist, excluding extras."""
    with tarfile.open(archive) as packed:
        file = packed.extractfile(f"horovod-{version()}/PKG-INFO")
        assert file is not None, f"{archive} has no PKG-INFO"
        headers = email.message_from_bytes(file.read())
    return [text for text in headers.get_all("Requires-Dist", []) if "extra ==" not in text]


def find_pythons(versions: list[str], paths: list[Path]) -> dict[str, Path]:
    """Return an interpreter for each required Python version.

    Interpreters come from the caller, from the PATH, or from pyenv.

    Raises:
        sysroot.Missing: If a version has no interpreter, or a given interpreter does not run.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for path in paths:
        if (actual := _python_version(path)) is None:
            raise sysroot.Missing(f"--python {path} does not run; it takes interpreters of CPython")
        found[actual] = path
    for version in versions:
        on_path = shutil.which(f"python{version}")
        candidates = [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
        found.setdefault(version, next((path for path in candidates if _python_version(path) == version), Path()))
        if found[version] == Path():
            raise sysroot.Missing(
                f"there is no Python {version}, for which a wheel is to be built: --python PATH names one"
            )
    return found


def _python_version(path: Path) -> str | None:
    program = (
        "import sys; print(f'{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}')"
    )
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return done.stdout.strip().removeprefix("cpython ") or None


def run(command: list[str | Path], **options: object) -> None:
    """Run a program, show its output, and raise an error if the program fails.

    Raises:
        BuildFailed: If it fails or times out.
    """
    argv = list(map(str, command))
    try:
        subprocess.run(argv, check=True, timeout=DEADLINE, **options)  # type: ignore[call-overload]
    except subprocess.SubprocessError as error:
        raise BuildFailed(str(error)) from error


def checkout(place: Path) -> Path:
    """Copy the files tracked by git, including uncommitted changes, to a folder, and return the folder.

    The checkout itself can contain virtual environments and keys, and can change during the build.
    """
    shutil.rmtree(place, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    for name in filter(None, listed.stdout.split("\0")):
        # Skip missing files, because git also lists files whose deletion is not committed yet.
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place


def empty(folder: Path) -> None:
    """Create a folder, or empty it if it contains only files of an earlier build.

    Raises:
        BuildFailed: If the folder contains other files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    extra = sorted(path.name for path in folder.iterdir() if not path.name.startswith("horovod-"))
    if extra:
        raise BuildFailed(f"--out {folder} has {extra[0]!r} in it; it takes a folder for releases alone")
    for path in folder.iterdir():
        path.unlink()


def sdist(sources: Path, out: Path) -> Path:
    """Build the sdist from the sources in a folder that `checkout` has created, and return its path."""
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, sources])
    return out / f"horovod-{version()}.tar.gz"


def unpacked(archive: Path, place: Path) -> Path:
    """Unpack the sdist and return the folder.

    Wheels are built from this folder, so that they match the sdist.
    """
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    (source,) = place.iterdir()
    return source


def environment(python: Path, place: Path) -> Path:
    """Create a virtual environment with the build tools pinned in requirements.txt.

    Returns:
        Path of the environment's Python interpreter.
    """
    requirements = ROOT / "tools/wheels/requirements.txt"
    stamp = place / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        shutil.rmtree(place, ignore_errors=True)
        run([python, "-m", "venv", "--without-pip", place])
        pip = [sys.executable, "-m", "pip", "--python", place / "bin/python"]
        pinned = [line for line in requirements.read_text().splitlines() if line.partition("==")[0] in TOOLS]
        run([*pip, "install", "-qq", "--only-binary=:all:", *pinned])
        shutil.copy(requirements, stamp)
    return place / "bin/python"


def wheel(
    planned: Wanted, arch: sysroot.Arch, python: Path, source: Path, toolchain: Path, place: Path, out: Path
) -> Path:
    """Build one wheel and return its path.

    Args:
        wanted: The wheel to build.
        arch: CPU architecture.
        python: Python of the environment that builds it.
        source: The unpacked sdist.
        toolchain: Toolchain file for CMake.
        place: Build folder for CMake. All wheels of an architecture share it, so that only the extension is compiled
            for each Python.
        to: Folder for the wheel.
    """
    here = place.parent / "wheel"
    shutil.rmtree(here, ignore_errors=True)
    command = [
        python,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        here,
        f"--config-setting=build-dir={place}",
    ]
    run([*command, source], env=_settings(planned, arch, toolchain))
    (built,) = here.glob("*.whl")
    run([sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform_tag(arch.name), built])
    return Path(shutil.copy(here / planned.file_name(version(), arch.name), out))


def _settings(planned: Wanted, arch: sysroot.Arch, toolchain: Path) -> dict[str, str]:
    """Return the environment for a build, without the user's variables that would affect how libraries are built."""
    flags = ("CFLAGS", "CXXFLAGS", "LDFLAGS", "CPPFLAGS", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in flags}
    # Add the folder that contains cmake and ninja to the path.
    tools = Path(sys.executable).parent
    return kept | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "SETUPTOOLS_EXT_SUFFIX": planned.suffix(arch.name),
        "_PYTHON_HOST_PLATFORM": f"linux-{arch.name}",
        "LC_ALL": "C.UTF-8",
    }


def wheels(arch: sysroot.Arch, pythons: dict[str, Path], archive: Path, work: Path, out: Path) -> list[Path]:
    """Build all wheels for a CPU architecture from scratch and return their paths.

    Args:
        arch: CPU architecture.
        pythons: Interpreter for each version in WANTED.
        archive: The sdist.
        work: Folder for intermediate files.
        to: Folder for the wheels.
    """
    place = work / arch.name
    source = unpacked(archive, place / "source")
    toolchain = sysroot.make(arch, work / "sysroot" / arch.name, work)
    shutil.rmtree(place / "cmake", ignore_errors=True)
    built = []
    for planned in WANTED:
        python = environment(pythons[planned.python], work / f"python{planned.python}")
        built.append(wheel(planned, arch, python, source, toolchain, place / "cmake", out))
    return built
