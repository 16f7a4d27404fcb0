"""Checks of built wheels: their files, their size, and the system libraries that they require."""

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from elftools.elf.constants import P_FLAGS
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from tools.wheels.plan import WANTED, contents_complaints, library_complaints, platform_tag
from tools.wheels.sysroot import ARCHES

DEADLINE = 300  # s


def undefined(library: bytes) -> list[tuple[str, str | None, bool]]:
    """Return the undefined symbols of an ELF file as (name, version, weak) tuples, where ``weak`` is a bool."""
    elf = ELFFile(io.BytesIO(library))
    needed: dict[int, str] = {}
    versions = None
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, of_file in section.iter_versions():
                needed.update({aux["vna_other"]: aux.name for aux in of_file})
        elif isinstance(section, GNUVerSymSection):
            versions = section
    symbols = elf.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    found: list[tuple[str, str | None, bool]] = []
    for index, symbol in enumerate(symbols.iter_symbols()):
        if symbol.name and symbol["st_shndx"] == "SHN_UNDEF":
            number = versions.get_symbol(index)["ndx"] if versions is not None else None
            version = needed.get(number) if isinstance(number, int) else None
            found.append((symbol.name, version, symbol["st_info"]["bind"] == "STB_WEAK"))
    return found


def defined(library: bytes) -> list[str]:
    """Return the names of the symbols that an ELF file exports."""
    symbols = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    return [symbol.name for symbol in symbols.iter_symbols() if symbol.name and symbol["st_shndx"] != "SHN_UNDEF"]


def libraries_needed(library: bytes) -> list[str]:
    """Return the names of the libraries that an ELF file needs."""
    section = ELFFile(io.BytesIO(library)).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]


def has_executable_stack(library: bytes) -> bool:
    """Return True if an ELF file requires an executable stack.

    glibc 2.41 and later do not load such a library.
    """
    stacks = [part for part in ELFFile(io.BytesIO(library)).iter_segments() if part["p_type"] == "PT_GNU_STACK"]
    # An ELF file without a PT_GNU_STACK segment requires an executable stack.
    return not stacks or any(part["p_flags"] & P_FLAGS.PF_X for part in stacks)


def _output(*argv: str | Path) -> tuple[int, str]:
    command = [sys.executable, "-m", *map(str, argv)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout


def complaints(wheel: Path) -> list[str]:
    """Return one message per defect of a wheel. The list is empty if the wheel is fit for release.

    Raises:
        ValueError: If the file does not have the name of one of this project's wheels.
    """
    version = wheel.name.removeprefix("horovod-").partition("-")[0]
    arch = next((name for name in ARCHES if wheel.stem.endswith(f"_{name}")), "x86_64")
    planned = next((each for each in WANTED if each.file_name(version, arch) == wheel.name), None)
    if planned is None:
        names = ", ".join(each.file_name(version, "x86_64") for each in WANTED)
        raise ValueError(f"{wheel.name} is none of {names} or the like for another CPU")
    with zipfile.ZipFile(wheel) as packed:
        bad = contents_complaints(packed.namelist(), planned.extension(arch), wheel.stat().st_size)
        for name in packed.namelist():
            if name.endswith(".so"):
                library = packed.read(name)
                bad += library_complaints(name, undefined(library), defined(library), libraries_needed(library))
                if has_executable_stack(library):
                    bad.append(f"{name}: asks for an executable stack, with which glibc 2.41 and later do not load it")
    _, output = _output("auditwheel", "show", wheel)
    consistent = re.search(r"platform\s+tag:\s*\"([\w.]+)\"", " ".join(output.split()))
    if consistent is None or platform_tag(arch) not in _and_later(consistent[1]):
        bad.append(f"auditwheel: {' '.join(output.split())}")
    if planned.tag.endswith("-abi3"):
        done, output = _output("abi3audit", "--strict", "--report", wheel)
        bad += [f"abi3audit: {output}"] if done else []
    return bad


def _and_later(tag: str) -> list[str]:
    """Return the platform tags of systems that accept a wheel: its own tag, and those of all later glibc versions."""
    known = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", tag)
    return [f"manylinux_2_{minor}_{known[2]}" for minor in range(int(known[1]), 100)] if known else [tag]
