"""Computes what the ranks send to each other in a step, and how long that takes.

Ranks form a ring, as NCCL and Gloo arrange them for large tensors. One trip around the ring is a
reduce-scatter or an all-gather: if the tensor has n bytes, each of the N ranks sends (N - 1) / N *
n bytes to its neighbour. An all-reduce is a reduce-scatter and an all-gather, and so takes two
trips.

The ring leaves each node once and enters it once. So a link between two nodes carries as many bytes
as a link between two ranks of a node: those that one rank sends.

The time of a trip follows the alpha-beta model. It is alpha + beta * bytes, with the bytes that one
rank sends. Alpha depends on the number of ranks alone, and is taken from NCCL's own model
(src/graph/tuning.cc, the ring with the protocol Simple). Beta is the time per byte on the slower of
the two kinds of link.
"""

import math
import re
from dataclasses import dataclass, replace

from trainer.engine.deepspeed_config import BUCKET_ELEMENTS, bucket_elements
from trainer.engine.muon_costs import MuonCosts
from trainer.engine.partitions import cut_sizes
from trainer.model.config import BertConfig, parameter_shapes
from trainer.process.gpus import Gpu

_FP32 = 4
RATE_SHARE = 0.9
"""Share of a link's stated rate that large messages reach; the rest is headers and gaps.

TCP over Ethernet reaches a share of 0.95 at best. scripts/soak/slow_wire.py measures how well the
predictions of this file are met.
"""
_TRIP_SECONDS = 8.4e-6
"""Seconds to start a trip around the ring, for any number of ranks."""
_HOP_SECONDS = {"NVLink": 3.4e-6, "Infinity Fabric": 3.4e-6, "PCIe": 5.7e-6, "network": 9.6e-6}
"""Seconds from one rank of the ring to the next, by the kind of link between them."""
_EXCHANGES = 2
"""Muon's exchanges in a step: parts of matrices go to one rank, and their updates return."""


@dataclass(frozen=True)
class Link:
    """A kind of link between nodes.

    Attributes:
        gigabits: Gbit/s of one port in one direction.
        ports: Number of ports of a node; 0 means that a node has as many ports as GPUs.
        description: The link in words.
    """

    gigabits: float
    ports: int
    description: str

    def node_bytes(self, node_size: int) -> float:
        """Returns the bytes per second that a node of `node_size` ranks can send."""
        return self.gigabits / 8 * 1e9 * (self.ports or node_size)


NVLINK = "nvlink"
"""Name of the link that joins all GPUs as if they were in one node."""
LINKS = {
    "ndr": Link(400, 0, "InfiniBand NDR, 400 Gbit/s for every GPU"),
    "400gbe": Link(400, 1, "400 Gbit/s Ethernet, one port for a node"),
    "100gbe": Link(100, 1, "100 Gbit/s Ethernet, one port for a node"),
}
"""Links between nodes by name. With InfiniBand every GPU has its own port, as in NVIDIA's DGX."""
_LINK = re.compile(
    r"(?:(?P<ports>[1-9]\d*)x)?(?:(?P<rate>\d+(\.\d+)?)(?P<unit>[mg]bit)|(?P<name>\w+))"
)


def parse_link(text: str) -> Link | None:
    """Returns the link that `--link` names; None for NVLink between all GPUs.

    Args:
        text: "nvlink", a name in `LINKS`, or a rate such as 25gbit or 100mbit for a node. 4x100gbe
            and 4x25gbit are four ports for a node.

    Raises:
        ValueError: There is no such link.
    """
    match = _LINK.fullmatch(text)
    rate = float(match["rate"] or 0) if match else 0.0
    ports = int(match["ports"] or 0) if match else 0
    if text == NVLINK:
        return None
    if match and match["name"] in LINKS:
        link = LINKS[match["name"]]
        if not ports:
            return link
        return Link(link.gigabits, ports, f"{ports} x {link.gigabits:g} Gbit/s for a node")
    if match and rate > 0:
        gigabits = rate / 1e3 if match["unit"] == "mbit" else rate
        words = f"{rate:g} {match['unit'][0].upper()}bit/s for a node"
        return Link(gigabits, ports or 1, f"{ports} x {words}" if ports else words)
    raise ValueError(
        f"link is {text!r}; give one of {', '.join([NVLINK, *LINKS])}, or the rate of a node's link"
        " such as 25gbit or 100mbit; 4x100gbe means four ports for a node"
    )


@dataclass(frozen=True)
class Wire:
    """The ring that the ranks of a run form.

    Attributes:
        ranks: Number of ranks.
        nodes: Number of nodes.
        bytes_per_second: Bytes per second that travel from one rank of the ring to the next,
            limited by the slowest kind of link in it. Infinite if no rate is known, as between
            processes on one CPU.
        trip_seconds: Seconds that a trip around the ring takes however little is sent: alpha in the
            model above.
        description: The links in words.
    """

    ranks: int
    nodes: int
    bytes_per_second: float
    trip_seconds: float
    description: str


