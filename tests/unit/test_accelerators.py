"""The accelerator registry against the table of facts, row by row, and the reading of names."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kr_kfp.spec.accelerators import UnknownAcceleratorError, explain, names, notes, resolve, selectors, shapes, sources
from kr_kfp.spec.accelerators_data import SOURCES
from kr_kfp.spec.accelerators_index import Entry, index
from kr_kfp.spec.placement import shape_tolerations
from kr_kfp.spec.step import Gpu, Shape, Tpu

TABLE = Path(__file__).parents[1] / "data" / "accelerators.csv"
with TABLE.open(encoding="utf-8", newline="") as lines:
    ROWS = list(csv.DictReader(lines))


def key(row: dict[str, str]) -> tuple[str, ...]:
    """Tell what identifies a row: everything but names, sources and notes."""
    topology = "" if row["topology"] == "N/A" else row["topology"]
    return (
        row["family"],
        row["kind"],
        row["gke_accelerator_label"],
        row["machine_type"],
        row["chips_per_host"],
        topology,
        row["chips"],
        row["hosts"],
        row["pathways_instance_type"],
        row["vertex_machine_type/accelerator"],
        row["sources"],
    )


def key_of(entry: Entry) -> tuple[str, ...]:
    """Tell the same of an entry of the registry."""
    shape = entry.shape
    codes = [code for text in sources(shape) for code, full in SOURCES.items() if full == text]
    return (
        shape.family,
        shape.kind,
        shape.label,
        "|".join(entry.machines),
        str(shape.chips_per_host),
        shape.topology,
        str(shape.chips),
        str(shape.hosts),
        f"{shape.pathways_type}:{shape.topology}" if shape.pathways_type else "",
        shape.vertex_machine,
        "|".join(codes),
    )


def test_table_has_every_row() -> None:
    """The table holds 295 different rows."""
    assert len(ROWS) == 295
    assert len({key(row) for row in ROWS}) == 295


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['machine_type'].partition('|')[0]}-{row['topology']}")
def test_row_is_in_the_registry(row: dict[str, str]) -> None:
    """Each row of the table is one entry, with equal label, machine, chips, hosts, topology, types and sources."""
    assert [key_of(entry) for entry in index().entries].count(key(row)) == 1


def test_registry_has_no_other_rows() -> None:
    """The registry knows nothing that the table does not."""
    assert sorted(key_of(entry) for entry in index().entries) == sorted(key(row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['machine_type'].partition('|')[0]}-{row['topology']}")
def test_aliases_of_the_table(row: dict[str, str]) -> None:
    """Names by cores and topology resolve to their row; kinetic's, which count chips, are explained as such."""
    for alias in filter(None, row["aliases"].split("|")):
        convention, _, name = alias.rpartition(":")
        if convention == "chips(kinetic)":
            found = {who: shape for who, shape, _ in explain(name).readings}["kinetic's name (counts chips)"]
        elif convention == "topo":
            found = resolve(f"{name}@{row['machine_type']}")
        else:
            found = resolve(name)
        assert found is not None, alias
        assert (found.label, found.topology or "N/A", str(found.chips_per_host), str(found.chips)) == (
            row["gke_accelerator_label"],
            row["topology"],
            row["chips_per_host"],
            row["chips"],
        ), alias


