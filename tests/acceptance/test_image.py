"""The image: what its stages install and copy is done here in a folder, with the same locks, and the result runs."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)

HEAVY = ["litellm", "boto3", "botocore", "openai"]
UV = shutil.which("uv") or str(ROOT / ".tools" / "uv" / "bin" / "uv")
LOADS = "import importlib.util, json, sys; print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"


@dataclass(slots=True)
class Stage:
    """One stage of the Dockerfile: what it stands on, and its instructions."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        """What follows that word, each time."""
        return [rest for word, rest in self.steps if word == instruction]


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    found: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = Stage(name, base)
        elif word and found:
            found[list(found)[-1]].steps.append((word, rest))
    return found


def test_the_last_stage_is_the_plain_image_and_all_run_as_nobody_who_may_write(stages: dict[str, Stage]) -> None:
    run = stages["run"]

    assert list(stages)[-1] == "plain"
    assert {stages["plain"].base, stages["aws"].base} == {"run"}
    assert run.of("USER") == ["10001:10001"]
    assert run.of("ENTRYPOINT") == ['["pointsman"]']
    assert "pip uninstall --yes pip setuptools wheel" in run.of("RUN")[0]
    assert run.of("VOLUME") == ["/data"]
    for name in ("plain", "aws"):
        assert [word for word, _ in stages[name].steps] == [
            "COPY"
        ]  # nothing runs on top, so that nothing is left behind


def test_the_base_is_one_exact_version(stages: dict[str, Stage]) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    [base] = re.findall(r"(?m)^ARG PYTHON=(\S+)$", text)

    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert {stages["build"].base, stages["run"].base} == {"${PYTHON}"}


def test_whatever_is_installed_comes_from_a_lock_with_hashes_or_from_the_stage_before(stages: dict[str, Stage]) -> None:
    installs = [
        command.strip()
        for stage in stages.values()
        for run in stage.of("RUN")
        for command in run.split("&&")
        if "pip install" in command
    ]

    assert installs
    for command in installs:
        assert "--no-deps" in command
        assert "--no-index" in command or "--only-binary :all: --require-hashes -r requirements/" in command


def test_what_the_stages_copy_is_what_the_build_is_given(stages: dict[str, Stage]) -> None:
    copied = {name for stage in stages.values() for source in stage.of("COPY") for name in _sources(source)}

    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert _is_given(name), name
    given = {path.name for path in ROOT.iterdir() if _is_given(path.name)} - {"requirements"}
    assert given == {name for name in copied if "/" not in name}


@pytest.mark.parametrize(("target", "heavy"), [("plain", []), ("aws", HEAVY)])
def test_an_image_has_what_it_runs_and_nothing_else(
    stages: dict[str, Stage], tmp_path: Path, target: str, heavy: list[str]
) -> None:
    environment = tmp_path / "pointsman"
    build = stages[_after_from(stages[target].of("COPY")[0])]
    chain = [build]
    while chain[0].base in stages:
        chain.insert(0, stages[chain[0].base])
    _run(UV, "venv", "--quiet", "--python", sys.executable, str(environment))
    locks = [
        lock for stage in chain for lock in re.findall(r"/bin/pip install [^&]*-r (\S+)", " && ".join(stage.of("RUN")))
    ]
    for lock in locks:
        _run(UV, "pip", "install", "--quiet", "--python", str(environment), "--no-deps", "--no-build",
             "--require-hashes", "-r", lock)  # fmt: skip
    wheels = tmp_path / "wheel"
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels))
    [wheel] = wheels.glob("*.whl")
    _run(UV, "pip", "install", "--quiet", "--python", str(environment), "--no-deps", "--no-index", str(wheel))

    python = str(environment / "bin" / "python")
    assert json.loads(_run(python, "-c", LOADS, *HEAVY, "pip", "setuptools", "pytest", "mypy")) == heavy
    assert json.loads(_run(python, "-c", LOADS, "opentelemetry")) == ["opentelemetry"]
    assert _run(str(environment / "bin" / "pointsman"), "version").strip()
    checked = _run(UV, "pip", "check", "--python", str(environment))
    assert "incompatible" not in checked


def _run(*command: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("POINTSMAN_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=ROOT, env=environ | {"PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _sources(copy: str) -> list[str]:
    return [] if copy.startswith("--from=") else copy.split()[:-1]


def _after_from(copy: str) -> str:
    return copy.split(maxsplit=1)[0].removeprefix("--from=")


def _is_given(name: str) -> bool:
    """Whether `.dockerignore` lets it through: the last line that fits decides."""
    given = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        itself_or_above = any(fnmatch.fnmatch(part, pattern) for part in (name, name.split("/", maxsplit=1)[0]))
        if itself_or_above or pattern.startswith(f"{name}/"):
            given = line.startswith("!")
    return given
