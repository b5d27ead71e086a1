"""The four-letter words, as ZooKeeper answers them: what an operator or a monitor asks on a fresh connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.coordination.embedded.turn_budget import PIECE_ELEMENTS, Work
from barnabas.coordination.protocol import OpCode

if TYPE_CHECKING:
    from barnabas.coordination.embedded.config import CoordinatorConfig
    from barnabas.coordination.embedded.connection import Connection
    from barnabas.coordination.embedded.engine import Engine
    from barnabas.coordination.embedded.watches import WatchTable
    from barnabas.kernel.long_turns import LongTurns

# The version of ZooKeeper whose behaviour this is; clients read it to know what they may ask.
VERSION = "3.8.4-barnabas, built on 2026-01-01 00:00 UTC"
_LINES_PER_PIECE = 5_000
_LAST_OPERATION: dict[int, str] = {
    OpCode.PING: "PING",
    OpCode.CREATE: "CREA",
    OpCode.CREATE2: "CREA",
    OpCode.CREATE_CONTAINER: "CREA",
    OpCode.CREATE_TTL: "CREA",
    OpCode.DELETE: "DELE",
    OpCode.DELETE_CONTAINER: "DELE",
    OpCode.EXISTS: "EXIS",
    OpCode.GET_DATA: "GETD",
    OpCode.SET_DATA: "SETD",
    OpCode.GET_ACL: "GETA",
    OpCode.SET_ACL: "SETA",
    OpCode.GET_CHILDREN: "GETC",
    OpCode.GET_CHILDREN2: "GETC",
    OpCode.GET_ALL_CHILDREN_NUMBER: "GETACN",
    OpCode.GET_EPHEMERALS: "GETE",
    OpCode.SYNC: "SYNC",
    OpCode.CHECK: "CHEC",
    OpCode.MULTI: "MULT",
    OpCode.MULTI_READ: "MLTR",
    OpCode.RECONFIG: "RECO",
    OpCode.SET_WATCHES: "SETW",
    OpCode.SET_WATCHES2: "STW2",
    OpCode.ADD_WATCH: "ADDW",
    OpCode.CHECK_WATCHES: "CHKW",
    OpCode.REMOVE_WATCHES: "REMW",
    OpCode.WHO_AM_I: "HOMI",
    OpCode.NOTIFICATION: "SESS",
}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the answers are made of."""

    engine: Engine
    config: CoordinatorConfig
    connections: Iterable[Connection]
    port: int
    now: float  # of the loop, in seconds
    directory_bytes: Callable[[str], int]
    long_turns: LongTurns


def answer(word: bytes, inspection: Inspection) -> Work[bytes]:
    """Makes the answer to one of `WORDS`. What a long one lists may have changed between its pieces."""
    found = _COMMANDS[word](inspection)
    if isinstance(found, str):
        return found.encode()
    parts: list[str] = []
    for text in found:
        parts.append(text)
        if len(parts) % _LINES_PER_PIECE == 0:
            yield PIECE_ELEMENTS
    return "".join(parts).encode()


def _ruok(_inspection: Inspection) -> str:
    return "imok"


def _isro(_inspection: Inspection) -> str:
    return "rw"


def _srvr(inspection: Inspection) -> str:
    return _version_line() + _summary(inspection)


def _stat(inspection: Inspection) -> str:
    clients = "".join(f"{_connection_line(each, brief=True)}\n" for each in inspection.connections)
    return f"{_version_line()}Clients:\n{clients}\n{_summary(inspection)}"


def _version_line() -> str:
    return f"Zookeeper version: {VERSION}\n"


def _summary(inspection: Inspection) -> str:
    engine = inspection.engine
    statistics = engine.statistics
    latencies = statistics.latencies
    return (
        f"Latency min/avg/max: {latencies.min_ms}/{round(latencies.average_ms, 4)}/{latencies.max_ms}\n"
        f"Received: {statistics.received}\n"
        f"Sent: {statistics.sent}\n"
        f"Connections: {_count(inspection.connections)}\n"
        f"Outstanding: {engine.commits.outstanding}\n"
        f"Zxid: {engine.commits.durable_zxid:#x}\n"
        "Mode: standalone\n"
        f"Node count: {engine.tree.count}\n"
    )


def _cons(inspection: Inspection) -> str:
    return "".join(f"{_connection_line(each)}\n" for each in inspection.connections) + "\n"


def _connection_line(connection: Connection, *, brief: bool = False) -> str:
    statistics = connection.statistics
    host, port = connection.peer
    line = (
        f" /{host}:{port}[{int(connection.is_reading)}](queued={connection.queued_requests}"
        f",recved={statistics.received},sent={statistics.sent}"
    )
    session = connection.session
    if session is not None and not brief:
        latencies = statistics.latencies
        last_xid = f",lcxid={statistics.last_xid:#x}" if statistics.last_xid >= 0 else ""
        line += (
            f",sid={session.id:#x},lop={_LAST_OPERATION.get(statistics.last_op_code, 'NA')}"
            f",est={statistics.established_ms},to={session.timeout_ms}{last_xid},lzxid={statistics.last_zxid:#x}"
            f",lresp={statistics.last_answer_ms},llat={statistics.last_latency_ms},minlat={latencies.min_ms}"
            f",avglat={int(latencies.average_ms)},maxlat={latencies.max_ms}"
        )
    return line + ")"


