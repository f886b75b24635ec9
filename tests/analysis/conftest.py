"""Pictures are drawn coarsely, and as PNG alone, where they are not compared with committed ones."""

import pytest

from analysis import plotting, style


@pytest.fixture(autouse=True)
def quick_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "each_format" not in request.node.name:
        monkeypatch.setattr(plotting, "FORMATS", ("png",))
    if "small_results" not in request.module.__name__:
        monkeypatch.setitem(style.RC, "savefig.dpi", 60)
