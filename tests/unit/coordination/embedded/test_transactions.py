"""Write requests against the tree: every operation with every error, stats, sequences, multi and replay."""

from __future__ import annotations

import pytest

from barnabas.coordination.embedded.stats import INT_MAX
from barnabas.coordination.embedded.transactions import Outcome, Requester, Transactions, replay
from barnabas.coordination.embedded.tree import ZnodeTree, child_names
from barnabas.coordination.errors import ErrorCode
from barnabas.coordination.jute import Reader
from barnabas.coordination.protocol import STAT, EventType, Id, Stat
from tests.support.raw_zookeeper import (
    Acl,
    Encoder,
    Operation,
    Request,
    _decode_body,
    check,
    create,
    delete,
    multi,
    set_acl,
    set_data,
)

ALICE = Id("digest", "alice:8y0lhh/7xkdEiwhX7vo9i+/Nmzc=")
EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL, CONTAINER, WITH_TTL = 1, 2, 3, 4, 5
NOW_MS = 1_700_000_000_000


class Bench:
    """A tree, and a second one that gets every transaction by replay."""

    def __init__(self, *, extended_types: bool = False) -> None:
        self.tree = ZnodeTree()
        self.replica = ZnodeTree()
        self.transactions = Transactions(self.tree, extended_types=extended_types)
        self.changes: list[tuple[EventType, str]] = []

    def do(self, request: Request, session_id: int = 7, *identities: Id) -> Outcome:
        requester = Requester(session_id, (Id("ip", "127.0.0.1"), *identities))
        outcome = self.transactions.perform(request.operation, Reader(request.body), requester, NOW_MS)
        self.changes = [(change[0], change[1]) for change in self.tree.changes]
        self.tree.changes.clear()
        if outcome.op_code is not None:
            replay(self.replica, outcome.op_code, outcome.body, self.tree.zxid, NOW_MS, session_id)
        self.compare()
        return outcome

    def ok(self, request: Request, session_id: int = 7, *identities: Id) -> object:
        outcome = self.do(request, session_id, *identities)
        assert outcome.code == 0
        return _decode_body(request.operation, outcome.reply)

    def stat(self, path: str) -> Stat:
        return Stat._make(STAT.unpack(self.tree.nodes[path][1]))

    def compare(self) -> None:
        """Replaying the log gives the same state."""
        assert self.replica.zxid == self.tree.zxid
        assert {path: node[:3] for path, node in self.tree.nodes.items()} == {
            path: node[:3] for path, node in self.replica.nodes.items()
        }
        for path, node in self.tree.nodes.items():
            assert sorted(child_names(node)) == sorted(child_names(self.replica.nodes[path]))
            assert STAT.unpack(node[1])[9] == len(child_names(node))
        assert self.tree.ephemerals == self.replica.ephemerals
        assert self.tree.containers == self.replica.containers
        assert self.tree.ttls_ms == self.replica.ttls_ms
        assert self.tree.data_bytes == self.replica.data_bytes
        assert self.tree.data_bytes == sum(len(path) + len(node[0] or b"") for path, node in self.tree.nodes.items())


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.ok(create("/a", b"data"))
    bench.ok(create("/a/child", None))
    bench.ok(create("/e", b"", EPHEMERAL))
    bench.ok(create("/guarded", b"", 0, (Acl(31, "digest", ALICE.id),)), 7, ALICE)
    return bench


