"""The command `pointsman` itself."""

from importlib.metadata import version

from typer.testing import CliRunner

from gateway.cli import app

RUN = CliRunner()


def test_its_version_is_said_in_either_way() -> None:
    said = [RUN.invoke(app, [asked]) for asked in ("--version", "version")]

    assert [(each.exit_code, each.stdout) for each in said] == [(0, f"{version('pointsman')}\n")] * 2
