"""The live table of replicas."""

import io

from rich.console import Console

from gateway.cli_fleet import Row, table

REPLICA: Row = {
    "deployment": "chat",
    "replica": "10.0.0.5:8000",
    "engine": "llama.cpp",
    "state": "ejected",
    "why": "backend_error: server_error",
    "running": 12,
    "waiting": 3,
    "ours": 15,
    "cap": 64,
    "tokens_per_s": 1234.5,
    "kv_use": 0.91,
    "prefix_hit_rate": 0.62,
    "usd_per_hour": "3.60",
    "ejected_until": 1_795_990_924.0,
}
UNKNOWN: Row = {**REPLICA, **dict.fromkeys(("engine", "running", "waiting", "tokens_per_s", "kv_use")), "state": "down"}


def shown(*rows: Row) -> str:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system=None).print(table(list(rows)))
    return out.getvalue()


def test_everything_is_to_be_read_in_a_terminal_of_80_columns() -> None:
    text = shown(REPLICA)

    assert "chat" in text
    for figure in ("llama.cpp", "ejected", "12", "3", "15", "64", "1234", "91%", "62%", "3.60", "22:22:04"):
        assert figure in text
    assert all(len(line) <= 80 for line in text.splitlines())
    folded = "".join(line[:14].strip() for line in text.splitlines())
    assert "10.0.0.5:8000" in folded


def test_what_an_engine_does_not_tell_is_no_zero() -> None:
    assert shown(UNKNOWN).count("?") == 5


def test_who_sees_none_is_told_what_to_look_at() -> None:
    assert "Does one run?" in shown()
