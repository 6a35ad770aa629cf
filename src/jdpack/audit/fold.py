"""Private: recomputes the public side of recorded runs, in a process that has no records.

Everything a run publishes must follow from the market, the policy, the budget, the seed and the
answers that came through the door. A fresh process gets these and nothing else, and rebuilds every
billboard: it asks the policy for each step, copies the posted answer, closes the run, certifies it,
and stops where the policy does. The lines must match byte for byte, and so must the public pages
and what the filter says was spent. If a run stopped early or late, moved a price, or used a number
that is not on the billboard for its certificate, its lines differ.

That process loads this module, which imports nothing private: it could not even read records.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from jdpack.audit.findings import Finding, fact
from jdpack.audit.scripted_policy import Script, known
from jdpack.billboard.board import Billboard
from jdpack.billboard.lines import Header, Release, Seed
from jdpack.errors import JdpackError
from jdpack.market.market import Market
from jdpack.pages import billboard_page, public_report
from jdpack.policies import registry
from jdpack.policies.base import budget_of
from jdpack.privacy.accounting import Filter
from jdpack.protocol import closing
from jdpack.protocol.certificate import certify
from jdpack.protocol.charge import charge

if TYPE_CHECKING:
    from jdpack.audit.recording import Tape

_CODE = "from jdpack.audit.fold import main; main()"
_PATIENCE = 600  # seconds


def made_again(
    text: str, policy: dict[str, Any], market: dict[str, Any], given: Any, shown: bool
) -> Any:
    """Rebuild a billboard from a run's arguments, its answers and its seed alone.

    If the run was `shown`, its pages too.

    Returns the lines, the SHA-256 of each page, the rho and delta spent, and the query that the
    policy still wants to ask when the posted answers run out.
    """
    posted = Billboard.from_text(text)
    kind = registry.from_dict(policy)
    own = Market.from_dict(market)
    budget = budget_of(kind, own, *given)
    seed = posted.seed or Seed(bytes(16))
    commitment = hashlib.sha256(b"jdpack seed " + seed.seed).hexdigest()
    board = Billboard(Header(own, kind.to_dict(), budget, commitment))
    filter, state = Filter(budget), kind.start(board.header.market, budget)
    answers = iter(posted.releases)
    closes = False
    while True:
        step = None if closes else kind.step(state)
        closes = step is None
        step = closing.step(board) if step is None else step
        answered = None if step is None else next(answers, None)
        if step is None or answered is None:
            break
        charge(step, filter, board)
        release = Release(step, answered.answer)
        board.post(release)
        if not closes:
            state = kind.observe(state, release)
    if step is None:
        board.post(certify(board))
        board.post(seed)
    pages = {}
    if board.finished and shown:
        pages = {
            **billboard_page.public_pages(board),
            "report.html": public_report.public_report(board),
        }
    spent = filter.spent
    return {
        "lines": list(board.lines()),
        "pages": {name: hashlib.sha256(page.encode()).hexdigest() for name, page in pages.items()},
        "spent": [str(spent.rho), str(spent.delta), str(spent.transfer)],
        "wants": None if step is None else step.query,
    }


def rebuilt(text: str) -> str:
    """What a list of runs should have published. Both are JSON."""
    found: list[Any] = []
    with known(Script):
        for run in json.loads(text):
            try:
                found.append(made_again(**run))
            except (JdpackError, ArithmeticError, ValueError, TypeError, AssertionError) as error:
                found.append({"error": f"{type(error).__name__}: {error}"})
    return json.dumps(found)


def main() -> None:
    """`rebuilt`, from standard input to standard output."""
    sys.stdout.write(rebuilt(sys.stdin.read()))


def made_elsewhere(tapes: Sequence[Tape]) -> list[Any]:
    """The public side of some runs, rebuilt in another process."""
    runs = [
        {
            "text": "".join(f"{line}\n" for line in tape.board.lines()),
            "policy": tape.setting.policy.to_dict(),
            "market": tape.people.market.to_dict(),
            "given": [tape.setting.epsilon, tape.setting.delta],
            "shown": bool(tape.files),
        }
        for tape in tapes
        if tape.board is not None
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        input=json.dumps(runs),
        capture_output=True,
        text=True,
        env=environment,
        timeout=_PATIENCE,
        check=False,
    )
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        return [{"error": f"the process that rebuilds it failed: {told}"}] * len(runs)
    found: list[Any] = json.loads(done.stdout)
    return found


def of_public(tapes: Sequence[Tape], made: Sequence[Any] | None = None) -> list[Finding]:
    """Everything public is a function of the public past.

    `made` is the result of `made_elsewhere` for these runs, if the caller already has it.
    """
    ended = [tape for tape in tapes if tape.board is not None]
    made = made_elsewhere(ended) if made is None else made
    lines, pages, sums, steps, files = list[str](), list[str](), list[str](), 0, 0
    for tape, again in zip(ended, made, strict=True):
        assert tape.board is not None
        who = f"a run of {tape.board.header.policy.get('name')}"
        if "error" in again:
            lines.append(f"{who} cannot be rebuilt: {again['error']}")
            continue
        if again["wants"] is not None:
            lines.append(
                f"{who} stops after {len(tape.board.releases)} releases, before its policy does"
            )
        else:
            lines += _difference(list(tape.board.lines()), again["lines"], who)
        steps += len(tape.board.releases)
        if tape.spent is not None and list(map(Fraction, again["spent"])) != [
            tape.spent.rho,
            tape.spent.delta,
            tape.spent.transfer,
        ]:
            sums.append(f"{who} claims to have spent rho {float(tape.spent.rho):.9g}")
        if tape.files:
            files += 1
            pages += _wrong_files(tape, again["pages"])
    found = [
        fact(
            "public: billboard",
            "every line follows from the lines before it, and the run stops where its policy does",
            lines,
            f"a process without records rebuilt {len(ended)} runs with {steps} releases",
            tested=bool(ended),
        ),
        fact(
            "public: spent",
            "what a run says it spent follows from its billboard",
            sums,
            f"checked in {len(ended)} runs",
            tested=bool(ended),
        ),
    ]
    if files:
        found.append(
            fact(
                "public: files",
                "every byte of the public folder follows from the billboard",
                pages,
                f"checked in {files} folders",
            )
        )
    return found


def _difference(posted: list[str], again: list[str], who: str) -> list[str]:
    for at, (one, two) in enumerate(zip(posted, again, strict=False), start=1):
        if one != two:
            return [f"line {at} of {who} does not follow from the lines before it"]
    if len(posted) != len(again):
        return [f"{who} has {len(posted)} lines, but {len(again)} by its policy"]
    return []


def _wrong_files(tape: Tape, pages: dict[str, str]) -> list[str]:
    assert tape.board is not None
    names = set(tape.files)
    least = {"billboard.jsonl", *billboard_page.files(tape.board.header.market).values()}
    if not least <= names <= least | {"report.html"}:
        return [f"the public folder has {', '.join(sorted(names))}"]
    wrong = []
    if tape.files["billboard.jsonl"].decode() != "".join(f"{li}\n" for li in tape.board.lines()):
        wrong.append("billboard.jsonl differs from the billboard")
    for name in sorted(names - {"billboard.jsonl"}):
        if hashlib.sha256(tape.files[name]).hexdigest() != pages.get(name):
            wrong.append(f"the public {name} does not follow from the billboard")
    return wrong
