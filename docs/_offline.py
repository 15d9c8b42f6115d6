"""Find what a page of the site would load from another host. No page may: readers may have no network."""

import re

#: A tag that loads a file by itself, and the file's address; a link (`a`) loads nothing until a reader follows it.
_LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)")
#: Links that load nothing: they only name the page's own address, its neighbours or alternatives.
_SAID = re.compile(r"<link\b[^>]*\brel\s*=\s*[\"']?(?:canonical|next|prev|alternate)\b[^>]*>")


def loaded_from_elsewhere(html: str) -> list[str]:
    """The addresses of other hosts from which a page loads scripts, styles, fonts or pictures, each once, in order."""
    return list(dict.fromkeys(_LOADED.findall(_SAID.sub("", html))))
