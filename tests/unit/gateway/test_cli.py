"""The command `pointsman` itself."""

from importlib.metadata import version
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli import app

RUN = CliRunner()


def test_a_check_asks_the_servers_and_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    ours = 'model: m, price: {input: "0", output: "0"}'
    config.write_text(
        f"deployments:\n  away: {{backend: gpu, url: 'http://127.0.0.1:1/v1', tier: heavy, {ours}}}\n"
        f"  ours: {{backend: echo, tier: light, {ours}}}\n"
    )
    without = RUN.invoke(app, ["check", "--config", str(config)])
    asked = RUN.invoke(app, ["check", "--config", str(config), "--backend", "gpu"])

    assert (without.exit_code, asked.exit_code) == (0, 1)
    assert "error: deployments.away: no connection: does the server run, is its url right?" in asked.stdout
    assert "deployments.ours: " not in asked.stdout


def test_its_version_is_said_in_either_way() -> None:
    said = [RUN.invoke(app, [asked]) for asked in ("--version", "version")]

    assert [(each.exit_code, each.stdout) for each in said] == [(0, f"{version('pointsman')}\n")] * 2
