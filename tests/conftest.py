"""Settings for all tests: Hypothesis tries the same examples on every run and every machine.

Also PostgreSQL: `server` is a real server that all processes share, and `database` gives each test
the address of its own empty database. `spark_home` is the address of a small Spark.
"""

import gc
import itertools
import os
from collections.abc import Callable, Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, settings

import postgresql
import spark

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

# Ray's workers would step back for all other tests, and the tests of Ray wait for them alone.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (that is its name)


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


def pytest_collection_finish() -> None:
    """Collect garbage less often. What is there by now, mostly modules, stays until the end.

    Otherwise a tenth of the time goes into looking through it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> postgresql.Server:
    """The PostgreSQL server of this run of pytest, which `make postgresql` makes possible."""
    postgresql.POSTGRESQL.for_test()
    folder, serves = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder, serves = folder.parent, os.getppid()
    return postgresql.shared(folder, serves)


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark on this machine, which `make spark` makes possible."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark.variables(tmp_path_factory.mktemp("spark")).items():
            patch.setenv(name, value)
        yield spark.ADDRESS


@pytest.fixture(scope="session")
def new_database(server: postgresql.Server) -> Callable[[], str]:
    """Makes an empty database and returns its name."""
    names = (f"test_{os.getpid()}_{number}" for number in itertools.count())

    def make() -> str:
        name = next(names)
        with psycopg.connect(server.address(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return name

    return make


@pytest.fixture
def database(server: postgresql.Server, new_database: Callable[[], str]) -> Iterator[str]:
    """The address of an empty database, which is dropped after the test."""
    name = new_database()
    yield server.address(name)
    with psycopg.connect(server.address(), autocommit=True) as db:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")
