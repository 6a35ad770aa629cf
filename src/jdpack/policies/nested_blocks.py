"""Public: nested blocks of batches, whose noisy sums give every prefix with little noise.

A policy that learns from one pass over T batches needs the sum of all batches so far, after each of
them. If every batch has its own noise, the noise of that sum grows like sqrt(T). Here the answer of
a round sums up a whole block of batches that ends with this round's, with a single noise term for
all of them. The prefix up to a round is its block plus the prefix before that block. Both numbers
that matter are then about (log2 T) / 2: how many blocks contain a batch, since each of them costs
its agents, and how many blocks make up a prefix, since each of them adds its noise.

These are the blocks of the smooth binary mechanism (Andersson & Pagh, A Smooth Binary Mechanism for
Efficient Private Continual Observation, NeurIPS 2023). The batches are the numbers of h bits of
which k = h // 2 are 1, in increasing order: their *leaves* in a binary tree. Take a leaf that ends
with a 0, then r ones, then z zeros: A 0 1..1 0..0. The next leaf begins with A 1, so all leaves
that begin with A 0 are over. There are C(r + z, r) of them, and they are this round's block.

* For each of its zeros, a leaf is in one block, that of its own beginning A 0: h - k blocks at
  most.
* The prefix up to a leaf consists of one block A 0 for each one of the next leaf, at the end of its
  beginning A 1: k blocks at most.

So with noise of one scale s everywhere, a prefix has a deviation of at most sqrt(k) s, and a
budget rho pays for s = Delta sqrt((h - k) / (2 rho)). `experiments/prefix_noise.py` compares it
with other ways. The best known needs noise that is correlated between rounds, and so earlier draws
that nobody may see. Blocks have independent noise, and the billboard stays the only state of a run.
"""

from __future__ import annotations

import math


def bits(rounds: int) -> int:
    """h: the bits of the leaves, the fewest that give a leaf to each of `rounds` batches."""
    h = 1
    while math.comb(h, h // 2) < rounds:
        h += 1
    return h


def levels(rounds: int) -> int:
    """The most blocks that contain any one batch."""
    h = bits(rounds)
    return h - h // 2


def terms(rounds: int) -> int:
    """The most blocks that make up a prefix."""
    return max(1, bits(rounds) // 2)


def first_leaf(rounds: int) -> int:
    """The leaf of the first batch."""
    return (1 << bits(rounds) // 2) - 1


def next_leaf(leaf: int) -> int:
    """The next larger number with the same number of ones."""
    low = leaf & -leaf
    carried = leaf + low
    return carried | ((leaf ^ carried) // low >> 2)


def span(leaf: int) -> int:
    """How many batches are in the block that ends with this leaf."""
    zeros = (leaf & -leaf).bit_length() - 1
    ones = (~(leaf >> zeros) & ((leaf >> zeros) + 1)).bit_length() - 1
    return math.comb(ones + zeros, ones)
