"""Fixtures of the tests of the network: both kinds of loops, since sockets and turns are what is tested."""

from __future__ import annotations

from tests.support.loops import run_on_both

__all__ = ["run_on_both"]
