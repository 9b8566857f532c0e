"""Paired measurement on a noisy machine: A, B, A again, in turn; ratios are taken within a round, then the median."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Pairs", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Ratios of interleaved rounds.

    Args:
        ratio: Median of B/A over the rounds.
        aa: Median of A/A over the rounds; 1.0 on a quiet machine.
        spread: Half the distance between the quartiles of A/A: what noise alone does.
        a: Median of A, in the measured unit.
        b: Median of B, in the measured unit.
        rounds: Number of rounds.
    """

    ratio: float
    aa: float
    spread: float
    a: float
    b: float
    rounds: int

    def line(self, **more: object) -> str:
        """Give the closing line ``ratio=… aa=… …``."""
        extra = "".join(f" {key}={value}" for key, value in more.items())
        return (
            f"ratio={self.ratio:.3f} aa={self.aa:.3f} spread={self.spread:.3f} rounds={self.rounds} "
            f"a={self.a:.4f} b={self.b:.4f}{extra}"
        )


def measure(a: Callable[[], float], b: Callable[[], float], *, rounds: int = 11, warm: bool = True) -> Pairs:
    """Measure B against A.

    Args:
        a: Runs the reference once and gives what it took.
        b: Runs the other once and gives what it took.
        rounds: Rounds of A, B, A; every second one in reverse order of B and the second A.
        warm: Whether each runs once before, uncounted.
    """
    if warm:
        a()
        b()
    ratios, same, all_a, all_b = [], [], [], []
    for number in range(rounds):
        first = a()
        if number % 2:
            again, other = a(), b()
        else:
            other, again = b(), a()
        ratios.append(other / ((first + again) / 2))
        same.append(again / first)
        all_a += [first, again]
        all_b.append(other)
        print(f"round {number + 1}/{rounds}: a={first:.4f} b={other:.4f} a={again:.4f}", flush=True)
    low, _, high = statistics.quantiles(same, n=4)
    return Pairs(
        ratio=statistics.median(ratios),
        aa=statistics.median(same),
        spread=(high - low) / 2,
        a=statistics.median(all_a),
        b=statistics.median(all_b),
        rounds=rounds,
    )
