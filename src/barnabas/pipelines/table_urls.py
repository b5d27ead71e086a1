"""Tables at URLs: where a Delta or Iceberg table may be beside a directory, as `s3a://bucket/lake/delays`.

A URL is of a file system that Hadoop knows, by Spark's own jars or by those that the pipeline's file names; its
settings, and secrets, are Spark's (`spark.hadoop.fs...`). `file:///path` is a directory, and no URL here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from barnabas.pipelines.spark_extra import pyspark_directory

URL_CHARACTERS_MAX: Final = 1_024

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_URL: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<place>(?:[A-Za-z0-9$_.-]+@)?[A-Za-z0-9_.-]*(?::\d{1,5})?)(?P<path>(?:/[\w.~=+-]+)+)"
)
_FILE: Final = re.compile(r"file://(?P<path>/[^?#%]*)", re.IGNORECASE)
# As the shell's arguments have it, once they are paths.
_AS_PATH: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/(.*)")
_CONTAINERS: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_ONLY_READ: Final = frozenset({"http", "https", "ftp", "sftp", "jar", "har", "data"})
_OTHER_NAMES: Final = {"s3": "s3a", "s3n": "s3a"}
_MODULES: Final = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
_FORM: Final = (
    "write SCHEME://PLACE/path, the path of letters, digits and . _ ~ = + - alone, as s3a://bucket/lake/delays"
)


class UrlError(Exception):
    """What is wrong with a URL: the end of a sentence that begins with the key; it shows no login."""


def scheme_of(text: str) -> str | None:
    """The scheme that a text begins with; None of what is a path."""
    match = _SCHEME.match(text.strip())
    return None if match is None else match[1].lower()


def file_path(text: str) -> Path | None:
    """The path of `file:///path`, not looked at; None of everything else. Raises UrlError for another `file:`."""
    value = text.strip()
    if scheme_of(value) != "file":
        return None
    match = _FILE.fullmatch(value)
    if match is None:
        raise UrlError(f'"{value}" is no path of this machine: write file:///path, with no character escaped, or path')
    return Path(match["path"])


def table_url(text: str) -> str:
    """The URL as tables are known by it, without a slash at its end. Raises UrlError for what cannot be one."""
    value = text.strip().rstrip("/")
    scheme = scheme_of(value) or ""
    if re.search(r"[?#@]|\$\{", value) and not (scheme in _CONTAINERS and value.count("@") == 1 and "?" not in value):
        raise UrlError(
            "has a URL with a login, a query or a reference in it, which logs and states would show: settings of the "
            "store, and its secrets, are Spark's own, under `spark`"
        )
    match = _URL.fullmatch(value[: len(scheme)].lower() + value[len(scheme) :])
    if match is None or len(value) > URL_CHARACTERS_MAX or {".", ".."} & set(match["path"].split("/")):
        shown = re.sub(r"//.*@", "//", value)
        raise UrlError(f'"{shown}" is neither a directory nor a URL of a table: {_FORM}')
    if not match["place"] and match["path"].count("/") < 2:
        raise UrlError(f'"{value}" is at the root of its file system: name a path in a directory there')
    if scheme in _ONLY_READ:
        raise UrlError(f'"{value}" cannot be written: name a file system that Hadoop can write, or a directory')
    return match[0]


def parent_of(url: str) -> str:
    """The URL of the directory that has the table."""
    return url.rpartition("/")[0]


def name_of(url: str) -> str:
    """The last part of the path."""
    return url.rpartition("/")[2]


def overlap(one: str, other: str) -> bool:
    """Whether one is the other, or inside it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def as_url(path: Path) -> str | None:
    """The URL that a path of the command line was: `s3a:/bucket/table`, since paths have one slash. None of a path."""
    match = _AS_PATH.fullmatch(str(path))
    return None if match is None else f"{match[1]}://{match[2]}"


def modules_for(scheme: str, hadoop_version: str | None = None) -> tuple[str, ...]:
    """Maven's coordinates of what Spark lacks for a scheme, at the version of its own Hadoop (or the one that is
    given); none where that is nothing, or not known.
    """
    if scheme not in _MODULES:
        return ()
    version = hadoop_version or _hadoop_version()
    return (f"org.apache.hadoop:{_MODULES[scheme]}:{version}",) if version else ()


def what_to_do(scheme: str, hadoop_version: str) -> str:
    """For a scheme of which Spark knows no file system."""
    if scheme in _OTHER_NAMES:
        return f"write {_OTHER_NAMES[scheme]}://"
    modules = modules_for(scheme, hadoop_version)
    if modules:
        return f"add `jars: [{', '.join(modules)}]` (with spark-submit: to its --packages)"
    return f"name its jar under `jars`, and its class by spark.hadoop.fs.{scheme}.impl under `spark`"


def _hadoop_version() -> str:
    for jar in (pyspark_directory() / "jars").glob("hadoop-client-api-*.jar"):
        return jar.stem.removeprefix("hadoop-client-api-")
    return ""
