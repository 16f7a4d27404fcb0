"""Foreign function calls, which represent collectives in a lowered program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxlib.mlir import ir

from horovod._core import KIND_ALLREDUCE, KIND_BARRIER, KIND_BROADCAST

TARGET = "horovod_collective"
"""Name of the foreign function, which bindings/jax implements."""
PASS_ON = -1
"""Kind of a call that only returns its array, as in bindings/jax/call.h. It sends nothing."""
COUNT = -2
"""Kind of a call that returns how many times this rank has executed it, as in bindings/jax/call.h. It sends nothing."""
UNORDERED = "horovod_collective_without_an_order"
"""Target of calls that `ordering.order` has not processed. XLA does not know it, so such a program cannot run."""

# Number of integer codes per array, as in bindings/jax/call.h. The first code is the kind of collective.
_NUMBERS = 6
_IN_PLACE = (KIND_ALLREDUCE, KIND_BROADCAST, KIND_BARRIER, PASS_ON)
_ALIAS = (
    "#stablehlo.output_operand_alias<output_tuple_indices = [{0}], operand_index = {0}, operand_tuple_indices = []>"
)


@dataclass
class Arrays:
    """Arguments, results and labels of a call that processes several arrays. Each list has one entry per array."""

    operands: list[Any]
    types: list[Any]
    """Types of the results."""
    names: list[str]
    groups: list[str]
    numbers: list[tuple[int, ...]]
    scales: list[tuple[float, float]]
    steps: list[str]
    """If not "" and the call is in a branch, ranks compare under this name how many times they have reached it."""


def is_call(op: Any) -> bool:
    """Return True if an MLIR operation is a Horovod call."""
    if op.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value in (TARGET, UNORDERED)


def names_of(op: Any) -> set[str]:
    """Return the names of the collectives in a Horovod call, without empty names."""
    return set(filter(None, _texts(op, "names")))


def steps_of(op: Any) -> set[str]:
    """Return the names of a call's counters, by which ranks compare how often they have reached the call."""
    return set(filter(None, _texts(op, "steps")))


def token_type() -> Any:
    """Return the MLIR type of tokens, the values that order the calls of a program.

    Tokens are plain integers, because XLA treats programs with its own token type differently. A token's value is 0,
    except in a branch, where it is the number of times that this rank has reached the branch (`counted`).
    """
    return ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))


def create(arrays: Arrays, after: Sequence[Any], target: str) -> Any:
    """Create a call of a foreign function at MLIR's current insertion point.

    The call's last result is a token. Later calls take the token as an argument, so that they run after this call.

    Args:
        arrays: Arrays of the call.
        after: Values, such as tokens, that must be computed before the call but are not read by it.
        target: Name of the foreign function: `UNORDERED`, or `TARGET` when called from `ordering`.
    """
    i32 = ir.IntegerType.get_signless(32)
    values = [*arrays.operands, *after]
    results = [*arrays.types, token_type()]
    config = {
        "numbers": ir.DenseI32ArrayAttr.get([number for row in arrays.numbers for number in row]),
        "scales": ir.DenseF64ArrayAttr.get([scale for row in arrays.scales for scale in row]),
        "names": ir.StringAttr.get("\n".join(arrays.names)),
        "groups": ir.StringAttr.get("\n".join(arrays.groups)),
        "steps": ir.StringAttr.get("\n".join(arrays.steps)),
        "devices": ir.IntegerAttr.get(i32, jax.local_device_count()),
    }
    kinds = [row[0] for row in arrays.numbers]
    aliases = [_ALIAS.format(i) for i, value in enumerate(arrays.operands) if _in_place(kinds[i], value)]
    return ir.Operation.create(
        "stablehlo.custom_call",
        results=results,
        operands=values,
        attributes={
            "call_target_name": ir.StringAttr.get(target),
            # Prevent XLA from merging equal calls, dropping calls, or moving them out of loops and branches.
            "has_side_effect": ir.BoolAttr.get(True),
            "backend_config": ir.DictAttr.get(config),
            "api_version": ir.IntegerAttr.get(i32, 4),
            "called_computations": ir.ArrayAttr.get([]),
            # Write each result to its argument's memory. XLA copies the argument first if the program also uses it
            # elsewhere, which is rare for gradients.
            "output_operand_aliases": ir.ArrayAttr.get([ir.Attribute.parse(alias) for alias in aliases]),
            "operand_layouts": ir.ArrayAttr.get([_row_major(value.type) for value in values]),
            "result_layouts": ir.ArrayAttr.get([_row_major(one) for one in results]),
        },
    )


