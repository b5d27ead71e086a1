"""Stored passwords are Apache Kafka's, to the letter; what cannot be one is refused before it costs anything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.config.keys import Password
from barnabas.security.password_encoder import (
    ITERATIONS_MAX,
    Encoded,
    PasswordEncoder,
    PasswordEncoderError,
    PasswordEncoderSettings,
)
from tests.unit.security.encoded_by_kafka import ENCODED, PASSWORD, SECRET

SETTINGS = PasswordEncoderSettings(secret=Password(SECRET), iterations=1024)
ALGORITHMS = [
    ("AES/CBC/PKCS5Padding", 128),
    ("aes/cbc/pkcs5padding", 256),
    ("AES/CFB/PKCS5Padding", 192),
    ("AES/OFB/PKCS5Padding", 128),
    ("AES/CTR/NoPadding", 128),
    ("AES/GCM/NoPadding", 256),
    ("DES/CBC/PKCS5Padding", 64),
    ("DESede/CBC/PKCS5Padding", 192),
]


def entropy(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def encoder(secret: str = SECRET, **more: Any) -> PasswordEncoder:
    return PasswordEncoder(Password(secret), replace(SETTINGS, **more))


def fields(encoded: str) -> dict[str, str]:
    pairs = (pair.partition(":") for pair in encoded.split(","))
    return {name: value for name, _, value in pairs}


def joined(values: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in values.items())


ONE = encoder().encode("swordfish", entropy(1))


@pytest.mark.parametrize("encoded", ENCODED, ids=[fields(encoded)["cipherAlgorithm"] for encoded in ENCODED])
def test_what_apache_kafka_has_encoded_is_decoded(encoded: str) -> None:
    assert encoder().decode(Encoded.parse(encoded)) == PASSWORD
    with pytest.raises(PasswordEncoderError, match="another secret"):
        encoder("another").decode(Encoded.parse(encoded))


@pytest.mark.parametrize("key_factory", [None, "PBKDF2WithHmacSHA1", "pbkdf2withhmacsha256"])
@pytest.mark.parametrize(("cipher", "key_bits"), ALGORITHMS)
def test_what_was_encoded_by_any_algorithm_is_decoded_whatever_the_settings_are_now(
    cipher: str, key_bits: int, key_factory: str | None
) -> None:
    of_then = encoder(cipher=cipher, key_bits=key_bits, key_factory=key_factory)
    for password in ("", "x", "sixteen letters.", "pässword 😀", "p" * 5000):
        encoded = of_then.encode(password, entropy(len(password)))
        found = fields(encoded)
        assert found["cipherAlgorithm"] == cipher
        assert found["keyFactoryAlgorithm"] == (key_factory or "PBKDF2WithHmacSHA512")
        assert found["passwordLength"] == str(len(password.encode("utf-16-le")) // 2)
        assert encoder(iterations=2048).decode(Encoded.parse(encoded)) == password


def test_each_value_has_its_own_salt_and_vector_and_shows_nothing_of_the_password() -> None:
    random_bytes = entropy(5)
    one, other = (fields(encoder().encode("swordfish", random_bytes)) for _ in range(2))
    for name in ("salt", "initializationVector", "encryptedPassword"):
        assert one[name] != other[name]
    assert "swordfish" not in joined(one)
    assert "swordfish" not in repr(Encoded.parse(ONE))


def test_half_a_surrogate_pair_becomes_a_question_mark_as_in_java() -> None:
    assert encoder().decode(Encoded.parse(encoder().encode("a\ud800", entropy(1)))) == "a?"


@pytest.mark.parametrize("name", fields(ONE))
def test_a_value_without_one_of_its_fields_or_with_a_damaged_one_is_refused(name: str) -> None:
    whole = fields(ONE)
    for damaged in (
        {other: value for other, value in whole.items() if other != name},
        {**whole, name: ""},
        {**whole, name: "\N{GREEK SMALL LETTER PI}"},
        {**whole, name: whole[name][:-1]},
        {**whole, name: "-1"},
        {**whole, name: "9" * 5000},
    ):
        with pytest.raises(PasswordEncoderError):
            encoder().decode(Encoded.parse(joined(damaged)))


def test_a_length_that_is_not_the_passwords_is_another_secrets() -> None:
    with pytest.raises(PasswordEncoderError, match="another secret"):
        encoder().decode(Encoded.parse(joined({**fields(ONE), "passwordLength": "8"})))


def test_a_vector_that_the_cipher_cannot_have_is_refused_before_a_key_is_derived() -> None:
    with pytest.raises(PasswordEncoderError, match="initialization vector has 16 bytes, not 12"):
        Encoded.parse(joined({**fields(ONE), "initializationVector": "A" * 16}))


@pytest.mark.parametrize("text", ["", ",", ":", "hunter2", "a:b", "a:b" * 100_000, ONE[:-20], ONE.replace(":", "")])
def test_what_is_not_encoded_is_refused(text: str) -> None:
    with pytest.raises(PasswordEncoderError) as refused:
        encoder().decode(Encoded.parse(text))
    assert "hunter2" not in str(refused.value)


def test_no_value_is_garbage_that_is_taken_for_a_password() -> None:
    """Of random changes of a byte, none gives another password than the one that was encoded."""
    rng = random.Random(7)
    encrypted = fields(ONE)
    for _ in range(300):
        position = rng.randrange(len(ONE))
        changed = ONE[:position] + chr(rng.randrange(32, 127)) + ONE[position + 1 :]
        try:
            found = encoder().decode(Encoded.parse(changed))
        except PasswordEncoderError:
            continue
        assert found == "swordfish" or fields(changed)["initializationVector"] != encrypted["initializationVector"]


@pytest.mark.parametrize("name", ["iterations", "keyLength"])
def test_what_would_take_for_ever_is_refused_at_once(name: str) -> None:
    started = time.process_time()
    for value in (ITERATIONS_MAX + 1, 2**31 - 1):
        with pytest.raises(PasswordEncoderError, match=r"iterations|key has"):
            encoder().decode(Encoded.parse(joined({**fields(ONE), name: str(value)})))
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"key_factory": "PBEWithMD5AndDES"}, "PBKDF2WithHmacSHA1"),
        ({"cipher": "AES"}, "AES/CBC/PKCS5Padding"),
        ({"cipher": "AES/ECB/PKCS5Padding"}, "AES/GCM/NoPadding"),
        ({"key_bits": 100}, "128 or 192 or 256 bits"),
        ({"cipher": "DES/CBC/PKCS5Padding"}, "64 bits"),
        ({"iterations": ITERATIONS_MAX + 1}, "iterations"),
    ],
)
def test_settings_by_which_nothing_can_be_encoded_are_refused_with_what_can(settings: dict[str, Any], why: str) -> None:
    for attempt in (encoder(**settings).check, lambda: encoder(**settings).encode("x", entropy(1))):
        with pytest.raises(PasswordEncoderError, match=why):
            attempt()
    encoder().check()
