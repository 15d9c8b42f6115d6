"""Pages of the site whose text stands elsewhere in the repository, and a look at every page that was built."""

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

#: A link to an example's source, which the site has as a page.
_EXAMPLE = re.compile(r"\]\(\.\./examples/(\w+)\.py")


def on_files(files: Files, config: Any) -> Files:
    """Every notebook of `examples/` becomes a page beside the pictures that it drew, with what it printed."""
    for notebook in sorted((ROOT / "examples").glob("*.py")):
        printed = json.loads((OUTPUTS / f"{notebook.stem}.json").read_text())
        text = as_page(notebook.read_text(), printed)
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links to examples' pages; extending.md shows CONTRIBUTING.md, whose links start from the root."""
    if page.file.src_path == "extending.md":
        return (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
    return _EXAMPLE.sub(r"](examples/\1.md", markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The page as it is; one that would load something from another host ends the build."""
    if found := loaded_from_elsewhere(output):
        raise PluginError(f"{page.file.src_path} would load {', '.join(found)}; the site is read without a network")
    return output


def as_page(notebook: str, printed: list[str]) -> str:
    """A notebook as Markdown: text as it is, code in fences, and what each cell printed below it."""
    parts, outputs = [], iter(printed)
    for is_text, body, _ in cells(notebook):
        if is_text:
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
            continue
        parts.append(f"```python\n{body.strip()}\n```")
        if said := next(outputs).rstrip():
            parts.append(f"```{{ .text .printed }}\n{said}\n```")
    return "\n\n".join(parts) + "\n"
