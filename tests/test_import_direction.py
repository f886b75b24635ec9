"""Who may import whom: the library imports no trainer, no trainer another, the analysis no trainer."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINERS = {"vision", "language", "rl"}
FORBIDDEN = {
    "fire_core": TRAINERS | {"analysis", "scripts", "tests"},
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


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after a statement, in a process of its own."""
    code = f"{statement}; import sys; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("tools", [False, True], ids=["library", "tools"])
def test_the_library_needs_torch_alone(tools):
    modules = "import fire_core" + ", fire_core.audit, fire_core.convergence, fire_core.project, fire_core.runs" * tools
    loaded = loaded_by(modules)
    assert "fire_core" in loaded
    with_torch = loaded_by("import torch, torch.utils.flop_counter")
    assert not loaded - with_torch - sys.stdlib_module_names - {"fire_core"}


def test_public_names():
    import fire_core

    needed = {"fire_", "newton_schulz", "polar_factor", "dfi", "sfe", "reset_optimizer_state", "shrink_and_perturb_"}
    assert needed <= set(fire_core.__all__)
    assert all(hasattr(fire_core, name) for name in fire_core.__all__)
