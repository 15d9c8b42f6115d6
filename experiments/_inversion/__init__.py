"""One gradient inversion, from its options to its scores."""
