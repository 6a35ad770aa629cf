"""Finds Java for the tests of Spark or installs it (`programs`), and says how Spark is to start.

It takes the program that JDPACK_JAVA names, the one in JAVA_HOME, or the one on the PATH, if Spark
can use it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from programs import Program

ADDRESS = "spark:local[1]"

_OLDEST = 17
LARGE = {"spark.driver.host": "127.0.0.1", "spark.driver.memory": "3g"}
"""Settings for many rows."""

_FEW = {
    "spark.default.parallelism": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # The compiler that optimises would take longer than these few rows.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def _candidates() -> Iterator[str]:
    if home := os.environ.get("JAVA_HOME"):
        yield f"{home}/bin/java"
    if on_path := shutil.which("java"):
        yield on_path


def _works(path: str) -> bool:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r'version "(\d+)', done.stderr)
    return done.returncode == 0 and found is not None and int(found[1]) >= _OLDEST


JAVA = Program(
    name=f"Java {_OLDEST} or newer",
    tests="the tests of Spark",
    variable="JDPACK_JAVA",
    package="default-jre-headless",
    hint="install it (Debian: apt install default-jre-headless), or set JDPACK_JAVA to the path of "
    "a program java; `make test SPARK=no` leaves these tests out",
    candidates=_candidates,
    works=_works,
)


def variables(folder: Path, settings: dict[str, str] = _FEW) -> dict[str, str]:
    """The variables that let Spark start with some settings, and keep its files in a folder."""
    java = Path(JAVA.for_test()).resolve()
    own = {"spark.sql.warehouse.dir": folder / "tables", "spark.local.dir": folder / "local"}
    lines = [f"{name} {value}\n" for name, value in {**settings, **own}.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return {"JAVA_HOME": str(java.parents[1]), "SPARK_CONF_DIR": str(folder)}


if __name__ == "__main__":
    sys.exit(JAVA.main())
