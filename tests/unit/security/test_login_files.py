"""The file of people, and the hashes of their passwords."""

from __future__ import annotations

import hashlib

import pytest

from barnabas.security.login_files import PasswordHash, Role, read_users

SALT = bytes(range(16))


def cheap(password: str) -> PasswordHash:
    """A hash that costs little."""
    return PasswordHash(16, 1, 1, SALT, hashlib.scrypt(password.encode(), salt=SALT, n=16, r=1, p=1, dklen=32))


def test_a_hash_is_read_as_it_is_written_and_knows_its_password() -> None:
    made = PasswordHash.of("correct horse é", SALT)
    assert PasswordHash.read(str(made)) == made
    assert made.is_of("correct horse é")
    assert not made.is_of("correct horse e")
    assert not made.is_of("")


@pytest.mark.parametrize(
    "text",
    [
        "", "secret", "scrypt$16384$8$1$AAAA", "md5$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA",
        "scrypt$16383$8$1$AAAAAAAAAAAAAAAAAAAAAA==$" + "A" * 44, "scrypt$1073741824$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA",
        "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAA", "scrypt$16384$8$1$!$AAAA", "scrypt$-1$8$1$AAAA$AAAA",
    ],
)  # fmt: skip
def test_a_hash_that_cannot_be_used_is_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 1: the hash of ada cannot be used: ") as caught:
        read_users(f"ada:{text}\n")
    assert not text or text not in str(caught.value)


def test_a_file_has_each_user_once() -> None:
    line = f"ada:{cheap('x')}".replace("scrypt$16$1", "scrypt$16$1")
    assert list(read_users(f"# who\n\n{line}\n")) == ["ada"]
    assert read_users(line)["ada"].role is Role.OPERATOR
    assert read_users(line.replace(":", ":viewer:"))["ada"] == (cheap("x"), Role.VIEWER)
    with pytest.raises(ValueError, match=r"line 1: the role of ada must be viewer or operator"):
        read_users(line.replace(":", ":Viewer:"))
    with pytest.raises(ValueError, match="line 2: ada is there twice"):
        read_users(f"{line}\n{line}\n")
