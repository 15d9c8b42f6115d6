"""What a page of the site would load from another host, which no page may: the site is read without a network."""

import re

#: A tag that loads something by itself, and the address of what it loads; a link (`a`) waits for its reader.
_LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)")
#: Links that only say where the page stands or what comes next.
_SAID = re.compile(r"<link\b[^>]*\brel\s*=\s*[\"']?(?:canonical|next|prev|alternate)\b[^>]*>")


def loaded_from_elsewhere(html: str) -> list[str]:
    """The addresses of other hosts from which a page loads scripts, styles, fonts or pictures, each once, in order."""
    return list(dict.fromkeys(_LOADED.findall(_SAID.sub("", html))))
