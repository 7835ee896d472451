"""Nothing tells a reader to install Outlast from the package index: it is not published yet."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
READ = ("*.md", "docs/**/*.md", "examples/**/*.py", "benchmarks/**/*.py", "src/**/*.*")
FROM_INDEX = re.compile(r"""outlast\[|\b(?:install|add)\s+(?:-\S+\s+)*['"]?outlast\b""")


def test_no_line_installs_outlast_from_the_index() -> None:
    files = [file for pattern in READ for file in ROOT.glob(pattern) if file.suffix != ".pyc"]
    told = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if FROM_INDEX.search(line)
    ]

    assert len(files) > 300
    assert told == []


def test_such_a_line_would_be_found() -> None:
    bad = ("pip install outlast", "pip install -U 'outlast[openai]'", "uv add outlast")
    good = ("pip install '.[openai]'", "pip install 'dist/outlast-0.1.0-py3-none-any.whl'")

    assert all(map(FROM_INDEX.search, bad))
    assert not any(map(FROM_INDEX.search, good))
