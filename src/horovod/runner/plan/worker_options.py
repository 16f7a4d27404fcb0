"""Options on which agents act, carried from the command line to the agents of every launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from horovod.common.contract.settings import Settings


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How agents start the workers of a job.

    A field named like a setting, such as `gpu_affinity` for HOROVOD_GPU_AFFINITY, gets the setting's value, whether the
    job is started by horovodrun, `horovod.run`, Kubernetes or Spark. Agents receive all fields as part of `StartJob`.
    """

    own_python: bool = False  # True if the command consists of arguments for the agent's own interpreter.
    # True if workers get environment and directory of their agent's parent instead of the launcher's.
    whole_environment: bool = False
    # Patterns of variables that workers do not get from the launcher or from their agent.
    env_deny: list[str] = msgspec.field(name="deny", default_factory=list)
    # Number of GPUs that each worker has alone, from those visible to the agent; 0: every worker sees all GPUs.
    gpus_per_worker: int = 0
    gpu_affinity: bool = False  # True to run each worker on the CPUs near its GPUs.

    def with_settings(self, checked: Settings) -> WorkerOptions:
        """Return a copy with the values of all settings that have a field here."""
        values: dict[str, Any] = {}
        for name in self.__struct_fields__:
            variable = f"HOROVOD_{name.upper()}"
            if variable in checked.values:
                value = checked.values[variable]
                values[name] = patterns(str(value)) if isinstance(getattr(self, name), list) else value
        return msgspec.structs.replace(self, **values)


def patterns(text: str) -> list[str]:
    """Return the patterns of a comma-separated list."""
    return [part for part in text.split(",") if part]
