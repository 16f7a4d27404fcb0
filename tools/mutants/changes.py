"""Generator of small mistakes in a Python file, represented as changes to its text.

A test should notice each mistake: `<` instead of `<=`, `and` instead of `or`, a wrong sign, a number that is one too
large, True instead of False, a negated condition, a missing return value, a missing statement, `min` instead of `max`.
Not changed are strings (such as messages), annotations, decorators, `assert`, methods that format an object
(`__repr__`), statements without which the next line would raise NameError, and module constants that are plain numbers
(chosen limits and times, which tests need not repeat).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitAnd,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
SHOWS = {"__repr__", "__str__", "__rich_repr__"}


@dataclass(frozen=True)
class Change:
    """Change that replaces the bytes `start` to `end` of a file with `text`, beginning in line number `line`."""

    line: int
    start: int
    end: int
    before: str
    text: str

    def __str__(self) -> str:
        return f"{' '.join(self.before.split())}  ->  {' '.join(self.text.split())}"


def changes_of(source: str) -> list[Change]:
    """Return all changes to a file, in order and without duplicates. Raises SyntaxError for invalid Python."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changes: dict[tuple[int, int, str], Change] = {}
    for node, text in _changed(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        changes.setdefault((start, end, text), Change(node.lineno, start, end, data[start:end].decode(), text))
    return sorted(changes.values(), key=lambda change: (change.start, change.end, change.text))


def applied(source: str, change: Change) -> str:
    """Return the file's text with the change applied."""
    data = source.encode()
    return (data[: change.start] + change.text.encode() + data[change.end :]).decode()


_Node = ast.expr | ast.stmt


def _changed(tree: ast.AST) -> Iterator[tuple[_Node, str]]:
    """Yield all mutations that apply to a syntax tree, as (node, replacement text) pairs."""
    for child in _worth_changing(tree):
        if isinstance(child, ast.stmt):
            yield from _statement(child)
        elif isinstance(child, ast.expr):
            for other in _expression(child):
                yield child, f"({ast.unparse(other)})"
        yield from _changed(child)


def _worth_changing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the child nodes that mutants can change.

    Annotations, decorators, strings, and blocks that tests do not run or check are left out.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.name not in SHOWS:
            yield from node.args.defaults
            yield from (default for default in node.args.kw_defaults if default is not None)
            yield from node.body
    elif isinstance(node, ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield node.value
    elif isinstance(node, (ast.JoinedStr, ast.Assert)) or _is_chosen_number(node) or _is_strict(node):
        return
    elif _is_apart(node):
        yield from node.orelse
    else:
        yield from ast.iter_child_nodes(node)


def _is_strict(node: ast.AST) -> bool:
    """Return True for the argument strict=True of zip(), which acts as an assertion."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_apart(node: ast.AST) -> TypeGuard[ast.If]:
    """Return True for blocks under `if TYPE_CHECKING` or `if __name__ == "__main__"`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")


def _is_chosen_number(node: ast.AST) -> bool:
    """Return True if the node assigns a numeric constant, such as LIMIT = 1 << 20."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()):
        return False
    parts = (ast.Constant, ast.BinOp, ast.operator, ast.Tuple, ast.Name, ast.Load)
    return all(isinstance(part, parts) for part in ast.walk(node.value))


def _statement(node: ast.stmt) -> Iterator[tuple[_Node, str]]:
    """Yield (node, replacement) pairs that mutate a statement or a part of it."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or isinstance(node, (ast.Raise, ast.Continue, ast.Break, ast.Delete)):
        yield node, "pass"
    elif isinstance(node, ast.Assign) and not any(isinstance(target, ast.Name) for target in node.targets):
        if not any(isinstance(target, ast.Tuple) for target in node.targets):
            yield node, "pass"
    elif isinstance(node, ast.AugAssign):
        yield node, "pass"
        if type(node.op) in OPERATORS:
            yield node, ast.unparse(ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value))
    elif isinstance(node, ast.Return) and not isinstance(node.value, (ast.Constant, type(None))):
        yield node, "return None"
    elif (
        isinstance(node, (ast.If, ast.While))
        and not _is_apart(node)
        and not isinstance(node.test, (ast.Compare, ast.UnaryOp, ast.Constant))
    ):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def _expression(node: ast.expr) -> Iterator[ast.expr]:
    """Yield mutated variants of an expression, in which the expression or a part of it is replaced."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield ast.Compare(node.left, [*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1 :]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.IfExp) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        keywords = [] if node.func.id == "sorted" else node.keywords
        yield ast.Call(ast.Name(CALLS[node.func.id]), node.args, keywords)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