def join_ranks(link_name: str, gpu_name: str, gpu: Gpu, ranks: int, node_size: int) -> Wire:
    """Returns the ring that the ranks of a run form.

    Args:
        link_name: The link between nodes, as `parse_link` takes it.
        gpu_name: Name of the GPU, for messages.
        gpu: The GPU's data sheet, which names the link within a node.
        ranks: Number of ranks.
        node_size: Number of ranks that fill a node. If there are no more ranks than that, they
            share a single node.

    Raises:
        ValueError: There is no such link; or the link is NVLink and the GPU has none; or several
            nodes are needed and `ranks` is not a multiple of `node_size`.
    """
    link = parse_link(link_name)
    if link is None and gpu.peers != "NVLink":
        raise ValueError(f"link is nvlink, but {gpu_name} has {gpu.peers}; give another --link")
    if link is None or ranks <= node_size:
        link = None
        node_size = ranks
    if ranks % node_size:
        raise ValueError(
            f"{ranks} ranks do not fill nodes of {node_size}; give a multiple of {node_size}, or"
            " the ranks of a node by --node_size"
        )
    nodes = ranks // node_size
    rates = []
    words = []
    if node_size > 1 and gpu.peer_gigabytes:
        rates.append(gpu.peer_gigabytes * 1e9)
        words.append(f"within a node {gpu.peers}, {gpu.peer_gigabytes:g} GB/s for every GPU")
    elif node_size > 1:
        words.append(f"within a node {gpu.peers}, whose time is not counted")
    if link is not None and nodes > 1:
        rates.append(link.node_bytes(node_size))
        words.append(f"between {nodes} nodes of {node_size} {link.description}")
    inner = _HOP_SECONDS.get(gpu.peers.split()[0], 0.0)
    hops = (ranks - nodes) * inner + (nodes - 1) * _HOP_SECONDS["network"]
    return Wire(
        ranks=ranks,
        nodes=nodes,
        bytes_per_second=RATE_SHARE * min(rates, default=math.inf),
        trip_seconds=_TRIP_SECONDS + hops if rates else 0.0,
        description="; ".join(words),
    )


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in a step.

    Attributes:
        gradient_bytes: Bytes of gradients.
        weight_bytes: Bytes of weights.
        gradient_trips: Trips around the ring that gradients take.
        weight_trips: Trips around the ring that weights take.
        last_share: Share of the parameters in the bucket that has the word embedding. Its gradients
            are sent last, when the backward pass is over. Its weights are gathered first, before
            the next forward pass computes.
        overlaps: Whether gradients travel while the last backward pass of the step computes, and
            weights while the first forward pass of the next step computes.
        exchanged_bytes: Bytes that the rank sends which has most to send in Muon's exchanges of
            split matrices. They travel between the two passes.
        passing_bytes: Bytes of these exchanges on the link that most of them pass.
    """

    gradient_bytes: float
    weight_bytes: float
    gradient_trips: int
    weight_trips: int
    last_share: float
    overlaps: bool
    exchanged_bytes: float = 0.0
    passing_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes that one rank sends in a step."""
        return self.gradient_bytes + self.weight_bytes + self.exchanged_bytes


def count_traffic(
    config: BertConfig,
    zero_stage: int,
    precision: str,
    ranks: int,
    micro_batches: int,
    *,
    by_gloo: bool = False,
    bucket_size: int | None = None,
) -> Traffic:
    """Returns what a rank sends in a step.

    The step has k micro-batches, and there are N ranks. The table gives the bytes that a rank sends
    for each parameter, before they are multiplied by (N - 1) / N:

        stage   gradients, always in fp32           weights
        0       8    all-reduced once               none: every rank updates all of them
        1, 2    4    reduce-scattered once          4 in fp32, 2 in bf16; gathered once
        3       4 k  reduce-scattered k times       8 k in fp32, 4 k in bf16; gathered 2 k times

    With Gloo, over which ranks on CPUs talk, a reduce-scatter is carried out as an all-reduce. The
    gradients of stages 1 to 3 then take twice the bytes of the table.

    Parameters are sent in buckets, which are counted as a run cuts them: a parameter that is larger
    than a bucket has one of its own. A bucket that is reduce-scattered or gathered takes one trip
    around the ring, and a bucket that is all-reduced takes two. Under ZeRO-0 to 2 the buckets of
    gradients travel during the last backward pass (trainer/engine/gradients.py), and those of
    weights during the first forward pass of the next step (trainer/engine/weights.py). What Muon
    exchanges as well is added by `add_exchanges`.

    Args:
        config: The model.
        zero_stage: ZeRO stage, 0 to 3.
        precision: Number format of the weights, "fp32" or "bf16".
        ranks: Number of ranks, N.
        micro_batches: Micro-batches of a rank in a step, k.
        by_gloo: Whether ranks talk by Gloo instead of NCCL.
        bucket_size: The most elements of a bucket of gradients, and under ZeRO-1 and 2 also of
            weights. None takes the size that a run has by default.
    """
    sizes = [math.prod(shape) for shape in parameter_shapes(config).values()]
    size = sum(sizes)
    default = BUCKET_ELEMENTS
    if zero_stage == 3:
        default = bucket_elements(size, largest_tensor=max(sizes))
    buckets = cut_sizes(sizes, bucket_size or default)
    weight_buckets = cut_sizes(sizes, default) if zero_stage == 3 else buckets
    sent = size * (ranks - 1) / ranks
    weight = 2 if precision == "bf16" else _FP32
    gradient_trips = 2 if zero_stage == 0 or by_gloo else 1
    reductions = micro_batches if zero_stage == 3 else 1
    gathers = (0, 1, 1, 2 * micro_batches)[zero_stage]
    return Traffic(
        gradient_bytes=sent * _FP32 * gradient_trips * reductions,
        weight_bytes=sent * weight * gathers,
        gradient_trips=len(buckets) * gradient_trips * reductions,
        weight_trips=len(weight_buckets) * gathers,
        last_share=sum(sizes[index] for index in buckets[-1]) / size,
        overlaps=zero_stage < 3 and len(buckets) > 1,
    )


