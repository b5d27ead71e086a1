"""`barnabas topic alter`: more partitions, other configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.completed_names import complete_topics
from barnabas.cli.connection import CommandError, bootstrap_option, json_option, load_loops, run_with_client
from barnabas.cli.missing import missing_topics
from barnabas.cli.output import counted, print_json, printable, say, shown

if TYPE_CHECKING:
    from barnabas.cli.config_changes import Change, Effect
    from barnabas.client.admin import Admin
    from barnabas.client.client import Client
    from barnabas.client.cluster import TopicInfo


_NAMES_SHOWN_MAX = 20


@dataclass(slots=True)
class Alteration:
    """What one topic had before and has afterwards."""

    name: str
    partitions_before: int
    partitions: int
    effects: list[Effect] = field(default_factory=list)


@click.command(name="alter")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Add partitions until there are N.")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="A config to set; repeatable.")
@click.option("--unset", multiple=True, metavar="KEY", help="A config to take back; repeatable.")
@click.option("--force", is_flag=True, help="Alter internal topics too.")
@click.option("--dry-run", is_flag=True, help="Have the brokers check it, and change nothing.")
@bootstrap_option
@json_option
def command(
    names: tuple[str, ...],
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    force: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add partitions to topics, and change their configs, as `config set topic:NAME` does.

    All is checked before anything is changed. New partitions are waited for until every broker knows their leaders.
    Partitions cannot be taken away. Records with a key go to other partitions where there are more of them, so that
    those of one key are in order only within what was written before and what after. Internal topics are altered with
    --force only: with more partitions __consumer_offsets loses what groups have committed.
    """
    load_loops()
    from barnabas.cli.config_changes import parse_changes

    try:
        changes = parse_changes(configs, unset)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--config") from None
    if partitions is None and not changes:
        raise click.UsageError("nothing to change: give --partitions, --config or --unset")

    async def body(client: Client) -> None:
        from barnabas.client.admin import Admin

        async with Admin(client) as admin:
            topics = await _topics(client, admin, names)
            _check(topics, partitions, force=force)
            # The brokers check all of it before any of it is done; one change is done whole or not at all.
            found: list[Alteration] = []
            is_one_change = len(topics) == 1 and (partitions is None or not changes)
            if dry_run or not is_one_change:
                found = await _alter(client, admin, topics, partitions, changes, is_dry_run=True)
            if not dry_run:
                found = await _alter(client, admin, topics, partitions, changes, is_dry_run=False)
        if as_json:
            print_json({"is_dry_run": dry_run, "topics": [document(each) for each in found]})
            return
        for each in found:
            _print(each)
        if dry_run:
            say("Nothing was changed: that was a dry run.")

    run_with_client(bootstrap, body, topics=names)


def document(alteration: Alteration) -> dict[str, Any]:
    """A topic as `topic alter --json` has it."""
    from barnabas.cli.config_changes import effect_documents

    return {
        "name": alteration.name,
        "partitions_before": alteration.partitions_before,
        "partitions": alteration.partitions,
        "configs": effect_documents(alteration.effects),
    }


# Inside.


async def _topics(client: Client, admin: Admin, names: Sequence[str]) -> list[TopicInfo]:
    """What is known of the topics, by the client's first question as a rule. Raises CommandError where one does not
    exist.
    """
    from barnabas.wire.errors import ErrorCode, KafkaError

    found: list[TopicInfo] = []
    missing: list[str] = []
    for name in dict.fromkeys(names):
        known = client.cluster.topics.get(name)
        if known is not None and known.error is ErrorCode.NONE and known.partitions:
            found.append(known)
            continue
        try:
            found.append((await admin.describe_topics([name]))[name])
        except KafkaError as error:
            if error.code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}:
                raise
            missing.append(name)
    if missing:
        raise missing_topics(missing)
    return found


def _check(topics: Sequence[TopicInfo], partitions: int | None, *, force: bool) -> None:
    for topic in topics:
        if topic.is_internal and not force:
            raise CommandError(f"{topic.name} is internal; if the brokers' own topic shall change, add --force")
        if partitions is not None and partitions < len(topic.partitions):
            raise CommandError(
                f"topic {topic.name} has {counted(len(topic.partitions), 'partition')}, and none can be taken away; "
                f"create another topic with {partitions}, and copy the records"
            )


async def _alter(
    client: Client,
    admin: Admin,
    topics: Sequence[TopicInfo],
    partitions: int | None,
    changes: Sequence[Change],
    *,
    is_dry_run: bool,
) -> list[Alteration]:
    from barnabas.cli.config_changes import apply_changes
    from barnabas.cli.config_resources import Kind, Resource

    found: list[Alteration] = []
    for topic in topics:
        before = len(topic.partitions)
        alteration = Alteration(topic.name, before, partitions or before)
        if changes:
            resource = Resource(Kind.TOPIC, topic.name)
            try:
                alteration.effects = await apply_changes(client, admin, resource, changes, is_dry_run=is_dry_run)
            except Exception:
                if not is_dry_run:
                    _say_what_is_done("configs", [each.name for each in found], [each.name for each in topics])
                raise
        found.append(alteration)
    growing = {each.name: each.partitions for each in found if each.partitions > each.partitions_before}
    if growing:
        if is_dry_run:
            await admin.create_partitions(growing, validate_only=True)
        else:
            from barnabas.client.broker_views import BrokerViews

            await _grow(admin, growing, configs_of=[each.name for each in found if changes])
            async with BrokerViews(client) as views:
                added = {each.name: range(each.partitions_before, each.partitions) for each in found}
                await views.wait_until_grown({name: added[name] for name in growing})
    return found


async def _grow(admin: Admin, growing: Mapping[str, int], configs_of: Sequence[str]) -> None:
    """Adds partitions to one topic after another; where one fails, says which have theirs."""
    for place, (name, count) in enumerate(growing.items()):
        try:
            await admin.create_partitions({name: count})
        except Exception:
            if configs_of:
                say(f"The configs are changed of: {_named(configs_of)}.")
            _say_what_is_done("partitions", list(growing)[:place], list(growing))
            raise


def _say_what_is_done(what: str, done: Sequence[str], names: Sequence[str]) -> None:
    if len(names) > 1:
        left = [name for name in names if name not in done]
        before = f"Before the error the {what} are changed of: {_named(done)}." if done else "Nothing was changed yet."
        say(f"{before} Not done: {_named(left)}. The same command again does the rest.")


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN_MAX:,} more" if len(names) > _NAMES_SHOWN_MAX else ""
    return ", ".join(map(printable, names[:_NAMES_SHOWN_MAX])) + more


def _print(alteration: Alteration) -> None:
    from barnabas.cli.config_changes import print_effects

    name, count = shown(alteration.name), counted(alteration.partitions, "partition")
    if alteration.partitions == alteration.partitions_before:
        click.echo(f"Topic {name}: {count}, as before.")
    else:
        click.echo(f"Topic {name}: {count}, before {alteration.partitions_before:,}.")
    if alteration.effects:
        print_effects(alteration.effects)
