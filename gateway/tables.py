"""Tables of the command line."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 10_000


def show(out: Console, table: Table) -> None:
    """Print it. Where no terminal is, it is as wide as it wants to be: what reads a pipe or a file needs whole ids."""
    if out.is_terminal:
        out.print(table)
        return
    wanted = Measurement.get(out, out.options.update(max_width=WIDEST), table).maximum
    Console(file=out.file, width=max(wanted, out.width), highlight=False).print(table)
