"""Stacks of pictures, newest last along the channels: [..., h, w, 3 k]."""

import numpy as np
from jaxtyping import UInt8

Frame = UInt8[np.ndarray, "*n h w 3"]
Stack = UInt8[np.ndarray, "*n h w c"]


def filled(frame: Frame, stack: int) -> Stack:
    """The stack at the start of an episode: its first picture, repeated."""
    return np.concatenate([frame] * stack, axis=-1)


def pushed(stacked: Stack, frame: Frame) -> Stack:
    """The stack after one more picture; the oldest goes."""
    return np.concatenate([stacked[..., frame.shape[-1] :], frame], axis=-1)
