"""What stands in for modules that commands hardly use is not to be told from them."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from barnabas.cli import broker, consume, doctor, light_imports, pipeline, topic

BEGIN = "import sys\nfrom barnabas.cli.light_imports import lighten\nlighten()\n"
CLIENT = (
    "from barnabas.cli.connection import load_loops\n"
    "load_loops()\n"
    "import barnabas.cli.main, barnabas.cli.consume, barnabas.cli.record_consuming, barnabas.client.client\n"
    "import barnabas.kernel.real_host\n"
)


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_command_loads_no_parts_of_a_compiler() -> None:
    loaded = printed(f"{BEGIN}{CLIENT}print(*sys.modules)").split()
    assert {"click", "uvloop", "asyncio", "barnabas.client.client"} <= {*loaded}
    assert not {"ast", "dis", "opcode"} & {*loaded}


def test_a_fact_that_is_compared_shown_and_replaced_loads_none_either() -> None:
    program = (
        f"{BEGIN}import dataclasses\nfrom barnabas.kernel.facts import fact\n"
        "@fact\nclass Place:\n    x: int\n"
        "print(Place(1) == dataclasses.replace(Place(2), x=1), hash(Place(1)) == hash(Place(1)), Place(1))\n"
        "print(*{'ast', 'dis'} & {*sys.modules})\n"
    )
    assert printed(program).splitlines() == ["True True Place(x=1)", ""]


@pytest.mark.parametrize("asked", ["signature", "iscoroutinefunction", "Parameter", "getdoc", "CO_COROUTINE"])
def test_whatever_is_asked_for_is_that_of_the_real_module(asked: str) -> None:
    """Also for who has imported it before, and as a name of it."""
    use = f"early.{asked}" if asked[0].isupper() else f"early.{asked}(run)"
    program = (
        f"{BEGIN}import inspect as early\nasync def run(): 'what it does'\n"
        f"found = {use}\n"
        "import inspect, types\n"
        f"print(found == {use.replace('early', 'inspect')}, type(inspect) is types.ModuleType)\n"
        f"from inspect import {asked}\n"
        f"print({asked} is inspect.{asked}, early.{asked} is inspect.{asked})\n"
    )
    assert printed(program).split() == ["True"] * 4


def test_annotations_are_those_that_the_real_module_tells() -> None:
    program = (
        f"{BEGIN}import inspect as early\n"
        "class Own: a: int = 1; b: 'str' = ''\n"
        "class Heir(Own): pass\n"
        "def function(a: int) -> str: ...\n"
        "own = early.get_annotations(Own)\n"
        "print(own == {'a': int, 'b': 'str'}, own is not Own.__annotations__)\n"
        "found = [early.get_annotations(each) for each in (Heir, function)]\n"
        "found.append(early.get_annotations(Own, eval_str=True))\n"
        "import inspect\n"
        "wanted = [inspect.get_annotations(each) for each in (Heir, function)]\n"
        "print(found == [*wanted, inspect.get_annotations(Own, eval_str=True)])\n"
    )
    assert printed(program).split() == ["True"] * 3


def test_platform_tells_all() -> None:
    program = (
        f"{BEGIN}import platform, uuid\n"
        "assert not hasattr(platform, '_no_such_name')\n"
        "early = platform.system(), platform.machine(), platform.python_implementation()\n"
        "import platform as real\n"
        "print(type(real) is type(sys), early == (real.system(), real.machine(), real.python_implementation()))\n"
        "print(uuid.UUID(int=1).version is None, len(str(uuid.uuid4())) == 36)\n"
    )
    assert printed(program).split() == ["True"] * 4


def test_modules_that_are_there_stay() -> None:
    program = f"import inspect, platform\nfound = inspect, platform\n{BEGIN}import inspect, platform\n"
    assert printed(f"{program}print(found == (inspect, platform))").split() == ["True"]


@pytest.mark.parametrize(
    "text",
    [
        *(command.help for module in (broker, consume, doctor, pipeline, topic) for command in [module.command]),
        *(
            "",
            "one",
            "  one  ",
            "\n\n  one\n    two\n\n three\n\n",
            "\tone\n\ttwo\n\t\tthree",
            "one\n   \n  two\n",
            " \n ",
        ),
    ],
)
def test_indentation_is_taken_away_as_python_does_it(text: str) -> None:
    assert light_imports.cleandoc(text) == inspect.cleandoc(text)
