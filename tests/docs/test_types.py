"""The Python of every page, and every example, passes the type checker in its strict mode.

With the options of the source, which are stricter still, so that what `make types` has found out
about the source is not found out again.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = "```"


def program(text: str) -> str:
    """Return a page's Python, each line where it stands in the page."""
    lines, inside = [], ""
    for line in text.splitlines():
        if line.startswith(FENCE):
            inside = "" if inside else line
            lines.append("")
        else:
            lines.append(line if inside == f"{FENCE}python" else "")
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.timeout(600)
def test_every_snippet_and_example_is_typed_to_the_end(tmp_path: Path) -> None:
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        if (text := program(page.read_text("utf-8"))).strip():
            (tmp_path / f"{name}.py").write_text(text, "utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")),
            *(str(path) for path in sorted(tmp_path.glob("*.py"))),
            *(str(path) for path in sorted((ROOT / "examples").glob("[0-9]*.py"))),
        ],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
