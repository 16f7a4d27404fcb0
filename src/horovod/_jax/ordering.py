"""Ordering of a program's collectives, to prevent deadlocks between ranks.

On the CPU, XLA runs a program's foreign calls one after another in an order of its choice. Each Horovod call blocks
until the other ranks have reached the same call. All ranks have the same program, except that independent calls may be
written in a different order. So the order is derived from the dependencies between calls, which are equal on all ranks:

- Calls of a block that depend on the same number of preceding calls are merged to one call with all their arrays.
- A loop, branch or function that contains calls runs after all calls of its block that do not depend on it. Several
  loops, branches and functions keep the order in which they were written.

Every call, loop, branch and function takes a token from its predecessor and passes one to its successor. Loops carry
the token through their iterations; branches and functions return it. Tokens are always results of foreign calls, which
XLA cannot analyze.

`order` processes the complete program, so the order in which JAX lowers its parts does not matter.
docs/adr/0028-jax-order.md explains why this is sufficient, and what it does not cover.
"""

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

from horovod._jax import foreign

_BRANCHES = ("stablehlo.case", "stablehlo.if")

_Key = tuple[int, int]
"""Sort key of a call: number of preceding loops, branches and functions, and number of calls since the last of them."""


def order(module: Any) -> None:
    """Order all Horovod calls in a complete MLIR module, modifying the module.

    Raises:
        NotImplementedError: If the program is spread over several devices, or if a call is inside an operation other
            than a loop, branch or function.
    """
    devices = _devices(module)
    if devices > 1:
        raise NotImplementedError(
            f"a program with collectives must use one device, got {devices} (a sharded argument, shard_map or pmap); "
            "each process is one rank with one device: put the arguments on one device, or start a process per device"
        )
    with module.context, ir.Location.unknown():
        _Program(module).order()


class _Program:
    """All functions of an MLIR module. The method ``order`` orders the Horovod calls in them."""

    def __init__(self, module: Any) -> None:
        operations = [one.operation for one in module.body.operations]
        self._functions = {_symbol(op, "sym_name"): op for op in operations if op.name == "func.func"}
        self._with_calls: dict[str, bool] = {}
        found = [op for function in self._functions.values() for op in _walk(function, "func.call", *_BRANCHES)]
        self._called = {_symbol(op, "callee") for op in found if op.name == "func.call"}
        self._in_branches = self._called_in([op for op in found if op.name != "func.call"])

    def order(self) -> None:
        for name, function in self._functions.items():
            if self._contains_calls(function):
                block = _block(function)
                token = self._take_token(function) if name in self._called else None
                token = self._thread(block, token, name in self._in_branches)
                if name in self._called:
                    _end_with(block, token)

    def _called_in(self, branches: list[Any]) -> set[str]:
        """Return the names of functions called within branches, directly or indirectly."""
        found: set[str] = set()
        stack = [_symbol(op, "callee") for branch in branches for op in _walk(branch, "func.call")]
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack.extend(_symbol(op, "callee") for op in _walk(self._functions[name], "func.call"))
        return found

    def _steps(self, op: Any) -> set[str]:
        """Return the counter names (``foreign.steps_of``) of all calls that are nested in an operation."""
        names: set[str] = set()
        for call in _walk(op, "stablehlo.custom_call"):
            names |= foreign.steps_of(call) if foreign.is_call(call) else set()
        for call in _walk(op, "func.call"):
            names |= self._steps(self._functions[_symbol(call, "callee")])
        return names

    def _contains_calls(self, op: Any) -> bool:
        if op.name == "func.call":
            name = _symbol(op, "callee")
            if name not in self._with_calls:
                self._with_calls[name] = self._contains_calls(self._functions[name])
            return self._with_calls[name]
        return any(
            foreign.is_call(one.operation) or self._contains_calls(one.operation)
            for region in op.regions
            for block in region.blocks
            for one in block.operations
        )

    def _thread(self, block: Any, token: Any, in_branch: bool) -> Any:
        """Order the calls of a block. Each call takes the token of the previous one, and the first takes ``token``.

        Return the token of the last call.
        """
        for step in self._sequence(block):
            with ir.InsertionPoint(step[0]), step[0].location:
                if foreign.is_call(step[0]):
                    token = foreign.merge(step, [] if token is None else [token], in_branch).results[-1]
                else:
                    token = self._enclose(step[0], _zero() if token is None else token, in_branch)
        return token

    def _sequence(self, block: Any) -> list[list[Any]]:
        """Group a block's operations into ordered steps: calls to merge, or a single loop, branch or function."""
        calls: dict[_Key, list[Any]] = {}
        inner: list[Any] = []
        # For each value that this block computes, the sort key of the last call that the value depends on.
        keys: dict[Any, _Key] = {}
        places = []
        operations = [one.operation for one in block.operations]
        # Skip the last operation, which returns from the block.
        for op in operations[:-1]:
            key = max((keys.get(value, (0, 0)) for value in _used(op)), default=(0, 0))
            element = True
            if foreign.is_call(op):
                key = _free(calls, op, key)
                calls.setdefault(key, []).append(op)
            elif self._contains_calls(op):
                inner.append(op)
                key = len(inner), 0
            else:
                element = False
            keys.update(dict.fromkeys(op.results, key))
            places.append((key, not element))
        steps = calls | {(i, 0): [op] for i, op in enumerate(inner, 1)}
        if sum(map(len, steps.values())) > 1:
            for i in sorted(range(len(places)), key=places.__getitem__):
                operations[i].move_before(operations[-1])
        return [steps[key] for key in sorted(steps)]

    def _enclose(self, op: Any, token: Any, in_branch: bool) -> Any:
        """Pass a token through a loop, branch or function, to order the calls in it. Return the resulting token."""
        if op.name not in ("func.call", "stablehlo.while", *_BRANCHES):
            raise NotImplementedError(
                f"a collective in a JAX program must be in a loop (while_loop, fori_loop, scan, map), branch (cond, "
                f"switch) or function (jit, checkpoint), got {op.name!r}"
            )
        if op.name == "func.call":
            new = _create_anew(op, [token])
        elif op.name == "stablehlo.while":
            new = self._loop(op, token, in_branch)
        else:
            new = self._branches(op, token, in_branch)
        for old, result in zip(op.results, new.results, strict=False):
            old.replace_all_uses_with(result)
        op.erase()
        return new.results[-1]

    def _branches(self, op: Any, token: Any, in_branch: bool) -> Any:
        before, steps = token, () if in_branch else sorted(self._steps(op))
        if steps:
            before = foreign.counted(token, steps[0])
        new = _create_anew(op, [])
        for region in new.regions:
            _end_with(region.blocks[0], self._thread(region.blocks[0], before, True))
        return new

    def _loop(self, op: Any, token: Any, in_branch: bool) -> Any:
        new = _create_anew(op, [token])
        condition, body = (region.blocks[0] for region in new.regions)
        for block in (condition, body):
            block.add_argument(token.type, op.location)
        self._thread(condition, condition.arguments[-1], in_branch)
        carried = body.arguments[-1]
        after = self._thread(body, carried, in_branch)
        if after == carried:
            # All calls are in the loop's condition, so the body returns its token unchanged. XLA would treat such a
            # token as a constant, and the calls of different iterations would lose their order. passed_on() hides from
            # XLA that the token is unchanged.
            with ir.InsertionPoint.at_block_terminator(body), op.location:
                after = foreign.passed_on(carried)
        _end_with(body, after)
        return new

    def _take_token(self, function: Any) -> Any:
        """Add a token to the arguments and results of a function that contains calls. Return the new argument."""
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        token = foreign.token_type()
        longer = ir.FunctionType.get([*type_.inputs, token], [*type_.results, token])
        function.attributes["function_type"] = ir.TypeAttr.get(longer)
        _lengthen_attributes(function)
        return _block(function).add_argument(token, function.location)


