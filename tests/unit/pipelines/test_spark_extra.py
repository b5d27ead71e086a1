"""Whether what pipelines need is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from barnabas.pipelines.definition import PipelineError
from barnabas.pipelines.spark_extra import PACKAGES, require_spark_extra


@pytest.mark.parametrize("missing", PACKAGES)
def test_says_what_to_install(missing: str) -> None:
    with pytest.raises(PipelineError) as caught:
        require_spark_extra(lambda package: package != missing)
    assert str(caught.value) == "pipelines run on Spark, which is not installed: pip install 'barnabas[spark]'"


def test_is_content_with_all_of_them() -> None:
    require_spark_extra(lambda package: package in PACKAGES)


def test_the_room_and_its_command_import_none_of_them() -> None:
    program = (
        "import pkgutil, importlib, sys, barnabas.pipelines\n"
        "for module in pkgutil.iter_modules(barnabas.pipelines.__path__, 'barnabas.pipelines.'):\n"
        "    importlib.import_module(module.name)\n"
        "import barnabas.cli.pipeline, barnabas.cli.pipeline_status\n"
        f"print(*sorted({set(PACKAGES)!r} & set(sys.modules)))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == ""
