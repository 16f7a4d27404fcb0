"""python -m tools.wheels: builds the sdist and wheels of a release, checks them, and lists their contents."""

import argparse
import filecmp
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tools.wheels import build, check, sbom, sysroot
from tools.wheels.plan import WANTED

COMPILING = ("cmake", "nanobind", "ninja", "scikit-build-core", "ziglang")


def _absolute(text: str) -> Path:
    return Path(text).resolve()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument(
        "--out",
        type=_absolute,
        default=build.ROOT / "dist",
        help="the folder for all of it; what it has of an earlier time goes, and it may have nothing else",
    )
    parser.add_argument("--work", type=_absolute, default=build.ROOT / "build/wheels", help="where it is built")
    parser.add_argument(
        "--arch", nargs="+", choices=sysroot.ARCHES, default=[platform.machine()], help="CPUs; default: this one's"
    )
    parser.add_argument("--python", nargs="*", type=Path, default=[], help="interpreters, where they are not found")
    parser.add_argument(
        "--twice", action="store_true", help="build it all again, in another folder: are the bytes the same?"
    )
    return parser.parse_args()


def _epoch() -> int:
    """Return SOURCE_DATE_EPOCH if it is set, and otherwise the time of the last commit, in seconds since 1970."""
    value = os.environ.get("SOURCE_DATE_EPOCH")
    if value is None:
        command = ["git", "log", "-1", "--format=%ct"]
        value = subprocess.run(command, cwd=build.ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return int(value)


def _all(sources: Path, arches: list[str], pythons: dict[str, Path], work: Path, out: Path) -> list[Path]:
    build.empty(out)
    archive = build.sdist(sources, out)
    wheels = [archive]
    for arch in arches:
        wheels += build.wheels(sysroot.ARCHES[arch], pythons, archive, work, out)
    return wheels


def _differing(wheels: list[Path], again: list[Path]) -> list[str]:
    pairs = zip(wheels, again, strict=True)
    return [
        f"{one.name}: not the same bytes when built again, in {other}"
        for one, other in pairs
        if not filecmp.cmp(one, other, False)
    ]


def _write_sbom(wheels: list[Path], arches: list[str], epoch: int) -> Path:
    tools = {name: metadata.version(name) for name in COMPILING}
    compilers = {f"gcc ({arch})": build.compiler_version(sysroot.ARCHES[arch]) for arch in arches}
    nanobind = Path(metadata.distribution("nanobind").locate_file("nanobind"))  # type: ignore[arg-type]
    parts = sbom.linked(tools["nanobind"], sbom.robin_map_version(nanobind), compilers.values())
    needs = sbom.asked_for(build.requirements(wheels[0]))
    files = {file.name: file.read_bytes() for file in wheels}
    file = wheels[0].parent / f"horovod-{build.version()}.cdx.json"
    file.write_text(sbom.document(build.version(), files, parts, needs, {**tools, **compilers}, epoch))
    return file


def main() -> int:
    arguments = _arguments()
    epoch = _epoch()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    try:
        pythons = build.find_pythons([planned.python for planned in WANTED], arguments.python)
        sources = build.checkout(arguments.work / "checkout")
        wheels = _all(sources, arguments.arch, pythons, arguments.work, arguments.out)
        bad = [f"{wheel.name}: {text}" for wheel in wheels[1:] for text in check.complaints(wheel)]
        if arguments.twice:
            again = arguments.work / "again"
            bad += _differing(wheels, _all(sources, arguments.arch, pythons, again, again / "dist"))
        wheels.append(_write_sbom(wheels, arguments.arch, epoch))
    except (sysroot.Missing, build.BuildFailed) as error:
        print(error, file=sys.stderr)
        return 1
    for file in wheels:
        print(f"{file.stat().st_size:>9,} bytes  {file}")
    print("\n".join(bad) or "wheels are as they should be", file=sys.stderr if bad else sys.stdout)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
