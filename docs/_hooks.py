"""Pages of the site whose text stands elsewhere in the repository."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page extending.md shows CONTRIBUTING.md, whose links start from the repository's root."""
    if page.file.src_path == "extending.md":
        return (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
    return markdown
