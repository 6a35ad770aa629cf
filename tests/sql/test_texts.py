"""Texts in SQL: names with quotes, and a PostgreSQL database with odd settings."""

import psycopg
import pytest
import sqlglot

from jdpack import DatabaseQuery, Group, Market, PersonBounds, solve
from jdpack.engines.sql_encoding import text
from jdpack.engines.warehouse import WORDS, translated

GROUP = "Zürich\\' jd_source 7770770777000000'"
MARKET = Market(
    supply={"h": 60.0},
    max_demand=1.0,
    max_value=1.0,
    agents=80,
    person=PersonBounds(requests=2),
    groups=[Group(GROUP, cap={"h": 5.0})],
)
SQL = 'SELECT id, request, "group", value, h FROM wishes ORDER BY id, request'


@pytest.fixture
def latin(server, new_database):
    """A database in Latin-1 in which a backslash escapes quotes, with people called é0 to é79."""
    name = f"{new_database()}_latin"
    with psycopg.connect(server.address(), autocommit=True) as db:
        db.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0"
        )
        db.execute(f"ALTER DATABASE {name} SET standard_conforming_strings TO off")
    rows = [(f"é{i}", r, GROUP if i % 2 else None) for i in range(80) for r in "öp"]
    with psycopg.connect(server.address(name), client_encoding="UTF8") as db:
        db.execute(
            'CREATE TABLE wishes (id text, request text, "group" text, value float8, h float8)'
        )
        db.cursor().executemany("INSERT INTO wishes VALUES (%s, %s, %s, 1.0, 1.0)", rows)
    return DatabaseQuery(server.address(name), SQL)


def test_texts_are_the_same_whatever_the_database_makes_of_bytes_and_quotes(latin):
    def run(engine):
        return solve(
            MARKET,
            latin,
            epsilon=float("inf"),
            delta=1e-6,
            coin_hash="sha-256",
            engine=engine,
            seed=1,
        )

    memory, sql = run("memory"), run("sql")
    assert memory.billboard.head == sql.billboard.head
    assert memory.shares.tolist() == sql.shares.tolist()
    assert set(memory.to_frame().id.str[0]) == {"é"}


@pytest.mark.parametrize("dialect", WORDS)
@pytest.mark.parametrize(
    "name",
    ["a 7770770777000000'; DROP TABLE x; --", "jd_source", "\\'", "12345", "'12345' 123456 '"],
)
def test_a_name_stays_a_name(dialect, name):
    """Whatever a market calls its goods and groups, it is one text in one statement."""
    sql = f"SELECT 65536 FROM jd_source WHERE a = '1.5' AND g = {text(name)}"
    (found,) = sqlglot.parse(translated(sql, dialect, "SELECT 'x' AS g"), read=dialect)
    texts = {one.this for one in found.find_all(sqlglot.exp.Literal) if one.is_string}
    assert texts == {"1.5", name, "x"}
