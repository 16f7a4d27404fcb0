"""Ranges for NVIDIA's profilers, named like the operations that the engine carries out (docs/gpu.md)."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from horovod.common.contract.settings import Settings
from horovod.common.devices import libraries
from horovod.common.devices.libraries import Missing

if TYPE_CHECKING:
    from horovod._core import Engine

_PROFILER = "NVTX_INJECTION64_PATH"  # set by the profiler that starts the program: NVTX loads its part from there


def begin(engine: "Engine", settings: Settings, environ: Mapping[str, str] = os.environ) -> str:
    """Where a profiler listens and HOROVOD_DISABLE_NVTX_RANGES does not forbid it. Returns what is wrong, or ""."""
    if not environ.get(_PROFILER) or settings.flag("HOROVOD_DISABLE_NVTX_RANGES"):
        return ""
    library = libraries.nvtx(environ)
    if isinstance(library, Missing):
        return f"no ranges for the profiler in {_PROFILER}: {library.reason}"
    try:
        engine.mark_ranges(library.path)
    except OSError as error:
        return f"no ranges for the profiler in {_PROFILER}: {error}"
    return ""
