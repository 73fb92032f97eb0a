"""Figures in fewer colours, which take a third of the room."""

import io

import numpy as np
from jaxtyping import UInt8

COLOURS, EXACT = 256, 128  # of a palette, and how many of them are the picture's commonest


def few_colours(png: bytes) -> bytes:
    """The picture with a palette, the same bytes for the same picture.

    Its commonest colours, which lines, bands and the cells of a map are filled with, stay what they are; rarer ones, at
    the edges of lines and letters, become the nearest that is there.
    """
    from PIL import Image

    with Image.open(io.BytesIO(png)) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    codes, inverse, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], -1).astype(np.uint8)
    palette = colours if len(colours) <= COLOURS else _chosen(colours, np.argsort(-counts, kind="stable"))
    which = _nearest(colours, palette).astype(np.uint8)[inverse]
    drawn = Image.frombytes("P", pixels.shape[1::-1], which.tobytes())
    drawn.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _chosen(colours: UInt8[np.ndarray, "n 3"], by_count: np.ndarray) -> UInt8[np.ndarray, "p 3"]:
    """The commonest colours and, of the others, as many as there is room for, spread over them."""
    from PIL import Image

    exact, others = colours[by_count[:EXACT]], colours[by_count[EXACT:]]
    found = Image.fromarray(others[None]).quantize(COLOURS - EXACT, dither=Image.Dither.NONE).getpalette()
    return np.concatenate([exact, np.array(found, np.uint8).reshape(-1, 3)[: COLOURS - EXACT]])


def _nearest(colours: UInt8[np.ndarray, "n 3"], palette: UInt8[np.ndarray, "p 3"]) -> np.ndarray:
    """Which of the palette each colour becomes."""
    x, y = colours.astype(np.float32), palette.astype(np.float32)
    return np.argmin((y**2).sum(-1) - 2 * x @ y.T, -1)
