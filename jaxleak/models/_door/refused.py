"""Why a network is not taken in."""


class RefusedError(ValueError):
    """What a network does cannot be taken in, whatever the shape of its images and the number of its classes."""
