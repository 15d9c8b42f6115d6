"""How far a client's steps move the weights; this needs no JAX, since clients of other frameworks use it too."""


def weight_of_steps(steps: int, momentum: float = 0.0) -> float:
    """Sum of the weights that the gradients of all steps have in an update; without momentum each weight is one.

    A step moves the weights by the velocity `v_t = momentum v_{t-1} + g_t`, so that the gradient of step s has the
    weight `1 + momentum + ... + momentum^(S - s)` in the sum of all S steps.

    Args:
        steps: S >= 1.
        momentum: in [0, 1).
    """
    total = weight = 0.0
    for _ in range(steps):
        weight = momentum * weight + 1.0
        total += weight
    return total
