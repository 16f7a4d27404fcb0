"""The collectives of a compiled program, their order, and whether XLA must keep that order.

Reads the text of XLA's optimized program (`compiled.as_text()`).
"""

import itertools
import re

_COMPUTATION = re.compile(r"^(ENTRY )?%?(\S+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%(\S+) = ")
_BODIES = re.compile(
    r"(?:condition|body|to_apply|branch_computations|(?:true|false)_computation)=\{?((?:%[\w.\-]+(?:, )?)+)"
)


def order(text):
    """Return the collectives of a compiled program as a nested list, in the order that dependencies enforce.

    Each call is the sorted tuple of its names; each loop, branch or function is a list of the collectives in its
    parts.

    Raises:
        AssertionError: two elements of a computation have no order.
    """
    computations, entry = _computations(text)

    def of(name):
        instructions = computations[name]
        elements = []
        for line in instructions.values():
            if 'custom_call_target="horovod_collective"' in line:
                names = re.search(r'names = "([^"]*)"', line).group(1)
                elements.append((line, tuple(sorted(re.split(r"\\n|\\0A|\n", names)))))
            elif re.search(r" (while|conditional|call)\(", line):
                inner = [of(one) for one in _used(" ".join(_BODIES.findall(line)))]
                if any(inner):
                    elements.append((line, inner))
        for (before, one), (after, other) in itertools.pairwise(elements):
            assert _depends(instructions, after, before), f"in {name}: nothing orders {one} and {other}\n{text}"
        return [element for _, element in elements]

    return of(entry)


def _computations(text):
    """Return {computation: {instruction: its line}}, both in text order, and the name of the entry computation."""
    computations, entry, current = {}, None, {}
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            current = computations.setdefault(begins.group(2), {})
            entry = begins.group(2) if begins.group(1) else entry
        elif found := _INSTRUCTION.match(line):
            current[found.group(1)] = line
    return computations, entry


def _used(line):
    return re.findall(r"%([\w.\-]+)", line)


def _depends(instructions, line, other):
    """Return True if an instruction depends, directly or indirectly, on the result of another one."""
    seen, stack = set(), [line]
    while stack:
        here = stack.pop()
        if here == other:
            return True
        fresh = [name for name in _used(here) if name in instructions and name not in seen]
        seen.update(fresh)
        stack.extend(instructions[name] for name in fresh)
    return False
