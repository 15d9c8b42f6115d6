"""Settings of the whole suite; they must be made before jax is imported."""

import os

# Nearly all of the suite's time is compilation of tiny programs that run once or twice.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
