"""A PostgreSQL database whose encoding is not UTF-8: ids, requests and groups are the same texts."""

import psycopg
import pytest

from jdpack import DatabaseQuery, Group, Market, PersonBounds, solve

MARKET = Market(
    supply={"h": 60.0},
    max_demand=1.0,
    max_value=1.0,
    agents=80,
    person=PersonBounds(requests=2),
    groups=[Group("Zürich", cap={"h": 5.0})],
)
SQL = 'SELECT id, request, "group", value, h FROM wishes ORDER BY id, request'


@pytest.fixture
def latin(server, new_database):
    """A database in Latin-1, with people called é0 and so on, half of them from Zürich."""
    name = f"{new_database()}_latin"
    with psycopg.connect(server.address(), autocommit=True) as db:
        db.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' "
            "TEMPLATE template0"
        )
    rows = [(f"é{i}", r, "Zürich" if i % 2 else None) for i in range(80) for r in "öp"]
    with psycopg.connect(server.address(name), client_encoding="UTF8") as db:
        db.execute(
            'CREATE TABLE wishes (id text, request text, "group" text, value float8, h float8)'
        )
        db.cursor().executemany("INSERT INTO wishes VALUES (%s, %s, %s, 1.0, 1.0)", rows)
    return DatabaseQuery(server.address(name), SQL)


def test_texts_are_the_same_in_a_database_that_is_not_in_utf_8(latin):
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