def test_a_new_tree_has_zookeepers_own_znodes() -> None:
    tree = ZnodeTree()
    assert tree.count == 5
    assert Stat._make(STAT.unpack(tree.nodes["/"][1])).cversion == -1
    assert Stat._make(STAT.unpack(tree.nodes["/zookeeper"][1])).cversion == -2
    assert Stat._make(STAT.unpack(tree.nodes["/zookeeper/config"][1])).aversion == -1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (create("", b""), ErrorCode.BAD_ARGUMENTS),
        (create("relative", b""), ErrorCode.BAD_ARGUMENTS),
        (create("relative/x", b""), ErrorCode.NO_NODE),
        (create("/", b""), ErrorCode.NODE_EXISTS),
        (create("/a/", b""), ErrorCode.BAD_ARGUMENTS),
        (create("//x", b""), ErrorCode.BAD_ARGUMENTS),
        (create("/a/../x", b""), ErrorCode.NO_NODE),
        (create("/a/..", b""), ErrorCode.BAD_ARGUMENTS),
        (create("/a\0", b""), ErrorCode.BAD_ARGUMENTS),
        (create("/a/\ue000", b""), ErrorCode.BAD_ARGUMENTS),
        (create("/a", b""), ErrorCode.NODE_EXISTS),
        (create("/none/x", b""), ErrorCode.NO_NODE),
        (create("/e/x", b""), ErrorCode.NO_CHILDREN_FOR_EPHEMERALS),
        (create("/guarded/x", b""), ErrorCode.NO_AUTH),
        (create("/x", b"", 99), ErrorCode.BAD_ARGUMENTS),
        (create("/x", b"", WITH_TTL), ErrorCode.UNIMPLEMENTED),
        (create("/x", b"", 0, ()), ErrorCode.INVALID_ACL),
        (create("/x", b"", 0, None), ErrorCode.INVALID_ACL),
        (create("/x", b"", 0, (Acl(31, "nobody", "x"),)), ErrorCode.INVALID_ACL),
        (create("/x", b"", 0, (Acl(31, "digest", "no-password"),)), ErrorCode.INVALID_ACL),
        (create("/x", b"", 0, (Acl(31, "ip", "300.0.0.1"),)), ErrorCode.INVALID_ACL),
        (create("/x", b"", 0, (Acl(31, "auth", ""),)), ErrorCode.INVALID_ACL),
        (delete("/"), ErrorCode.BAD_ARGUMENTS),
        (delete("/zookeeper/config"), ErrorCode.BAD_ARGUMENTS),
        (delete("x"), ErrorCode.BAD_ARGUMENTS),
        (delete("/none"), ErrorCode.NO_NODE),
        (delete("/none/x"), ErrorCode.NO_NODE),
        (delete("/a", 5), ErrorCode.BAD_VERSION),
        (delete("/a"), ErrorCode.NOT_EMPTY),
        (delete("/guarded/x"), ErrorCode.NO_AUTH),
        (set_data("/a", b"x", 5), ErrorCode.BAD_VERSION),
        (set_data("/none", b"x"), ErrorCode.NO_NODE),
        (set_data("none", b"x"), ErrorCode.BAD_ARGUMENTS),
        (set_data("/guarded", b"x"), ErrorCode.NO_AUTH),
        (set_acl("/none", (Acl(31, "world", "anyone"),)), ErrorCode.NO_NODE),
        (set_acl("/a", ()), ErrorCode.INVALID_ACL),
        (set_acl("/a", (Acl(31, "world", "anyone"),), 3), ErrorCode.BAD_VERSION),
        (set_acl("/guarded", (Acl(31, "world", "anyone"),)), ErrorCode.NO_AUTH),
        (set_acl("a", (Acl(31, "world", "anyone"),)), ErrorCode.BAD_ARGUMENTS),
        (check("/a", 3), ErrorCode.BAD_VERSION),
        (check("/none", -1), ErrorCode.NO_NODE),
        (check("/guarded", -1), ErrorCode.NO_AUTH),
        (check("", -1), ErrorCode.BAD_ARGUMENTS),
        (Request(Operation.CREATE, b"\0\0"), ErrorCode.MARSHALLING_ERROR),
        (Request(Operation.SET_DATA, bytes(Encoder().text(None).output)), ErrorCode.MARSHALLING_ERROR),
        (Request(Operation.MULTI, b"\0\0\0\x09\0\0\0\0\0"), ErrorCode.MARSHALLING_ERROR),
        (Request(Operation.DELETE_CONTAINER, b"/a/child"), ErrorCode.BAD_VERSION),
        (Request(Operation.DELETE_CONTAINER, b"/a"), ErrorCode.NOT_EMPTY),
        (Request(Operation.DELETE_CONTAINER, b"/"), ErrorCode.BAD_ARGUMENTS),
        (Request(Operation.DELETE_CONTAINER, b"/none"), ErrorCode.NO_NODE),
        (
            Request(Operation.RECONFIG, bytes(Encoder().text("").text("").text("").pack("q", -1).output)),
            ErrorCode.RECONFIG_DISABLED,
        ),
    ],
)
def test_a_refused_write_takes_a_zxid_and_changes_nothing(bench: Bench, request_: Request, code: ErrorCode) -> None:
    before = dict(bench.tree.nodes)
    zxid = bench.tree.zxid
    outcome = bench.do(request_)
    assert outcome.code == code
    assert bench.tree.nodes == before
    assert bench.tree.zxid == zxid + 1
    assert bench.changes == []


