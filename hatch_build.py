"""The README as a package index shows it, with links that lead to the repository."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A Markdown link or picture whose target is a file of the repository: no scheme, no anchor of the same page.
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#|/)([^)\s]+)\)")


def with_absolute_links(text: str, repository: str) -> str:
    """Links to files of the repository, which an index page does not have beside it, as addresses.

    Args:
        text: Markdown whose relative links count from the root of the repository.
        repository: address of the repository on a host that shows files as GitHub does, without a slash at its end.

    Returns:
        The same text; links lead to the pages of files, and pictures to the files themselves.
    """
    return RELATIVE.sub(lambda m: f"{m[1]}[{m[2]}]({repository}/{'raw' if m[1] else 'blob'}/main/{m[3]})", text)


class ReadmeHook(MetadataHookInterface):
    """Fills the field `readme` of the package's metadata."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict) -> None:
        """Set the README; its links begin with the address that `[project.urls]` has for the repository."""
        text = with_absolute_links((Path(self.root) / "README.md").read_text(), metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
