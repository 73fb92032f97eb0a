"""How strong a bonus is, in the units of the task: what must be equal before two bonuses are compared."""

from jaxtyping import Array, Float


def bonus_strength(
    tau: Float[Array, ""] | float, mean_bonus: Float[Array, ""] | float, horizon: float | int
) -> Float[Array, ""] | float:
    """What an episode of full length earns from the bonus: tau * mean bonus * horizon.

    Beside it stands the prize of the task, less than 1 on the grids. At equal temperatures two bonuses may differ
    tenfold here, and a comparison of them would be one of temperatures.

    >>> bonus_strength(0.5, 0.25, 100)
    12.5
    """
    if horizon <= 0:
        raise ValueError(f"bonus_strength needs the length of an episode, a positive number, got horizon={horizon}.")
    return tau * mean_bonus * horizon
