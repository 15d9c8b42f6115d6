"""The shadow run of a party of vertical training that knows how the real run is defended."""

from collections.abc import Callable, Sequence

from jaxleak import _validate
from jaxleak._base import Protocol
from jaxleak.defenses import SPLIT_PLACES, Defense
from jaxleak.defenses._base import in_order


def informed_party(defenses: Defense | Sequence[Defense], shadow: Callable[..., Protocol]) -> Protocol:
    """The protocol of the shadow run of a party that knows the defenses of the real run and their strengths.

    The shadow run is defended in the same way, so that a network which learns from its records meets records of the
    real run that are disturbed alike. The party knows no draw of the real run: the noise of its own run comes from the
    key that it starts that run with.

        shadow = functools.partial(protocols.split_training, model, num_samples=100, batch_size=16, optimizer=optimizer)
        protocol = adaptive.informed_party([defenses.marvell(num_classes=10)], shadow)

    Args:
        defenses: defenses of the real run, one or several. One that is calibrated to the size of the real run stays as
            it is there, since its strength is public.
        shadow: makes the protocol of an undefended shadow run, and takes the keyword `defenses`.

    Returns:
        The protocol, for `jaxleak.audit.watch`; `attacks.train_vflrecon` learns from what is seen of it.

    Raises:
        ValueError: if there is no defense, one acts at a place that vertical training does not have, or is made for
            another number of classes than the shadow run's model.
    """
    defenses = in_order(defenses)
    if not defenses:
        raise ValueError("defenses must be at least one, since there is nothing to know of an undefended run")
    for defense in defenses:
        _validate.one_of(SPLIT_PLACES, place=defense.place)
    return shadow(defenses=defenses)