FACTS = [
    # name, family, topology, chips, hosts, chips a host, JAX devices a host, label, machine, Pathways
    ("v3-8", "v3", "2x2", 4, 1, 4, 8, "tpu-v3-device", "ct3-hightpu-4t", ""),
    ("v3-32", "v3", "4x4", 16, 4, 4, 8, "tpu-v3-slice", "ct3p-hightpu-4t", ""),
    ("v4-8", "v4", "2x2x1", 4, 1, 4, 4, "tpu-v4-podslice", "ct4p-hightpu-4t", "tpuv4"),
    ("v4-32", "v4", "2x2x4", 16, 4, 4, 4, "tpu-v4-podslice", "ct4p-hightpu-4t", "tpuv4"),
    ("v5litepod-1", "v5e", "1x1", 1, 1, 1, 1, "tpu-v5-lite-podslice", "ct5lp-hightpu-1t", ""),
    ("v5litepod-4", "v5e", "2x2", 4, 1, 4, 4, "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "tpuv5e"),
    ("v5litepod-8", "v5e", "2x4", 8, 2, 4, 4, "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "tpuv5e"),
    ("v5litepod-16", "v5e", "4x4", 16, 4, 4, 4, "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "tpuv5e"),
    ("v5litepod-256", "v5e", "16x16", 256, 64, 4, 4, "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", "tpuv5e"),
    ("v5p-8", "v5p", "2x2x1", 4, 1, 4, 4, "tpu-v5p-slice", "ct5p-hightpu-4t", "tpuv5"),
    ("v5p-32", "v5p", "2x2x4", 16, 4, 4, 4, "tpu-v5p-slice", "ct5p-hightpu-4t", "tpuv5"),
    ("v6e-1", "v6e", "1x1", 1, 1, 1, 1, "tpu-v6e-slice", "ct6e-standard-1t", ""),
    ("v6e-16", "v6e", "4x4", 16, 4, 4, 4, "tpu-v6e-slice", "ct6e-standard-4t", "tpuv6e"),
    ("tpu7x-8", "tpu7x", "2x2x1", 4, 1, 4, 8, "tpu7x", "tpu7x-standard-4t", "tpu7x"),
    ("tpu7x-32", "tpu7x", "2x2x4", 16, 4, 4, 8, "tpu7x", "tpu7x-standard-4t", "tpu7x"),
    ("tpu7-16", "tpu7", "2x2x2", 8, 2, 4, 8, "tpu7", "tpu7-standard-4t", "tpu7"),
    ("l4x1", "l4", "", 1, 1, 1, 1, "nvidia-l4", "g2-standard-4", ""),
    ("t4x1", "t4", "", 1, 1, 1, 1, "nvidia-tesla-t4", "", ""),
    ("v100x8", "v100", "", 8, 1, 8, 8, "nvidia-tesla-v100", "", ""),
    ("p100x4", "p100", "", 4, 1, 4, 4, "nvidia-tesla-p100", "", ""),
    ("p4x2", "p4", "", 2, 1, 2, 2, "nvidia-tesla-p4", "", ""),
    ("a100-40gbx16", "a100-40gb", "", 16, 1, 16, 16, "nvidia-tesla-a100", "a2-megagpu-16g", ""),
    ("a100-80gbx8", "a100-80gb", "", 8, 1, 8, 8, "nvidia-a100-80gb", "a2-ultragpu-8g", ""),
    ("h100x8", "h100", "", 8, 1, 8, 8, "nvidia-h100-80gb", "a3-highgpu-8g", ""),
    ("h100-megax8", "h100-mega", "", 8, 1, 8, 8, "nvidia-h100-mega-80gb", "a3-megagpu-8g", ""),
    ("h200x8", "h200", "", 8, 1, 8, 8, "nvidia-h200-141gb", "a3-ultragpu-8g", ""),
    ("b200x8", "b200", "", 8, 1, 8, 8, "nvidia-b200", "a4-highgpu-8g", ""),
    ("gb200x4", "gb200", "", 4, 1, 4, 4, "nvidia-gb200", "a4x-highgpu-4g", ""),
    ("gb300x4", "gb300", "", 4, 1, 4, 4, "nvidia-gb300", "a4x-maxgpu-4g-metal", ""),
    ("rtx-pro-6000x1", "rtx-pro-6000", "", 1, 1, 1, 1, "nvidia-rtx-pro-6000", "g4-standard-48", ""),
]


@pytest.mark.parametrize("fact", FACTS, ids=[str(fact[0]) for fact in FACTS])
def test_facts(fact: tuple[object, ...]) -> None:
    """Every family has the shape that its makers give it."""
    shape = resolve(str(fact[0]))
    assert fact == (
        shape.name,
        shape.family,
        shape.topology,
        shape.chips,
        shape.hosts,
        shape.chips_per_host,
        shape.devices_per_host,
        shape.label,
        shape.machine,
        shape.pathways_type,
    )
    assert shape.resource == ("nvidia.com/gpu" if shape.kind == "gpu" else "google.com/tpu")


def test_arm_hosts() -> None:
    """Only the families whose notes in the table say ARM64 are on Arm hosts; their taint is tolerated."""
    noted = {row["family"] for row in ROWS if row["notes"].startswith("ARM64")}
    assert {shape.family for shape in shapes() if shape.arch} == noted == {"gb200", "gb300"}
    assert shape_tolerations(resolve("gb200x4")) == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"},
    ]
    assert shape_tolerations(resolve("v5litepod-16")) == [
        {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_every_family_is_in_the_facts() -> None:
    """No family goes without a literal fact."""
    assert {fact[1] for fact in FACTS} == {row["family"] for row in ROWS}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("V5LitePod-16", "v5litepod-16"),
        ("v5e-16", "v5litepod-16"),
        ("v5e:4x4", "v5litepod-16"),
        (" v5e-4x4 ", "v5litepod-16"),
        ("tpu-v5-lite-podslice:4x4", "v5litepod-16"),
        ("trillium-16", "v6e-16"),
        ("ironwood:2x2x4", "tpu7x-32"),
        ("v7x-32", "tpu7x-32"),
        ("h100:8", "h100x8"),
        ("nvidia-h100-80gb:8", "h100x8"),
        ("NVIDIA_H100_80GB:8", "h100x8"),
        ("l4", "l4x1"),
        ("a100", "a100-40gbx1"),
        ("l4-2", "l4x2"),
        ("v6e-8-1", "v6e:2x4@ct6e-standard-8t"),
    ],
)
def test_conventions(name: str, other: str) -> None:
    """Names of every public convention lead to one shape; case and surrounding blanks do not matter."""
    assert resolve(name) == resolve(other)
    assert resolve(name).name == other


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Tpu("v5e", "4x4"), "v5litepod-16"),
        (Tpu("v5p", "2x2x4"), "v5p-32"),
        (Tpu("v5e", "2x4", "ct5lp-hightpu-8t"), "v5e:2x4@ct5lp-hightpu-8t"),
        (Tpu("v5e", "2x4"), "v5litepod-8"),
        (Gpu("h100", 8), "h100x8"),
        (Gpu("l4"), "l4x1"),
    ],
)
def test_values(value: Tpu | Gpu, name: str) -> None:
    """Tpu and Gpu say the same without any convention."""
    assert resolve(value) == resolve(name)