def merge(calls: Sequence[Any], after: Sequence[Any], in_branch: bool) -> Any:
    """Merge several calls into one call at MLIR's current insertion point, and return the merged call.

    Args:
        calls: Calls to replace, which must not depend on each other.
        after: Values that must be computed before the merged call. The first one is the token of the preceding call.
        in_branch: True if the calls are in a branch. Ranks then compare how many times they have reached the branch,
            if a call requests it.
    """
    together = Arrays([], [], [], [], [], [], [])
    for op in calls:
        for mine, more in zip(vars(together).values(), vars(_read(op)).values(), strict=True):
            mine.extend(more)
    together.steps = sorted(filter(None, together.steps))[:1] if in_branch else []
    new = create(together, after, TARGET)
    token, first = new.results[len(together.operands)], 0
    for op in calls:
        count = len(op.results) - 1
        for i in range(count):
            op.results[i].replace_all_uses_with(new.results[first + i])
        op.results[count].replace_all_uses_with(token)
        first += count
    for op in calls:
        op.erase()
    return new


def passed_on(value: Any) -> Any:
    """Create a foreign call that returns `value` unchanged, so that XLA cannot see how the value was computed."""
    return _here(PASS_ON, "", value)


def counted(token: Any, name: str) -> Any:
    """Create a foreign call that counts how often it has run, and return the count as a token for later calls."""
    return _here(COUNT, name, token)


def _here(kind: int, name: str, value: Any) -> Any:
    numbers = (kind, *[0] * (_NUMBERS - 1))
    return create(Arrays([value], [value.type], [name], [""], [numbers], [(1.0, 1.0)], []), [], TARGET).results[0]


def _read(op: Any) -> Arrays:
    """Return the arrays of a call, without its token if the call has one.

    A call that has already been ordered, such as one in an exported program, also has a token as an argument. The
    result leaves out this token.
    """
    config = ir.DictAttr(op.attributes["backend_config"])
    numbers, scales = list(ir.DenseI32ArrayAttr(config["numbers"])), list(ir.DenseF64ArrayAttr(config["scales"]))
    count = len(op.results) - 1
    return Arrays(
        operands=list(op.operands)[:count],
        types=[result.type for result in list(op.results)[:count]],
        names=_texts(op, "names"),
        groups=_texts(op, "groups"),
        numbers=[tuple(numbers[i * _NUMBERS : (i + 1) * _NUMBERS]) for i in range(count)],
        scales=[(scales[2 * i], scales[2 * i + 1]) for i in range(count)],
        steps=_texts(op, "steps"),
    )


def _texts(op: Any, attribute: str) -> list[str]:
    return str(ir.StringAttr(ir.DictAttr(op.attributes["backend_config"])[attribute]).value).split("\n")


def _in_place(kind: int, value: Any) -> bool:
    """Return True if a call should write its result for `value` to the memory of `value`.

    The caller of the enclosing function owns the function's arguments. To overwrite one, XLA would have to copy it
    first, so writing the result into a new array is as fast.
    """
    owner = value.owner
    return kind in _IN_PLACE and not (isinstance(owner, ir.Block) and owner.owner.operation.name == "func.func")


def _row_major(type_: Any) -> Any:
    count = ir.RankedTensorType(type_).rank
    dims = ", ".join(map(str, reversed(range(count))))
    return ir.Attribute.parse(f"dense<[{dims}]> : tensor<{count}xindex>")
