"""Choice of the PyTorch build to install, based on the facts in `probe.py`.

PyTorch's package on PyPI is built for CUDA and depends on several GB of NVIDIA libraries. The CPU build has the same
version with the local label ``+cpu``, and is on PyTorch's own index.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Choice:
    """The PyTorch build to install, and the reason why it was chosen.

    Attributes:
        arguments: Arguments of ``pip install``.
        reason: One sentence without a final period.
    """

    arguments: tuple[str, ...]
    reason: str

    def line(self) -> str:
        """Return the line to print: which build was chosen, why, and how to choose another build."""
        return f'PyTorch: {" ".join(self.arguments)} ({self.reason}); another build: make ... TORCH="torch==..."'


def cpu_build(version: str, wheels: Iterable[str], tags: frozenset[str]) -> str | None:
    """Return the full version of the CPU build in a list of wheels, such as "2.13.0+cpu".

    Args:
        version: Public version of PyTorch, such as "2.13.0".
        wheels: File names; those of other packages, versions and systems are ignored.
        tags: Tags that this Python accepts, such as "cp311-cp311-manylinux_2_28_x86_64".

    Returns:
        The full version, or None if no wheel fits.
    """
    pattern = re.compile(rf"torch-({re.escape(version)}\+cpu[\w.]*)-([\w.]+)-([\w.]+)-([\w.]+)\.whl")
    for name in wheels:
        if match := pattern.fullmatch(name):
            build, *parts = match.groups()
            pythons, abis, platforms = (part.split(".") for part in parts)
            if any(f"{p}-{a}-{system}" in tags for p in pythons for a in abis for system in platforms):
                return build
    return None


def choose(
    version: str,
    gpu: str | None,
    local: str | None,
    remote: str | None = None,
    missing: str = "",
    index: str = CPU_INDEX,
) -> Choice:
    """Choose the build of PyTorch for a machine.

    Args:
        version: Public version of PyTorch.
        gpu: Evidence of an NVIDIA GPU, such as a device path, or None. It appears in the reason.
        local: Full version of a CPU build in pip's find-links folders, or None.
        remote: Full version of the CPU build on PyTorch's own index, or None.
        missing: Reason why `remote` is None.
        index: URL of PyTorch's own index.
    """
    if gpu:
        return Choice((f"torch=={version}",), f"an NVIDIA GPU: {gpu}")
    if local:
        return Choice((f"torch=={local}",), "no NVIDIA GPU, and pip's find-links has this CPU build")
    if remote:
        arguments = (f"torch=={remote}", "--extra-index-url", index)
        return Choice(arguments, "no NVIDIA GPU, so the CPU build, which is several GB smaller")
    return Choice((f"torch=={version}",), f"no NVIDIA GPU, but no CPU build: {missing}")