TPU = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
GPU = "cloud.google.com/gke-accelerator"
MACHINE = "node.kubernetes.io/instance-type"


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("v5litepod-16", {TPU: "tpu-v5-lite-podslice", TOPOLOGY: "4x4"}),
        ("v5litepod-8", {TPU: "tpu-v5-lite-podslice", TOPOLOGY: "2x4", MACHINE: "ct5lp-hightpu-4t"}),
        ("v5e:2x4@ct5lp-hightpu-8t", {TPU: "tpu-v5-lite-podslice", TOPOLOGY: "2x4", MACHINE: "ct5lp-hightpu-8t"}),
        ("v6e-8", {TPU: "tpu-v6e-slice", TOPOLOGY: "2x4", MACHINE: "ct6e-standard-4t"}),
        ("v6e:2x4@ct6e-standard-8t", {TPU: "tpu-v6e-slice", TOPOLOGY: "2x4", MACHINE: "ct6e-standard-8t"}),
        ("v5litepod-16@ct5lp-hightpu-4t", {TPU: "tpu-v5-lite-podslice", TOPOLOGY: "4x4", MACHINE: "ct5lp-hightpu-4t"}),
        ("h200x8", {GPU: "nvidia-h200-141gb"}),
        ("h100x8", {GPU: "nvidia-h100-80gb", MACHINE: "a3-highgpu-8g"}),
        ("t4x1", {GPU: "nvidia-tesla-t4"}),
        ("l4@g2-standard-8", {GPU: "nvidia-l4", MACHINE: "g2-standard-8"}),
        ("gb200x4", {GPU: "nvidia-gb200", "kubernetes.io/arch": "arm64"}),
        (
            "gb300x4",
            {GPU: "nvidia-gb300", MACHINE: "a4x-maxgpu-4g-metal", "kubernetes.io/arch": "arm64"},
        ),
    ],
)
def test_selectors(name: str, selector: dict[str, str]) -> None:
    """The machine is selected where label and topology leave it open, and where a person named it."""
    assert selectors(resolve(name)) == selector


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        (
            "v3-4",
            "'v3-4' is not an accelerator.",
            "Google has no such name; kinetic, which counts chips, means 'v3-8'. Write that.",
        ),
        (
            "l4@g2-standard-5",
            "'l4' does not exist on machine 'g2-standard-5'.",
            "Use one of: g2-standard-12, g2-standard-16, g2-standard-32, g2-standard-4, g2-standard-8.",
        ),
        (
            "v3:32x64",
            "'v3:32x64' is taken only with its machine: unverified: kinetic alone has it, GKE's table ends at 32x32.",
            "Use one of: v3:32x64@ct3p-hightpu-4t.",
        ),
        (
            "h100@a3-highgpu-8g",
            "'h100' does not exist on machine 'a3-highgpu-8g'.",
            "Use one of: a3-highgpu-1g. On a3-highgpu-8g it is h100x8.",
        ),
        (
            "v4-8192",
            "'v4-8192' is not a known accelerator.",
            "Did you mean v4:16x16x16? List all with: kr-kfp accelerators list.",
        ),
        (
            "v5p-24",
            "'v5p-24' is not a known accelerator.",
            "Did you mean v5p-8, v5p-16, v5p-32? List all with: kr-kfp accelerators list.",
        ),
        (
            "v5e:4x2",
            "'v5e:4x2' is not a known accelerator.",
            "Did you mean v5e:2x4? List all with: kr-kfp accelerators list.",
        ),
        (
            "v5p:3x3x3",
            "'v5p:3x3x3' is not a known accelerator.",
            "Did you mean v5p:2x2x2, v5p:2x2x4, v5p:2x4x4? List all with: kr-kfp accelerators list.",
        ),
        (
            "v5e",
            "'v5e' is not a known accelerator.",
            "Did you mean v5litepod-1, v5litepod-4, v5litepod-8, v5litepod-16? List all with: kr-kfp accelerators list.",
        ),
        ("h200", "'h200' is not a known accelerator.", "Did you mean h200x8? List all with: kr-kfp accelerators list."),
        (
            "h100:2x4",
            "'h100:2x4' is not a known accelerator.",
            "Did you mean h100x2? List all with: kr-kfp accelerators list.",
        ),
        (
            "v4-²",  # a digit to str.isdigit, none to int
            "'v4-²' is not a known accelerator.",
            "Did you mean v4-8, v4-16, v4-32, v4-64? List all with: kr-kfp accelerators list.",
        ),
        (
            "h100x3",
            "'h100x3' is not a known accelerator.",
            "Did you mean h100x1, h100x2, h100x4? List all with: kr-kfp accelerators list.",
        ),
        ("quantum", "'quantum' is not a known accelerator.", "List all with: kr-kfp accelerators list."),
        ("", "'' is not a known accelerator.", "List all with: kr-kfp accelerators list."),
    ],
)
def test_unknown_names(name: str, message: str, fix: str) -> None:
    """A name that is not known is an error with a fix, never a guess."""
    with pytest.raises(UnknownAcceleratorError) as caught:
        resolve(name)
    problem = caught.value.problem
    assert (problem.path, problem.message, problem.fix) == ("accelerator", message, fix)


