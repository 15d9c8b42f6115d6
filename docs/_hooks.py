"""Hooks that make pages of the site from text elsewhere in the repository, and that check every built page."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from _notebooks import OUTPUTS, cells  # noqa: E402
from _offline import loaded_from_elsewhere  # noqa: E402

#: A link to an example's source; the site has a page for it.
_EXAMPLE = re.compile(r"\]\(\.\./examples/(\w+)\.py")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook of `examples/`, with its printed output, beside its pictures."""
    for notebook in sorted((ROOT / "examples").glob("*.py")):
        printed = json.loads((OUTPUTS / f"{notebook.stem}.json").read_text())
        text = as_page(notebook.read_text(), printed)
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link examples to their pages in a page's text; extending.md gets CONTRIBUTING.md with links relative to docs/."""
    if page.file.src_path == "extending.md":
        return (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
    return _EXAMPLE.sub(r"](examples/\1.md", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return the page unchanged; a page that would load something from another host ends the build."""
    if found := loaded_from_elsewhere(output):
        raise PluginError(f"{page.file.src_path} would load {', '.join(found)}; the site is read without a network")
    return output


def as_page(notebook: str, printed: list[str]) -> str:
    """A notebook as Markdown: text unchanged, code in fences, and each cell's output below the cell."""
    parts, outputs = [], iter(printed)
    for is_text, body, _ in cells(notebook):
        if is_text:
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
            continue
        parts.append(f"```python\n{body.strip()}\n```")
        if said := next(outputs).rstrip():
            parts.append(f"```{{ .text .printed }}\n{said}\n```")
    return "\n\n".join(parts) + "\n"
