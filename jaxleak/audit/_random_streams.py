"""The independent streams of random numbers that come from one key of an audit: one for each use."""

import enum


class Stream(enum.IntEnum):
    """The uses of random numbers."""

    PARAMETERS = 0  #: the protocol's initial parameters
    ROUNDS = 1  #: the protocol's rounds, with its batches and its defenses
    ATTACK_START = 2  #: the attack's state before its first step
    ATTACK_STEPS = 3  #: the attack's steps
    RIVALS = 0x41  #: noise from which a descent looks for other images with the same update
    WEIGHT = int.from_bytes(b"weig")  #: noise on one image, to test if it matters to the update; a test image
    NOISE_ANEW = int.from_bytes(b"nois")  #: noise of a stated defense, drawn as the client could have drawn it
    OPEN_PART = int.from_bytes(b"part")  #: noise on all images, to find changes that the update does not tell
    OPEN = int.from_bytes(b"open")  #: other values of the darkest and of the brightest pixels of an image
