"""Passwords and keys as they are kept encrypted in the dynamic configs of a broker, as Apache Kafka keeps them.

    keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:128,salt:BASE64,
    iterations:4096,initializationVector:BASE64,encryptedPassword:BASE64,passwordLength:8

(in one line, in any order). What a value was encrypted with stands beside it, so only the secret must be the same.
Nothing here does I/O; encoding and decoding take milliseconds or more, and are for a thread. Source: Kafka's
`EncryptingPasswordEncoder`; names of algorithms are Java's. Ciphers need the library `cryptography` (the extra `tls`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from barnabas.config.derived import Values
from barnabas.config.keys import Password
from barnabas.security.password_ciphers import Cipher, CipherError, cipher_of

ITERATIONS_MAX: Final = 2_000_000
"""Of one value: a second or two of a thread, and several times what is recommended anywhere. Kafka has no bound, but a
znode may say 2,147,483,647.
"""
_KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"
_HASHES: Final[Mapping[str, str]] = {
    "pbkdf2withhmacsha1": "sha1",
    "pbkdf2withhmacsha224": "sha224",
    "pbkdf2withhmacsha256": "sha256",
    "pbkdf2withhmacsha384": "sha384",
    "pbkdf2withhmacsha512": "sha512",
}
_SALT_BYTES: Final = 256
_INT_MAX: Final = 2**31 - 1
_WRONG: Final = "it was encoded with another secret, or is damaged"


class PasswordEncoderError(ValueError):
    """What cannot be encoded or decoded; the text shows nothing of it."""


@dataclass(frozen=True, slots=True)
class PasswordEncoderSettings:
    """`password.encoder.*`; the defaults are Kafka's."""

    secret: Password | None = None
    old_secret: Password | None = None
    key_factory: str | None = None
    cipher: str = "AES/CBC/PKCS5Padding"
    key_bits: int = 128
    iterations: int = 4096

    @classmethod
    def of(cls, values: Values) -> PasswordEncoderSettings:
        """What a broker's configs say."""
        return cls(
            secret=values["password.encoder.secret"],
            old_secret=values["password.encoder.old.secret"],
            key_factory=values["password.encoder.keyfactory.algorithm"],
            cipher=values["password.encoder.cipher.algorithm"],
            key_bits=values["password.encoder.key.length"],
            iterations=values["password.encoder.iterations"],
        )


