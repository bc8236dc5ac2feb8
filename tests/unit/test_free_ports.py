"""The ports that servers of tests and benchmarks are given before they start."""

import socket
import subprocess
import sys
from pathlib import Path

from tools.kafka.broker import FIRST_FREE, HOST, LAST_FREE, free_ports

ASKS = "from tools.kafka.broker import free_ports; print(*free_ports(300), flush=True); input()"


def test_no_port_is_given_to_two_processes_or_twice_to_one() -> None:
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASKS],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    given = [port for each in asking if each.stdout for port in each.stdout.readline().split()]
    for each in asking:
        each.communicate("\n")

    assert len(given) == len(set(given)) == 600


def test_a_port_is_none_that_a_kernel_gives_away_and_a_server_may_have_it() -> None:
    [port] = free_ports(1)

    assert FIRST_FREE <= port <= LAST_FREE
    with socket.create_server((HOST, port)), socket.create_connection((HOST, port)):
        assert port not in free_ports(5)
