"""Private: what a run is asked for, checked before anything is read or spent."""

from __future__ import annotations

import os
from typing import Any

from jdpack.billboard.lines import is_local
from jdpack.common.checks import check_whole
from jdpack.engines.base import Engine
from jdpack.errors import (
    AgentsError,
    MarketError,
)
from jdpack.market.market import Market, Neighbours
from jdpack.policies.base import Policy
from jdpack.privacy.tail_bounds import Outlook


def check_arguments(
    agents: Any, values: Any, demands: Any, ids: Any, clamp: object, threads: object
) -> None:
    """Refuse what is no way to give records, before any is read."""
    if not isinstance(clamp, bool):
        raise MarketError(f"clamp must be true or false, not {clamp!r}")
    if threads is not None:
        check_whole("threads", threads, least=1)
    if (agents is None) == (values is None and demands is None):
        raise AgentsError("give either agents, or values and demands")
    if agents is None and (values is None or demands is None):
        raise AgentsError("values and demands go together")
    if agents is not None and ids is not None:
        raise AgentsError("ids go with values and demands", "a table has its own id column")


def check_market(path: str | None, market: Market) -> None:
    """Refuse to go on if the market file says something else now. It may be gone."""
    if path is None or not os.path.exists(path):
        return
    if Market.from_toml(path) != market:
        raise MarketError(
            f"the market file {path!r} has changed since the run began",
            "a run ends with the market it began with: put it back; another run spends again",
        )


def check_curated(policy: Policy[Any]) -> None:
    """Refuse a policy that only agents without a curator can run."""
    if is_local(policy.to_dict()):
        raise MarketError(
            "with local the agents add the noise themselves, and no curator has their records",
            "use jdpack.LocalRun and jdpack.LocalAgent, or mwu-online without local",
        )


def check_order(outlook: Outlook, engine: Engine) -> None:
    """Refuse batches of numbered agents who may come and go: all others' turns would move."""
    leaves = engine.market.neighbours is Neighbours.ADD_REMOVE
    if outlook.batches is not None and leaves and engine.numbered:
        raise AgentsError(
            "batches with neighbours add-remove need ids",
            "numbered agents would change their turns when somebody leaves, and show it",
        )
