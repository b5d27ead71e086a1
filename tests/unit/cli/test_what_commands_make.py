"""What commands make when they start, beside loading modules: counted, since the machine decides on the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONSUMING = "barnabas.cli.record_consuming, barnabas.client.group_member"
PRODUCING = "barnabas.cli.produce, barnabas.client.producer"
LOOKING = "barnabas.cli.doctor, barnabas.cli.doctor_cluster, barnabas.client.client"


@pytest.mark.parametrize("modules", [CONSUMING, PRODUCING, LOOKING])
def test_the_classes_of_a_command_are_facts_but_for_a_few(modules: str) -> None:
    """A dataclass compiles up to six functions, half a millisecond: `barnabas.kernel.facts` has classes without."""
    program = (
        "import dataclasses\n"
        "made, process = [], dataclasses._process_class\n"
        "def noted(found, *others):\n"
        "    made.append(found.__qualname__)\n"
        "    return process(found, *others)\n"
        "dataclasses._process_class = noted\n"
        f"import {modules}, barnabas.kernel.real_host\n"
        "print(*made)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    made = done.stdout.split()
    assert "Host" in made
    # Four when this was written, of some 40 classes.
    assert len(made) <= 6, made
