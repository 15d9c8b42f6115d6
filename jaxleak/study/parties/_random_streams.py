"""The independent streams of random numbers that the key of one seed gives in a vertical study."""

import enum


class Stream(enum.IntEnum):
    """The streams by what they draw; shadow runs have the numbers from `SHADOWS` on."""

    PARAMETERS = 0  #: initial parameters of the victim's run
    ROUNDS = 1  #: batches and defenses of the victim's run
    SHADOWS = 10  #: everything of the adversary's shadow runs and of its networks on them
    FEATURE_NETWORKS = 30  #: networks that read the adversary's own features alone
    LABEL_HOLDER_SHADOWS = 50  #: batches and defenses of the label holder's shadow runs


class ShadowStream(enum.IntEnum):
    """The streams in the shadow runs of one start; the second run has the key of `FURTHER_RUNS` with number 1."""

    NETWORKS = 1  #: weights and batches of the networks that the adversary trains
    ROUNDS = 2  #: batches and defenses of the shadow run
    FIELDS = 3  #: networks that choose fields of the record
    FURTHER_RUNS = 100
