"""Networks as their owners write them, for `experiments.audited`."""
