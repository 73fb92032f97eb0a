"""Network layers, likelihoods and the optimizer loop of bonus networks."""

from made.nets.layers import (
    MLP,
    ConvNet,
    Encoder,
    action_vector,
    affine,
    as_vector,
    convolutions_for,
    convolve,
    convolved,
    orthogonal,
    orthonormal,
    side_by_side,
    to_cells,
    to_pixels,
    windows,
)

__all__ = [
    "MLP",
    "ConvNet",
    "Encoder",
    "action_vector",
    "affine",
    "as_vector",
    "convolutions_for",
    "convolve",
    "convolved",
    "orthogonal",
    "orthonormal",
    "side_by_side",
    "to_cells",
    "to_pixels",
    "windows",
]
