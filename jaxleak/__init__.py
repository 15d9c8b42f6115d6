"""jaxleak: measure how much private data leaks from federated learning."""
