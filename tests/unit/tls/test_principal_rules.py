"""`barnabas.tls.principal_rules`, beside what Kafka's SslPrincipalMapper makes of the same rules."""

from __future__ import annotations

import pytest

from barnabas.tls.errors import NoPrincipalError, TlsConfigError
from barnabas.tls.principal_rules import PrincipalRules

KIP_371 = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U , DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "distinguished_name", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        (KIP_371, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        (KIP_371, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (KIP_371, "cn=duke.1,OU=JavaSoft", "DUKE.1"),
        (KIP_371, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        # The expression must fit the whole name.
        ("RULE:CN=a/x/,DEFAULT", "CN=ab", "CN=ab"),
        # Groups that there are not are text, less their last digits where these leave one that there is.
        ("RULE:^CN=(.*?),O=(.*)$/$2-$1-$3-$12-$0/", "CN=a,O=b", "b-a-$3-a2-CN=a,O=b"),
        ("RULE:^CN=(?<who>.*?),O=.*$/${who}!/", "CN=a,O=b", "a!"),
        (r"RULE:^CN=(.*)$/\$1\/$1/", "CN=a", "$1/a"),
        (r"RULE:^CN=(a\/b)$/$1/L", "CN=a/b", "a/b"),
        # Java replaces the empty rest too.
        ("RULE:(.*)/<$1>/", "CN=a", "<CN=a><>"),
        (" , DEFAULT", "CN=a", "CN=a"),
        # It goes a character on after an empty match, and Python's `sub` would look for a longer one there.
        ("RULE:(.*?)/x/", "ab", "xaxbx"),
        ("RULE:^(.*?)/<$1>/", "ab", "<>ab"),
        # Java's words, digits and small letters are ASCII, but not where its words begin and end.
        (r"RULE:^CN=(\w+).*$/$1/", "CN=jürgen", "j"),
        (r"RULE:^CN=(\d+).*$/$1/,DEFAULT", "CN=٣", "CN=٣"),
        ("RULE:(?i)cn=(k)/$1/,DEFAULT", "CN=\u212a", "CN=\u212a"),
        (r"RULE:^CN=.*\b$/yes/,DEFAULT", "CN=À", "yes"),
        ("RULE:^CN=(.*)$/$1/,DEFAULT", "CN=a\u2028b", "CN=a\u2028b"),
        ("RULE:(?s)CN=(.*)/$1/", "CN=a\u2028b", "a\u2028b"),
        (r"RULE:CN=([.\]\w]+)/$1/", "CN=a].b", "a].b"),
        ("RULE:CN=([]a]+)/$1/", "CN=a]", "a]"),
    ],
)
def test_the_first_rule_that_fits_names_the_client(rules: str, distinguished_name: str, name: str) -> None:
    assert PrincipalRules(rules).name(distinguished_name) == name


@pytest.mark.parametrize("rules", ["RULE:^CN=(.*),O=b$/$1/", ""])
def test_a_client_that_no_rule_fits_has_no_name(rules: str) -> None:
    with pytest.raises(NoPrincipalError, match=r"no rule of ssl\.principal\.mapping\.rules fits CN=a,O=c"):
        PrincipalRules(rules).name("CN=a,O=c")


@pytest.mark.parametrize(
    "rules",
    [
        # What means something else in Java would name another client.
        *("RULE:[a-z&&[^b]]/x/", "RULE:[a[bc]]/x/", r"RULE:\v/x/", r"RULE:\0101/x/", r"RULE:\p{Lu}/x/"),
        # Java takes these, and then nobody comes in.
        *("RULE:(a)/$/", "RULE:a/$1/", "RULE:(a)/${b}/"),
        "DEFAULTS",
        "RULE:",
        "RULE:a/b",
        "RULE:a/b/LU",
        "RULE:a/b/,x",
        "rule:a/b/",
        "RULE:(/b/",
        "RULE:a/b/ DEFAULT",
    ],
)
def test_rules_that_are_none_are_refused(rules: str) -> None:
    with pytest.raises(TlsConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalRules(rules)
