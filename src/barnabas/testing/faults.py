"""Random faults from the seed: what breaks when, in a scenario that must survive it.

A `Nemesis` strikes a set of machines: each kind of fault comes as a Poisson process with its own rate, lasts a drawn
time, and is undone. It knows nothing of what runs there: kinds that need to know are carried out by the scenario, which
hands in how. `stop` undoes everything that is still broken, so that a scenario can then check that the cluster heals.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from barnabas.testing.profile import Range
    from barnabas.testing.simulated_host import SimulatedMachine
    from barnabas.testing.simulation import Simulation


class FaultKind(enum.Enum):
    """What a nemesis can do."""

    CRASH = "crash"  # every process of one machine is killed; restarted later
    POWER = "power"  # power of one machine fails; it is restarted later
    OUTAGE = "outage"  # power of all machines fails at once; each is restarted at a time of its own
    PAUSE = "pause"  # every process of one machine is stopped, and goes on later
    PARTITION = "partition"  # the machines fall into two groups that cannot reach each other
    CUT = "cut"  # one direction between two machines is cut
    RESET = "reset"  # every connection between two machines breaks
    SLOW_DISK = "slow-disk"  # one disk is up to a hundred times slower
    CLOCK_STEP = "clock-step"  # one wall clock is set up to ten seconds wrong, for good
    # Kinds that only the scenario can carry out.
    CRASH_ALL = "crash-all"  # every broker is killed at once; each is restarted at a time of its own
    ROLLING_RESTART = "rolling-restart"  # the brokers are stopped in order and started, one after another
    EXPIRY = "expiry"  # the coordinator ends a session although its broker is there
    CONTROLLER_DELETED = "controller-deleted"  # somebody deletes `/controller`
    ZNODE_SPOILED = "znode-spoiled"  # somebody writes garbage into a znode, and puts it right later
    STATE_DELETED = "state-deleted"  # somebody deletes the state of a partition, of which all brokers have heard
    STATE_SET_BACK = "state-set-back"  # the same, but a state is put right with one of a former leader epoch
    CONFIG_CHANGED = "config-changed"  # a dynamic config of a topic, a broker or all brokers is set or deleted
    RECORDS_DELETED = "records-deleted"  # DeleteRecords up to an offset below the high watermark
    INTERNAL_TOPIC_DELETED = "internal-topic-deleted"  # somebody deletes `__consumer_offsets`
    REASSIGNED = "reassigned"  # somebody moves a partition to other brokers, or cancels that
    LEADERS_ELECTED = "leaders-elected"  # somebody has preferred leaders elected, or uncleanly where that is allowed
    LOG_MOVED = "log-moved"  # somebody moves replicas to another log directory of their broker
    THROTTLED = "throttled"  # somebody throttles the replication of a broker or of some replicas, or ends that
    TOPIC_MADE_ANEW = "topic-made-anew"  # a topic under load is deleted, and made again under its name
    DIRECTORY_ERROR = "directory-error"  # one log directory gives EIO; the broker is restarted when it is mended
    DIRECTORY_FULL = "directory-full"  # one log directory has no space left
    DIRECTORY_READ_ONLY = "directory-read-only"  # one log directory is mounted read-only
    DIRECTORY_SLOW = "directory-slow"  # one log directory is up to a hundred times slower
    DIRECTORY_HANGS = "directory-hangs"  # one log directory answers nothing for seconds, and then again
    MANY_ASKED_FOR = "many-asked-for"  # a user names so many partitions that they are answered in steps
    CHECKPOINT_SPOILED = "checkpoint-spoiled"  # a broker is killed, and finds a checkpoint full of garbage
    CERTIFICATE_EXCHANGED = "certificate-exchanged"  # a broker gets another certificate, or one that nobody would take
    PASSWORD_STORED = "password-stored"  # noqa: S105 - a password of a broker is set or deleted
    SECRET_ROLLED = "secret-rolled"  # noqa: S105 - a broker starts with another secret, and the one of before as the old
    SECRET_MISTYPED = "secret-mistyped"  # noqa: S105 - a broker starts with a wrong secret, and later with the right one
    TOKEN_KEYS_ROLLED = "token-keys-rolled"  # noqa: S105 - another key signs tokens; the former one is withdrawn
    NO_TOKENS = "no-tokens"  # the identity provider falls silent, and tokens run out
    TLS_BROKEN = "tls-broken"  # a connection breaks in the middle of a handshake or a record
    HTTP_FLOODED = "http-flooded"  # a broker's server of HTTP is flooded


DOWN = frozenset({FaultKind.CRASH, FaultKind.POWER, FaultKind.PAUSE})
GENERAL: Final = DOWN | {
    FaultKind.OUTAGE,
    FaultKind.PARTITION,
    FaultKind.CUT,
    FaultKind.RESET,
    FaultKind.SLOW_DISK,
    FaultKind.CLOCK_STEP,
}
"""What a nemesis does by itself, whatever runs on the machines."""

Undo = Callable[[], None]
Striker = Callable[[], Undo | None]
"""Carries out a fault of one kind; returns what mends it, or None when nothing could be broken."""


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """How often each kind strikes, in strikes per virtual minute (a kind left out never does), and how long it lasts,
    in seconds.

    `down_at_most` machines are crashed, without power or paused at any time; a strike that would exceed it does not
    happen. An outage takes all machines down that are up.
    """

    per_minute: Mapping[FaultKind, float]
    lasting_seconds: Mapping[FaultKind, Range] = field(default_factory=dict)
    lasting_seconds_default: Range = (0.5, 15.0)
    down_at_most: int = 1
    slowness: Range = (5.0, 100.0)
    clock_step_seconds: Range = (-10.0, 10.0)
    restart_spread_seconds: Range = (0.0, 3.0)
    """How far apart machines come back after an outage."""


class Nemesis:
    """Carries a schedule out on some machines of a simulation, from `start` until `stop`."""

    def __init__(
        self,
        simulation: Simulation,
        machines: Sequence[SimulatedMachine],
        schedule: FaultSchedule,
        *,
        permits: Callable[[FaultKind, SimulatedMachine | None], bool] = lambda _kind, _machine: True,
        strikers: Mapping[FaultKind, Striker] | None = None,
    ) -> None:
        """`permits` says whether that kind of fault may strike now; one that takes a machine down names it. `strikers`
        carry out kinds that are not `GENERAL`; they may use `take` and `give_back`.
        """
        self._strikers = dict(strikers or {})
        unknown = [kind.value for kind in schedule.per_minute if kind not in GENERAL and kind not in self._strikers]
        if unknown:
            raise ValueError(f"nobody is here to carry out {', '.join(unknown)}")
        if len(machines) < 2 and any(
            kind in schedule.per_minute for kind in (FaultKind.PARTITION, FaultKind.CUT, FaultKind.RESET)
        ):
            raise ValueError("faults of the network need at least two machines")
        self.strikes = dict.fromkeys(FaultKind, 0)
        """How often each kind has struck."""
        self._simulation = simulation
        self._machines = list(machines)
        self._schedule = schedule
        self._permits = permits
        self._random = simulation.world.random("nemesis")
        self._active = False
        self._down: dict[SimulatedMachine, None] = {}
        self._undo: dict[int, Undo] = {}
        self._numbers = 0

    @property
    def broken(self) -> int:
        """How many faults last now."""
        return len(self._undo)

    @property
    def is_active(self) -> bool:
        """Whether anything may break now."""
        return self._active

    def start(self) -> None:
        """Begins to strike."""
        if not self._active:
            self._active = True
            for kind in FaultKind:
                if self._schedule.per_minute.get(kind, 0.0) > 0.0:
                    self._plan(kind)

    def stop(self) -> None:
        """Undoes what is still broken, and strikes no more. Wall clocks stay as they were set."""
        self._active = False
        undo, self._undo = self._undo, {}
        for action in undo.values():
            action()

    def take(self, kind: FaultKind, machine: SimulatedMachine | None = None) -> SimulatedMachine | None:
        """For strikers: one machine that is up, at random or just this one, which no other fault takes down before it
        is given back; None where none may go down now.
        """
        candidates = self._machines if machine is None else [machine]
        up = [each for each in candidates if each not in self._down and each.running]
        if not up or len(self._down) >= self._schedule.down_at_most:
            return None
        taken = up[0] if machine is not None else self._random.choice(up)
        if not self._permits(kind, taken):
            return None
        self._down[taken] = None
        return taken

    def take_all(self, machines: Sequence[SimulatedMachine]) -> list[SimulatedMachine]:
        """For strikers: all of them that no other fault has down, however many that are."""
        taken = [machine for machine in machines if machine not in self._down]
        self._down.update(dict.fromkeys(taken))
        return taken

    def give_back(self, machine: SimulatedMachine) -> None:
        """A striker has done with a machine that it took."""
        del self._down[machine]

    def is_taken(self, machine: SimulatedMachine) -> bool:
        """Whether a fault has that machine down, or a striker has taken it."""
        return machine in self._down

    def undo_after(self, range_seconds: Range, undo: Undo) -> None:
        """For strikers: a part of mending that takes its own time; at once when nothing strikes any more."""
        if self._active:
            self._undo_after(self._random.uniform(*range_seconds), undo)
        else:
            undo()

    def _plan(self, kind: FaultKind) -> None:
        pause = self._random.expovariate(self._schedule.per_minute[kind] / 60.0)
        self._simulation.after(pause, lambda: self._come(kind))

    def _come(self, kind: FaultKind) -> None:
        if not self._active:
            return
        undo = self._strike(kind)
        if undo is not None:
            self.strikes[kind] += 1
            self._simulation.note(f"nemesis {kind.value}", self.strikes[kind])
            lasting = self._schedule.lasting_seconds.get(kind, self._schedule.lasting_seconds_default)
            self._undo_after(self._random.uniform(*lasting), undo)
        self._plan(kind)

    def _undo_after(self, seconds: float, undo: Undo) -> None:
        """Undoes something then, or at `stop` if that comes before."""
        self._numbers += 1
        number = self._numbers
        self._undo[number] = undo
        self._simulation.after(seconds, lambda: self._mend(number))

    def _mend(self, number: int) -> None:
        self._undo.pop(number, _nothing)()

    def _strike(self, kind: FaultKind) -> Undo | None:
        """Breaks something; returns what mends it, or None when nothing could be broken."""
        if kind in DOWN:
            return self._take_down(kind)
        if not self._permits(kind, None):
            return None
        if kind in self._strikers:
            return self._strikers[kind]()
        if kind is FaultKind.OUTAGE:
            return self._black_out()
        if kind is FaultKind.PARTITION:
            return self._partition()
        if kind is FaultKind.SLOW_DISK:
            return self._slow_down(self._random.choice(self._machines))
        if kind is FaultKind.CLOCK_STEP:
            self._random.choice(self._machines).clock.step(self._random.uniform(*self._schedule.clock_step_seconds))
            return _nothing
        one, two = self._random.sample(self._machines, 2)
        network = self._simulation.network
        if kind is FaultKind.CUT:
            network.cut(one.name, two.name)
            return lambda: network.heal(one.name, two.name)
        network.reset_connections(one.name, two.name)
        return _nothing

    def _slow_down(self, machine: SimulatedMachine) -> Undo:
        disk = machine.disk
        disk.slowness = self._random.uniform(*self._schedule.slowness)

        def mend() -> None:
            disk.slowness = 1.0

        return mend

    def _take_down(self, kind: FaultKind) -> Undo | None:
        machine = self.take(kind)
        if machine is None:
            return None
        if kind is FaultKind.PAUSE:
            machine.pause()
            return lambda: self._bring_back(machine, machine.resume)
        if kind is FaultKind.POWER:
            machine.power_fail()
        else:
            machine.crash()
        return lambda: self._bring_back(machine, machine.restart)

    def _black_out(self) -> Undo:
        struck = self.take_all(self._machines)
        for machine in struck:
            machine.power_fail()

        def mend() -> None:
            for machine in struck:
                start = functools.partial(self._bring_back, machine, machine.restart)
                self.undo_after(self._schedule.restart_spread_seconds, start)

        return mend if struck else _nothing

    def _bring_back(self, machine: SimulatedMachine, action: Callable[[], object]) -> None:
        del self._down[machine]
        action()

    def _partition(self) -> Undo:
        names = [machine.name for machine in self._machines]
        self._random.shuffle(names)
        split = self._random.randint(1, len(names) - 1)
        one, two = names[:split], names[split:]
        network = self._simulation.network
        network.partition(one, two)

        def heal() -> None:
            for left in one:
                for right in two:
                    network.heal(left, right)
                    network.heal(right, left)

        return heal


def _nothing() -> None:
    """Nothing to mend."""
