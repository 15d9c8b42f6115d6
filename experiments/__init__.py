"""Studies that use jaxleak: one readable module each, run as `python -m experiments.NAME`."""
