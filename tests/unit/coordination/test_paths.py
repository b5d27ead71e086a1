"""What ZooKeeper takes for a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.coordination.errors import BadArgumentsError
from barnabas.coordination.paths import child_of, name_of, parent_of, validate_path, validate_paths


@pytest.mark.parametrize(
    "path", ["/", "/a", "/a/b.c", "/.a", "/a..", "/...", "/a b", "/ü/\u4e2d", "/<default>", "/%41"]
)
def test_good_paths(path: str) -> None:
    validate_path(path)
    validate_paths([path, "/x", path])


BAD = [
    "",
    "a",
    "/a/",
    "//",
    "/a//b",
    "/.",
    "/a/..",
    "/a/./b",
    "/a\0",
    "/\x1f",
    "/\x7f",
    "/\ud800",
    "/\uf8ff",
    "/\U0001f600",
]


@pytest.mark.parametrize("path", [*BAD, "/a\n/b"])
def test_bad_paths(path: str) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        validate_path(path)
    assert caught.value.path == path
    with pytest.raises(BadArgumentsError):
        validate_paths(["/good", path])
    with pytest.raises(BadArgumentsError):
        validate_paths([path, "/good"])


@given(st.lists(st.text(st.sampled_from("/.a-\n\x00ü "), max_size=5) | st.sampled_from(["/a", "/b.c"]), max_size=4))
def test_paths_are_good_together_when_each_is(paths: list[str]) -> None:
    def is_good(path: str) -> bool:
        try:
            validate_path(path)
        except BadArgumentsError:
            return False
        return True

    if all(map(is_good, paths)):
        validate_paths(paths)
    else:
        with pytest.raises(BadArgumentsError):
            validate_paths(paths)


def test_sequential_paths_may_end_with_a_slash() -> None:
    validate_path("/a/", sequential=True)
    validate_paths([])


def test_parts() -> None:
    assert (parent_of("/a/b"), parent_of("/a"), parent_of("/")) == ("/a", "/", "/")
    assert (name_of("/a/b"), name_of("/")) == ("b", "")
    assert (child_of("/", "a"), child_of("/a", "b")) == ("/a", "/a/b")
