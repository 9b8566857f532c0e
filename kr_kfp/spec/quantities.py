"""Kubernetes quantities as numbers (``k8s.io/apimachinery/pkg/api/resource``). Pure."""

from __future__ import annotations

__all__ = ["quantity"]

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{letter}i": 1024.0**n for n, letter in enumerate("KMGTPE", 1)},
}


def quantity(value: object) -> float:
    """Read a quantity such as ``4``, ``500m`` or ``2Gi``; 0 for what is none."""
    text = str(value).strip()
    for end in (2, 1, 0):
        number, suffix = (text[:-end], text[-end:]) if end else (text, "")
        if suffix and suffix not in _SUFFIXES:
            continue
        try:
            return float(number) * _SUFFIXES.get(suffix, 1.0)
        except ValueError:
            continue
    return 0.0
