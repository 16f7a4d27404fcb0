"""An older glibc to compile and link against with the system's own GCC: headers, stub libraries, a toolchain file.

The headers and stubs are those of Zig's (the package ziglang), which has every version of glibc as data; its compiler
makes the stubs and compiles nothing of ours: Clang's libc++ would not fit `bindings/tensorflow/done.cc`, which needs
the std::function of libstdc++. That library is linked statically, so a wheel asks for nothing of the system but glibc
and libgcc_s.
"""

import hashlib
import importlib.util
import platform
import posixpath
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

GLIBC = (2, 28)
HERE = Path(__file__).resolve().parent
NEWER = "newer_glibc.c"
DEADLINE = 600  # s for the compiler that makes the stubs, on a slow machine

LIBRARIES = {"libc": "6", "libm": "6", "libpthread": "0", "libdl": "2", "librt": "1"}

NEWER_IN_LIBSTDCXX = (
    "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",  # 2.30
    "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK",  # 2.30
)
"""What libstdc++'s headers use of glibc if the compiler was built with it, and the version that brought it."""

SHADOWS = {
    "bits/c++config.h": "#include_next <bits/c++config.h>\n"
    + "".join(f"#undef {name}\n" for name in NEWER_IN_LIBSTDCXX),
    # libnewer.a has this one: without it a wait for the steady clock would go by the clock that can be set.
    "pthread.h": """#include_next <pthread.h>
#pragma once
extern "C" int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
""",
    # Zig's says by an error that glibc 2.28 has no such header; libstdc++ asks whether there is the file.
    "sys/single_threaded.h": """#pragma once
extern "C" char __libc_single_threaded;  // libnewer.a has it
""",
}
"""Headers that come before libstdc++'s and glibc's: which, and what is in them."""


@dataclass(frozen=True)
class Arch:
    """A CPU, as the tools call it."""

    name: str
    """As in the tags of wheels, and in CMake."""
    headers: str
    """Folder of its Linux headers in Zig's."""
    loader: str
    """Soname of the dynamic loader."""

    def tool(self, name: str) -> str:
        """GCC's or binutils' program of that name; on another machine the cross compiler's."""
        return name if self.name == platform.machine() else f"{self.name}-linux-gnu-{name}"


ARCHES = {
    "x86_64": Arch("x86_64", "x86", "ld-linux-x86-64.so.2"),
    "aarch64": Arch("aarch64", "aarch64", "ld-linux-aarch64.so.1"),
}


class Missing(RuntimeError):
    """A tool is not there; says what to install."""


def include_folders(search_list: str) -> list[str]:
    """The folders of C++'s and the compiler's own headers in what ``g++ -E -v`` writes to stderr, in their order; the
    system's are left out.
    """
    lines = iter(search_list.splitlines())
    for line in lines:
        if line.startswith("#include <...>"):
            break
    found = []
    for line in lines:
        if line.startswith("End of search list"):
            break
        folder = posixpath.normpath(
            line.strip()
        )  # Debian's cross compilers write lib/gcc-cross/.../../../../TARGET/include
        if "/c++/" in folder or "/lib/gcc" in folder:
            found.append(folder)
    return found


def toolchain(arch: Arch, root: Path, folders: list[str], top: Path) -> str:
    """The text of CMake's toolchain file.

    :param root: the sysroot, which has ``include`` (what goes before the compiler's headers) and ``lib``.
    :param folders: of headers, in the order in which they are searched.
    :param top: what is to be left out of names of files in the libraries: they are the same wherever they are built.
    """
    includes = ["-nostdinc", *(f"-isystem {folder}" for folder in [str(root / "include"), *folders])]
    compiling = [*includes, f"-D__GLIBC_MINOR__={GLIBC[1]}", f"-ffile-prefix-map={top}=."]
    # libgcc_s stays the system's, for one unwinder in the process; and a static one would ask for glibc 2.35.
    linking = [
        f"-B{root / 'lib'}",
        f"-L{root / 'lib'}",
        f"-Wl,--version-script={root / 'hidden.map'}",
        "-static-libstdc++",
        "-Wl,--exclude-libs,ALL",
        "-Wl,--build-id=sha1,--strip-debug",  # Zig's objects name folders, and that would count
        "-Wl,-z,noexecstack",  # Zig's objects do not say so, and glibc 2.41 does not load what may want such a stack
    ]
    lines = [
        f"set(CMAKE_CXX_COMPILER {arch.tool('g++')})",
        f'set(CMAKE_CXX_FLAGS_INIT "{" ".join(compiling)}")',
        *(f'set(CMAKE_{kind}_LINKER_FLAGS_INIT "{" ".join(linking)}")' for kind in ("EXE", "SHARED", "MODULE")),
    ]
    if arch.name != platform.machine():
        lines = ["set(CMAKE_SYSTEM_NAME Linux)", f"set(CMAKE_SYSTEM_PROCESSOR {arch.name})", *lines]
    return "\n".join(lines) + "\n"


