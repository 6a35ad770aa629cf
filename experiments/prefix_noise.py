"""How much noise the sum of all batches so far has, by the way in which noise is added.

For T batches, at the same budget, in units of the noise of one release with the whole budget: the
largest noise of any prefix, and its root mean square over all of them. mwu-online steers by these.

* independent: each batch has noise of its own.
* binary: blocks of 2^k batches, each released once, of which a prefix needs as many as it has ones.
* weighted: the same tree with all of its blocks, best combined from below (Honaker 2015). It
  releases two sums per batch.
* nested: the blocks of `jdpack.policies.nested_blocks` (Andersson & Pagh 2023).
* square root: noise correlated over all rounds (Henzinger, Upadhyay & Upadhyay 2023). It is the
  least, but the next draw needs all earlier ones, which nobody may see: a private state.
"""

from __future__ import annotations

import math

from jdpack.policies import nested_blocks


def of_spans(spans: list[int]) -> tuple[float, float]:
    """The largest and the mean noise if the answer of round t sums up the last spans[t] batches."""
    held, terms = [0] * (len(spans) + 1), [0]
    for end, span in enumerate(spans, start=1):
        terms.append(terms[end - span] + 1)
        held[end - span] += 1
        held[end] -= 1
    most, level = 0, 0
    for change in held:
        level += change
        most = max(most, level)
    return math.sqrt(most * max(terms)), math.sqrt(most * sum(terms) / len(spans))


def binary(rounds: int) -> list[int]:
    """The blocks of the binary mechanism that a prefix needs."""
    return [t & -t for t in range(1, rounds + 1)]


def nested(rounds: int) -> list[int]:
    """The blocks of mwu-online."""
    leaf, found = nested_blocks.first_leaf(rounds + 1), []
    for _ in range(rounds):
        found.append(nested_blocks.span(leaf))
        leaf = nested_blocks.next_leaf(leaf)
    return found


def weighted(rounds: int) -> tuple[float, float]:
    """The whole binary tree, each block combined with the blocks in it."""
    levels, own = rounds.bit_length(), [1.0]
    for _ in range(levels):
        own.append(1.0 / (1.0 + 1.0 / (2.0 * own[-1])))
    noise = [sum(own[k] for k in range(levels) if t >> k & 1) for t in range(1, rounds + 1)]
    return math.sqrt(levels * max(noise)), math.sqrt(levels * sum(noise) / rounds)


def square_root(rounds: int) -> tuple[float, float]:
    """The square root of the matrix of prefix sums, as both factors."""
    squares, term = [], 1.0
    for k in range(rounds):
        squares.append(term * term + (squares[-1] if squares else 0.0))
        term *= (2 * k + 1) / (2 * k + 2)
    return squares[-1], math.sqrt(squares[-1] * sum(squares) / rounds)


def main() -> None:
    """Print the table."""
    print("| batches | independent | binary | weighted | nested | square root |")
    print("|---" * 6 + "|")
    for rounds in (16, 100, 1_000, 10_000, 100_000):
        ways = [
            of_spans([1] * rounds),
            of_spans(binary(rounds)),
            weighted(rounds),
            of_spans(nested(rounds)),
            square_root(rounds),
        ]
        cells = " | ".join(f"{most:.1f} ({mean:.1f})" for most, mean in ways)
        print(f"| {rounds:,} | {cells} |")


if __name__ == "__main__":
    main()
