"""Databases with the same records in each."""

from __future__ import annotations

import pytest

from database import people


@pytest.fixture(params=people.BACKENDS)
def place(request, tmp_path):
    """The address of a database with the records, in each backend in turn."""
    if request.param == "postgresql":
        address = request.getfixturevalue("database")
    else:
        address = str(tmp_path / f"records.{request.param}")
    people.fill(request.param, address)
    return address


@pytest.fixture
def filled(database):
    """The address of a PostgreSQL database with the records."""
    people.fill("postgresql", database)
    return database