def _mntr(inspection: Inspection) -> str:
    engine = inspection.engine
    statistics = engine.statistics
    latencies = statistics.latencies
    values: dict[str, object] = {
        "version": VERSION,
        "server_state": "standalone",
        "ephemerals_count": engine.tree.ephemeral_count,
        "num_alive_connections": _count(inspection.connections),
        "avg_latency": round(latencies.average_ms, 4),
        "outstanding_requests": engine.commits.outstanding,
        "znode_count": engine.tree.count,
        "global_sessions": len(engine.sessions),
        "local_sessions": 0,
        "packets_sent": statistics.sent,
        "packets_received": statistics.received,
        "connection_drop_probability": 0.0,
        "watch_count": engine.watches.count,
        "auth_failed_count": statistics.auth_failed,
        "min_latency": latencies.min_ms,
        "max_latency": latencies.max_ms,
        "approximate_data_size": engine.tree.data_bytes,
        "uptime": int((inspection.now - statistics.started_at) * 1000),
        "data_dir_size": inspection.directory_bytes("snapshot."),
        "log_dir_size": inspection.directory_bytes("log."),
        "barnabas_long_turns": inspection.long_turns.total,
        "barnabas_longest_turn_ms": inspection.long_turns.longest_ms,
    }
    return "".join(f"zk_{key}\t{value}\n" for key, value in values.items())


def _wchs(inspection: Inspection) -> str:
    summary = inspection.engine.watches.data.summary()
    return f"{summary.watchers} connections watching {summary.paths} paths\nTotal watches:{summary.watches}\n"


def _wchp(inspection: Inspection) -> Iterator[str]:
    table: WatchTable = inspection.engine.watches.data
    sessions = _sessions_of(inspection)
    for path in list(table.by_path):
        watchers = list(table.by_path.get(path, ()))
        if watchers:
            yield f"{path}\n"
        for watcher in watchers:
            yield f"\t{sessions.get(watcher, 0):#x}\n"
    yield "\n"


def _wchc(inspection: Inspection) -> Iterator[str]:
    table: WatchTable = inspection.engine.watches.data
    sessions = _sessions_of(inspection)
    for watcher, paths in list(table.by_watcher.items()):
        yield f"{sessions.get(watcher, 0):#x}\n"
        for path in list(paths):
            yield f"\t{path}\n"
    yield "\n"


def _sessions_of(inspection: Inspection) -> dict[object, int]:
    """The ids of the sessions of all connections."""
    return {each: each.session_id for each in inspection.connections}


def _dump(inspection: Inspection) -> Iterator[str]:
    engine = inspection.engine
    yield f"SessionTracker dump:\nGlobal Sessions({len(engine.sessions)}):\n"
    for session in list(engine.sessions):
        yield f"\t{session.id:#x}\t{session.timeout_ms}ms\n"
    yield f"ephemeral nodes dump:\nSessions with Ephemerals ({len(engine.tree.ephemerals)}):\n"
    for session_id, paths in list(engine.tree.ephemerals.items()):
        yield f"{session_id:#x}:\n"
        for path in list(paths):
            yield f"\t{path}\n"
    yield f"Connections dump:\n{_count(inspection.connections)}\n"


def _envi(inspection: Inspection) -> str:
    return f"Environment:\nzookeeper.version={VERSION}\nhost.name={inspection.config.host}\n"


def _conf(inspection: Inspection) -> str:
    config = inspection.config
    values = {
        "clientPort": inspection.port,
        "dataDir": config.data_directory,
        "dataLogDir": config.data_directory,
        "tickTime": config.tick_time_ms,
        "maxClientCnxns": config.connections_per_address_max,
        "minSessionTimeout": config.session_timeout_ms_min,
        "maxSessionTimeout": config.session_timeout_ms_max,
        "serverId": 0,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _srst(inspection: Inspection) -> str:
    inspection.engine.statistics.reset()
    return "Server stats reset.\n"


def _crst(inspection: Inspection) -> str:
    for connection in inspection.connections:
        connection.statistics.reset()
    return "Connection stats reset.\n"


def _count(connections: Iterable[Connection]) -> int:
    return sum(1 for _ in connections)


_COMMANDS: dict[bytes, Callable[[Inspection], str | Iterator[str]]] = {
    b"conf": _conf,
    b"cons": _cons,
    b"crst": _crst,
    b"dump": _dump,
    b"envi": _envi,
    b"isro": _isro,
    b"mntr": _mntr,
    b"ruok": _ruok,
    b"srst": _srst,
    b"srvr": _srvr,
    b"stat": _stat,
    b"wchc": _wchc,
    b"wchp": _wchp,
    b"wchs": _wchs,
}
WORDS = frozenset(_COMMANDS)
