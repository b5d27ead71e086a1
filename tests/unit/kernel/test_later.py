"""`barnabas.kernel.later`: names that are loaded when somebody asks for them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from barnabas.client import admin, consumer_settings, settings
from barnabas.kernel.later import attributes_later


def test_a_name_is_that_of_the_other_module_and_found_once() -> None:
    module: dict[str, Any] = {"__name__": "this"}
    find = attributes_later({"barnabas.wire.topics": ("TopicPartition",)}, module)
    found = find("TopicPartition")
    assert found.__module__ == "barnabas.wire.topics"
    assert module["TopicPartition"] is found


def test_another_name_is_no_attribute() -> None:
    find = attributes_later({"barnabas.wire.topics": ("TopicPartition",)}, {"__name__": "this"})
    with pytest.raises(AttributeError, match="module 'this' has no attribute 'ElectionType'"):
        find("ElectionType")
    assert not hasattr(settings, "Nothing")


def test_what_users_import_is_what_the_client_makes() -> None:
    assert settings.ConsumerSettings is consumer_settings.ConsumerSettings
    for module in (settings, admin):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_nothing_is_loaded_before() -> None:
    code = (
        "import sys; from barnabas.client import settings; name = 'barnabas.client.consumer_settings'\n"
        "before = name in sys.modules; settings.ConsumerSettings; print(before, name in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False True\n"
