"""Small helpers, among them names that other software imports from here."""

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")
_cache = functools.cache
"""A decorator: calls with the same arguments are carried out once."""
_answers: dict[str, Any] = {}  # of `_once`


def is_mpi_comm(value: object) -> bool:
    """Is it an mpi4py communicator? Looks at the type only, so that mpi4py, which starts MPI, is not imported."""
    return any(base.__module__.startswith("mpi4py") and base.__name__ == "Comm" for base in type(value).__mro__)


def is_iterable(x: object) -> bool:
    """Can ``iter`` be taken of it?"""
    try:
        iter(x)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def split_list(l: Sequence[_T], n: int) -> list[Sequence[_T]]:  # noqa: E741 - programs give it by this name
    """Cuts ``l`` into ``n`` consecutive parts whose lengths differ by one at most, the longer ones first; empty parts
    too.
    """
    if n < 1:
        raise ValueError(f"n is {n}, accepted is 1 or more")
    quotient, longer = divmod(len(l), n)
    parts = []
    begin = 0
    for i in range(n):
        end = begin + quotient + (i < longer)
        parts.append(l[begin:end])
        begin = end
    return parts


def num_rank_is_power_2(num_rank: int) -> bool:
    """Is it 1, 2, 4, 8, ...?"""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


@contextlib.contextmanager
def env(**values: str | None) -> Iterator[None]:
    """Sets environment variables (None: removes) for the time of the block."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _apply(values)
        yield
    finally:
        _apply(before)


def _apply(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compares ``ver`` ("2.13.0+cpu") with ``target`` ("a.b.c") by their numbers; a pre-release counts as its release.

    Raises ValueError unless ``target`` has exactly three numbers.
    """
    wanted = target.split(".")
    if len(wanted) != 3 or not all(part.isdecimal() for part in wanted):
        raise ValueError(f"target is {target!r}, accepted is 'a.b.c' with three numbers")
    found = []
    for part in ver.split("+")[0].split(".")[:3]:
        digits = ""
        for character in part:
            if not character.isdecimal():
                break
            digits += character
        found.append(int(digits or 0))
    found += [0] * (3 - len(found))
    return found >= [int(part) for part in wanted]


def get_ext_suffix() -> str:
    """File name ending of extension modules of this interpreter."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return suffix if isinstance(suffix, str) else importlib.machinery.EXTENSION_SUFFIXES[0]


_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "mxnet": "mxnet", "keras": "keras", "jax": "jax"}


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Can ``horovod.<ext_base_name>`` be used: is its framework installed (found without importing it)? Nothing is
    compiled for it.
    """
    name = ext_base_name
    found = name in _FRAMEWORKS and importlib.util.find_spec(_FRAMEWORKS[name]) is not None
    found = found and importlib.util.find_spec("horovod." + name) is not None
    if verbose:
        print(f"horovod.{name}: {'available' if found else 'not available'}")
    return found


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError when the face named by the last part of ``ext_name`` cannot be used, naming what to
    install.
    """
    name = ext_name.rsplit(".", 1)[-1]
    if not extension_available(name):
        raise ImportError(f"horovod.{name} needs {_FRAMEWORKS.get(name, name)}, which is not installed")


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Does nothing: one build serves every version of a framework, so there is no version to compare with."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Is this framework installed and built for GPUs, and is there a GPU that this process may use? NVIDIA's management
    library is asked, and CUDA_VISIBLE_DEVICES; CUDA is not started, so that the process may still fork.
    """
    from horovod.common.devices import nvml, versions, visible

    found = extension_available(ext_base_name, verbose) and versions.built_for_gpus(ext_base_name)
    found = found and bool(visible.choices(os.environ, _once("gpus", nvml.survey))[0])
    if verbose:
        print(f"GPUs for horovod.{ext_base_name}: {'available' if found else 'not available'}")
    return found


def mpi_built(verbose: bool = False) -> bool:
    """Is mpi4py importable?"""
    return importlib.util.find_spec("mpi4py") is not None


def gloo_built(verbose: bool = False) -> bool:
    """True: the built-in engine answers for Gloo."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Version code (22205 for 2.22.5) of the NCCL library that ranks here would use, or of AMD's RCCL; 0 without one.

    It is not loaded into this process: a framework that is imported later would get this copy in place of its own.
    """
    from horovod.common.devices import libraries, versions

    return int(_once("nccl", lambda: versions.of_nccl(libraries.nccl(os.environ))))


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """Can CUDA's driver (libcuda.so.1, or HOROVOD_CUDA_LIBRARY) be loaded? There is one build, which looks for it at
    run time. Says nothing about GPUs (see ``gpu_available``), and does not start CUDA.
    """
    from horovod.common.devices import libraries

    return bool(_once("cuda", lambda: not libraries.driver_error(os.environ)))


def rocm_built(verbose: bool = False) -> bool:
    """False."""
    return False


def _once(key: str, function: Callable[[], Any]) -> Any:
    if key not in _answers:
        _answers[key] = function()
    return _answers[key]


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """A function (op, average) -> op that understands the deprecated ``average``; ``reduce_ops`` has Average and
    Sum.
    """
    from horovod.common.ops import resolve_op

    def resolve(op: Any, average: Any) -> Any:
        return resolve_op(op, average)

    return resolve
