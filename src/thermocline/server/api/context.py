"""The context of the API: the node's components that routes use.

In:   the components of a node, from the server that starts it
Out:  one value with all of them, for every route

- Running queries use a dedicated thread pool, sized for all admitted queries. Queued queries hold
  no thread, so neither they nor other routes can starve a running query.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from thermocline.alert.keeper import AlertKeeper
from thermocline.config import NodeSettings
from thermocline.ingest.inflate import BODY_BYTES_MAX
from thermocline.node import Node
from thermocline.server.access.audit import Audit
from thermocline.server.access.fair_share import Share
from thermocline.server.access.guard import Caller, Guard, NodeGateway
from thermocline.server.access.host_check import LOOPBACK_NAMES
from thermocline.server.access.quota import Quotas
from thermocline.server.api.failed_queries import FailedQueries
from thermocline.server.api.open_tails import OpenTails
from thermocline.server.api.threads import WorkerThreads
from thermocline.server.observe.health import Health
from thermocline.server.observe.log import EventLog
from thermocline.server.observe.metrics import Metrics
from thermocline.server.otlp.memory_budget import MemoryBudget

READING_THREADS = 32
EVALUATING_THREADS = 8
BETWEEN_NODES_THREADS = 8


@dataclass(slots=True)
class ApiContext:
    """The components that routes use."""

    gateway: NodeGateway
    guard: Guard
    quota: Quotas
    metrics: Metrics
    log: EventLog
    health: Health = field(default_factory=Health)
    settings: NodeSettings | None = None
    audit: Audit | None = None
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    hosts: Collection[str] = LOOPBACK_NAMES
    alerts: AlertKeeper | None = None
    tails: OpenTails = field(default_factory=OpenTails)
    failed_queries: FailedQueries = field(default_factory=FailedQueries)
    work: WorkerThreads = field(default_factory=lambda: WorkerThreads("api"))
    # Separate threads: health answers even while every other thread waits for the disk.
    health_work: WorkerThreads = field(default_factory=lambda: WorkerThreads("health", threads=2))
    # Separate threads: an evaluation waits for the workers of queries, whose answers need a thread.
    evaluating: WorkerThreads = field(
        default_factory=lambda: WorkerThreads("promql", threads=EVALUATING_THREADS)
    )
    # Separate threads: two nodes that ask each other must not wait for each other.
    between_nodes: WorkerThreads = field(
        default_factory=lambda: WorkerThreads("nodes", threads=BETWEEN_NODES_THREADS)
    )
    reading: WorkerThreads = field(init=False)
    # What tenants share, by class of cost; the node adds its listeners' connections and streams.
    shares: dict[str, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workers = 1 if self.settings is None else max(1, self.settings.lake.query_workers)
        self.reading = WorkerThreads("answer", threads=max(READING_THREADS, workers))
        self.shares |= {
            "memory_bytes": self.budget.share,
            "threads": self.work.turns,
            "answer_threads": self.reading.turns,
        }
        self.metrics.watch_shares(self.shares)

    @property
    def node(self) -> Node:
        """The node; `Unavailable` while it starts or stops."""
        return self.gateway.node

    @property
    def body_bytes_max(self) -> int:
        """The maximum size of a body, before and after inflating."""
        return BODY_BYTES_MAX if self.settings is None else self.settings.body_bytes_max

    @property
    def is_busy(self) -> bool:
        """Whether a thread is still working."""
        return any(one.is_busy for one in self._threads)

    @property
    def _threads(self) -> tuple[WorkerThreads, ...]:
        return self.work, self.health_work, self.between_nodes, self.reading, self.evaluating

    def close(self) -> None:
        """Release the threads; running work ends by itself."""
        for threads in self._threads:
            threads.close()


__all__ = ["ApiContext", "Caller"]
