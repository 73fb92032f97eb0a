"""Plain NumPy twins of the networks, and walks through recorded experience: what the bonuses are checked against."""

import jax
import jax.numpy as jnp
import numpy as np

from made.core import Space, Spec, Transition


def relu(x):
    return np.maximum(x, 0)


def linear(layer, x):
    return np.asarray(layer.weight, np.float64) @ x + np.asarray(layer.bias, np.float64)


def mlp(net, x, activation=relu):
    for layer in net.layers[:-1]:
        x = activation(linear(layer, x))
    return linear(net.layers[-1], x)


def convolution(layer, image):
    """One convolution without padding by its definition: [c, h, w] -> [o, h', w']."""
    weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
    k, step = weight.shape[-1], layer.stride[0]
    high, wide = ((side - k) // step + 1 for side in image.shape[1:])
    out = np.zeros((weight.shape[0], high, wide))
    for i in range(high):
        for j in range(wide):
            patch = image[:, i * step : i * step + k, j * step : j * step + k]
            out[:, i, j] = np.tensordot(weight, patch, 3) + bias[:, 0, 0]
    return out


def vector(x, space: Space):
    """One-hot for discrete values, numbers as they are, bytes over the largest there are."""
    if space.n is not None:
        return np.eye(space.n)[np.asarray(x)].reshape(-1)
    return scaled(x, space).reshape(-1)


def scaled(x, space: Space):
    return np.asarray(x, np.float64) / ((space.high or 255) if np.asarray(x).dtype == np.uint8 else 1)


def seen(convolutions, x, space: Space):
    if convolutions is None:
        return vector(x, space)
    image = np.moveaxis(scaled(x, space), -1, 0)
    for layer in convolutions.layers:
        image = relu(convolution(layer, image))
    return np.moveaxis(image, 0, -1).reshape(-1)


def embedded(embedding, obs):
    net, leaves = embedding.encoder, jax.tree.leaves(obs)
    parts = [seen(*each) for each in zip(net.convolutions, leaves, net.spaces, strict=True)]
    features = relu(np.asarray(net.dense.weight) @ np.concatenate(parts) + np.asarray(net.dense.bias))
    return mlp(embedding.head, features)


def inverse_loss(inverse, here, there, action):
    said, truth = mlp(inverse.net, np.concatenate([here, there])), vector(action, inverse.action)
    if inverse.action.n is None:
        return np.mean((said - truth) ** 2)
    logits = said.reshape(-1, inverse.action.n)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(logs.reshape(-1) * truth).sum()


def steps(batch: Transition):
    """Every transition of [T, N], time first: (t, n, transition as NumPy)."""
    plain = jax.tree.map(np.asarray, batch)
    for t, n in np.ndindex(batch.reward.shape):
        yield t, n, jax.tree.map(lambda x, t=t, n=n: x[t, n], plain)


def episodes(batch: Transition):
    """Every episode, or piece of one, in order: its environment and the times of its steps."""
    done = np.asarray(batch.terminated | batch.truncated)
    for n in range(done.shape[1]):
        begun = 0
        for t in range(done.shape[0]):
            if done[t, n] or t == done.shape[0] - 1:
                yield n, range(begun, t + 1)
                begun = t + 1


def discrete(states: int = 6, actions: int = 2, horizon: int | None = None) -> Spec:
    return Spec(Space((), jnp.int32, states), Space((), jnp.int32, actions), horizon=horizon)


def stream(obs, next_obs=None, action=None) -> Transition:
    """Transitions [T, 1] through those observations, one a time step, with nothing else in them."""
    obs = jnp.asarray(obs)[:, None]
    zeros = jnp.zeros(obs.shape[:2])
    after = obs if next_obs is None else jnp.asarray(next_obs)[:, None]
    taken = zeros.astype(jnp.int32) if action is None else jnp.asarray(action)[:, None]
    return Transition(obs, taken, zeros, after, zeros > 0, zeros > 0)
