"""Measures which share of a link's rate two processes reach without a trainer.

scripts/soak/slow_wire.py starts this program once on each of its two nodes:

    python -m scripts.soak.wire_alone RANK ADDRESS PORT BYTES BYTES_PER_SECOND

Both processes send BYTES to each other at the same time, first by plain sockets, then by Gloo's
all-reduce, reduce-scatter and all-gather. Rank 0 prints a JSON object: for each way, the share of
BYTES_PER_SECOND that each of `ROUNDS` exchanges reached. Headers of packets count as lost.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed

ROUNDS = 5
LIMIT = timedelta(minutes=5)


def main() -> None:
    """Measures all ways of sending."""
    rank = int(sys.argv[1])
    address = sys.argv[2]
    port, num_bytes, bytes_per_second = map(int, sys.argv[3:])
    place = f"tcp://{address}:{port}"
    torch.distributed.init_process_group("gloo", place, LIMIT, rank=rank, world_size=2)
    peer = connect(rank, address, port + 1)
    whole = torch.ones(num_bytes // 4)
    half = torch.ones(len(whole) // 2)
    # Each of two ranks sends as many bytes as an all-reduce is given. A gather sends its input.
    # Gloo makes an all-reduce of a reduce-scatter.
    both = torch.empty(2 * len(whole))
    ways: dict[str, Callable[[], object]] = {
        "sockets": lambda: exchange(peer, num_bytes),
        "all_reduce": lambda: torch.distributed.all_reduce(whole),
        "reduce_scatter": lambda: torch.distributed.reduce_scatter_tensor(half, whole),
        "all_gather": lambda: torch.distributed.all_gather_into_tensor(both, whole),
    }
    shares = {
        name: [round(num_bytes / bytes_per_second / time_of(send), 3) for _ in range(ROUNDS)]
        for name, send in ways.items()
    }
    if rank == 0:
        print(json.dumps(shares))
    torch.distributed.destroy_process_group()


def connect(rank: int, address: str, port: int) -> socket.socket:
    """Returns a socket that is connected to the other process.

    Args:
        rank: Number of this process. Process 0 listens.
        address: The address of process 0.
        port: A free port there.
    """
    if rank == 0:
        with socket.create_server((address, port)) as listener:
            torch.distributed.barrier()
            peer, _ = listener.accept()
        return peer
    torch.distributed.barrier()
    return socket.create_connection((address, port))


def exchange(peer: socket.socket, num_bytes: int) -> None:
    """Sends bytes to the other process, and meanwhile receives as many from it."""
    sender = threading.Thread(target=peer.sendall, args=(bytes(num_bytes),))
    sender.start()
    buffer = bytearray(2**20)
    left = num_bytes
    while left:
        left -= peer.recv_into(buffer, min(left, len(buffer)))
    sender.join()


def time_of(send: Callable[[], object]) -> float:
    """Returns the seconds from the moment both processes are ready until both have received."""
    torch.distributed.barrier()
    began = time.monotonic()
    send()
    torch.distributed.barrier()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
