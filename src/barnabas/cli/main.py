"""The `barnabas` command. Each subcommand's module is imported when it is run, so that `--help` is quick."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from barnabas import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_INTERRUPTED = 130
_OUTPUT_FAILS = {errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""Standard output is closed, or a file on a disk that takes no more."""
_COMPLETE_VARIABLE = "_BARNABAS_COMPLETE"
"""Has a value where a shell asks for completions."""

# Name, module, and the line that `--help` shows without importing the module.
COMMANDS: dict[str, tuple[str, str]] = {
    "acl": (
        "barnabas.cli.acl",
        "Show and change who may do what.",
    ),
    "audit": (
        "barnabas.cli.audit",
        "Read the logs of brokers in place, check them, and compare replicas.",
    ),
    "broker": (
        "barnabas.cli.broker",
        "Run one broker from a server.properties file, as Kafka does.",
    ),
    "cluster": (
        "barnabas.cli.cluster",
        "Show what a cluster consists of, and what is wrong with it.",
    ),
    "completion": (
        "barnabas.cli.completion",
        "Print a shell script that completes commands, topics and groups.",
    ),
    "config": (
        "barnabas.cli.config",
        "Show and change configs of topics, brokers and loggers.",
    ),
    "console": (
        "barnabas.cli.console",
        "Show a cluster in a browser.",
    ),
    "consume": (
        "barnabas.cli.consume",
        "Read records from topics.",
    ),
    "controller": (
        "barnabas.cli.controller",
        "Show the controller of a cluster, or move it to another broker.",
    ),
    "coordinator": (
        "barnabas.cli.coordinator",
        "Run the embedded coordinator, a ZooKeeper-compatible server.",
    ),
    "doctor": (
        "barnabas.cli.doctor",
        "Show what is wrong on this machine and with a cluster, and what to do.",
    ),
    "elect": (
        "barnabas.cli.elect",
        "Have leaders of partitions elected.",
    ),
    "group": (
        "barnabas.cli.group",
        "List, describe, reset and delete consumer groups.",
    ),
    "log": (
        "barnabas.cli.log",
        "Inspect the files of a log directory.",
    ),
    "log-dirs": (
        "barnabas.cli.log_dirs",
        "Show where brokers keep their logs, and how much room is left there.",
    ),
    "offsets": (
        "barnabas.cli.offsets",
        "Show where partitions begin and end, and which offset a time has.",
    ),
    "pipeline": (
        "barnabas.cli.pipeline",
        "Run data pipelines between topics and tables, on Spark.",
    ),
    "profile": (
        "barnabas.cli.profile",
        "Keep names for clusters, with their brokers and logins.",
    ),
    "produce": (
        "barnabas.cli.produce",
        "Write records to a topic.",
    ),
    "quota": (
        "barnabas.cli.quota",
        "Show and change what clients may take in a second.",
    ),
    "reassign": (
        "barnabas.cli.reassign",
        "Move partitions to other brokers: plan it, do it, look at it, cancel it.",
    ),
    "records": (
        "barnabas.cli.records",
        "Delete records of topics.",
    ),
    "simulate": (
        "barnabas.cli.simulate",
        "Run a cluster in virtual time, break it at random, and judge it.",
    ),
    "topic": (
        "barnabas.cli.topic",
        "Create, list, describe, alter and delete topics.",
    ),
    "txn": (
        "barnabas.cli.txn",
        "Show transactions, find those that hang, and abort them.",
    ),
    "up": (
        "barnabas.cli.up",
        "Run a coordinator and brokers on this machine.",
    ),
    "user": (
        "barnabas.cli.user",
        "Show, set and delete what users log in with by SCRAM.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed. Each module calls its command `command`."""

    def main(self, *arguments: Any, **others: Any) -> Any:
        """As click does; a shell that completes gets its answer by our scripts."""
        if _COMPLETE_VARIABLE in os.environ:
            from barnabas.cli.shells import begin_completion

            begin_completion()
        return super().main(*arguments, **others)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click does, but Ctrl-C is not an error."""
        with _ending_clearly():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but Ctrl-C is not an error, also while the command is imported."""
        with _ending_clearly():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands as `--help` has them."""
        from click.shell_completion import CompletionItem

        matching = [name for name in sorted(COMMANDS) if name.startswith(incomplete)]
        # A command's own completions are those of its options.
        return [
            *(CompletionItem(name, help=COMMANDS[name][1]) for name in matching),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@contextlib.contextmanager
def _ending_clearly() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("barnabas: interrupted", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    except click.Abort as error:
        # Where somebody is asked, click makes this of Ctrl-C, and of the end of input.
        is_interrupted = isinstance(error.__context__, KeyboardInterrupt)
        click.echo(f"\nbarnabas: {'interrupted' if is_interrupted else 'no answer was given'}", err=True)
        raise click.exceptions.Exit(_INTERRUPTED if is_interrupted else 1) from None
    except OSError as error:
        # Of `--help` and the like; commands with results look after it themselves.
        if error.errno not in _OUTPUT_FAILS or error.filename is not None:
            raise
        from barnabas.cli.output import give_up_output

        give_up_output()
        reason = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        click.echo(f"barnabas: the output cannot be written: {reason}", err=True)
        raise click.exceptions.Exit(1) from None


@click.command(name="barnabas", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Barnabas: Apache Kafka's ZooKeeper-era system in Python."""
