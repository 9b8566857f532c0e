"""Which framework is initialised."""

from __future__ import annotations

import pytest

from kr_kfp.errors import SetupError
from kr_kfp.runtime.frameworks import choose


@pytest.mark.parametrize(
    ("wanted", "there", "processes", "chosen"),
    [
        ("auto", ("jax", "torch"), 1, "jax"),
        ("auto", ("torch",), 1, "torch"),
        ("auto", (), 1, "none"),
        ("auto", ("jax", "torch"), 2, "torch"),
        ("auto", ("jax",), 2, "none"),
        ("torch", ("jax", "torch"), 1, "torch"),
        ("none", ("jax", "torch"), 1, "none"),
        ("jax", ("jax",), 1, "jax"),
    ],
)
def test_choice(wanted: str, there: tuple[str, ...], processes: int, chosen: str) -> None:
    """Auto goes by what can be imported, JAX first; several processes on a host are never JAX's."""
    assert choose(wanted, there.__contains__, processes) == chosen


def test_what_is_missing() -> None:
    """A framework that was asked for is not replaced by another."""
    with pytest.raises(SetupError) as caught:
        choose("torch", ("jax",).__contains__)
    assert str(caught.value) == (
        "framework='torch', but torch cannot be imported in this image. Add it to packages_to_install"
    )
