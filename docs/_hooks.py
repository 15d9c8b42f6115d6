"""Pages of the site whose text stands elsewhere in the repository."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Every notebook of `examples/` becomes a page beside the pictures that it drew."""
    for notebook in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=as_page(notebook.read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page extending.md shows CONTRIBUTING.md, whose links start from the repository's root."""
    if page.file.src_path == "extending.md":
        return (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
    return markdown


def as_page(notebook: str) -> str:
    """A notebook in the percent format of jupytext as Markdown: text as it is, code in fences."""
    parts = []
    for cell in re.split(r"^# %%", notebook, flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if head.strip() == "[markdown]":
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"