def test_creation_is_counted_in_the_parents_stat(bench: Bench) -> None:
    bench.ok(create("/a/second", b"12345"))
    parent = bench.stat("/a")
    assert (parent.cversion, parent.num_children, parent.pzxid, parent.mzxid) == (2, 2, bench.tree.zxid, 1)
    stat = bench.stat("/a/second")
    assert stat == Stat(
        bench.tree.zxid, bench.tree.zxid, NOW_MS, NOW_MS, 0, 0, 0, 0, data_length=5, num_children=0,
        pzxid=bench.tree.zxid,
    )  # fmt: skip
    assert bench.changes == [(EventType.NODE_CREATED, "/a/second")]
    bench.ok(delete("/a/second"))
    parent = bench.stat("/a")
    assert (parent.cversion, parent.num_children, parent.pzxid) == (3, 1, bench.tree.zxid)


def test_sequential_names_count_creations_not_children(bench: Bench) -> None:
    assert bench.ok(create("/a/n-", b"", SEQUENTIAL)) == "/a/n-0000000001"
    bench.ok(delete("/a/n-0000000001"))
    assert bench.ok(create("/a/n-", b"", SEQUENTIAL)) == "/a/n-0000000002"
    assert bench.ok(create("/a/", b"", EPHEMERAL_SEQUENTIAL)) == "/a/0000000003"
    assert bench.stat("/a/0000000003").ephemeral_owner == 7


def test_the_sequence_stops_at_its_maximum(bench: Bench) -> None:
    for tree in (bench.tree, bench.replica):
        data, stat, acl, children = tree.nodes["/a"]
        fields = list(STAT.unpack(stat))
        fields[5] = 2 * (INT_MAX - 1) - 1 - (1 << 32)  # one creation is left
        tree.nodes["/a"] = (data, STAT.pack(*fields), acl, children)
    assert bench.ok(create("/a/n", b"", SEQUENTIAL)) == "/a/n2147483646"
    pzxid = bench.stat("/a").pzxid
    assert bench.ok(create("/a/n", b"", SEQUENTIAL)) == "/a/n2147483647"
    assert bench.stat("/a").pzxid == pzxid
    assert bench.do(create("/a/n", b"", SEQUENTIAL)).code == ErrorCode.NODE_EXISTS
    assert bench.stat("/a").cversion == 2 * INT_MAX - 3 - (1 << 32)


def test_set_data_changes_version_mzxid_and_length(bench: Bench) -> None:
    created = bench.stat("/a")
    bench.ok(set_data("/a", b"longer data", 0))
    stat = bench.stat("/a")
    assert (stat.version, stat.mzxid, stat.data_length) == (1, bench.tree.zxid, 11)
    assert (stat.czxid, stat.cversion, stat.pzxid) == (created.czxid, created.cversion, created.pzxid)
    bench.ok(set_data("/a", None, 1))
    assert bench.tree.nodes["/a"][0] is None
    assert bench.stat("/a").data_length == 0


def test_set_acl_changes_aversion_alone(bench: Bench) -> None:
    before = bench.stat("/a")
    bench.ok(set_acl("/a", (Acl(1, "world", "anyone"),), 0))
    assert bench.stat("/a") == before._replace(aversion=1)
    assert bench.do(set_data("/a", b"x")).code == ErrorCode.NO_AUTH


def test_auth_stands_for_what_the_session_has_proved(bench: Bench) -> None:
    bench.ok(create("/mine", b"", 0, (Acl(31, "auth", ""),)), 7, ALICE)
    assert bench.do(set_data("/mine", b"x")).code == ErrorCode.NO_AUTH
    bench.ok(set_data("/mine", b"x"), 7, ALICE)


@pytest.mark.parametrize(("network", "allowed"), [("127.0.0.0/8", True), ("127.0.0.1", True), ("10.0.0.0/8", False)])
def test_addresses_are_matched_by_prefix(bench: Bench, network: str, allowed: bool) -> None:
    bench.ok(create("/net", b"", 0, (Acl(31, "ip", network),)))
    assert bench.do(set_data("/net", b"x")).code == (0 if allowed else ErrorCode.NO_AUTH)


def test_closing_a_session_deletes_its_ephemerals(bench: Bench) -> None:
    bench.ok(create("/a/mine", b"", EPHEMERAL), 8)
    for tree in (bench.tree, bench.replica):
        tree.zxid += 1
        tree.close_session(7, tree.zxid)
    assert [(change[0], change[1]) for change in bench.tree.changes] == [(EventType.NODE_DELETED, "/e")]
    assert "/a/mine" in bench.tree.nodes
    assert bench.tree.ephemeral_count == 1
    bench.compare()


