"""Names of grouped operations that Python submits."""

from horovod.common.faces import Face
from horovod.common.ops import group_names


def names(face: Face, operation: str, name: str | None, count: int, process_set: int) -> tuple[str, list[str]]:
    """(group's name, names of its members): ``grouped_allreduce.x`` and ``grouped_allreduce.x_1of2``, ...

    Without ``name`` the members go without one too, so the engine sees that every step has the same operations.
    ``operation``: ``grouped_allreduce``, ``grouped_allgather`` or ``grouped_reducescatter``. ``process_set``: its id.
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
