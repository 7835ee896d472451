"""The wheel is complete: in an environment with nothing but its dependencies it does its work."""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "docs" / "tutorial" / "quickstart.md"


def run(*command: object, cwd: Path) -> str:
    environment = {"PATH": os.defpath, "HOME": str(cwd)}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def requirements(of: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, of.requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def dependencies(of: Distribution) -> Iterator[Distribution]:
    """Give the distributions that one without extras needs, directly or not."""
    seen: dict[str, set[str]] = {}
    todo = list(requirements(of, set()))
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if name not in seen:
            yield distribution(name)
        elif wanted.extras <= seen[name]:
            continue
        seen[name] = seen.get(name, set()) | wanted.extras
        todo += requirements(distribution(name), seen[name])


def link(each: Distribution, site: Path) -> None:
    for file in each.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).symlink_to(Path(str(file.locate())))


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with the wheel and the dependencies that the wheel names, and nothing else.

    The dependencies are links to the files that are installed here: fetching them again would
    take a minute. They are chosen by the wheel's metadata, so a dependency that it forgets is
    missing in this environment, although the tests' own has it.
    """
    dist, place = tmp_path / "dist", tmp_path / "environment"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=ROOT)
    [wheel] = dist.iterdir()
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=place).strip()
    )
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=place)
    [ours] = distributions(path=[str(site)])
    for each in dependencies(ours):
        link(each, site)
    run(*pip, "check", cwd=place)
    return place


def test_the_wheel_runs_the_quickstart_in_an_empty_environment(
    environment: Path, tmp_path: Path
) -> None:
    text = QUICKSTART.read_text("utf-8")
    script = tmp_path / "quickstart.py"
    script.write_text("\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)), "utf-8")

    printed = run(environment / "bin" / "python", "-W", "error", script, cwd=tmp_path)
    told = run(environment / "bin" / "outlast", "--version", cwd=tmp_path)
    found = run(
        environment / "bin" / "python", "-c", "import outlast as o; print(o.__file__)", cwd=tmp_path
    )

    assert printed.startswith("waiting ['May refund run?']\n")
    assert told == f"outlast {version('outlast')}\n"
    assert Path(found.strip()).is_relative_to(environment)
