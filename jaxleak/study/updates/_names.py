"""Names that options and help texts list; they are read from source code, so that the engine need not be imported."""

from pathlib import Path

from jaxleak._registry import names_in

_PACKAGE = Path(__file__).parents[2]

#: Every attack on one client's update.
ATTACKS = (
    *names_in(_PACKAGE / "attacks/presets.py", "PRESETS"),
    *names_in(_PACKAGE / "study/updates/_attacker.py", "CLOSED_FORM"),
)
#: Classifiers that are built in.
MODELS = names_in(_PACKAGE / "models/__init__.py", "CLASSIFIERS")
#: Activation functions that can replace a model's own.
ACTIVATIONS = names_in(_PACKAGE / "models/_activations.py", "ACTIVATIONS")
#: Rules that infer labels from an update.
LABEL_RULES = names_in(_PACKAGE / "attacks/_inversion/label_rules.py", "LABEL_RULES")
#: Defenses of one client's upload.
DEFENSES = names_in(_PACKAGE / "defenses/_client_defenses.py", "CLIENT_DEFENSES")