def make(arch: Arch, root: Path, top: Path) -> Path:
    """Makes the sysroot of a CPU in a folder, unless it is there as these tools would make it.

    :param top: see `toolchain`.
    :returns: the toolchain file in it.
    :raises Missing: there is no compiler for it, or no Zig.
    """
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise Missing("ziglang is not installed: pip install -r tools/wheels/requirements.txt")
    if shutil.which(arch.tool("g++")) is None:
        raise Missing(f"there is no {arch.tool('g++')}: apt-get install g++-{arch.name.replace('_', '-')}-linux-gnu")
    zig = Path(package.origin).parent
    headers = [
        zig / "lib/libc/include" / name
        for name in (f"{arch.headers}-linux-gnu", "generic-glibc", f"{arch.headers}-linux-any", "any-linux-any")
    ]
    searched = subprocess.run(
        [arch.tool("g++"), "-E", "-v", "-x", "c++", "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    folders = [*include_folders(searched.stderr), *map(str, headers)]
    made_with = f"{version('ziglang')} {searched.stderr} {Path(__file__).read_text()} {(HERE / NEWER).read_text()}"
    stamp, digest = root / "stamp", hashlib.sha256(made_with.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(root, ignore_errors=True)
        (root / "lib").mkdir(parents=True)
        _stubs(arch, zig / "zig", root)
        _shadow(root)
        # Templates of the C++ library's that are instantiated in our own objects are nobody else's business either.
        (root / "hidden.map").write_text("{ local: _Z*; };\n")
        _add_newer(arch, root, folders)
        stamp.write_text(digest)
    file = root / "toolchain.cmake"
    file.write_text(toolchain(arch, root, folders, top))
    return file


def _stubs(arch: Arch, zig: Path, root: Path) -> None:
    """Lets Zig link a program with glibc, and takes the libraries that it has made for that."""
    cache = root / "zig"
    (root / "empty.c").write_text("int main(void) { return 0; }\n")
    target = f"{arch.name}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    command = [
        zig,
        "build-exe",
        root / "empty.c",
        "-lc",
        "-target",
        target,
        "-fno-compiler-rt",
        "-fno-ubsan-rt",
        f"-femit-bin={root / 'empty'}",
    ]
    environment = {
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(cache),
        "HOME": str(root),
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run(list(map(str, command)), check=True, timeout=DEADLINE, env=environment)

    def made(name: str) -> Path:
        (found,) = cache.glob(f"o/*/{name}")
        return found

    lib = root / "lib"
    for name, number in LIBRARIES.items():
        shutil.copy(made(f"{name}.so.{number}"), lib)
        if name != "libc":
            (lib / f"{name}.so").symlink_to(f"{name}.so.{number}")
    shutil.copy(made("libld.so.2"), lib / arch.loader)
    shutil.copy(made("libc_nonshared.a"), lib)
    shutil.copy(made("crt1.o"), lib)
    shutil.copy(lib / "crt1.o", lib / "Scrt1.o")
    # Everything of ours is in .init_array, so there is no function _init that these would begin and end.
    for name in ("crti.o", "crtn.o"):
        _compile(arch, ["-x", "assembler", "/dev/null"], lib / name)
    found = f"libdl.so.2 libpthread.so.0 {arch.loader}"
    (lib / "libc.so").write_text(f"GROUP ( libc.so.6 libc_nonshared.a libnewer.a AS_NEEDED ( {found} ) )\n")
    shutil.rmtree(cache)


def _shadow(root: Path) -> None:
    for name, text in SHADOWS.items():
        file = root / "include" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _add_newer(arch: Arch, root: Path, folders: list[str]) -> None:
    flags = ["-nostdinc", *(f"-isystem{folder}" for folder in folders if "/c++/" not in folder)]
    _compile(arch, ["-O2", "-fPIC", *flags, f"-D__GLIBC_MINOR__={GLIBC[1]}", str(HERE / NEWER)], root / "newer.o")
    command = [arch.tool("ar"), "rcsD", str(root / "lib/libnewer.a"), str(root / "newer.o")]
    subprocess.run(command, check=True, timeout=DEADLINE)


def _compile(arch: Arch, words: list[str], to: Path) -> None:
    command = [arch.tool("gcc"), "-c", *words, "-o", str(to)]
    try:
        subprocess.run(command, check=True, timeout=DEADLINE)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{shlex.join(command)} failed with exit code {error.returncode}") from error
