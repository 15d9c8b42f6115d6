"""Strengths of defenses as somebody names them, and the points of a trade-off that they make."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxleak import _validate
from jaxleak.defenses import CLIENT_DEFENSES, client_defense
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._trade_offs import TradeOffPoint


def parse_strengths(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """`("soteria=0.1,0.9",)` as `{"soteria": (0.1, 0.9)}`.

    Args:
        texts: defenses with their strengths, which `secure_aggregation` has besides those of `CLIENT_DEFENSES`.

    Raises:
        ValueError: on an unknown defense, a strength that it does not allow, or another form.
    """
    parsed = {}
    for text in texts:
        name, equals, values = text.partition("=")
        _validate.one_of((*CLIENT_DEFENSES, "secure_aggregation"), defense=name)
        try:
            numbers = tuple(float(value) for value in values.split(","))
        except ValueError:
            numbers = ()
        if not equals or not numbers:
            raise ValueError(f"strengths must be NAME=NUMBER,NUMBER,... such as soteria=0.1,0.9, got {text!r}")
        for number in numbers:
            if name != "secure_aggregation":
                client_defense(name, number)
        parsed[name] = numbers
    return parsed


def swept_points(base: Case, names: Sequence[str], strengths: Mapping[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """A point for every strength of every named defense.

    Args:
        base: the case without a defense.
        names: names out of `CLIENT_DEFENSES`.
        strengths: strengths by defense, in the unit and range of each; defenses that are not named have those of
            `CLIENT_DEFENSES`.
    """
    points = []
    for name in names:
        for strength in strengths.get(name, CLIENT_DEFENSES[name].strengths):
            own = replace(base, learning_rate=strength) if CLIENT_DEFENSES[name].of_rate else base
            points.append(TradeOffPoint(replace(own, defense=name, strength=strength), name, strength))
    return points