def add_exchanges(traffic: Traffic, costs: MuonCosts, muon_precision: str) -> Traffic:
    """Returns what a rank sends in a step with Muon: also parts of matrices, and their updates.

    Args:
        traffic: What a rank sends with any optimizer.
        costs: What Muon adds.
        muon_precision: The number format in which it orthogonalises, "fp32" or "bf16". Parts and
            updates are sent in it.
    """
    value = 2 if muon_precision == "bf16" else _FP32
    return replace(
        traffic,
        exchanged_bytes=float(value * costs.sent),
        passing_bytes=float(value * costs.passing),
    )


@dataclass(frozen=True)
class StepTime:
    """The time that a step takes, on the rank that computes and on the wire.

    Attributes:
        computing: Seconds of arithmetic, Muon's included.
        wire: Seconds in which bytes travel.
        hidden: Seconds of `wire` in which the ranks compute as well.
    """

    computing: float
    wire: float = 0.0
    hidden: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds that the step takes: for arithmetic, and for waiting until bytes have arrived."""
        return self.computing + self.waiting

    @property
    def waiting(self) -> float:
        """Seconds in which the ranks wait for the wire."""
        return self.wire - self.hidden

    @property
    def waiting_share(self) -> float:
        """Share of the step in which the ranks wait for the wire."""
        return self.waiting / self.seconds if self.waiting else 0.0


def time_step(
    traffic: Traffic,
    wire: Wire,
    computing: float,
    micro_batches: int,
    recomputes: bool = False,
    updating: float = 0.0,
) -> StepTime:
    """Returns how long a step takes.

    Gradients that overlap travel while the backward pass of the last micro-batch computes. This
    pass is two thirds of the micro-batch's arithmetic, or three quarters if layers are computed
    again. The last bucket of gradients cannot overlap, because it is complete only when the pass
    ends. Weights that overlap travel while the forward pass of the first micro-batch computes,
    which is the rest of a micro-batch's arithmetic. Their first bucket cannot overlap, because the
    pass begins with it. Nothing travels while an optimizer computes.

    Args:
        traffic: What a rank sends.
        wire: The ring.
        computing: Seconds of the arithmetic of a rank's passes in the step.
        micro_batches: Micro-batches of a rank in the step.
        recomputes: Whether activations are computed again in the backward pass.
        updating: Seconds in which Muon orthogonalises the matrices of a rank.
    """
    if wire.ranks == 1:
        return StepTime(computing + updating)
    gradients = _seconds(wire, traffic.gradient_bytes, traffic.gradient_trips)
    weights = _seconds(wire, traffic.weight_bytes, traffic.weight_trips)
    hidden = 0.0
    if traffic.overlaps:
        micro_batch = computing / micro_batches
        backward = micro_batch * (3 / 4 if recomputes else 2 / 3)
        share = 1 - traffic.last_share
        hidden = min(backward, gradients * share) + min(micro_batch - backward, weights * share)
    exchanges = 0.0
    if traffic.passing_bytes:
        exchanges = _seconds(wire, traffic.passing_bytes, _EXCHANGES)
    return StepTime(computing + updating, gradients + weights + exchanges, hidden)


def _seconds(wire: Wire, num_bytes: float, trips: int) -> float:
    """Returns the time of some trips around the ring.

    Args:
        wire: The ring.
        num_bytes: Bytes that one rank sends in all these trips together.
        trips: Number of trips.
    """
    return trips * wire.trip_seconds + num_bytes / wire.bytes_per_second
