"""The foreign call that stands for collectives in a lowered program: creating it, reading it, merging several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxlib.mlir import ir

from horovod._core import KIND_ALLREDUCE, KIND_BARRIER, KIND_BROADCAST
from horovod._jax.library import TARGET

PASS_ON = -1
"""A kind: the array is the result, nothing is sent. As in bindings/jax/call.h."""
COUNT = -2
"""A kind: the result is how often this rank has come here, nothing is sent. As in bindings/jax/call.h."""
UNORDERED = "horovod_collective_without_an_order"
"""Target of calls that `ordering.order` has not seen. XLA does not know it, so a program with one cannot run."""

_NUMBERS = 6  # of each array, as in bindings/jax/call.h; the first is the kind
_IN_PLACE = (KIND_ALLREDUCE, KIND_BROADCAST, KIND_BARRIER, PASS_ON)
_ALIAS = (
    "#stablehlo.output_operand_alias<output_tuple_indices = [{0}], operand_index = {0}, operand_tuple_indices = []>"
)


@dataclass
class Arrays:
    """Operands, types and labels of the arrays of one call. All lists have one entry for each array."""

    operands: list[Any]
    types: list[Any]
    """Types of the results."""
    names: list[str]
    groups: list[str]
    numbers: list[tuple[int, ...]]
    scales: list[tuple[float, float]]
    steps: list[str]
    """Under which name ranks compare, within a branch, how often they came to it; "": they do not."""


def is_call(op: Any) -> bool:
    """Return True if an operation is a foreign call of ours."""
    if op.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value in (TARGET, UNORDERED)


def names_of(op: Any) -> set[str]:
    """Return the names of a call's operations, except of those that have none."""
    return set(filter(None, _texts(op, "names")))


def steps_of(op: Any) -> set[str]:
    """Return the names under which a call compares steps."""
    return set(filter(None, _texts(op, "steps")))


def token_type() -> Any:
    """Return the type of tokens: plain numbers, because XLA treats programs with tokens of its own differently.

    Their value is 0, and within a branch how often this rank came to it (`counted`).
    """
    return ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))


def create(arrays: Arrays, after: Sequence[Any], target: str) -> Any:
    """Create a call at the insertion point.

    Its last result is a token: a value that exists when the call has returned.

    Args:
        arrays: what it works on.
        after: values that must exist before the call begins and that it does not read, such as tokens.
        target: `UNORDERED`, or TARGET for `ordering`.
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
            # Without it XLA would merge equal calls, leave them out or move them out of loops and branches.
            "has_side_effect": ir.BoolAttr.get(True),
            "backend_config": ir.DictAttr.get(config),
            "api_version": ir.IntegerAttr.get(i32, 4),
            "called_computations": ir.ArrayAttr.get([]),
            # In place where XLA has no other use for the array, as for gradients; else XLA makes the copy.
            "output_operand_aliases": ir.ArrayAttr.get([ir.Attribute.parse(alias) for alias in aliases]),
            "operand_layouts": ir.ArrayAttr.get([_row_major(value.type) for value in values]),
            "result_layouts": ir.ArrayAttr.get([_row_major(one) for one in results]),
        },
    )


def merge(calls: Sequence[Any], after: Sequence[Any], in_branch: bool) -> Any:
    """Replace calls by one with all of their arrays, created at the insertion point, and return it.

    Args:
        calls: operations of which none depends on another.
        after: as in `create`; the first one is the token of what comes before.
        in_branch: True if steps are to be compared, where the calls ask for it.
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
    """Create a call that sends nothing, and return its result: `value`, of which XLA knows nothing any more."""
    return _here(PASS_ON, "", value)


def counted(token: Any, name: str) -> Any:
    """Create a call that sends nothing, and return a token that says how often this rank came here."""
    return _here(COUNT, name, token)


def _here(kind: int, name: str, value: Any) -> Any:
    numbers = (kind, *[0] * (_NUMBERS - 1))
    return create(Arrays([value], [value.type], [name], [""], [numbers], [(1.0, 1.0)], []), [], TARGET).results[0]


def _read(op: Any) -> Arrays:
    """Return what a call works on, without the token of one that was ordered before, as in an exported program."""
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
    """Return True if a result may have its argument's memory.

    A function's argument may be the caller's, who keeps it: XLA would copy it first, while the call writes into another
    array at the same price.
    """
    owner = value.owner
    return kind in _IN_PLACE and not (isinstance(owner, ir.Block) and owner.owner.operation.name == "func.func")


def _row_major(type_: Any) -> Any:
    count = ir.RankedTensorType(type_).rank
    dims = ", ".join(map(str, reversed(range(count))))
    return ir.Attribute.parse(f"dense<[{dims}]> : tensor<{count}xindex>")
