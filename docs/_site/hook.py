"""What the site needs beyond its pages: the examples as a page, and diagrams drawn on the spot.

Mermaid comes from the locked npm package below `tests/js`, and only pages with a diagram load it.
Nothing on the site is fetched from another host; `tests/docs/test_site.py` holds it to that.
"""

import re
from os.path import relpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MERMAID = ROOT / "tests/js/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
SCRIPT = "assets/mermaid.js"
# Links that lead to the repository when a page is read there, and to a page when on the site.
EXAMPLE_LINK = re.compile(r"\]\((?:\.\./)+examples/(\w+)\.py\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of examples and the script that draws diagrams."""
    if not MERMAID.exists():
        raise PluginError("mermaid is not installed: `make docs` installs it, into tests/js")
    files.append(File.generated(config, "examples.md", content=examples_page()))
    files.append(File.generated(config, SCRIPT, abs_src_path=str(MERMAID)))
    return files


def examples_page() -> str:
    """Return a page with every example, each under the name of its file."""
    parts = ["# Examples\n\nEach shows one idea and runs by itself, without a key or a network."]
    for example in sorted(EXAMPLES.glob("[0-9]*.py")):
        title = example.stem[3:].replace("_", " ").capitalize()
        code = example.read_text("utf-8").strip()
        parts.append(
            f"## {title} {{ #{example.stem} }}\n\n"
            f"`examples/{example.name}`\n\n```python\n{code}\n```"
        )
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to an example's file at its place on the page of examples."""
    target = relpath("examples.md", Path(page.file.src_uri).parent)
    return EXAMPLE_LINK.sub(rf"]({target}#\1)", markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load mermaid where a page has a diagram; the theme would fetch it from another host."""
    if 'class="mermaid"' not in output:
        return output
    source = relpath(SCRIPT, Path(page.file.dest_uri).parent)
    return output.replace("</head>", f'<script src="{source}"></script></head>', 1)
