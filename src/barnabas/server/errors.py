"""Why a broker cannot start."""

from __future__ import annotations


class BrokerStartError(Exception):
    """The broker cannot start; the message says why, and what to do about it."""


class DuplicateBrokerError(BrokerStartError):
    """Another broker with this id is alive."""


class MetaPropertiesError(BrokerStartError):
    """The log directories belong to another broker or cluster, or disagree."""
