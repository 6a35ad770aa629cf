"""Private: sessions of Spark, and records read from it.

An address is that of a master: "spark:local[4]" for this machine, or "spark://host:7077". Settings
come from where Spark takes them, such as the file `spark-defaults.conf` in SPARK_CONF_DIR.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from jdpack.errors import AgentsError
from jdpack.records.schema import clean

SETTINGS: dict[str, Any] = {
    "spark.hadoop.fs.permissions.umask-mode": "077",  # tables are files that only we can read
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of a session that jdpack starts."""


@contextlib.contextmanager
def session(address: str) -> Iterator[Any]:
    """The session that this process has, or else a new one, which is stopped at the end."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions of pandas, which is not used here
            from pyspark.logger import PySparkLogger
            from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise AgentsError(
            f"{error.name} is needed for {address!r}", "pip install 'jdpack[sql,spark]'"
        ) from None
    master = re.sub(r"^spark:(//)?(?=local)", "", address)
    try:
        found = SparkSession.getActiveSession()
        running = None if found is None else found.sparkContext.master
    except Exception as error:  # of Python or Py4J
        raise AgentsError(
            f"this process has lost its Spark session: {text(error)}",
            "start Python again; `jdpack resume` continues an interrupted run",
        ) from None
    if found is not None:
        if running != master:
            raise AgentsError(
                f"this process has a Spark session with {running!r}, not with {master!r}",
                "stop that session first, or give its address",
            )
        yield found
        return
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")  # errors are raised too
    try:
        made = SparkSession.builder.appName("jdpack").master(master).config(map=SETTINGS)
        own = made.getOrCreate()
    except Exception as error:  # of Python, Py4J or Java
        raise AgentsError(
            f"Spark does not start: {text(error)}",
            "it needs Java 17 or newer (Debian: apt install default-jre-headless), and a master "
            "that can be reached",
        ) from None
    try:
        yield own
    finally:
        with contextlib.suppress(Exception):  # whatever is left of it
            own.stop()


def read(session: Any, sql: str) -> pa.Table:
    """The rows of a query."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions of pandas
        table: pa.Table = session.sql(sql).toArrow()
    return table


def text(error: Exception) -> str:
    """The first line of an error, without its code."""
    return re.sub(r"^[A-Z_]+: |^\[[^\]]*\] ", "", clean(Exception(str(error).strip())))
