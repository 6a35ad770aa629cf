"""What is loaded and compiled when: nobody waits for a compiler or a library without need."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import jdpack
from browser import boards
from jdpack import cli

HEAVY = {"numba", "pyarrow", "opendp", "scipy", "matplotlib", "ray", "jinja2", "uvicorn"}


def loaded(code: str) -> set[str]:
    """The heavy modules loaded after a fresh Python has run some code."""
    told = f"import sys\n{code}\nprint('loaded', *({HEAVY | {'numpy'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def by_command(*arguments: object) -> set[str]:
    argv = ["jdpack", *map(str, arguments)]
    return loaded(
        f"sys.argv = {argv!r}\nfrom jdpack.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code"
    )


@pytest.fixture
def billboard(tmp_path):
    file = tmp_path / "billboard.jsonl"
    lines = "".join(f"{line}\n" for line in boards.charging().lines())
    file.write_text(lines, encoding="utf-8")
    return file


def test_the_package_loads_nothing_until_it_is_used():
    assert loaded("import jdpack") == set()
    assert loaded("import jdpack\njdpack.Market\njdpack.explain") == {"numpy"}
    assert "numba" in loaded("import jdpack\njdpack.solve"), "the control"


def test_a_command_loads_what_it_needs(billboard):
    assert by_command("--version") == set()
    own = ["--id", "H1", "--value", 1, "--demand", "1,0,0,0"]
    assert by_command("allocate", billboard, *own) <= {"numpy"}
    assert not by_command("verify", billboard) & {"numba", "pyarrow", "scipy"}
    assert not by_command("--help") & {"numba", "pyarrow", "scipy", "jinja2", "uvicorn"}
    report = ["report", "--public", "-o", billboard.parent / "report", billboard]
    assert not by_command(*report) & {"numba", "pyarrow", "scipy"}
    curators = loaded("import jdpack.curator.curators_report")
    assert {"numba", "pyarrow"} <= curators, "the control"


def test_what_rebuilds_the_public_side_for_an_audit_loads_nothing_private():
    assert loaded("import jdpack.audit.fold") == {"numpy", "jinja2"}
    private = loaded("import jdpack.audit.recording") & {"numba", "pyarrow"}
    assert private == {"numba", "pyarrow"}, "the control"


def test_every_command_can_be_loaded_alone():
    """Its help is the same as among all commands."""
    for name in cli.COMMANDS:
        for arguments in ([name], ["no such", name]):
            wanted = [name] if arguments == [name] else list(cli.COMMANDS)
            assert list(cli._asked(arguments)) == wanted
        (command,) = cli.app_of([name]).registered_commands + cli.app_of([name]).registered_groups
        assert command.name == name


def test_no_room_has_the_name_of_a_promise():
    """Otherwise importing the room would replace the function."""
    rooms = {path.stem for path in Path(jdpack.__file__).parent.iterdir()}
    assert {"run", "door", "market"} <= rooms, "the control"
    assert not rooms & set(jdpack.__all__)
    code = (
        "import types, jdpack.run.solve, jdpack.planning.plan\nfrom jdpack import verify\n"
        "import jdpack.protocol.verify, jdpack\n"
        "for name in ['solve', 'plan', 'verify', 'allocate', 'compare', 'verify_run']:\n"
        "    assert isinstance(getattr(jdpack, name), types.FunctionType), name"
    )
    assert "numba" in loaded(code)


def test_the_package_is_a_module_like_others():
    assert isinstance(jdpack, types.ModuleType)
    assert set(jdpack.__all__) <= set(dir(jdpack))
    with pytest.raises(AttributeError, match="has no attribute 'sovle'"):
        jdpack.sovle  # noqa: B018
    homes = [name for names in jdpack._HOMES.values() for name in names.split()]
    assert sorted(homes) == jdpack.__all__


def test_a_command_ends_without_a_look_for_garbage():
    """The interpreter would look through all that is loaded, which takes 0.4 s after a run."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 0))\n"
        "from jdpack.cli import main\n"
        "sys.argv = ['jdpack', '--version']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "frozen True"


RUN = """
import numpy as np
from jdpack import Market, solve

rng = np.random.default_rng(0)
market = Market(supply=[700.0] * 3, max_demand=1.0, max_value=1.0, agents=2000)
solve(market, values=rng.random(2000), demands=rng.random((2000, 3)), epsilon=10.0, delta=1e-6)
"""


def test_a_small_dense_market_compiles_few_kernels(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", RUN], env=environment, check=True)
    compiled = sorted(path.name.split("-")[0] for path in tmp_path.rglob("*.nbi"))
    assert "best_response._play_dense" in compiled
    assert len(compiled) <= 11, compiled
    wrong = [name for name in compiled if "sparse" in name or "several" in name or "texts" in name]
    assert not wrong, "kernels for other markets"
    assert len(list(tmp_path.rglob("*.nbc"))) == len(compiled), "kernels for two kinds of arguments"
