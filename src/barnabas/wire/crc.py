"""CRC-32C (Castagnoli), the checksum of record batches since magic 2.

`crc.crc32c(buffer, value=0)` takes anything with the buffer protocol (a memoryview of a part of a frame is not copied),
uses the processor's CRC instruction where there is one, and releases the GIL from 32 KiB on. Call it as an attribute of
this module: the extension behind it is loaded by the first use, and costs nothing afterwards. It is loaded without the
package around it, which pulls in `importlib.metadata` and what that needs: tens of milliseconds, and three megabytes.

Magic 0 and 1 use the older CRC-32, which is `zlib.crc32`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined, unused-ignore]

    def crc32c(buffer: Buffer, value: int = 0, /) -> int:
        """The CRC-32C of the buffer's bytes, as an unsigned 32-bit integer; `value` is the CRC of what came before
        them.
        """

    hardware_based: bool


def __getattr__(name: str) -> Any:
    if name not in ("crc32c", "hardware_based"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = _extension()
    globals()["crc32c"] = library.crc32c
    globals()["hardware_based"] = library.hardware_based
    return globals()[name]


def _extension() -> Any:
    """The extension module of the package `crc32c`; the package itself where that keeps its extension elsewhere."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec("_crc32c", places) if places else None
    if spec is None or spec.loader is None:
        import crc32c as library

        return library
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension
