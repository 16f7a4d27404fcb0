"""Where calls stand in a program that is being made: an order in which no rank waits for another for ever.

XLA on the CPU runs a program's foreign calls one after another, in an order of its own, and each of ours blocks until
the other ranks have made theirs. Programs are the same on all ranks but for the order in which they were written, or
in which their compilers put what is independent. So calls are placed by what they depend on, which is the same
everywhere, and by nothing else:

- Calls of a block that have equally many calls before them that they depend on are one call, with all of their arrays.
- A loop or a branch that contains calls comes after all calls of its block that do not depend on it; of several, one
  after the other as they were written.

docs/adr/0028-jax-order.md tells why that is enough, and what it leaves.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jaxlib.mlir import ir

from horovod._jax.library import TARGET

PASS_ON = -1
"""A kind: the array is the result, nothing is sent. As in bindings/jax/call.h."""

Key = tuple[int, int]
"""Behind how many loops and branches of its block, and behind how many calls since the last of those."""


@dataclass
class _Placed:
    """A call of a block."""

    op: Any
    operands: list[Any]
    names: list[str]
    groups: list[str]
    numbers: list[tuple[int, ...]]
    scales: list[tuple[float, float]]
    aliased: list[bool]
    tokens: list[Any]
    """What it has to come after besides: any values, which it does not read."""

    @property
    def token(self) -> Any:
        """For those that have to come after it."""
        return self.op.results[len(self.operands)]


@dataclass
class _Inner:
    """An operation with calls somewhere in it: a loop, a branch, or the use of a function."""

    op: Any
    gate: _Placed | None = None
    """Hands its last operand on, after the calls that come before it."""

    @property
    def first(self) -> Any:
        return self.op if self.gate is None else self.gate.op


@dataclass
class _Block:
    """What is known of a block of operations: of a function, or within a loop or branch."""

    calls: dict[Key, _Placed] = field(default_factory=dict)
    inner: list[_Inner] = field(default_factory=list)  # in order
    known: dict[Any, Key] = field(default_factory=dict)  # of operations, which go by their first results
    seen: list[Any] = field(default_factory=list)  # operations that were looked into


def place(
    context: Any,
    operands: Sequence[Any],
    names: Sequence[str],
    groups: Sequence[str],
    numbers: Sequence[tuple[int, ...]],
    scales: Sequence[tuple[float, float]],
    aliased: bool,
) -> list[Any]:
    """The results, in a program being made, of a call with these arrays (values of MLIR), in a place that suits all
    ranks. For each array the other arguments have what call.cc reads; ``aliased``: may results be in their place?"""
    # A table of JAX's that lives as long as the program is being made, and whose other keys are JAX's own.
    blocks = context.module_context.cached_primitive_lowerings.setdefault("horovod", {})
    here = ir.InsertionPoint.current.block
    block = blocks.setdefault(here, _Block())
    types = [
        ir.RankedTensorType.get(aval.shape, ir.RankedTensorType(value.type).element_type)
        for aval, value in zip(context.avals_out, operands, strict=True)
    ]
    # An argument that the caller keeps would be copied first; into another array the call writes at the same price.
    places = [aliased and not (isinstance(value.owner, ir.Block) and _is_function(here)) for value in operands]
    new = _Placed(None, list(operands), list(names), list(groups), list(numbers), list(scales), places, [])
    _look(block, here, context.module_context.module)
    key = _next(max((_key(block, here, value) for value in operands), default=(0, 0)))
    while key in block.calls and set(filter(None, names)) & set(block.calls[key].names):
        key = _next(key)  # an operation cannot begin before another of its name has ended
    if key in block.calls:
        _hoist(here, operands, block.calls[key].op)
        results = _grow(block, block.calls[key], new, types)
    else:
        results = _insert(block, here, key, new, types)
    for outer, op in list(_unfinished(context.module_context.module)):
        if outer != here:
            _enclose(blocks.setdefault(outer, _Block()), outer, op, context.module_context.module)
    return results


def _is_function(block: Any) -> bool:
    return str(block.owner.operation.name) == "func.func"


def _next(key: Key) -> Key:
    return key[0], key[1] + 1


def _insert(block: _Block, here: Any, key: Key, new: _Placed, types: Sequence[Any]) -> list[Any]:
    """A call where there was none of this key."""
    before = block.calls.get((key[0], key[1] - 1))
    if before is not None:
        new.tokens.append(before.token)
    following = block.inner[key[0]] if key[0] < len(block.inner) else None
    if following is not None:
        _hoist(here, [*new.operands, *new.tokens], following.first)
    with ir.InsertionPoint(here) if following is None else ir.InsertionPoint(following.first):
        new.op = _make(new, types)
        results = [_handle(result) for result in list(new.op.results)[: len(types)]]
    block.calls[key] = new
    block.known[new.op.results[0]] = key
    if following is not None:
        _hold(block, following, [new.token])
    return results


def _look(block: _Block, here: Any, module: Any) -> None:
    """Finds what has come since: loops, branches and used functions that are complete, and have calls in them."""
    for one in here.operations:
        op = one.operation
        if op not in block.seen and (op.name == "func.call" or len(op.regions)):
            block.seen.append(op)
            if _has_calls(op, module):
                _add_inner(block, op)


def _enclose(block: _Block, here: Any, op: Any, module: Any) -> None:
    """A loop or branch of the block that is being made has a call in it."""
    if op in (inner.op for inner in block.inner):
        return
    block.seen.append(op)
    _look(block, here, module)
    _add_inner(block, op)


def _add_inner(block: _Block, op: Any) -> None:
    inner = _Inner(op)
    last = max(block.calls, default=None)
    tokens = [block.calls[last].token] if last is not None else []
    if block.inner and (last is None or last[0] < len(block.inner)) and len(block.inner[-1].op.results):
        tokens.append(block.inner[-1].op.results[0])
    block.inner.append(inner)
    if len(op.results):
        block.known[op.results[0]] = len(block.inner), 0
    if tokens:
        _hold(block, inner, tokens)


def _hold(block: _Block, inner: _Inner, tokens: list[Any]) -> None:
    """Lets it begin after ``tokens`` only."""
    if inner.gate is not None:
        _grow(block, inner.gate, _Placed(None, [], [], [], [], [], [], tokens), [])
    elif count := len(inner.op.operands):
        value = inner.op.operands[count - 1]  # of a loop what is carried, and not its counter
        inner.gate = _Placed(None, [value], [""], [""], [(PASS_ON, 0, 0, 0, 0, 0)], [(1.0, 1.0)], [True], tokens)
        with ir.InsertionPoint(inner.op):
            inner.gate.op = _make(inner.gate, [value.type])
        inner.op.operands[count - 1] = inner.gate.op.results[0]


def _has_calls(op: Any, module: Any) -> bool:
    if op.name == "stablehlo.custom_call":
        return ir.StringAttr(op.attributes["call_target_name"]).value == TARGET
    if op.name == "func.call":
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        functions = (one.operation for one in module.body.operations)
        return any(
            _has_calls(one, module) for one in functions if ir.StringAttr(one.attributes["sym_name"]).value == callee
        )
    return any(
        _has_calls(one.operation, module)
        for region in op.regions
        for block in region.blocks
        for one in block.operations
    )


def _unfinished(module: Any) -> Iterator[tuple[Any, Any]]:
    """The loops and branches that are being made, with their blocks: all are around the place where we are."""
    for function in module.body.operations:
        block = _open_block(function.operation)
        while block is not None and len(block.operations):
            op = block.operations[len(block.operations) - 1].operation
            inside = _open_block(op)
            if inside is not None:
                yield block, op
            block = inside


def _open_block(op: Any) -> Any:
    for region in op.regions:
        for block in region.blocks:
            count = len(block.operations)
            if count == 0 or not block.operations[count - 1].operation.name.endswith("return"):
                return block
    return None


def _grow(block: _Block, placed: _Placed, more: _Placed, types: Sequence[Any]) -> list[Any]:
    """Puts another call's arrays into one that is placed, which becomes another operation. Returns their results."""
    old, count = placed.op, len(placed.operands)
    before = [result.type for result in list(old.results)[:count]]
    values = list(old.operands)  # what was placed knows may have become another operation's since
    placed.operands, placed.tokens = values[:count], values[count:]
    for name in ("operands", "names", "groups", "numbers", "scales", "aliased", "tokens"):
        getattr(placed, name).extend(getattr(more, name))
    with ir.InsertionPoint(old), old.location:
        placed.op = _make(placed, [*before, *types])
        results = [_handle(placed.op.results[count + i]) for i in range(len(types))]
    for i in range(count):
        old.results[i].replace_all_uses_with(placed.op.results[i])
    old.results[count].replace_all_uses_with(placed.token)
    if old.results[0] in block.known:
        block.known[placed.op.results[0]] = block.known.pop(old.results[0])
    old.erase()
    return results


