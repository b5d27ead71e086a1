"""What README shows of clients in Java and JavaScript, as it stands but for the topic and the broker's address."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.drivers import java, kafkajs
from tests.clients.matrix import reason_to_skip
from tests.support.apache_kafka_jars import class_path
from tests.support.by_night import by_night
from tests.support.documented import ROOT, placed
from tests.support.java import java as java_machine

RUN_SECONDS = 120.0
_JAVA = """import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Example {{
    public static void main(String[] arguments) throws Exception {{
{block}
    }}
}}
"""


def example(language: str, topic: str, bootstrap_servers: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    return placed(block, {"localhost:9092": bootstrap_servers.partition(",")[0], "flights": topic})


def said(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_java(block: str, folder: Path) -> str:
    """Java compiles one file by itself, if it has the compiler."""
    machine = java_machine().executable
    if "jdk.compiler@" not in said([machine, "--list-modules"], folder):
        pytest.skip(f"{machine} has no compiler: install a JDK (Debian: apt-get install default-jdk-headless)")
    program = folder / "Example.java"
    program.write_text(_JAVA.format(block=block))
    return said([machine, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path(), program], folder)


def of_javascript(block: str, folder: Path) -> str:
    program = folder / "example.mjs"
    program.write_text(block)
    (folder / "node_modules").symlink_to(kafkajs.directory() / "node_modules")
    return said(["node", program], folder)


EXAMPLES = {java.JavaClient.name: ("java", of_java), kafkajs.KafkajsClient.name: ("javascript", of_javascript)}


@pytest.mark.parametrize(
    "client",
    [kafkajs.KafkajsClient.name, *by_night("a compiler, five seconds; has found nothing yet", java.JavaClient.name)],
)
def test_the_readmes_example_says_where_its_record_is(
    client: str, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    if reason := reason_to_skip(client):
        pytest.skip(reason)
    language, run = EXAMPLES[client]
    output = run(example(language, topic, bootstrap_servers), tmp_path)
    assert topic in output
    assert "@0" in output or "baseOffset: '0'" in output
