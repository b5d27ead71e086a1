"""What is fuzzed: each target takes any bytes, feeds a decoder, and raises where the decoder breaks one of its rules.

The rules: what a decoder refuses, it refuses with its documented error; what it takes can be encoded, and decodes to
the same again. Time and memory are in proportion to the input: `bounds` holds that over the corpora, the fuzzer with
its limits for one input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.fuzz.coordinator import check_coordinator_files, check_coordinator_frames, coordinator_seeds, frame_seeds
from tests.fuzz.log_files import check_log_files, log_file_seeds
from tests.fuzz.logins import check_login, login_seeds
from tests.fuzz.pipeline_files import check_pipeline_file, pipeline_seeds
from tests.fuzz.record_batches import check_records, record_seeds
from tests.fuzz.wire_messages import check_message, message_seeds
from tests.fuzz.znodes import check_znode, znode_seeds


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input."""

    check: Callable[[bytes], bool]
    """Whether the decoder took the input; raises what is none of its documented errors, and for a broken rule."""
    seeds: Callable[[], list[bytes]]
    """Inputs that are good, or nearly, for the fuzzer to begin with."""
    modules: tuple[str, ...]
    """What is instrumented for coverage: names of modules, or of packages for all below them."""
    bytes_max: int = 4_096
    """The longest input."""
    lines_per_byte_max: int = 100
    """How many lines of Python may run for each byte, over `LINES_MAX`."""
    memory_per_byte_max: int = 200
    """How many bytes may be allocated for each, over `MEMORY_BYTES_MAX`."""


LINES_MAX: Final = 20_000
MEMORY_BYTES_MAX: Final = 200_000

TARGETS: Final[dict[str, Target]] = {
    "messages": Target(check_message, message_seeds, ("barnabas.wire",)),
    "records": Target(check_records, record_seeds, ("barnabas.wire",), memory_per_byte_max=3_000),
    "log-files": Target(check_log_files, log_file_seeds, ("barnabas.log",)),
    "coordinator-files": Target(check_coordinator_files, coordinator_seeds, ("barnabas.coordination.embedded",)),
    "coordinator-frames": Target(check_coordinator_frames, frame_seeds, ("barnabas.coordination",)),
    "znodes": Target(check_znode, znode_seeds, ("barnabas.coordination.layout", "json")),
    "logins": Target(check_login, login_seeds, ("barnabas.sasl",)),
    "pipelines": Target(
        check_pipeline_file,
        pipeline_seeds,
        ("barnabas.pipelines",),
        lines_per_byte_max=2_000,
        memory_per_byte_max=5_000,
    ),
}
