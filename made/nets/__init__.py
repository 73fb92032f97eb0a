"""Network layers, distributions, likelihoods and the optimizer loop of bonus networks."""

from made.nets.layers import MLP, ConvNet, Encoder, as_vector, convolve

__all__ = ["MLP", "ConvNet", "Encoder", "as_vector", "convolve"]
