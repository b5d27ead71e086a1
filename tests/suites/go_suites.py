"""The suites of clients in Go."""

from __future__ import annotations

from tests.suites.go_suite import GoSuite

# Half a million by their default, for some twenty consumers each.
_FRANZ_GO_RECORDS = 50_000


def franz_go() -> GoSuite:
    """franz-go's client."""
    return GoSuite(
        "franz-go",
        "github.com/twmb/franz-go",
        "pkg/kgo",
        "v1.20.6",
        900,
        lambda bootstrap_servers: {
            "KGO_SEEDS": bootstrap_servers,
            "KGO_TEST_RECORDS": str(_FRANZ_GO_RECORDS),
            "KGO_LOG_LEVEL": "none",
        },
    )
