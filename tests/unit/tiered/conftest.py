"""Fixtures of the tests of tiered storage: one kind of loop, since none of them is about sockets."""

from __future__ import annotations

from tests.support.loops import run_on_one

__all__ = ["run_on_one"]
