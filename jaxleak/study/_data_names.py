"""Short names of data for titles and captions, where a whole specification would push out what the picture shows."""

from pathlib import Path

#: Kinds of data specifications that name a file or a folder of the user's.
_OF_FILES = ("csv", "folder", "idx", "npz")


def data_in_short(spec: str) -> str:
    """Shorten a data specification to the name of its file or folder; a built-in name stays as it is.

    Args:
        spec: data specification, see `jaxleak.data.load`.
    """
    kind, _, rest = spec.partition(":")
    if kind not in _OF_FILES:
        return spec
    path = rest.partition("?")[0]
    return Path(path.partition(",")[0] if kind == "idx" else path).name or spec