class PasswordEncoder:
    """Encodes as `settings` say, and decodes whatever was encoded with the same secret."""

    def __init__(self, secret: Password, settings: PasswordEncoderSettings) -> None:
        self._secret = secret
        self._settings = settings

    def uses_cipher_of(self, encoded: str) -> bool:
        """Whether a text was encoded with the cipher of today. Kafka's brokers read nothing else where one of the two
        is GCM.
        """
        return f",cipherAlgorithm:{self._settings.cipher}," in f",{encoded},"

    def check(self) -> None:
        """Whether anything can be encoded. Raises PasswordEncoderError."""
        self._encoding()

    def encode(self, password: str, entropy: Callable[[int], bytes]) -> str:
        """The text for the znode; `entropy(count)` gives random bytes. Raises PasswordEncoderError."""
        key_factory, cipher = self._encoding()
        settings = self._settings
        salt, vector = entropy(_SALT_BYTES), entropy(cipher.vector_bytes)
        key = self._key(_HASHES[key_factory.lower()], salt, settings.iterations, settings.key_bits // 8)
        # As Java has it: half a surrogate pair, which UTF-8 cannot hold, becomes a question mark.
        encrypted = cipher.encrypt(key, vector, password.encode(errors="replace"))
        fields = {
            "keyFactoryAlgorithm": key_factory,
            "cipherAlgorithm": settings.cipher,
            "keyLength": str(settings.key_bits),
            "salt": _base64(salt),
            "iterations": str(settings.iterations),
            "initializationVector": _base64(vector),
            **cipher.parameters(),
            "encryptedPassword": _base64(encrypted),
            "passwordLength": str(_length(password)),
        }
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, encoded: Encoded) -> str:
        """The password. Raises PasswordEncoderError."""
        key = self._key(encoded.hash_name, encoded.salt, encoded.iterations, encoded.key_bytes)
        try:
            # Strictly: with another secret the padding is right once in 256 times, and the rest is noise.
            password = encoded.cipher.decrypt(key, encoded.vector, encoded.encrypted).decode()
        except UnicodeDecodeError:
            raise PasswordEncoderError(_WRONG) from None
        except CipherError as error:
            raise PasswordEncoderError(str(error) or _WRONG) from None
        if _length(password) != encoded.password_length:
            raise PasswordEncoderError(_WRONG)
        return password

    def _encoding(self) -> tuple[str, Cipher]:
        settings = self._settings
        key_factory = settings.key_factory or _KEY_FACTORY
        if key_factory.lower() not in _HASHES:
            raise PasswordEncoderError(
                f"password.encoder.keyfactory.algorithm={key_factory}: it must be PBKDF2WithHmacSHA1, 224, 256, 384 or"
                " 512"
            )
        try:
            cipher = cipher_of(settings.cipher, {})
            cipher.check_key(settings.key_bits // 8)
            cipher.load()
        except CipherError as error:
            raise PasswordEncoderError(f"password.encoder.cipher.algorithm={settings.cipher}: {error}") from None
        if settings.iterations > ITERATIONS_MAX:
            raise PasswordEncoderError(f"password.encoder.iterations={settings.iterations}: {_too_many()}")
        return key_factory, cipher

    def _key(self, hash_name: str, salt: bytes, iterations: int, count: int) -> bytes:
        import hashlib  # loads OpenSSL, which who has no passwords there does without

        # OpenSSL does it, and lets go of Python's lock.
        secret = self._secret.reveal().encode(errors="replace")
        return hashlib.pbkdf2_hmac(hash_name, secret, salt, iterations, count)


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded password, taken apart and found to be possible."""

    hash_name: str
    cipher: Cipher
    key_bytes: int
    salt: bytes = field(repr=False)
    iterations: int
    vector: bytes = field(repr=False)
    encrypted: bytes = field(repr=False)
    password_length: int
    """In Java's characters."""

    @classmethod
    def parse(cls, text: str) -> Encoded:
        """Raises PasswordEncoderError."""
        fields: dict[str, str] = {}
        for pair in text.split(","):
            name, colon, value = pair.rpartition(":")
            if not colon:
                raise PasswordEncoderError("it is not encoded, or damaged: it should be NAME:VALUE,NAME:VALUE...")
            fields[name.strip()] = value.strip()
        key_factory = _field(fields, "keyFactoryAlgorithm")
        hash_name = _HASHES.get(key_factory.lower())
        if hash_name is None:
            raise PasswordEncoderError(f"keyFactoryAlgorithm is {_shown(key_factory)}, of which nothing is known here")
        algorithm = _field(fields, "cipherAlgorithm")
        bits, iterations = _number(fields, "keyLength"), _number(fields, "iterations")
        if iterations > ITERATIONS_MAX:
            raise PasswordEncoderError(f"its iterations are {iterations}: {_too_many()}")
        try:
            cipher = cipher_of(algorithm, fields)
            cipher.check_key(bits // 8)
            vector = _bytes(fields, "initializationVector")
            cipher.check_vector(len(vector))
        except CipherError as error:
            raise PasswordEncoderError(f"cipherAlgorithm {_shown(algorithm)}: {error}") from None
        return cls(
            hash_name=hash_name,
            cipher=cipher,
            key_bytes=bits // 8,
            salt=_bytes(fields, "salt"),
            iterations=iterations,
            vector=vector,
            encrypted=_bytes(fields, "encryptedPassword", may_be_empty=True),
            password_length=_number(fields, "passwordLength", least=0),
        )


def _too_many() -> str:
    return f"more than {ITERATIONS_MAX} are not taken"


def _length(text: str) -> int:
    """As Java counts characters: two for those beyond 16 bits."""
    return len(text) + sum(character > "\uffff" for character in text)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _field(fields: Mapping[str, str], name: str) -> str:
    value = fields.get(name)
    if not value:
        raise PasswordEncoderError(f"it is damaged: it has no {name}")
    return value


def _number(fields: Mapping[str, str], name: str, least: int = 1) -> int:
    text = _field(fields, name)
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= _INT_MAX):
        raise PasswordEncoderError(f"it is damaged: its {name} is no number from {least} to {_INT_MAX}")
    return int(text)


def _bytes(fields: Mapping[str, str], name: str, *, may_be_empty: bool = False) -> bytes:
    if may_be_empty and fields.get(name) == "":
        return b""
    try:
        return base64.b64decode(_field(fields, name), validate=True)
    except ValueError:
        raise PasswordEncoderError(f"it is damaged: its {name} is no base64") from None


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 64 else f"{name[:64]}...")
