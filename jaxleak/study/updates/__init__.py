"""One client's update and its inversion, from end to end: data, client, what the attacker sees, attack, and scores.

A `Case` says what is attacked and with which attack. `victim` makes the client of a case, `observe` runs one round and
returns what the server may see, and `attack` returns an `Outcome`, scored against the truth. Every name is imported
when it is first used.
"""

from typing import TYPE_CHECKING

from jaxleak._lazy import lazy

if TYPE_CHECKING:
    from jaxleak.study.updates import basin, diagnostics
    from jaxleak.study.updates._attacker import CLOSED_FORM, Resolved, check, check_effect, resolved
    from jaxleak.study.updates._believed import believed_rates
    from jaxleak.study.updates._building import settings_as_run
    from jaxleak.study.updates._case import HELD_OUT, SYNTHETIC, Case
    from jaxleak.study.updates._client import (
        Victim,
        build_model,
        client_of,
        defense_of,
        require_defenses,
        share_of,
        victim,
    )
    from jaxleak.study.updates._clients_in_words import about_clients
    from jaxleak.study.updates._cost import COMPILE_SECONDS, forward_seconds, parameter_count, seconds_of_update
    from jaxleak.study.updates._federation import (
        Federation,
        Utilities,
        Utility,
        refuse_overlap,
        trained,
        utility_of,
    )
    from jaxleak.study.updates._homotopy_rows import HOMOTOPY_ROWS
    from jaxleak.study.updates._inversions import Inversion, Inversions, draw_distances, draw_reconstructions
    from jaxleak.study.updates._names import ATTACKS
    from jaxleak.study.updates._own_model import about_model
    from jaxleak.study.updates._problem import (
        RECOGNISED_ABOVE,
        Outcome,
        asked_for_rivals,
        attack,
        captions,
        compared,
        first_distances,
        observe,
        own_opinion,
        where_seen,
    )
    from jaxleak.study.updates._public_data import generator_for, public_images, require_no_overlap
    from jaxleak.study.updates._ranking import by_local_steps, leak_order, reads_nothing, steps_in_words, unhelped
    from jaxleak.study.updates._size import require_memory_of_update
    from jaxleak.study.updates._sources import sources_of_update
    from jaxleak.study.updates._strengths import parse_strengths, swept_points
    from jaxleak.study.updates._trade_offs import TradeOffPoint, cell_of_point, run_trade_off, trade_off_runner
    from jaxleak.study.updates._training import Training

_MODULE_OF = {
    **{name: name for name in ("basin", "diagnostics")},
    "ATTACKS": "_names",
    **dict.fromkeys(("CLOSED_FORM", "Resolved", "check", "check_effect", "resolved"), "_attacker"),
    "believed_rates": "_believed",
    "settings_as_run": "_building",
    **dict.fromkeys(("HELD_OUT", "SYNTHETIC", "Case"), "_case"),
    **dict.fromkeys(
        ("Victim", "build_model", "client_of", "defense_of", "require_defenses", "share_of", "victim"), "_client"
    ),
    "about_clients": "_clients_in_words",
    **dict.fromkeys(("COMPILE_SECONDS", "forward_seconds", "parameter_count", "seconds_of_update"), "_cost"),
    **dict.fromkeys(("Federation", "Utilities", "Utility", "refuse_overlap", "trained", "utility_of"), "_federation"),
    "HOMOTOPY_ROWS": "_homotopy_rows",
    "Training": "_training",
    **dict.fromkeys(("Inversion", "Inversions", "draw_distances", "draw_reconstructions"), "_inversions"),
    **dict.fromkeys(("TradeOffPoint", "cell_of_point", "run_trade_off", "trade_off_runner"), "_trade_offs"),
    **dict.fromkeys(
        (
            "RECOGNISED_ABOVE",
            "Outcome",
            "asked_for_rivals",
            "attack",
            "captions",
            "compared",
            "first_distances",
            "observe",
            "own_opinion",
            "where_seen",
        ),
        "_problem",
    ),
    **dict.fromkeys(("generator_for", "public_images", "require_no_overlap"), "_public_data"),
    "about_model": "_own_model",
    **dict.fromkeys(("about_defenses", "kind_of_defense"), "_own_defense"),
    **dict.fromkeys(("by_local_steps", "leak_order", "steps_in_words", "unhelped", "reads_nothing"), "_ranking"),
    "require_memory_of_update": "_size",
    "sources_of_update": "_sources",
    **dict.fromkeys(("parse_strengths", "swept_points"), "_strengths"),
}

__all__ = [
    "ATTACKS",
    "CLOSED_FORM",
    "COMPILE_SECONDS",
    "Case",
    "Federation",
    "HELD_OUT",
    "HOMOTOPY_ROWS",
    "Inversion",
    "Inversions",
    "Outcome",
    "RECOGNISED_ABOVE",
    "Resolved",
    "SYNTHETIC",
    "TradeOffPoint",
    "Training",
    "Utilities",
    "Utility",
    "Victim",
    "about_clients",
    "about_defenses",
    "about_model",
    "asked_for_rivals",
    "attack",
    "basin",
    "believed_rates",
    "build_model",
    "by_local_steps",
    "captions",
    "cell_of_point",
    "check",
    "check_effect",
    "client_of",
    "compared",
    "defense_of",
    "diagnostics",
    "draw_distances",
    "draw_reconstructions",
    "first_distances",
    "forward_seconds",
    "generator_for",
    "kind_of_defense",
    "observe",
    "leak_order",
    "own_opinion",
    "parameter_count",
    "parse_strengths",
    "public_images",
    "refuse_overlap",
    "require_defenses",
    "require_memory_of_update",
    "require_no_overlap",
    "resolved",
    "run_trade_off",
    "seconds_of_update",
    "settings_as_run",
    "share_of",
    "sources_of_update",
    "steps_in_words",
    "swept_points",
    "trade_off_runner",
    "trained",
    "unhelped",
    "reads_nothing",
    "utility_of",
    "victim",
    "where_seen",
]

#: Functions that studies import together with the classes of their options; those are read before JAX is imported.
_FUNCTIONS = (
    "attack", "build_model", "captions", "check", "refuse_overlap", "require_memory_of_update", "sources_of_update",
    "trained", "victim",
)  # fmt: skip
__getattr__ = lazy(__name__, _MODULE_OF, functions=_FUNCTIONS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