@pytest.mark.parametrize(
    ("value", "message", "fix"),
    [
        (
            Tpu("h100", "8"),
            "Tpu(family='h100', topology='8', machine=None): 'h100' is no TPU.",
            "Use Gpu(kind, per_host=...).",
        ),
        (Gpu("v5e", 4), "Gpu(kind='v5e', per_host=4): 'v5e' is no GPU.", "Use Tpu(family, topology=...)."),
        (
            Gpu("h100", 0),
            "Gpu(kind='h100', per_host=0): per_host is not a number of GPUs.",
            "Use a whole number from 1 on.",
        ),
        (
            Gpu("h200"),
            "Gpu(kind='h200', per_host=1) is not a known accelerator.",
            "Did you mean h200x8? List all with: kr-kfp accelerators list.",
        ),
        (
            Tpu("v5e", "2x4@ct5lp-hightpu-8t"),
            "Tpu(family='v5e', topology='2x4@ct5lp-hightpu-8t', machine=None) is not a known accelerator.",
            "Did you mean v5litepod-1, v5litepod-4, v5litepod-8, v5litepod-16? List all with: kr-kfp accelerators list.",
        ),
        (8, "8 is no accelerator but int.", "Use a name such as 'v5litepod-16', Tpu(...) or Gpu(...)."),
    ],
)
def test_wrong_values(value: object, message: str, fix: str) -> None:
    """A value that says something else than its class is refused; so is a value of another type."""
    with pytest.raises(UnknownAcceleratorError) as caught:
        resolve(value, path="accelerator")  # type: ignore[arg-type]
    assert (caught.value.problem.message, caught.value.problem.fix) == (message, fix)


def test_number_beyond_reading() -> None:
    """A number of more digits than Python reads is an unknown name, not a crash."""
    with pytest.raises(UnknownAcceleratorError) as caught:
        resolve("v5p-" + "9" * 5000)
    assert caught.value.problem.fix == (
        "Did you mean v5p-12288, v5p-13824, v5p-17920? List all with: kr-kfp accelerators list."
    )


