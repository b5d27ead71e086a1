"""What the plan `credentials` adds to a simulated cluster: TLS, tokens, passwords, and floods at servers of HTTP."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from barnabas.client.access import Access
from barnabas.kernel.metrics import Gauge, MetricName
from barnabas.link.errors import AuthenticationFailedError
from barnabas.testing.bearer_users import COVERAGE as BEARER_MET
from barnabas.testing.bearer_users import BearerUsers
from barnabas.testing.broken_tls import COVERAGE as BROKEN_MET
from barnabas.testing.broken_tls import BrokenTls
from barnabas.testing.changing_credentials import COVERAGE as CHANGING_MET
from barnabas.testing.changing_credentials import METRICS_PORT, ChangingCredentials
from barnabas.testing.faults import FaultKind
from barnabas.testing.http_flood import COVERAGE as FLOOD_MET
from barnabas.testing.http_flood import HttpFlood

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barnabas.kernel.host import Host
    from barnabas.testing.cluster_effects import Effects
    from barnabas.testing.cluster_load import Users
    from barnabas.testing.cluster_observer import Observer
    from barnabas.testing.cluster_operator import Operator
    from barnabas.testing.faults import Nemesis, Striker, Undo
    from barnabas.testing.simulated_host import Main, SimulatedMachine
    from barnabas.testing.simulation import Simulation

COVERAGE: Final = (*BEARER_MET, *BROKEN_MET, *CHANGING_MET, *FLOOD_MET)
"""What must have happened."""
_PORT: Final = 9092
_FLOOD_SECONDS: Final = (1.0, 6.0)
_BEGUN: Final = MetricName("barnabas.network", "TlsHandshakes", "Begun")


class CredentialFaults:
    """Those of one run; `begin` before the first process starts."""

    def __init__(
        self,
        simulation: Simulation,
        users: Users,
        brokers: Mapping[int, SimulatedMachine],
        operator: Operator,
        observer: Observer,
        effects: Effects,
    ) -> None:
        self._simulation = simulation
        self._users = users
        self._brokers = dict(brokers)
        self._observer = observer
        self._effects = effects
        self._random = simulation.world.random("credential faults")
        self._floods = 0
        self._nemesis: Nemesis | None = None
        self._logger = logging.getLogger("barnabas.simulated.credentials")
        self.changing = ChangingCredentials(simulation, users, brokers, operator, effects, observer.tree)
        self.bearer = BearerUsers(simulation, users, brokers, _PORT, self._pauses)
        self.broken = BrokenTls(simulation, _PORT)
        console = simulation.machine("console")
        self.flood = HttpFlood(users, brokers, METRICS_PORT, console, lambda: list(observer.running), self._pauses)

    @property
    def counts(self) -> Counter[str]:
        """What has happened."""
        return self.changing.counts + self.bearer.counts + self.broken.counts + self.flood.counts

    def begin(self) -> None:
        """Users have tokens, and know whom to trust."""
        self._users.access = self._access
        # A bit that is turned amid a handshake is an end that cannot be trusted, and a token may have run out.
        self._users.failures = (*self._users.failures, AuthenticationFailedError)
        self.bearer.begin()

    def begin_to_strike(self, nemesis: Nemesis) -> None:
        """Strikers may be called from now on."""
        self._nemesis = self.changing.nemesis = nemesis

    def more_of_broker(self, broker_id: int, host: Host) -> str:
        """Writes what a broker reads at its start, and returns more of its configs."""
        self.bearer.write_files(host, is_broker=True)
        return self.changing.properties(broker_id)

    def mains(self) -> list[tuple[str, Main]]:
        """Who runs beside the users, and where."""
        tls, servers = self.changing.context, tuple(f"{each.name}:{_PORT}" for each in self._brokers.values())
        return [
            ("intruder", functools.partial(self.bearer.try_brokers, tls=tls)),
            ("outstayer", functools.partial(self.bearer.outstay, tls=tls)),
            ("looker", functools.partial(self.changing.watch, logger=self._logger)),
            ("scraper", self.flood.scrape),
            ("flood", self.flood.scrape),
            ("console", functools.partial(self.flood.show_console, bootstrap_servers=servers, logger=self._logger)),
        ]

    def strikers(self) -> Mapping[FaultKind, Striker]:
        """For the nemesis."""
        return {
            **self.changing.strikers(),
            FaultKind.TOKEN_KEYS_ROLLED: lambda: self.bearer.roll_keys(self._happened(FaultKind.TOKEN_KEYS_ROLLED)),
            FaultKind.NO_TOKENS: self.bearer.fall_silent,
            FaultKind.TLS_BROKEN: self._break_tls,
            FaultKind.HTTP_FLOODED: self._flood,
        }

    def is_at_rest(self) -> bool:
        """Whether nothing is held of connections that are over, and all passwords are as they should be."""
        return self.changing.is_at_rest() and not any(map(self._holds_something, self._brokers))

    async def finish(self, host: Host) -> None:
        """Judges what the brokers have at rest."""
        await self.changing.finish(host, self._logger)

    # Inside.

    def _access(self, host: Host) -> Access:
        return Access(self.bearer.login(host), self.changing.context)

    def _pauses(self) -> int:
        return 0 if self._nemesis is None else self._nemesis.strikes[FaultKind.PAUSE]

    def _happened(self, kind: FaultKind) -> Callable[[], None]:
        return functools.partial(self._effects.happened, kind)

    def _break_tls(self) -> Undo | None:
        return _nothing if self.broken.strike(self._happened(FaultKind.TLS_BROKEN)) else None

    def _flood(self) -> Undo | None:
        targets = self.flood.targets()
        if not targets:
            return None
        target_id, seconds = self._random.choice(targets), self._random.uniform(*_FLOOD_SECONDS)
        self._floods += 1
        happened = self._happened(FaultKind.HTTP_FLOODED)
        self._simulation.machine("flood").start(
            lambda host: self.flood.flood(host, target_id, seconds, happened), name=f"{self._floods}"
        )
        return _nothing

    def _holds_something(self, broker_id: int) -> bool:
        """A handshake of somebody who has gone, or a connection whose other end has said that it is over."""
        running = self._observer.running.get(broker_id)
        if running is None:
            return True
        begun = running.broker.metrics.get(_BEGUN)
        if isinstance(begun, Gauge) and begun.read():
            return True
        processes = self._brokers[broker_id].processes
        return any(end.is_half_closed for process in processes for end in process.network.ends)


def _nothing() -> None:
    """Nothing to mend."""
