"""`sasl.jaas.config` as Kafka's users write it, and errors that give nothing of it away."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.sasl.errors import LoginConfigError
from barnabas.sasl.jaas import PLAIN_MODULE, SCRAM_MODULE, LoginModule, login_of, parse_login_file, parse_login_module
from barnabas.sasl.mechanisms import Login
from tests.support.examples import examples

SECRET = "hush-hush"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN_MODULE} required;", {}),
        (f'{PLAIN_MODULE} required username="alice" password="{SECRET}";', {"username": "alice", "password": SECRET}),
        (f"{PLAIN_MODULE} required username='alice' password='a\"b' ;", {"username": "alice", "password": 'a"b'}),
        (
            f"{PLAIN_MODULE} REQUIRED\n  username=alice\n  password = hush.hush-1;\n",
            {"username": "alice", "password": "hush.hush-1"},
        ),
        (f'{PLAIN_MODULE} optional a="x;y=z /* none */ //"; // the end', {"a": "x;y=z /* none */ //"}),
        (f'/* ours */ {PLAIN_MODULE} // plain\n sufficient /* two\nlines */ a="1";', {"a": "1"}),
        (rf'{PLAIN_MODULE} requisite a="q\"b\\s\ttab\101\1012\47\477" b="";', {"a": "q\"b\\s\ttabAA2''7", "b": ""}),
        (
            f'{PLAIN_MODULE} required user_alice="1" user_b$_c="2" user_bøb="3";',
            {"user_alice": "1", "user_b$_c": "2", "user_bøb": "3"},
        ),
        (f'{PLAIN_MODULE} required "user_a b"="1" a="1" a="2";', {"user_a b": "1", "a": "2"}),
    ],
)
def test_a_module_is_read(text: str, options: dict[str, str]) -> None:
    module = parse_login_module(text)
    assert module.name == PLAIN_MODULE
    assert module.options == options


def test_users_of_a_broker_are_those_with_the_prefix() -> None:
    module = parse_login_module(f'{PLAIN_MODULE} required username="a" password="p" user_a="p" user_user_b="q";')
    assert module.passwords == {"a": "p", "user_b": "q"}
    assert login_of(module) == ("a", "p")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" // nothing", "is empty"),
        ("= x", "no name of a login module"),
        (PLAIN_MODULE, "needs `required`"),
        (f'{PLAIN_MODULE} username="{SECRET}";', "needs `required`"),
        (f"{PLAIN_MODULE} = required;", "needs `required`"),
        (f'{PLAIN_MODULE} required password="{SECRET}"', "lacks the semicolon"),
        (f'{PLAIN_MODULE} required password="{SECRET};', "lacks the semicolon"),
        (f"{PLAIN_MODULE} required password={SECRET}!;", "option 2, at character"),
        (f"{PLAIN_MODULE} required password=4{SECRET};", "option 1, at character"),
        (f'{PLAIN_MODULE} required a="1" {SECRET};', "option 2, at character"),
        (f'{PLAIN_MODULE} required a="{SECRET}"b";', "option 2, at character"),
        (f"{PLAIN_MODULE} required a=", "option 1, at character"),
        (f'{PLAIN_MODULE} required a={SECRET}/x"; b="1";', "lacks the semicolon"),
        (f'{PLAIN_MODULE} required a="{SECRET}"; {SCRAM_MODULE} required;', "one login module only"),
    ],
)
def test_what_is_no_module_is_refused_without_being_shown(text: str, reason: str) -> None:
    with pytest.raises(LoginConfigError, match=reason) as refusal:
        parse_login_module(text)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(("said", "is_token"), [("true", True), ("True", True), ("false", False), ("1", False)])
def test_a_token_is_a_name_and_password_of_scram(said: str, is_token: bool) -> None:
    options = f'username="id" password="{SECRET}" tokenauth="{said}";'
    assert Login.of_jaas("SCRAM-SHA-512", f"{SCRAM_MODULE} required {options}").is_token == is_token
    assert not Login.of_jaas("PLAIN", f"{PLAIN_MODULE} required {options}").is_token


def test_a_module_does_not_show_its_options() -> None:
    assert SECRET not in repr(parse_login_module(f'{PLAIN_MODULE} required password="{SECRET}";'))
    assert SECRET not in repr(Login("PLAIN", "alice", SECRET))


@settings(max_examples=examples(40))
@given(text=st.text(max_size=20) | st.text("ab_;=\"'\\/* \n1.", max_size=40).map(lambda rest: f"m required {rest}"))
def test_any_text_is_a_module_or_refused(text: str) -> None:
    try:
        module = parse_login_module(text)
    except LoginConfigError:
        return
    assert isinstance(module, LoginModule)


@given(
    options=st.dictionaries(
        st.text("abc", min_size=1), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))
    )
)
def test_any_value_can_be_written_in_quotes(options: dict[str, str]) -> None:
    quoted = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in options.items()}
    written = " ".join(f'{key}="{value}"' for key, value in quoted.items())
    text = f"m required {written};"
    assert parse_login_module(text).options == options


# Logins.


def test_a_login_is_read() -> None:
    text = f'{SCRAM_MODULE} required username="alice" password="{SECRET}";'
    assert Login.of_jaas("SCRAM-SHA-512", text) == Login("SCRAM-SHA-512", "alice", SECRET)


@pytest.mark.parametrize(
    ("mechanism", "text", "reason"),
    [
        ("GSSAPI", f'{PLAIN_MODULE} required username="a" password="{SECRET}";', "must be one of PLAIN, SCRAM-SHA-256"),
        ("PLAIN", f'{SCRAM_MODULE} required username="a" password="{SECRET}";', "the login module of PLAIN is"),
        ("SCRAM-SHA-256", f'{PLAIN_MODULE} required username="a" password="{SECRET}";', "of SCRAM-SHA-256 is"),
        ("PLAIN", f'{PLAIN_MODULE} required password="{SECRET}";', "lacks username or password"),
        ("PLAIN", f'{PLAIN_MODULE} required username="" password="{SECRET}";', "lacks username or password"),
        ("SCRAM-SHA-256", f'{SCRAM_MODULE} required username="ø" password="{SECRET}";', "ASCII only"),
        ("PLAIN", f'{PLAIN_MODULE} required username="a\\0" password="{SECRET}";', "zero byte"),
    ],
)
def test_a_login_that_cannot_work_is_refused_without_being_shown(mechanism: str, text: str, reason: str) -> None:
    with pytest.raises(LoginConfigError, match=reason) as refusal:
        Login.of_jaas(mechanism, text)
    assert SECRET not in str(refusal.value)


def test_a_file_of_logins_has_a_module_in_each_section() -> None:
    found = parse_login_file(
        '// one\nServer { a.Digest required user_a="x;}" ; };\n'
        '/* two */ Client {\n a.Digest required username=\'a\' password="p";\n b.Other optional c="d";\n};\nNone { };'
    )
    assert {name: (module.name, dict(module.options)) for name, module in found.items()} == {
        "Server": ("a.Digest", {"user_a": "x;}"}),
        "Client": ("a.Digest", {"username": "a", "password": "p"}),
    }
    assert parse_login_file("") == {}


@pytest.mark.parametrize(
    "text",
    ["Client", "Client {", "Client { a.B required;", "Client { a.B required; }", "{ };", "Client { a.B; };", "}"],
)
def test_a_file_of_logins_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LoginConfigError):
        parse_login_file(text)
