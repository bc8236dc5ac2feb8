"""What is shipped and what is installed: the wheel is whole, the locks are exact, nothing runs uninvited."""

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("gateway", "router", "consumers", "policies")
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(r"(?m)^([a-z0-9][a-z0-9._-]*)==([^\s;]+)([^\n]*)\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
APART = {"ministack"}  # a double of AWS, which wants a botocore of its own
COMPROMISED = {"1.82.7", "1.82.8", "1.107.0"}
# What may run at each start of Python: uv's own, this project's path, and what some Pythons come with.
KNOWN_PTH = {"_virtualenv.pth", "_editable_impl_pointsman.pth", "distutils-precedence.pth"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, built from this checkout with the locked hatchling."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_four_rooms_with_their_scripts_and_data_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        shipped = {name for name in opened.namelist() if ".dist-info/" not in name}

    assert shipped == set(_sources())
    assert {".lua", ".yaml"} <= {Path(name).suffix for name in shipped}


def test_the_wheel_has_one_command_and_its_licence(wheel: Path) -> None:
    with ZipFile(wheel) as opened:
        commands, licence = (_only(opened, end) for end in ("entry_points.txt", "licenses/LICENSE"))

    assert commands.split() == ["[console_scripts]", "pointsman", "=", "gateway.cli:main"]
    assert "Apache License" in licence


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_everything_exactly_with_hashes(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    pinned = PIN.findall(text)
    rest = [line for line in PIN.sub("", text).splitlines() if line and not line.lstrip().startswith("#")]

    assert pinned
    assert not rest


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_address_and_no_folder_of_a_machine(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")

    assert not re.search(r"://|--find-links|--index|--extra-index|-f /|(?<![\w.])/[a-z]", text)
    assert text.splitlines()[1] == "#    make lock"


def test_the_lock_of_node_pins_everything_with_hashes_and_names_no_address() -> None:
    packages = json.loads((ROOT / "tests" / "node" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    fetched = {name: package for name, package in packages.items() if name}

    assert fetched
    assert all(package["integrity"].startswith("sha512-") for package in fetched.values())
    assert not [name for name, package in fetched.items() if "resolved" in package]


def test_there_is_a_lock_for_the_base_and_for_each_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = {"base", "dev", *project["project"]["optional-dependencies"]}

    assert wanted <= {lock.stem for lock in LOCKS}


def test_no_lock_holds_a_version_of_litellm_that_was_compromised() -> None:
    versions = {lock.stem: dict(_pins(lock)).get("litellm") for lock in LOCKS}

    assert {name for name, version in versions.items() if version} == {"bedrock", "dev"}
    assert versions["bedrock"] not in COMPROMISED


def test_the_locks_agree_with_each_other() -> None:
    seen: dict[str, set[str]] = {}
    for lock in LOCKS:
        if lock.stem in APART:
            continue
        for name, version in _pins(lock):
            seen.setdefault(name, set()).add(version)

    assert {name: versions for name, versions in seen.items() if len(versions) > 1} == {}


def test_no_package_has_left_something_that_runs_at_each_start_of_python() -> None:
    found = {path.name for path in Path(sysconfig.get_path("purelib")).glob("*.pth")}

    assert found <= KNOWN_PTH


def _sources() -> Iterator[str]:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield path.relative_to(ROOT).as_posix()


def _only(opened: ZipFile, end: str) -> str:
    [name] = [name for name in opened.namelist() if name.endswith(end)]
    return opened.read(name).decode()


def _pins(lock: Path) -> Iterator[tuple[str, str]]:
    for name, version, *_ in PIN.findall(lock.read_text(encoding="utf-8")):
        yield name, version
