"""Tables where nobody looks at them."""

import io

from rich.console import Console
from rich.table import Table

from gateway.tables import show

IDS = [f"job_01KB7M4Q3M7C9V2W6T8X0Y1Z{at:02}" for at in range(12)]


def test_a_table_in_a_pipe_has_whole_ids_however_many_columns_it_has() -> None:
    table = Table("id", *(f"column {at}" for at in range(11)))
    table.add_row(*IDS)
    piped = io.StringIO()

    show(Console(file=piped, width=80), table)

    [row] = [line for line in piped.getvalue().splitlines() if "job_" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == IDS


def test_a_table_in_a_terminal_stays_within_it() -> None:
    table = Table("id", *(f"column {at}" for at in range(11)))
    table.add_row(*IDS)
    screen = io.StringIO()

    show(Console(file=screen, width=80, force_terminal=True, color_system=None), table)

    assert max(map(len, screen.getvalue().splitlines())) == 80
