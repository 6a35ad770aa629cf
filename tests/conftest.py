"""Settings for all tests: Hypothesis tries the same examples on every run and every machine."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    deadline=None,  # kernels compile on first use
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For a longer search by hand: pytest --hypothesis-profile=search
settings.register_profile(
    "search", settings.get_profile("fixed"), derandomize=False, max_examples=2000
)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _small_markets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests have markets that are far too small for their budgets: `solve` runs them.

    Those marked `refused` see what a user sees.
    """
    if request.node.get_closest_marker("refused") is None:
        monkeypatch.setattr("jdpack.run.solve.check_hope", lambda *public: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files start first, or one would keep a single core busy at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