def _free(calls: dict[_Key, list[Any]], op: Any, key: _Key) -> _Key:
    """Return the first sort key after `key` whose calls can be merged with the call `op`.

    Calls that have collectives of the same name must run one after another, so they cannot be merged.
    """
    names = foreign.names_of(op)
    key = key[0], key[1] + 1
    while any(names & foreign.names_of(other) for other in calls.get(key, ())):
        key = key[0], key[1] + 1
    return key


def _devices(module: Any) -> int:
    name = "mhlo.num_partitions"
    attributes = module.operation.attributes
    return int(ir.IntegerAttr(attributes[name]).value) if name in attributes else 1


def _used(op: Any) -> Iterator[Any]:
    """Yield all values that are used by an MLIR operation and its nested blocks."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            for one in block.operations:
                yield from _used(one.operation)


def _walk(op: Any, *names: str) -> Iterator[Any]:
    """Yield the nested MLIR operations that have one of the given names."""
    for region in op.regions:
        for block in region.blocks:
            for one in block.operations:
                inside = one.operation
                if inside.name in names:
                    yield inside
                if len(inside.regions):
                    yield from _walk(inside, *names)


def _block(function: Any) -> Any:
    return function.regions[0].blocks[0]


def _symbol(op: Any, attribute: str) -> str:
    kind = ir.StringAttr if attribute == "sym_name" else ir.FlatSymbolRefAttr
    return str(kind(op.attributes[attribute]).value)


def _zero() -> Any:
    """Create the ordering token that the first call of a program takes as an argument."""
    value = ir.DenseElementsAttr.get_splat(foreign.token_type(), ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 0))
    return ir.Operation.create(
        "stablehlo.constant", results=[foreign.token_type()], attributes={"value": value}
    ).results[0]


def _create_anew(op: Any, more: list[Any]) -> Any:
    """Copy an MLIR operation, adding operands and, as the last result, a token.

    The operation's nested blocks are moved to the copy.
    """
    new = ir.Operation.create(
        op.name,
        results=[*(result.type for result in op.results), foreign.token_type()],
        operands=[*op.operands, *more],
        attributes={name: op.attributes[name] for name in _attribute_names(op)},
        regions=len(op.regions),
    )
    for old, region in zip(op.regions, new.regions, strict=True):
        old.blocks[0].append_to(region)
    _lengthen_attributes(new)
    return new


def _end_with(block: Any, token: Any) -> None:
    """Append a token to the values that an MLIR block returns."""
    last = list(block.operations)[-1].operation
    with ir.InsertionPoint(last), last.location:
        ir.Operation.create(last.name, operands=[*last.operands, token])
    last.erase()


def _lengthen_attributes(op: Any) -> None:
    """Add an empty entry for the ordering token to a function's argument and result attributes."""
    for name in ("arg_attrs", "res_attrs"):
        if name in op.attributes:
            op.attributes[name] = ir.ArrayAttr.get([*ir.ArrayAttr(op.attributes[name]), ir.DictAttr.get({})])


def _attribute_names(op: Any) -> list[str]:
    return [op.attributes[i].name for i in range(len(op.attributes))]
