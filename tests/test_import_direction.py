"""Who may import whom: the library nothing else of ours, the harness no trainer, no trainer another; and no circle."""

import ast
import functools
import graphlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINERS = {"vision", "language", "rl"}
FORBIDDEN = {
    "fire_core": TRAINERS | {"harness", "hydra", "omegaconf", "analysis", "scripts", "studies", "tests"},
    "harness": TRAINERS | {"analysis", "scripts", "studies", "tests"},
    "analysis": TRAINERS | {"scripts", "studies", "tests"},
    **{name: (TRAINERS - {name}) | {"analysis", "scripts", "studies", "tests"} for name in TRAINERS},
}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """First components of all absolute imports, also those inside functions; relative ones stay in their package."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_no_import_against_the_direction(package):
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imports(path)
        if name in FORBIDDEN[package]
    }
    assert not found


def modules(root: Path, *packages: str) -> dict[str, Path]:
    """All modules of some packages: dotted name -> file."""
    files = [path for package in packages for path in (root / package).rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """All (module, name imported from it) of a file, also those inside functions; not those for type checkers alone."""
    todo: list[ast.AST] = [parsed(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((source, alias.name) for alias in node.names)


def test_no_circle():
    files = modules(ROOT, "fire_core", "harness", "vision", "language", "rl", "analysis")
    assert len(files) > 100
    graph = {}
    for name, path in files.items():
        pairs = set(imported(name, path))
        graph[name] = {full if (full := f"{source}.{what}") in files else source for source, what in pairs} & set(files)
    graphlib.TopologicalSorter(graph).prepare()  # a circle is a CycleError that names it


def test_each_part_of_the_harness_imports_earlier_ones_alone():
    parts = ["config", "process", "run", "training", "program", "trained", "tune"]
    assert {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")} == {*parts}
    found = {
        f"{name} imports {source}"
        for name, path in modules(ROOT, "harness").items()
        for source, _ in imported(name, path)
        if name.count(".") == 2 and source.startswith("harness.")
        if parts.index(source.split(".")[1]) > parts.index(name.split(".")[1])
    }
    assert not found


def is_private(name: str) -> bool:
    """One leading underscore, and not one of the public names of named tuples."""
    return (
        name.startswith("_") and not name.startswith("__") and name not in ("_fields", "_replace", "_make", "_asdict")
    )


def private_names(path: Path, name: str, own: set[str]) -> set[str]:
    """Names with one leading underscore that a file takes from one of our packages, imported or as `module._name`."""
    pairs = [(source, what) for source, what in imported(name, path) if source.split(".")[0] in own]
    taken = {f"{source}.{what}" for source, what in pairs if is_private(what)}
    known = {what for _, what in pairs}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            taken |= {f"{node.value.id}.{node.attr}"} if is_private(node.attr) else set()
    return taken


def test_no_private_name_is_imported():
    packages = {*FORBIDDEN, "scripts", "tests"}
    files = modules(ROOT, *packages)
    found = {name: names for name, path in files.items() if (names := private_names(path, name, packages))}
    assert not found


def test_the_library_and_its_tools_need_torch_alone():
    tools = "tools.audit tools.convergence tools.project triggers integrations.intervention integrations.torch"
    further = "".join(f", fire_core.{name}" for name in tools.split())
    code = "import sys, torch, torch.utils.flop_counter; before = {*sys.modules}; import fire_core" + further
    code += "; print(*{name.split('.')[0] for name in {*sys.modules} - before})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) - {"torch"} - sys.stdlib_module_names == {"fire_core"}
