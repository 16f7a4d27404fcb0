"""Lightning's cluster environment for the ranks of a Horovod job."""

from typing import Any

import horovod.torch as hvd


def make_environment(pl: Any) -> Any:
    """Return a cluster environment for Lightning, whose module is ``pl``.

    Given an environment, Lightning does not search for those of other launchers.
    """
    from importlib import import_module

    base = import_module(f"{pl.__name__}.plugins.environments").ClusterEnvironment

    class HorovodEnvironment(base):  # type: ignore[misc, valid-type]
        """Environment of ranks that are already running and need no address to find each other."""

        @property
        def creates_processes_externally(self) -> bool:
            return True

        @property
        def main_address(self) -> str:
            raise RuntimeError("HorovodStrategy has no main address, because it does not use torch.distributed")

        @property
        def main_port(self) -> int:
            raise RuntimeError("HorovodStrategy has no main port, because it does not use torch.distributed")

        @staticmethod
        def detect() -> bool:
            return False

        def world_size(self) -> int:
            return hvd.size()

        def set_world_size(self, size: int) -> None:
            pass

        def global_rank(self) -> int:
            return hvd.rank()

        def set_global_rank(self, rank: int) -> None:
            pass

        def local_rank(self) -> int:
            return hvd.local_rank()

        def node_rank(self) -> int:
            return hvd.cross_rank()

    return HorovodEnvironment()
