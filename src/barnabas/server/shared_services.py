"""The services that the components of one broker share, made before any of them."""

from __future__ import annotations

from dataclasses import dataclass

from barnabas.kernel.host import Host
from barnabas.kernel.logs import Logs
from barnabas.kernel.metrics import MetricsRegistry
from barnabas.kernel.scheduler import Scheduler
from barnabas.kernel.steps import StepRunner
from barnabas.kernel.tick import Tick
from barnabas.kernel.timers import Timers
from barnabas.kernel.tracing import Traces
from barnabas.link.buffers import BufferPool


@dataclass(frozen=True, slots=True)
class SharedServices:
    """The host, and what stands on it."""

    host: Host
    logs: Logs
    metrics: MetricsRegistry
    timers: Timers
    scheduler: Scheduler
    tick: Tick
    pool: BufferPool
    steps: StepRunner
    traces: Traces | None = None
    """Where spans go; None where nothing is traced."""

    @classmethod
    def on(cls, host: Host, logs: Logs, traces: Traces | None = None) -> SharedServices:
        timers = Timers(host.loop)
        return cls(
            host=host,
            logs=logs,
            metrics=MetricsRegistry(host.loop.time),
            timers=timers,
            scheduler=Scheduler(host.loop, timers, logs.logger("kafka.utils.KafkaScheduler")),
            tick=Tick(host.loop),
            pool=BufferPool(),
            steps=StepRunner(host.loop),
            traces=traces,
        )
