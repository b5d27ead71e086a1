"""`barnabas.kernel.real_tls`: processes without OpenSSL."""

from __future__ import annotations

import ssl
import subprocess
import sys

import pytest

from barnabas.kernel import real_tls

CHILD_SECONDS_MAX = 60.0


def _child(program: str) -> str:
    """What the program writes, as a process of its own: this one has loaded asyncio."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=CHILD_SECONDS_MAX).stdout.strip()


def test_what_a_broker_imports_does_not_load_openssl() -> None:
    loaded = _child(
        "import sys\n"
        "import barnabas.cli.main, barnabas.cli.broker\n"
        "assert 'asyncio' not in sys.modules\n"
        "from barnabas.kernel.real_tls import import_loops_without_tls\n"
        "import_loops_without_tls()\n"
        "import barnabas.kernel.real_host, barnabas.kernel.real_collector, barnabas.server.broker\n"
        "print([name for name in ('ssl', '_ssl', '_hashlib') if name in sys.modules])\n"
    )
    assert loaded == "[]"


def test_a_loop_without_tls_serves_plain_connections_and_refuses_tls() -> None:
    said = _child(
        "from barnabas.kernel.real_tls import import_loops_without_tls\n"
        "import_loops_without_tls()\n"
        "import asyncio, ssl\n"
        "from barnabas.kernel.real_host import fastest_loop_factory\n"
        "async def main():\n"
        "    async def serve(reader, writer):\n"
        "        writer.write(await reader.readexactly(4))\n"
        "        writer.close()\n"
        "    server = await asyncio.start_server(serve, '127.0.0.1', 0)\n"
        "    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
        "    writer.write(b'ping')\n"
        "    print((await reader.read()).decode())\n"
        "    writer.close()\n"
        "    server.close()\n"
        "    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "    try:\n"
        "        await asyncio.start_server(serve, '127.0.0.1', 0, ssl=context)\n"
        "    except TypeError:\n"
        "        print('refused')\n"
        "with asyncio.Runner(loop_factory=fastest_loop_factory()) as runner:\n"
        "    runner.run(main())\n"
    )
    assert said.split() == ["ping", "refused"]


def test_a_name_that_no_uvloop_was_seen_to_take_comes_from_the_real_module(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = real_tls._StandIn("ssl")
    monkeypatch.setitem(sys.modules, "ssl", ssl)
    assert stand_in.OP_NO_COMPRESSION is ssl.OP_NO_COMPRESSION
    assert stand_in.SSLContext is not ssl.SSLContext


def test_where_asyncio_is_loaded_already_nothing_happens() -> None:
    real_tls.import_loops_without_tls()
    assert sys.modules["ssl"] is ssl
