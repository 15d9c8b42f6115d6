"""CAFE: aggregated gradients and batch indices to features, labels and data; and its baselines."""
