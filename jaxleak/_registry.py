"""Read the names in a registry from its source, for help texts and for clients that do not import the engine."""

import ast
from pathlib import Path


def names_in(file: Path, registry: str) -> tuple[str, ...]:
    """The names in a registry at the top of a Python file, in their order; the file is read and not imported.

    Args:
        file: Python source.
        registry: name of the variable that holds the names: a dict whose keys are written out, or a tuple of strings.
            Either may contain another registry of the same file, as `*OTHER` or `**OTHER`.

    Raises:
        ValueError: if there is no such variable, or its names are computed.
    """
    assigned: dict[str, ast.expr] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assigned[node.target.id] = node.value

    def names_of(value: ast.expr | None) -> list[str]:
        if isinstance(value, ast.Name) and value.id in assigned:
            return names_of(assigned[value.id])
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return [value.value]
        if isinstance(value, ast.Starred):
            return names_of(value.value)
        if isinstance(value, ast.Tuple):
            return [name for element in value.elts for name in names_of(element)]
        if isinstance(value, ast.Dict):  # the key of `**OTHER` is None
            entries = zip(value.keys, value.values, strict=True)
            return [name for key, held in entries for name in names_of(held if key is None else key)]
        raise ValueError(f"{registry} in {file} must be a dict with names as keys or a tuple of names, written out")

    return tuple(names_of(assigned.get(registry)))
