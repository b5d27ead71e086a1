"""Every code has its exception."""

from __future__ import annotations

import pytest

from barnabas.coordination.errors import ErrorCode, KeeperError, NoNodeError, UnknownKeeperError, error_for


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.OK])
def test_every_code_is_an_exception_of_its_own_with_the_path(code: ErrorCode) -> None:
    error = error_for(code, "/a")
    assert (error.code, error.path) == (code, "/a")
    assert type(error) is not KeeperError
    assert [other for other in ErrorCode if other and type(error_for(other)) is type(error)] == [code]
    assert str(error).startswith("/a: ")


def test_unknown_codes_are_told_and_ok_is_none() -> None:
    error = error_for(-999, "/a")
    assert type(error) is UnknownKeeperError
    assert "code -999" in str(error)
    with pytest.raises(ValueError, match="0 is no error"):
        error_for(0)
    assert str(NoNodeError()) == "no such znode"