def test_containers_are_no_ephemerals_and_can_be_deleted_by_the_server(bench: Bench) -> None:
    request = create("/box", b"")
    bench.ok(Request(Operation.CREATE_CONTAINER, request.body))
    assert bench.stat("/box").ephemeral_owner == 0
    assert list(bench.tree.containers) == ["/box"]
    assert bench.do(Request(Operation.DELETE_CONTAINER, b"/box")).code == 0
    assert bench.tree.containers == {}


def test_znodes_with_a_time_to_live_need_the_extended_types() -> None:
    bench = Bench(extended_types=True)
    body = create("/brief", b"", WITH_TTL).body
    assert bench.do(Request(Operation.CREATE_TTL, body + bytes(8))).code == ErrorCode.BAD_ARGUMENTS
    assert bench.do(Request(Operation.CREATE_TTL, body + (5000).to_bytes(8, "big"))).code == 0
    assert bench.tree.ttls_ms == {"/brief": 5000}


def test_multi_shares_a_zxid_and_sees_its_own_changes(bench: Bench) -> None:
    zxid = bench.tree.zxid
    reply = bench.ok(
        multi([create("/m", b"1"), create("/m/x", b""), check("/m", 0), set_data("/m", b"2"), delete("/m/x")])
    )
    assert isinstance(reply, tuple)
    assert len(reply) == 5
    assert bench.tree.zxid == zxid + 1
    stat = bench.stat("/m")
    assert (stat.czxid, stat.mzxid, stat.version, stat.cversion) == (zxid + 1, zxid + 1, 1, 2)


def test_a_failed_multi_leaves_no_trace_but_its_zxid(bench: Bench) -> None:
    before = dict(bench.tree.nodes)
    reply = bench.ok(
        multi(
            [
                create("/a/x", b"1"),
                delete("/a/child"),
                set_data("/a", b"changed"),
                create("/a/e", b"", EPHEMERAL),
                Request(Operation.CREATE_CONTAINER, create("/a/box", b"").body),
                delete("/e"),
                check("/a", 5),
                create("/never", b""),
            ]
        )
    )
    bad_version, inconsistent = int(ErrorCode.BAD_VERSION), int(ErrorCode.RUNTIME_INCONSISTENCY)
    assert [result[1] for result in reply] == [0] * 6 + [bad_version, inconsistent]  # type: ignore[attr-defined]
    assert {path: node[:3] for path, node in before.items()} == {
        path: node[:3] for path, node in bench.tree.nodes.items()
    }
    assert bench.changes == []
    assert list(bench.tree.ephemerals) == [7]
    assert bench.tree.containers == {}


def test_a_multi_that_mixes_reads_and_writes_is_unreadable(bench: Bench) -> None:
    mixed = multi([create("/m", b""), Request(Operation.GET_DATA, b"\0\0\0\x02/a\0")])
    assert bench.do(mixed).code == ErrorCode.MARSHALLING_ERROR
    assert "/m" not in bench.tree.nodes


def test_a_multi_that_creates_without_any_list_takes_no_zxid(bench: Bench) -> None:
    zxid = bench.tree.zxid
    outcome = bench.do(multi([set_data("/a", b"x"), create("/m", b"", 0, None)]))
    assert (outcome.code, outcome.op_code) == (ErrorCode.MARSHALLING_ERROR, None)
    assert bench.tree.zxid == zxid


def test_quota_statistics_follow_the_subtree(bench: Bench) -> None:
    for path in ("/zookeeper/quota/a", "/zookeeper/quota/a/zookeeper_limits", "/zookeeper/quota/a/zookeeper_stats"):
        bench.ok(create(path, b"count=10,bytes=100"))
    statistics = "/zookeeper/quota/a/zookeeper_stats"
    assert bench.tree.nodes[statistics][0] == b"count=2,bytes=4"
    bench.ok(create("/a/more", b"123"))
    bench.ok(set_data("/a/more", b"1"))
    assert bench.tree.nodes[statistics][0] == b"count=3,bytes=5"
    bench.ok(delete("/a/more"))
    assert bench.tree.nodes[statistics][0] == b"count=2,bytes=4"
    assert bench.stat(statistics).version == 0
    assert bench.stat(statistics).data_length == 15
    bench.ok(delete("/zookeeper/quota/a/zookeeper_limits"))
    bench.ok(create("/a/uncounted", b"123"))
    assert bench.tree.nodes[statistics][0] == b"count=2,bytes=4"
