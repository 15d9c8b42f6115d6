"""The shadow run of a party of vertical training that knows how the real run is defended."""

from collections.abc import Callable, Sequence

from jaxleak import _validate
from jaxleak._base import Protocol
from jaxleak.defenses import SPLIT_PLACES, Defense
from jaxleak.defenses._base import in_order


def informed_party(defenses: Defense | Sequence[Defense], shadow: Callable[..., Protocol]) -> Protocol:
    """The protocol of the shadow run of a party that knows the defenses of the real run and their strengths.

    The shadow run has the same defenses, so that the records from which a network learns are disturbed like those of
    the real run. The party does not know the random draws of the real run. The noise in its shadow run comes from the
    key with which it starts that run.

        shadow = functools.partial(protocols.split_training, model, num_samples=100, batch_size=16, optimizer=optimizer)
        protocol = adaptive.informed_party([defenses.marvell(num_classes=10)], shadow)

    Args:
        defenses: defenses of the real run, one or several. A defense that is calibrated to the size of the real run
            keeps that calibration in the shadow run, since its strength is public.
        shadow: function that makes the protocol of a shadow run, and takes its defenses as the keyword `defenses`.

    Returns:
        The protocol, for `jaxleak.audit.watch`; `attacks.train_vflrecon` learns from the records.

    Raises:
        ValueError: if there is no defense, if a defense acts at a place that vertical training does not have, or if it
            is made for another number of classes than the shadow run's model.
    """
    defenses = in_order(defenses)
    if not defenses:
        raise ValueError("defenses must be at least one, since there is nothing to know of an undefended run")
    for defense in defenses:
        _validate.one_of(SPLIT_PLACES, place=defense.place)
    return shadow(defenses=defenses)
