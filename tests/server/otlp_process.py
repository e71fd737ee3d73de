"""A process that serves a node's receivers until it is told to end: `otlp_process.py ROOT PORT`.

It prints its two ports when it listens. SIGTERM stops it: what has begun is answered first.
"""

import asyncio
import signal
import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from server.otlp_node import Keys
from thermocline.node import Node
from thermocline.server.otlp.grpc import OtlpGrpc
from thermocline.server.otlp.http import OtlpHttp
from thermocline.server.otlp.ingest_queue import IngestQueue, Receiver
from thermocline.server.otlp.memory_budget import MemoryBudget


async def serve(root, http_port, grpc_port):
    """Serve until SIGTERM."""
    node = Node(root)
    lane = IngestQueue(node, is_compiled=False)
    receiver = Receiver(lane, MemoryBudget(), Keys())
    http = OtlpHttp(receiver, port=http_port)
    grpc = OtlpGrpc(receiver, port=grpc_port)
    for part in (lane, http, grpc):
        await part.start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    print(http.port, grpc.port, flush=True)
    await told.wait()
    await asyncio.gather(http.stop(30), grpc.stop(30))
    await lane.stop(30)
    node.close()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
