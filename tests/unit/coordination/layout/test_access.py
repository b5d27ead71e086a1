"""Which znodes are made at the start, and who may touch them."""

from __future__ import annotations

import pytest

from barnabas.coordination.layout.access import PERSISTENT_PATHS, default_acl
from barnabas.coordination.protocol import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL


@pytest.mark.parametrize("path", ["/config/users/alice", "/config/brokers/1", "/delegation_token/tokens/x"])
def test_credentials_are_for_the_cluster_alone(path: str) -> None:
    assert default_acl(path, secure=True) == CREATOR_ALL_ACL
    assert default_acl(path, secure=False) == OPEN_ACL


def test_the_rest_may_be_read_by_the_world_and_old_consumers_may_write() -> None:
    assert default_acl("/brokers/ids/1", secure=True) == CREATOR_ALL_ACL + READ_ACL
    assert default_acl("/consumers", secure=True) == OPEN_ACL


def test_persistent_paths_are_kafkas() -> None:
    assert set(PERSISTENT_PATHS) == {
        "/consumers",
        "/brokers/ids",
        "/brokers/topics",
        "/config/changes",
        "/admin/delete_topics",
        "/brokers/seqid",
        "/isr_change_notification",
        "/latest_producer_id_block",
        "/log_dir_event_notification",
        "/config/topics",
        "/config/clients",
        "/config/users",
        "/config/brokers",
        "/config/ips",
    }
