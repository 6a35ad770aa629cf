"""Private: the arguments of a run, checked before anything is read or spent.

`jdpack.planning.prepare` checks what is public: market, policy and budget. This module checks the
rest.
"""

from __future__ import annotations

import os
from typing import Any, get_args

import pyarrow as pa

from jdpack.billboard.lines import is_local
from jdpack.common.checks import check_whole
from jdpack.common.coins import SIPHASH, CoinHash
from jdpack.engines.base import Engine
from jdpack.engines.settings import Choice
from jdpack.errors import AgentsError, EngineError, MarketError
from jdpack.market.market import Market, Neighbours
from jdpack.policies.base import Policy
from jdpack.privacy.tail_bounds import Outlook
from jdpack.records.source import Source
from jdpack.run.run_file import RunFile


def source_of(
    market: Market,
    agents: Any,
    values: Any,
    demands: Any,
    ids: Any,
    groups_of: Any,
    requests_of: Any,
    clamp: bool,
) -> Source:
    """The records of a run, after checking that they are given in one way. Reads nothing."""
    if not isinstance(clamp, bool):
        raise MarketError(f"clamp must be true or false, not {clamp!r}")
    if (agents is None) == (values is None and demands is None):
        raise AgentsError("give either agents, or values and demands")
    if agents is None and (values is None or demands is None):
        raise AgentsError("values and demands go together")
    if agents is not None and ids is not None:
        raise AgentsError("ids go with values and demands", "a table has its own id column")
    if groups_of is not None and (agents is not None or not market.groups):
        why = "this market has no groups" if not market.groups else "a table has its own column"
        raise AgentsError("groups_of goes with values and demands of a market with groups", why)
    if agents is None and market.groups and groups_of is None:
        raise AgentsError(
            "the market has groups, so groups_of is needed",
            "give each row the name of its agent's group, or None",
        )
    if requests_of is not None and (agents is not None or market.requests == 1):
        more = market.hint("set requests in [person]", "give Market(person=...)")
        why = "a table has its own column" if market.requests > 1 else more
        raise AgentsError("requests_of goes with values and demands of agents with requests", why)
    if agents is None and market.requests > 1 and requests_of is None:
        raise AgentsError(
            "agents may make several requests, so requests_of is needed",
            "give each row the name of its request; two agents may use the same name",
        )
    if hasattr(agents, "__arrow_c_stream__") and not hasattr(agents, "__len__"):
        agents = pa.table(agents)  # a stream can be read once, but the records are read twice
    return Source(market, agents, values, demands, ids, clamp, groups_of, requests_of)


Records = tuple[Any, Any, Any, Any, Any, Any]
"""The six arguments of `source_of` that give records, in their order."""


def source_again(file: RunFile, market: Market, caller: str, records: Records) -> Source:
    """The records that are given, or else those that the run read."""
    agents, values, demands, *rest = records
    if agents is None and values is None and demands is None:
        records = (file.records(caller), values, demands, *rest)
    return source_of(market, *records, file.clamp)


def coin_hash_of(given: object, choice: Choice) -> CoinHash:
    """The hash of the coins of a run: the one that is asked for, or that the engine needs."""
    known: tuple[CoinHash, ...] = get_args(CoinHash)
    if given is None:
        return choice.needs or SIPHASH
    for hash in known:
        if given == hash:
            check_coin_hash(hash, choice)
            return hash
    raise EngineError(f"there is no coin hash {given!r}", f"one of: {', '.join(known)}")


def check_coin_hash(hash: CoinHash, choice: Choice) -> None:
    """Refuse an engine that cannot compute the coins of a run."""
    if choice.needs not in (None, hash):
        raise EngineError(
            f"this engine cannot compute coins by {hash}, only by {choice.needs}",
            "a run keeps the coins that its header names: resume it with another engine",
        )


def check_threads(threads: object) -> None:
    """Refuse a number of cores that makes no sense."""
    if threads is not None:
        check_whole("threads", threads, least=1)


def check_market(path: str | None, market: Market) -> None:
    """Refuse to resume if the market file has changed. It may be gone."""
    if path is None or not os.path.exists(path):
        return
    if Market.from_toml(path) != market:
        raise MarketError(
            f"the market file {path!r} has changed since the run began",
            "put it back: a run must end with the market it began with, and a new run spends again",
        )


def check_curated(policy: Policy[Any]) -> None:
    """Refuse a policy that only agents without a curator can run."""
    if is_local(policy.to_dict()):
        raise MarketError(
            "with local the agents add the noise themselves, and no curator has their records",
            "use jdpack.LocalRun and jdpack.LocalAgent, or mwu-online without local",
        )


def check_order(outlook: Outlook, engine: Engine) -> None:
    """Refuse batches of numbered agents who may come and go: the turns of others would change."""
    leaves = engine.market.neighbours is Neighbours.ADD_REMOVE
    if outlook.batches is not None and leaves and engine.numbered:
        raise AgentsError(
            "batches with neighbours add-remove need ids",
            "if somebody left, the turns of the agents after them would change, and reveal it",
        )
