"""Who may import whom: the library nothing else of ours, the harness no trainer, no trainer another; and no circle."""

import ast
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
    "fire_core": TRAINERS | {"harness", "hydra", "omegaconf", "analysis", "scripts", "tests"},
    "harness": TRAINERS | {"analysis", "scripts", "tests"},
    "analysis": TRAINERS | {"scripts", "tests"},
    **{name: (TRAINERS - {name}) | {"analysis", "scripts", "tests"} for name in TRAINERS},
}


def imports(path: Path) -> Iterator[str]:
    """First components of all absolute imports, also those inside functions; relative ones stay in their package."""
    for node in ast.walk(ast.parse(path.read_text())):
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
    todo: list[ast.AST] = [ast.parse(path.read_text())]
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


def find_circle(files: dict[str, Path]) -> list[str]:
    """Modules that import each other in turn, the first again at the end; empty if there are none."""
    graph = {}
    for name, path in files.items():
        pairs = set(imported(name, path))
        graph[name] = {full if (full := f"{source}.{what}") in files else source for source, what in pairs} & set(files)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle():
    files = modules(ROOT, "fire_core", "harness", "vision", "language", "rl", "analysis")
    assert len(files) > 100
    assert not find_circle(files)


@pytest.mark.parametrize("text", ["import p.a", "from p import a", "from . import a", "from p.a import x"])
@pytest.mark.parametrize("within", ["if True:", "def f():", "if TYPE_CHECKING:"])
def test_circles_are_found(tmp_path, text, within):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/__init__.py").touch()
    (tmp_path / "p/a.py").write_text("from p.b import y")
    (tmp_path / "p/b.py").write_text(f"{within}\n    {text}")
    found = find_circle(modules(tmp_path, "p"))
    assert set(found) == (set() if "TYPE" in within else {"p.a", "p.b"})


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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            taken |= {f"{node.value.id}.{node.attr}"} if is_private(node.attr) else set()
    return taken


def test_no_private_name_is_imported():
    packages = {*FORBIDDEN, "scripts", "tests"}
    files = modules(ROOT, *packages)
    found = {name: names for name, path in files.items() if (names := private_names(path, name, packages))}
    assert not found


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from p.a import _x", {"p.a._x"}),
        ("def f():\n    from p import a\n    return a._x", {"a._x"}),
        ("from p.a import x, __version__\nself._y = x.y", set()),
        ("from torch.nn import _x", set()),
    ],
)
def test_private_names_are_found(tmp_path, text, names):
    (tmp_path / "b.py").write_text(text)
    assert private_names(tmp_path / "b.py", "p.b", {"p"}) == names


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after a statement, in a process of its own."""
    code = f"{statement}; import sys; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "further",
    ["", "audit convergence project", "triggers integrations.intervention integrations.torch"],
    ids=["library", "tools", "hook"],
)
def test_the_library_needs_torch_alone(further):
    loaded = loaded_by("import fire_core" + "".join(f", fire_core.{name}" for name in further.split()))
    assert "fire_core" in loaded
    with_torch = loaded_by("import torch, torch.utils.flop_counter")
    assert not loaded - with_torch - sys.stdlib_module_names - {"fire_core"}


def test_public_names():
    import fire_core

    needed = {"fire_", "newton_schulz", "polar_factor", "dfi", "sfe", "reset_optimizer_state", "shrink_and_perturb_"}
    assert needed <= set(fire_core.__all__)
    assert all(hasattr(fire_core, name) for name in fire_core.__all__)
