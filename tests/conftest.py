"""Each test that runs a real router in its own loop runs twice: with the fast path and without."""

import pytest

import support.edge


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what makes its routers by `edge_config` both ways, unless it chooses the way itself."""
    names = metafunc.fixturenames
    if "way_in" in names and "fast" not in names and hasattr(metafunc.module, "edge_config"):
        metafunc.parametrize("way_in", [True, False], ids=["fast", "general"], indirect=True)


@pytest.fixture(autouse=True)
def way_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the way in for the routers of this test."""
    monkeypatch.setattr(support.edge, "fast_path", getattr(request, "param", True))
