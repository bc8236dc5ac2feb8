"""`pointsman router`: scores as JSON lines, an explanation in words, weights of one's own."""

import gzip
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli_router import app

RUN = CliRunner()


def a_file(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(rows: int) -> list[dict[str, object]]:
    dice = random.Random(1)
    made: list[dict[str, object]] = []
    for _ in range(rows):
        is_hard = dice.random() < 0.5
        prompt = f"Explain {'the lemma of' if is_hard else 'my'} {dice.choice(['tea', 'rope', 'sand'])} {dice.random()}"
        made.append({"prompt": prompt, "source": "chat", "weak_score": float(not is_hard), "strong_score": 1})
    return made


def test_each_row_gets_one_line_with_its_id_and_score(tmp_path: Path) -> None:
    rows = a_file(
        tmp_path,
        {"id": "a", "prompt": "What is the capital of France?"},
        {"id": "b", "messages": [{"role": "user", "content": "Prove that there are infinitely many primes."}]},
    )

    result = RUN.invoke(app, ["score", str(rows)])

    assert result.exit_code == 0
    scores = {line["id"]: line["score"] for line in map(json.loads, result.stdout.splitlines())}
    assert set(scores) == {"a", "b"}
    assert 0 < scores["a"] < scores["b"] < 1


def test_a_gzipped_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": 7, "prompt": "Hi"}\n'))

    assert json.loads(RUN.invoke(app, ["score", str(path)]).stdout)["id"] == 7


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "line 1: this is not JSON"), ("[1]", "not an object"), ("{}", "needs `prompt`"), ("\xff", "decode")],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line.encode("latin-1"))

    result = RUN.invoke(app, ["score", str(path)])

    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_an_explanation_says_score_kind_and_what_moved_it(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Prove that the square root of 2 is irrational.")

    shown = RUN.invoke(app, ["explain", str(prompt)]).stdout

    assert "score" in shown
    assert "expected gain" in shown
    assert "words of proof" in shown


def test_weights_of_ones_own_are_trained_the_same_each_time_and_used(tmp_path: Path) -> None:
    data, first, second = a_file(tmp_path, *labelled(400)), tmp_path / "a.npz", tmp_path / "b.npz"

    for out in (first, second):
        assert RUN.invoke(app, ["train", "--data", str(data), "--out", str(out)]).exit_code == 0

    assert first.read_bytes() == second.read_bytes()
    rows = a_file(
        tmp_path, {"id": 1, "prompt": "Explain my tea 0.1"}, {"id": 2, "prompt": "Explain the lemma of tea 0.1"}
    )
    lines = RUN.invoke(app, ["score", str(rows), "--weights", str(first)]).stdout.splitlines()
    easy, hard = (json.loads(line)["score"] for line in lines)
    assert easy < hard


def test_too_few_rows_and_wrong_weights_are_refused_in_words(tmp_path: Path) -> None:
    data = a_file(tmp_path, *labelled(10))

    few = RUN.invoke(app, ["train", "--data", str(data), "--out", str(tmp_path / "c.npz")])
    wrong = RUN.invoke(app, ["score", str(data), "--weights", str(data)])

    assert (few.exit_code, wrong.exit_code) == (1, 1)
    assert "300 rows" in few.stderr
    assert "not a weights file" in wrong.stderr
