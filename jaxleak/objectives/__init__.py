"""Loss functions, gradient distances and regularizers of matching attacks."""

from jaxleak.objectives._losses import cross_entropy, double_softmax_cross_entropy, soft_labels

__all__ = ["cross_entropy", "double_softmax_cross_entropy", "soft_labels"]
