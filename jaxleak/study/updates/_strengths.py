"""Strengths of defenses as a user writes them, and the points of a trade-off that they define."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxleak import _validate
from jaxleak._own_files import is_own, short_name
from jaxleak.defenses import CLIENT_DEFENSES, SHORTHAND_DELTA, client_defense, noise_multiplier_shorthand
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._own_defense import kind_of_defense
from jaxleak.study.updates._trade_offs import TradeOffPoint

#: The two forms of a private defense's strength, for messages.
_OF_PRIVACY = (
    f"a defense of differential privacy takes an epsilon (the papers' shorthand at delta {SHORTHAND_DELTA:g}), as in "
    "dp_sgd=10, or with a z in front a noise multiplier, as in dp_sgd=z0.5"
)


def parse_strengths(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Parse strengths: `("soteria=0.1,0.9",)` becomes `{"soteria": (0.1, 0.9)}`.

    Args:
        texts: defenses with their strengths: keys of `CLIENT_DEFENSES`, FILE.py:NAME, or `secure_aggregation`. The
            strength of a private defense is its shorthand epsilon; a z in front makes it a noise multiplier instead, so
            that `dp_sgd=z0.5` becomes the epsilon whose noise multiplier is 0.5.

    Raises:
        FileNotFoundError: if the file of a user's own defense does not exist.
        ValueError: if a defense is unknown, if it does not allow a strength, or if a text has another form.
    """
    parsed = {}
    for text in texts:
        name, equals, values = text.rpartition("=") if "=" in text else (text, "", "")
        if not is_own(name):
            _validate.one_of((*CLIENT_DEFENSES, "secure_aggregation"), defense=name)
        try:
            written = [
                (value.strip().startswith("z"), float(value.strip().removeprefix("z"))) for value in values.split(",")
            ]
        except ValueError:
            written = []
        if not equals or not written:
            raise ValueError(
                f"strengths must be NAME=NUMBER,NUMBER,... such as soteria=0.1,0.9, got {text!r}; {_OF_PRIVACY}"
            )
        numbers = tuple(_epsilon(name, value) if is_noise else value for is_noise, value in written)
        for number in numbers:
            if name != "secure_aggregation":
                client_defense(kind_of_defense(name), number)
            if not math.isfinite(number) or number == 0:
                raise ValueError(f"strengths of {name} must be finite numbers other than 0, got {number:g}")
        parsed[name] = numbers
    return parsed


def _epsilon(name: str, noise_multiplier: float) -> float:
    """Return the shorthand epsilon of a noise multiplier; the shorthand's formula is its own inverse."""
    private = name != "secure_aggregation" and kind_of_defense(name).private
    if not private:
        raise ValueError(f"strengths of {name} have no noise multiplier, got z{noise_multiplier:g}; {_OF_PRIVACY}")
    _validate.positive(**{f"the noise multiplier of {name}": noise_multiplier})
    return noise_multiplier_shorthand(noise_multiplier, SHORTHAND_DELTA)


def swept_points(base: Case, names: Sequence[str], strengths: Mapping[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """Make a point for every strength of every named defense.

    Args:
        base: the case without a defense.
        names: keys of `CLIENT_DEFENSES`, or FILE.py:NAME.
        strengths: maps a defense to strengths, in the defense's unit and range. A defense that is missing here gets the
            strengths that its `ClientDefense` lists.

    Raises:
        FileNotFoundError, ValueError: as in `kind_of_defense`; and `ValueError` if a defense has no strengths.
    """
    points = []
    for name in names:
        known = kind_of_defense(name)
        chosen = strengths.get(name, known.strengths)
        if not chosen:
            raise ValueError(f"strengths of {name} must be given, as --strengths {name}=NUMBER,NUMBER")
        for strength in chosen:
            own = replace(base, learning_rate=strength) if known.of_rate else base
            points.append(TradeOffPoint(replace(own, defense=name, strength=strength), short_name(name), strength))
    return points