@pytest.mark.parametrize(
    ("name", "place", "why"),
    [
        ("v5p-16@ct5p-hightpu-4t", 0, "16 TensorCores, 2 TensorCores a chip"),
        ("v5litepod-1", 0, "1 TensorCore, 1 TensorCore a chip"),
        ("v6e-8-1", 0, "a name of its own in axlearn"),
        ("v5p:2x2x4", 2, "family and topology, free of doubt"),
        ("v5e:1x1", 2, "family and topology, free of doubt"),  # the legacy 1x1 has a label of its own
        ("v6e:2x4", 2, "on ct6e-standard-4t; v6e:2x4@machine chooses another: ct6e-standard-8t"),
        ("v6e:2x4@ct6e-standard-8t", 2, "on ct6e-standard-8t; v6e:2x4@machine chooses another: ct6e-standard-4t"),
        ("l4-1", 3, "1 on each host"),
        ("h100x8", 3, "8 on each host"),
    ],
)
def test_explain_says_why(name: str, place: int, why: str) -> None:
    """Each name is taken by one convention, with what it resolves to and why; no doubt is hidden."""
    readings = explain(name).readings
    assert readings[place][1:] == (resolve(name), why)
    others = [shape for number, (_, shape, _) in enumerate(readings) if number not in (place, 1)]
    assert others == [None, None]


def test_explain_counts() -> None:
    """One name, two sizes: Google counts cores, kinetic chips; kr_kfp takes Google's (the ambiguity of v5p)."""
    found = explain("v5p-16")
    assert found.taken == resolve("v5p:2x2x2")
    assert found.readings == (
        (
            "Google's name (Cloud TPU, xpk, axlearn, maxtext)",
            resolve("v5p:2x2x2"),
            "16 TensorCores, 2 TensorCores a chip",
        ),
        ("kinetic's name (counts chips)", resolve("v5p:2x2x4"), "16 chips"),
        ("topology", None, ""),
        ("GPU", None, ""),
    )
    assert found.notes == ("kinetic counts chips and calls it v5p-8",)


def test_explain_2x4() -> None:
    """v5litepod-8 is two hosts for xpk and axlearn and one for kinetic: both are shown."""
    (_, google, _), (_, kinetic, _), *_ = explain("v5litepod-8").readings
    assert google
    assert kinetic
    assert (google.hosts, google.machine) == (2, "ct5lp-hightpu-4t")
    assert (kinetic.hosts, kinetic.machine) == (1, "ct5lp-hightpu-8t")


def test_explain_unknown() -> None:
    """An unknown name has no reading."""
    found = explain("quantum")
    assert found.taken is None
    assert [shape for _, shape, _ in found.readings] == [None, None, None, None]
    assert found.notes == ()


def test_shapes() -> None:
    """Listing gives all 295, searching those in which the text occurs."""
    assert len(shapes()) == 295
    assert [shape.name for shape in shapes("ct6e-standard-8t")] == ["v6e:2x4@ct6e-standard-8t"]
    assert {shape.family for shape in shapes("nvidia_l4")} == {"l4"}
    assert shapes("quantum") == ()


def test_names_lead_back() -> None:
    """All names of a shape are listed, the canonical one first."""
    assert names(resolve("v6e-16")) == (
        "v6e-16",
        "trillium-16",
        "v6e:4x4",
        "v6e-4x4",
        "trillium:4x4",
        "trillium-4x4",
        "tpu-v6e-slice:4x4",
        "tpu-v6e-slice-4x4",
    )
    assert names(resolve("v5e:2x4@ct5lp-hightpu-8t"))[0].endswith("@ct5lp-hightpu-8t")


def test_sources_and_notes() -> None:
    """Every row says where it comes from."""
    assert all(sources(shape) for shape in shapes())
    assert sources(resolve("tpu7-16")) == (
        "GKE node auto-provisioning, GoogleCloudPlatform/cluster-autoscaler @7d25050: label, machine, chips per host",
        "AI-Hypercomputer/xpk @367c838, system_characteristics.py",
    )
    assert notes(resolve("v5litepod-4")) == ("single host",)


def test_shape_from_elsewhere() -> None:
    """A shape that the registry never gave is refused."""
    shape = resolve("h100x8")
    made = Shape(**{name: getattr(shape, name) for name in Shape.__slots__} | {"label": "other"})
    with pytest.raises(UnknownAcceleratorError, match="shape: 'h100x8' is not in the registry"):
        names(made)
