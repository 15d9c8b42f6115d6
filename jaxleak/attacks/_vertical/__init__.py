"""Label and feature attacks on split vertical training."""
