"""Rules of the accelerator registry over all of its names, and over texts that are none."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kr_kfp.spec.accelerators import UnknownAcceleratorError, explain, names, resolve, selectors, shapes
from kr_kfp.spec.accelerators_index import index
from kr_kfp.spec.step import Gpu, Shape, Tpu

quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SHAPES = st.sampled_from(shapes())
NAMES = st.sampled_from(sorted(index().plain))


def physical(shape: Shape) -> tuple[object, ...]:
    """Tell a shape without its name and without whether the machine is selected."""
    return (shape.family, shape.label, shape.topology, shape.chips, shape.chips_per_host, shape.hosts)


def test_no_name_means_two_shapes() -> None:
    """Over all rows, every name that is taken as it stands belongs to one row; so does every name with a machine."""
    owners: dict[str, set[tuple[object, ...]]] = {}
    for entry in index().entries:
        for name in entry.plain:
            owners.setdefault(name, set()).add(physical(entry.shape))
        for stem in entry.stems:
            for machine in entry.machines:
                owners.setdefault(f"{stem}@{machine}", set()).add(physical(entry.shape))
    assert [name for name, found in owners.items() if len(found) != 1] == []
    assert {name for name, found in owners.items() if found != {physical(resolve(name))}} == set()


@quick
@given(SHAPES)
def test_every_name_leads_back(shape: Shape) -> None:
    """All names of a shape resolve to it, its own among them."""
    assert resolve(shape.name) == shape
    assert shape.name in names(shape)
    assert {physical(resolve(name)) for name in names(shape)} == {physical(shape)}


def test_own_name_comes_first() -> None:
    """The canonical name of every shape is the first of its names."""
    assert [shape.name for shape in shapes() if names(shape)[0] != shape.name] == []


@quick
@given(SHAPES)
def test_sizes_agree(shape: Shape) -> None:
    """Topology, chips, hosts and chips per host fit together."""
    assert shape.chips == shape.hosts * shape.chips_per_host
    assert shape.devices_per_host in (shape.chips_per_host, 2 * shape.chips_per_host)
    if shape.kind == "tpu":
        assert shape.chips == prod(int(side) for side in shape.topology.split("x"))
    else:
        assert (shape.topology, shape.hosts) == ("", 1)
    # A slice of several hosts has full hosts of four chips.
    assert shape.hosts == 1 or shape.chips_per_host == 4


@quick
@given(SHAPES, SHAPES)
def test_selectors_tell_shapes_apart(one: Shape, other: Shape) -> None:
    """Two TPU shapes with the same selector are the same: no pod can land on a slice of another size."""
    if one.kind == "tpu" and selectors(one) == selectors(other):
        assert physical(one) == physical(other)


def test_all_tpu_selectors_differ() -> None:
    """The same over every pair."""
    found: dict[tuple[tuple[str, str], ...], Shape] = {}
    for shape in shapes():
        if shape.kind == "tpu":
            selector = tuple(sorted(selectors(shape).items()))
            assert found.setdefault(selector, shape) == shape


@quick
@given(NAMES, st.data())
def test_case_does_not_matter(name: str, data: st.DataObject) -> None:
    """A name may be written in any case, with ``_`` for ``-``, and with blanks around it."""
    up = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    text = "".join(letter.upper() if big else letter for letter, big in zip(name, up, strict=True))
    assert resolve(f" {text} ") == resolve(name)
    assert resolve(text.replace("-", "_")) == resolve(name)


@quick
@given(SHAPES)
def test_values_say_the_same(shape: Shape) -> None:
    """Tpu with its machine and Gpu give the shape that their fields say."""
    if shape.kind == "tpu" and shape.label not in ("tpu-v4-lite-device", "tpu-v5-lite-device"):
        found = resolve(Tpu(shape.family, shape.topology, shape.machine))
        assert physical(found) == physical(shape)
        assert found.machine == shape.machine
    elif shape.kind == "gpu":
        assert resolve(Gpu(shape.family, shape.chips_per_host)).chips_per_host == shape.chips_per_host


@quick
@given(NAMES)
def test_explain_takes_what_resolve_takes(name: str) -> None:
    """Explaining never tells another story than resolving: one convention beside kinetic's reads it, as it is taken."""
    found = explain(name)
    assert found.taken == resolve(name)
    (google, _, topology, gpu) = (shape for _, shape, _ in found.readings)
    assert [shape for shape in (google, topology, gpu) if shape] == [found.taken]


@quick
@given(
    st.text(max_size=30)
    | st.from_regex(r"\A(v[3-6][ep]?|tpu7x|h100|l4)[-x:](\d{1,6}|[0-9x]{1,6})(@[a-z0-9-]{1,12})?\Z")
)
def test_unknown_names_are_errors_with_a_fix(text: str) -> None:
    """Any text is a known name or an error that says what to write; suggestions are known names."""
    taken = explain(text).taken
    if taken is not None:
        assert resolve(text) == taken
        return
    with pytest.raises(UnknownAcceleratorError) as caught:
        resolve(text)
    problem = caught.value.problem
    assert problem.path == "accelerator"
    assert problem.fix
    if problem.fix.startswith("Did you mean "):
        offered = problem.fix.removeprefix("Did you mean ").partition("?")[0].split(", ")
        assert all(resolve(name) for name in offered)
