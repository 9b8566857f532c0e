"""The accelerator table itself: reviewed facts, no logic. :mod:`kr_kfp.spec.accelerators` is the way in.

A :class:`Block` is a run of rows that differ in their topology alone, so that 295 rows stay readable in a review. It is
a Python module and not a data file since the launcher reads it inside a pod: nothing to open, nothing to package.
``tests/data/accelerators.csv`` holds the same rows one by one, and a test asserts that both are equal.

Every block names its sources by the codes of :data:`SOURCES`; a note is one short fact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

__all__ = ["BLOCKS", "FAMILIES", "SOURCES", "Block", "Family"]

SOURCES: dict[str, str] = {
    "CA": "GKE node auto-provisioning, GoogleCloudPlatform/cluster-autoscaler @7d25050: label, machine, chips per host",
    "KRAY": "GKE's table of TPU topologies, as the kubectl-ray validator holds it",
    "XPK": "AI-Hypercomputer/xpk @367c838, system_characteristics.py",
    "AXL": "apple/axlearn @34aed43, system_characteristics.py",
    "MXT": "AI-Hypercomputer/maxtext @e591f30, accelerator_to_spec_map.py",
    "PWJ": "google/pathways-job @c0cc759, pathwaysjob_controller.go",
    "KIN": "keras-team/kinetic @cab055c, accelerators.py",
    "VTX": "Vertex AI documentation, page 'Configure compute'",
}


class Family(NamedTuple):
    """How a family is written and counted.

    Args:
        kind: ``tpu`` or ``gpu``.
        words: Words that name the family; the first one is kr_kfp's own in names with a count.
        cores_per_chip: TensorCores of one chip (what Google's ``vN-K`` counts); 0 for GPU.
        devices_per_chip: Devices that JAX shows for one chip. v4 and v5p fuse two cores into one (megacore).
        xpk: The GPU's name in xpk, which appends ``-<count>``; empty where xpk has none.
        arch: ``arm64`` where the hosts are Arm machines (GB200 and GB300: Grace).

    """

    kind: Literal["tpu", "gpu"]
    words: tuple[str, ...]
    cores_per_chip: int = 0
    devices_per_chip: int = 1
    xpk: str = ""
    arch: str = ""


# In the order of listings. Two JAX devices per tpu7x chip: MXT lists 16 devices on 8 chips, XPK starts two containers.
# tpu7 is taken to be like tpu7x (XPK counts two cores per chip); no source shows its devices.
FAMILIES: dict[str, Family] = {
    "v3": Family("tpu", ("v3",), 2, 2),
    "v4": Family("tpu", ("v4",), 2, 1),
    "v5e": Family("tpu", ("v5litepod", "v5e"), 1, 1),
    "v5p": Family("tpu", ("v5p",), 2, 1),
    "v6e": Family("tpu", ("v6e", "trillium"), 1, 1),
    "tpu7x": Family("tpu", ("tpu7x", "7x", "v7x", "ironwood"), 2, 2),
    "tpu7": Family("tpu", ("tpu7",), 2, 2),
    "p4": Family("gpu", ("p4",)),
    "p100": Family("gpu", ("p100",)),
    "v100": Family("gpu", ("v100",)),
    "t4": Family("gpu", ("t4",)),
    "l4": Family("gpu", ("l4",), xpk="l4"),
    "a100-40gb": Family("gpu", ("a100-40gb", "a100"), xpk="a100-40gb"),
    "a100-80gb": Family("gpu", ("a100-80gb",)),
    "h100": Family("gpu", ("h100", "h100-80gb"), xpk="h100-80gb"),
    "h100-mega": Family("gpu", ("h100-mega", "h100-mega-80gb"), xpk="h100-mega-80gb"),
    "h200": Family("gpu", ("h200", "h200-141gb"), xpk="h200-141gb"),
    "b200": Family("gpu", ("b200",), xpk="b200"),
    "gb200": Family("gpu", ("gb200",), xpk="gb200", arch="arm64"),
    "gb300": Family("gpu", ("gb300",), arch="arm64"),
    "rtx-pro-6000": Family("gpu", ("rtx-pro-6000",)),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that share everything but the topology.

    ``vertex`` and ``notes`` may hold ``{family}``, ``{machine}``, ``{topology}`` and ``{cores}``.

    Args:
        family: A key of :data:`FAMILIES`.
        label: Value of ``cloud.google.com/gke-tpu-accelerator`` or ``cloud.google.com/gke-accelerator``.
        machines: GKE machine types, blank-separated; several where GPUs are attached to any of them.
        per_host: Chips or GPUs of one host.
        sources: Codes of :data:`SOURCES`, joined by ``|``, as in the CSV.
        topologies: TPU topologies, blank-separated; empty for GPU.
        words: Words accepted without a machine; None is the family's words and the label, empty is "never".
        counted: Whether Google's count of TensorCores names the topology.
        kinetic: Whether kinetic has a name for it (it counts chips).
        pinned: Whether GKE provisions the machine only when it is named.
        odd: A name of its own in axlearn.
        pathways: Prefix of the Pathways instance type; PWJ and pathwaysutils 0.1.13 map machines to it.
        vertex: Vertex AI machine type and accelerator.
        notes: Short facts for people.

    """

    family: str
    label: str
    machines: str
    per_host: int
    sources: str
    topologies: str = ""
    words: tuple[str, ...] | None = None
    counted: bool = True
    kinetic: bool = False
    pinned: bool = False
    odd: str = ""
    pathways: str = ""
    vertex: str = ""
    notes: tuple[str, ...] = ()


_NO_FLEX = "flex-start and queued provisioning are disabled for this machine"
_NO_PATHWAYS_1T = "no Pathways instance type for the 1t machine"
_SINGLE = "single host"
_ON_REQUEST = "GKE provisions it only when the machine is named"
_FULL_POD = "full pod (256 chips), the largest single slice"
_V3_LABEL = "kinetic's label tpu-v3-podslice does not exist in GKE"
_V3 = ("no multislice, no Pathways", _NO_FLEX, _V3_LABEL)
_V3_MANY = ("multi-host only", *_V3)
_V3_AUTOPILOT_8 = "GKE's Autopilot page also allows 8 chips per host here"
_V5LITE = ("legacy single-host label; prefer tpu-v5-lite-podslice", _NO_FLEX)
_ONE_HOST_2X4 = "the single-host variant of 2x4: label and topology are those of the two-host variant on 4t"
_TWO_HOSTS_2X4 = "the two-host variant of 2x4: label and topology are those of the single-host variant on 8t"
_TWISTED = "axlearn appends _untwisted to the Pathways instance type unless a twisted torus is wanted"
_POLICY = "needs a placement (workload) policy"
_TPU7 = "not in GKE's public table: xpk (up to 256 chips) and GKE's auto-provisioning alone know it"
_XPK_OTHER = "'{family}-{cores}' is another topology in xpk: write the topology"
_VERTEX_TPU = "{machine} tpuTopology={topology}"
_V3_VERTEX = "cloud-tpu/TPU_V3 acceleratorCount={cores}"

# The long tail of 3-D shapes that v5p and tpu7x share (equal in PWJ and MXT; XPK accepts all of them).
_TAIL_3D = (
    "4x4x12 4x4x20 4x8x12 4x4x28 4x12x12 4x8x20 4x4x44 8x8x12 4x4x52 4x8x28 4x12x20 4x4x68 8x12x12 4x4x76 8x8x20 "
    "4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116 8x12x20 4x4x124 4x12x44 4x8x68 4x20x28 "
    "12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44 12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 "
    "8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76 4x8x116 4x4x236 12x16x20 4x4x244 4x8x124 "
    "12x12x28 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24 4x8x148 12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 "
    "12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44 12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 "
    "16x16x24"
)

_ALL = "CA|XPK|AXL|MXT|PWJ|KRAY"
_ALL_KIN = "CA|XPK|AXL|MXT|PWJ|KIN|KRAY"
_V3_SOURCES = "CA|KIN|KRAY|VTX"


# fmt: off
def _v3(machine: str, label: str, topologies: str, notes: tuple[str, ...]) -> Block:
    return Block("v3", label, machine, 4, _V3_SOURCES, topologies, kinetic=True, vertex=_V3_VERTEX, notes=notes)


def _v4(topologies: str, sources: str, *notes: str, counted: bool = True, kinetic: bool = False) -> Block:
    return Block("v4", "tpu-v4-podslice", "ct4p-hightpu-4t", 4, sources, topologies, counted=counted, kinetic=kinetic,
                 pathways="tpuv4", notes=(*notes, _NO_FLEX))


def _v5lite(size: int, topology: str) -> Block:
    label, machine = "tpu-v5-lite-device", f"ct5l-hightpu-{size}t"
    return Block("v5e", label, machine, size, "CA|KRAY", topology, ("v5lite", label), counted=False, notes=_V5LITE)


def _v5e(topologies: str, sources: str, *notes: str, kinetic: bool = True) -> Block:
    return Block("v5e", "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", 4, sources, topologies, kinetic=kinetic,
                 pathways="tpuv5e", vertex=_VERTEX_TPU, notes=notes)


def _v5p(topologies: str, sources: str, *notes: str, kinetic: bool = False) -> Block:
    return Block("v5p", "tpu-v5p-slice", "ct5p-hightpu-4t", 4, sources, topologies, kinetic=kinetic,
                 pathways="tpuv5", notes=notes)


def _v6e(topologies: str, sources: str, *notes: str, kinetic: bool = False) -> Block:
    return Block("v6e", "tpu-v6e-slice", "ct6e-standard-4t", 4, sources, topologies, kinetic=kinetic,
                 pathways="tpuv6e", vertex=_VERTEX_TPU, notes=notes)


def _tpu7x(topologies: str, sources: str, *notes: str, vertex: str = "") -> Block:
    return Block("tpu7x", "tpu7x", "tpu7x-standard-4t", 4, sources, topologies,
                 pathways="tpu7x", vertex=vertex, notes=notes)


_TPU_BLOCKS: tuple[Block, ...] = (
    _v3("ct3-hightpu-4t", "tpu-v3-device", "2x2", (
        "single host only", *_V3, "GKE's Autopilot page also lists a 2x4 device with 8 chips per host")),
    _v3("ct3p-hightpu-4t", "tpu-v3-slice", "4x4 4x8 8x8 8x16 16x16", (*_V3_MANY, _V3_AUTOPILOT_8)),
    _v3("ct3p-hightpu-4t", "tpu-v3-slice", "16x32 32x32", _V3_MANY),
    Block("v3", "tpu-v3-slice", "ct3p-hightpu-4t", 4, "KIN", "32x64", (), counted=False, kinetic=True, notes=(
        "unverified: kinetic alone has it, GKE's table ends at 32x32",)),
    Block("v4", "tpu-v4-lite-device", "ct4l-hightpu-4t", 4, "CA|KRAY", "2x2", ("v4lite", "tpu-v4-lite-device"),
          counted=False, notes=("v4-lite: an inference device on a single host, one core per chip", _NO_FLEX)),
    _v4("2x2x1", _ALL_KIN, _SINGLE, kinetic=True),
    _v4("2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16", _ALL_KIN, kinetic=True),
    _v4("4x4x12", "CA|XPK|MXT|KRAY", "not in pathways-job, axlearn or kinetic"),
    _v4("4x4x16 4x16x16", "CA|XPK|PWJ|KRAY", _XPK_OTHER, counted=False),
    _v4("8x8x12", _ALL),
    _v4("16x16x16", "CA|XPK|KIN|KRAY", _XPK_OTHER, "the largest v4 (4096 chips)", "not in pathways-job",
        counted=False, kinetic=True),
    Block("v5e", "tpu-v5-lite-podslice", "ct5lp-hightpu-1t", 1, "CA|MXT|KIN|KRAY|VTX", "1x1", kinetic=True,
          vertex=_VERTEX_TPU, notes=(_SINGLE, _NO_PATHWAYS_1T)),
    _v5e("2x2", "CA|MXT|PWJ|KIN|KRAY|VTX", _SINGLE),
    _v5e("2x4", "CA|XPK|AXL|MXT|PWJ|KRAY|VTX", _TWO_HOSTS_2X4,
         "'v5litepod-8' is this one in xpk and axlearn, the single-host one in kinetic", kinetic=False),
    Block("v5e", "tpu-v5-lite-podslice", "ct5lp-hightpu-8t", 8, "CA|PWJ|KIN|KRAY|VTX", "2x4", (), kinetic=True,
          pathways="tpuv5e1t", vertex=_VERTEX_TPU, notes=(
              _ONE_HOST_2X4, "'v5litepod-8' is this one in kinetic, the two-host one in xpk and axlearn")),
    _v5e("4x4 4x8 8x8 8x16", _ALL_KIN + "|VTX"),
    _v5e("16x16", _ALL_KIN + "|VTX", _FULL_POD),
    _v5lite(1, "1x1"), _v5lite(4, "2x2"), _v5lite(8, "2x4"),
    _v5p("2x2x1", _ALL, _SINGLE),
    _v5p("2x2x2 2x2x4 2x4x4", _ALL_KIN, kinetic=True),
    _v5p("4x4x4 8x8x8 16x16x16 " + _TAIL_3D, _ALL),
    _v5p("4x4x8 4x8x8 8x8x16 8x16x16", _ALL, _TWISTED),
    _v5p("12x24x24 16x20x28", "CA|XPK|AXL|MXT|PWJ", "beyond GKE's largest v5p, 16x16x24 (6144 chips)"),
    Block("v6e", "tpu-v6e-slice", "ct6e-standard-1t", 1, "CA|XPK|MXT|KRAY|VTX", "1x1", vertex=_VERTEX_TPU,
          notes=(_SINGLE, _NO_PATHWAYS_1T + " (xpk alone uses tpuv6e)")),
    _v6e("2x2", _ALL + "|VTX", _SINGLE),
    _v6e("2x4", _ALL_KIN + "|VTX", _TWO_HOSTS_2X4,
         "on GKE only: the Cloud TPU API has no two-host 2x4", kinetic=True),
    Block("v6e", "tpu-v6e-slice", "ct6e-standard-8t", 8, "CA|AXL|PWJ|KRAY|VTX", "2x4", (), odd="v6e-8-1",
          pathways="tpuv6e1t", vertex=_VERTEX_TPU, notes=(
              _ONE_HOST_2X4, "'v6e-8' is the two-host one in xpk, axlearn and kinetic",
              "axlearn calls this one v6e-8-1")),
    _v6e("4x4", _ALL_KIN + "|VTX", kinetic=True),
    _v6e("4x8 8x8 8x16", _ALL + "|VTX"),
    _v6e("16x16", _ALL + "|VTX", _FULL_POD),
    Block("tpu7x", "tpu7x", "tpu7x-standard-1t", 1, "CA|XPK|MXT|KRAY", "1x1x1", notes=(
        "single chip, two JAX devices", _NO_PATHWAYS_1T + " (xpk alone uses tpu7x)")),
    _tpu7x("2x2x1", _ALL + "|VTX", _SINGLE, vertex=_VERTEX_TPU),
    _tpu7x("2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16", _ALL + "|VTX", _POLICY, vertex=_VERTEX_TPU),
    _tpu7x("8x16x16 16x16x16", _ALL, _POLICY),
    _tpu7x(_TAIL_3D + " 12x24x24 16x16x32 16x20x28 16x24x24", "CA|XPK|MXT|PWJ|KRAY", _POLICY),
    Block("tpu7x", "tpu7x", "tpu7x-ultranet-4t", 4, "CA", "2x2x1", (), pinned=True, notes=(
        _ON_REQUEST, "more hosts are not verified", "no Pathways instance type")),
    Block("tpu7", "tpu7", "tpu7-standard-1t", 1, "CA|XPK", "1x1x1", notes=(_TPU7,)),
    Block("tpu7", "tpu7", "tpu7-standard-4t", 4, "CA|XPK", "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8",
          pathways="tpu7", notes=(_TPU7,)),
    Block("tpu7", "tpu7", "tpu7-standard-4t", 4, "CA|XPK", "4x4x16", counted=False, pathways="tpu7",
          notes=(_XPK_OTHER, _TPU7)),
)

_TCP = "several hosts talk over plain TCP (NCCL sockets) without GPUDirect: allowed but slow"
_GPU_FAMILIES = {
    "nvidia-l4": "l4", "nvidia-tesla-a100": "a100-40gb", "nvidia-a100-80gb": "a100-80gb", "nvidia-h100-80gb": "h100",
    "nvidia-h100-mega-80gb": "h100-mega", "nvidia-h200-141gb": "h200", "nvidia-b200": "b200", "nvidia-gb200": "gb200",
    "nvidia-gb300": "gb300", "nvidia-rtx-pro-6000": "rtx-pro-6000",
}
_N1_SIZES = (1, 2, 4, 8, 16, 32, 64, 96)
_P100_END = "end of support 2026-09-15 (Vertex AI)"
_H100_PART = "part of an H100 host, for single-host use; whether it comes as spot or flex-start only is not verified"
_A100_40 = "40 GB; the bare name a100 means this one"
_A100_80 = ("80 GB; a variant without local SSD exists (nolssd)", "kinetic's a2-ultragpu-16g does not exist: 8 at most")
_RDMA = "several hosts: GPUDirect-RDMA (RoCE)"
_DISK = "hyperdisk-balanced boot disks only"
_ARM = "ARM64 host: the image must be built for linux/arm64"


def _n1(family: str, count: int, largest: int, vertex: str, *notes: str) -> Block:
    """GPUs attached to N1 machines up to n1-standard-``largest``."""
    machines = " ".join(f"n1-standard-{size}" for size in _N1_SIZES if size <= largest)
    return Block(family, f"nvidia-tesla-{family}", machines, count, "CA|VTX|KIN",
                 vertex=f"n1-standard-{vertex} + NVIDIA_TESLA_{family.upper()} count={count}", notes=(*notes, _TCP))


def _on_n1(cpus: int, kinetic: int) -> str:
    return f"attached to N1 machines of up to {cpus} vCPUs; kinetic uses n1-standard-{kinetic}"


def _gpu(label: str, machine: str, count: int, sources: str, *notes: str) -> Block:
    vertex = f"{machine}/{label.upper().replace('-', '_')} count={count}" if "VTX" in sources else ""
    return Block(_GPU_FAMILIES[label], label, machine, count, sources, vertex=vertex, notes=notes)


def _l4(cpus: int, count: int, sources: str, *notes: str) -> Block:
    return _gpu("nvidia-l4", f"g2-standard-{cpus}", count, sources, *notes, _TCP)


def _other_l4(cpus: int, sources: str, *notes: str) -> Block:
    return replace(_l4(cpus, 1, sources, *notes), words=())


def _a100(machine: str, count: int, sources: str) -> Block:
    return _gpu("nvidia-tesla-a100", machine, count, sources, _A100_40, _TCP)


def _a100_80(count: int) -> Block:
    return _gpu("nvidia-a100-80gb", f"a2-ultragpu-{count}g", count, "CA|KIN|VTX", *_A100_80, _TCP)


def _h100(count: int, sources: str, *notes: str) -> Block:
    return _gpu("nvidia-h100-80gb", f"a3-highgpu-{count}g", count, sources, *notes)


def _rtx(cpus: int, count: int, *notes: str) -> Block:
    return _gpu("nvidia-rtx-pro-6000", f"g4-standard-{cpus}", count, "CA|VTX", *notes, _TCP)


_GPU_BLOCKS: tuple[Block, ...] = (
    _l4(4, 1, "CA|KIN|VTX", "one GPU comes with five machines: kinetic takes g2-standard-4, xpk g2-standard-12"),
    _other_l4(8, "CA|VTX"),
    _other_l4(12, "CA|XPK|VTX", "xpk's l4-1; kinetic takes g2-standard-4"),
    _other_l4(16, "CA|VTX"),
    _other_l4(32, "CA|VTX"),
    _l4(24, 2, "CA|XPK|KIN|VTX"),
    _l4(48, 4, "CA|XPK|KIN|VTX"),
    _l4(96, 8, "CA|XPK|KIN|VTX"),
    _n1("t4", 1, 32, "4/8/16", _on_n1(48, 4)),
    _n1("t4", 2, 32, "4/8/16/32", _on_n1(48, 8)),
    _n1("t4", 4, 96, "4/8/16/32/64/96", _on_n1(96, 16)),
    _n1("v100", 1, 8, "4/8", _on_n1(12, 8)),
    _n1("v100", 2, 16, "4/8/16", _on_n1(24, 16)),
    _n1("v100", 4, 32, "4/8/16/32", _on_n1(48, 32)),
    _n1("v100", 8, 96, "4/8/16/32/64/96", _on_n1(96, 64)),
    _n1("p100", 1, 16, "4/8/16", _on_n1(16, 4), _P100_END),
    _n1("p100", 2, 32, "4/8/16/32", _on_n1(32, 8), _P100_END),
    _n1("p100", 4, 64, "4/8/16/32", _on_n1(64, 16), _P100_END),
    _n1("p4", 1, 16, "4/8/16", _on_n1(24, 4), "inference GPU"),
    _n1("p4", 2, 32, "4/8/16/32", _on_n1(48, 8), "inference GPU"),
    _n1("p4", 4, 96, "4/8/16/32/64/96", _on_n1(96, 16), "inference GPU"),
    _a100("a2-highgpu-1g", 1, "CA|XPK|AXL|KIN|VTX"),
    _a100("a2-highgpu-2g", 2, "CA|XPK|AXL|KIN|VTX"),
    _a100("a2-highgpu-4g", 4, "CA|XPK|AXL|KIN|VTX"),
    _a100("a2-highgpu-8g", 8, "CA|XPK|AXL|KIN|VTX"),
    _a100("a2-megagpu-16g", 16, "CA|KIN|VTX"),
    _a100_80(1), _a100_80(2), _a100_80(4), _a100_80(8),
    _h100(1, "CA|KIN|VTX", _H100_PART),
    _h100(2, "CA|KIN|VTX", _H100_PART),
    _h100(4, "CA|KIN|VTX", _H100_PART),
    _h100(8, "CA|XPK|AXL|KIN|VTX", "several hosts: GPUDirect-TCPX with four extra network interfaces",
          "a3-edgegpu-8g is a variant without flex-start"),
    _gpu("nvidia-h100-mega-80gb", "a3-megagpu-8g", 8, "CA|XPK|VTX",
         "several hosts: GPUDirect-TCPXO with eight data interfaces and one more"),
    _gpu("nvidia-h200-141gb", "a3-ultragpu-8g", 8, "CA|XPK|VTX", _RDMA, _DISK),
    _gpu("nvidia-b200", "a4-highgpu-8g", 8, "CA|XPK|VTX", _RDMA, _DISK),
    _gpu("nvidia-gb200", "a4x-highgpu-4g", 4, "CA|XPK|VTX", _ARM,
         "several hosts: RDMA and one NVLink domain (accelerator topology 1x72)",
         "NVLink across hosts needs IMEX and a ComputeDomain (not verified)",
         "Vertex AI asks for a shared reservation"),
    replace(_gpu("nvidia-gb300", "a4x-maxgpu-4g-metal", 4, "CA", _ARM, _ON_REQUEST, "neither in xpk nor on Vertex AI"),
            pinned=True),
    _rtx(48, 1, "g4-standard-6, -12 and -24 show one GPU too, a fraction of one (not on Vertex AI)"),
    _rtx(96, 2), _rtx(192, 4), _rtx(384, 8),
)
# fmt: on

BLOCKS: tuple[Block, ...] = _TPU_BLOCKS + _GPU_BLOCKS
