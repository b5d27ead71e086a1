"""Fixtures of the units: one kind of loop, but in the rooms whose subject are sockets, turns and transports."""

from __future__ import annotations

from tests.support.loops import run_on_one

__all__ = ["run_on_one"]
