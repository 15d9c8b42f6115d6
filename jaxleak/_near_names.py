"""The names that a user may have meant by one that does not exist."""

import difflib
from collections.abc import Collection
from pathlib import Path

from jaxleak._registry import names_in

#: The file with the names of defenses, which is read and not imported.
_DEFENSES = Path(__file__).parent / "defenses/_client_defenses.py"

#: Defenses by other names that the field uses for them, in lower case and without separators.
OTHER_NAMES = {
    "topk": "sparsification",
    "sparsify": "sparsification",
    "gradientpruning": "sparsification",
    "pruning": "sparsification",
    "compression": "sparsification",
    "qsgd": "stochastic_quantization",
    "signsgd": "quantization",
    "quantize": "quantization",
    "noise": "gaussian",
    "gaussiannoise": "gaussian",
    "laplacenoise": "laplace",
    "laplacian": "laplace",
    "dp": "dp_sgd",
    "differentialprivacy": "dp_sgd",
    "userleveldp": "dp_update",
    "clientleveldp": "dp_update",
    "dpfedavg": "dp_update",
    "errorfeedback": "error_feedback",
    "dropout": "feature_dropout",
    "secagg": "secure_aggregation",
}


def near(name: str, known: Collection[str]) -> list[str]:
    """The known names that are another word for a name, or are spelled almost like it; the likeliest first.

    Args:
        name: name that is not known, without dashes in front.
        known: names that exist, without dashes in front.
    """
    plain = _plain(name)
    other = OTHER_NAMES.get(plain)
    by_plain = {_plain(one): one for one in known}
    spelled = [by_plain[one] for one in difflib.get_close_matches(plain, by_plain)]
    return list(dict.fromkeys([*(one for one in known if one == other), *spelled]))


def meant(name: object, known: Collection[object]) -> str:
    """The end of a message on an unknown name: the question whether a near one was meant, or an empty text."""
    texts = [one for one in known if isinstance(one, str)]
    found = near(name, texts) if isinstance(name, str) else []
    return f"; did you mean {' or '.join(found)}?" if found else ""


def unknown_option(word: str, options: Collection[str]) -> str:
    """Say that a command has no such option, and which option or defense was perhaps meant.

    Args:
        word: the option as it was typed, such as --topk or --topk=5.
        options: the options of the command, without dashes in front. Only a command with --defense or --only takes the
            name of a defense, so that other commands are not told of defenses.
    """
    name = word.partition("=")[0].lstrip("-")
    if found := near(name, options):
        return f"unknown option --{name}; did you mean {' or '.join(f'--{one}' for one in found)}?"
    names_defense = next((one for one in ("defense", "only") if one in options), None)
    if names_defense is not None and (called := near(name, names_in(_DEFENSES, "CLIENT_DEFENSES"))):
        return f"unknown option --{name}; the defense {called[0]} is chosen by --{names_defense} {called[0]}"
    return f"unknown option --{name}"


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
