"""Names of grouped operations that are submitted from Python."""

from horovod.common.faces import Face
from horovod.common.ops import group_names


def names(face: Face, operation: str, name: str | None, count: int, process_set: int) -> tuple[str, list[str]]:
    """Return the group's name and its members' names: ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ...

    Without ``name``, the members are unnamed too, so that the engine sees the same operations in every step.

    Args:
        face: Frontend that submits the operations.
        operation: ``grouped_allreduce``, ``grouped_allgather`` or ``grouped_reducescatter``.
        name: Name given by the user, or None.
        count: Number of members.
        process_set: Id of the process set.
    """
    if name:
        return group_names(operation, name, count)
    from horovod import _core

    kinds = {
        "grouped_allreduce": _core.KIND_ALLREDUCE,
        "grouped_allgather": _core.KIND_ALLGATHER,
        "grouped_reducescatter": _core.KIND_REDUCESCATTER,
    }
    return face.require_engine().name_group(kinds[operation], process_set, face.number), [""] * count
