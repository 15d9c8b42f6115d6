"""The independent streams of random numbers that one key of an audit gives: one for each thing that draws."""

import enum


class Stream(enum.IntEnum):
    """What draws."""

    PARAMETERS = 0  #: the protocol's initial parameters
    ROUNDS = 1  #: the protocol's rounds, with its batches and its defenses
    ATTACK_START = 2  #: the attack's state before its first step
    ATTACK_STEPS = 3  #: the attack's steps
    RIVALS = 0x41  #: noise from which a descent looks for other images with the same update
    WEIGHT = int.from_bytes(b"weig")  #: noise on one image, by which the weight of it in its batch is told
    NOISE_ANEW = int.from_bytes(b"nois")  #: noise of a stated defense, as the client's could have been
    OPEN = int.from_bytes(b"open")  #: other values of the darkest and of the brightest pixels of an image
