"""Check for import cycles between the modules of the package. Part of `make lint`.

    python tools/check_imports.py [folder of the package]

Imports within functions and under TYPE_CHECKING count too, because they also create dependencies. An import of a name
from a package counts as an import of the module with this name, if it exists, or else of the package. import-linter
checks the layers.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

Graph = dict[str, set[str]]
"""Names of the imported modules, by name of the importing module."""


def modules_of(package: Path) -> dict[str, Path]:
    """Map the full name of each module in a package to the module's file."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def graph_of(package: Path, lazy: bool = True) -> Graph:
    """Map each module to the modules of the same package that it imports, including or excluding lazy imports."""
    files = modules_of(package)
    graph: Graph = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        if not lazy:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE" in ast.unparse(node.test)):
                    node.body = [ast.Pass()]
        imported = {_module_of(full, set(files)) for full in _imported(tree, name, path.name == "__init__.py")}
        graph[name] = {found for found in imported if found is not None} - {name}
    return graph


def _imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package else -1]
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _module_of(full: str, modules: set[str]) -> str | None:
    """Return ``a.b.c`` or ``a.b``, whichever is a module of the package, or None for names of other packages."""
    for name in (full, full.rpartition(".")[0]):
        if name in modules:
            return name
    return None


def circles(graph: Graph) -> list[list[str]]:
    """Return the import cycles, largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            begin = stack.index(name)
            knot = stack[begin:]
            del stack[begin:]
            if len(knot) > 1:
                found.append(sorted(knot))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found, key=lambda knot: (-len(knot), knot))


def main(arguments: list[str]) -> int:
    package = Path(arguments[0]) if arguments else Path(__file__).parent.parent / "src" / "horovod"
    graph = graph_of(package)
    found = circles(graph)
    for knot in found:
        print(f"circle of imports between {len(knot)} modules:")
        for name in knot:
            print(f"  {name} -> {', '.join(sorted(graph[name] & set(knot)))}")
    if not found:
        print(f"{len(graph)} modules, no circle of imports")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