def _key(block: _Block, here: Any, value: Any) -> Key:
    """Behind what of the block a value is: of all that it is made from, the latest."""
    top = _maker(here, value)
    if top is None:
        return 0, 0
    known = block.known
    stack = [top]
    while stack:
        op = stack[-1]
        if op.results[0] in known:
            stack.pop()
            continue
        makers = [maker for used in _used(op) if (maker := _maker(here, used)) is not None]
        missing = [maker for maker in makers if maker.results[0] not in known]
        if missing:
            stack.extend(missing)
            continue
        known[op.results[0]] = max((known[maker.results[0]] for maker in makers), default=(0, 0))
        stack.pop()
    return known[top.results[0]]


def _maker(here: Any, value: Any) -> Any:
    """The operation of the block that a value comes from; None when it comes from outside."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    # A block is all that its region has, and what other regions of the same operation have is out of sight.
    around = owner.operation.parent
    return owner.operation if around is not None and around.operation == here.owner.operation else None


def _used(op: Any) -> Iterator[Any]:
    """The values that an operation uses, also those that the blocks in it do."""
    yield from op.operands
    for region in op.regions:
        for inner in region.blocks:
            for one in inner.operations:
                yield from _used(one.operation)


def _hoist(here: Any, values: Sequence[Any], before: Any) -> None:
    """Moves what ``values`` are made from before an operation of the block, on which none of it depends."""
    later: list[Any] = []
    found = False
    for one in here.operations:
        found = found or one.operation == before
        if found and len(one.operation.results):
            later.append(one.operation)
    behind = {op.results[0] for op in later}
    wanted: set[Any] = set()
    stack = [_maker(here, value) for value in values]
    while stack:
        op = stack.pop()
        if op is not None and op.results[0] in behind and op.results[0] not in wanted:
            wanted.add(op.results[0])
            stack.extend(_maker(here, value) for value in _used(op))
    for op in later:
        if op.results[0] in wanted:
            op.move_before(before)


def _handle(value: Any) -> Any:
    """The value, as the result of an operation that stays when the call becomes another; XLA removes it."""
    return ir.Operation.create("stablehlo.reshape", results=[value.type], operands=[value]).results[0]


def _make(placed: _Placed, types: Sequence[Any]) -> Any:
    """The operation: a foreign call whose last result is a token, which nobody reads."""
    count = len(placed.operands)
    values = [*placed.operands, *placed.tokens]
    i32 = ir.IntegerType.get_signless(32)
    results = [*types, ir.RankedTensorType.get([], i32)]
    numbers = [number for row in placed.numbers for number in row]
    scales = [float(scale) for row in placed.scales for scale in row]
    attributes = {
        "numbers": ir.DenseI32ArrayAttr.get(numbers),
        "scales": ir.DenseF64ArrayAttr.get(scales),
        "names": ir.StringAttr.get("\n".join(placed.names)),
        "groups": ir.StringAttr.get("\n".join(placed.groups)),
        "devices": ir.IntegerAttr.get(i32, jax.local_device_count()),
    }
    alias = (
        "#stablehlo.output_operand_alias<output_tuple_indices = [{0}], operand_index = {0}, operand_tuple_indices = []>"
    )
    aliases = [ir.Attribute.parse(alias.format(i)) for i in range(count) if placed.aliased[i]]
    return ir.Operation.create(
        "stablehlo.custom_call",
        results=results,
        operands=values,
        attributes={
            "call_target_name": ir.StringAttr.get(TARGET),
            # Without it XLA would merge equal calls, leave them out or move them out of loops and branches.
            "has_side_effect": ir.BoolAttr.get(True),
            "backend_config": ir.DictAttr.get(attributes),
            "api_version": ir.IntegerAttr.get(i32, 4),
            "called_computations": ir.ArrayAttr.get([]),
            # In place where XLA has no other use for the array, as for gradients; else it makes the copy.
            "output_operand_aliases": ir.ArrayAttr.get(aliases),
            "operand_layouts": ir.ArrayAttr.get([_row_major(value.type) for value in values]),
            "result_layouts": ir.ArrayAttr.get([_row_major(one) for one in results]),
        },
    )


def _row_major(type_: Any) -> Any:
    dims = ", ".join(map(str, reversed(range(ir.RankedTensorType(type_).rank))))
    count = ir.RankedTensorType(type_).rank
    return ir.Attribute.parse(f"dense<[{dims}]> : tensor<{count}xindex>")
