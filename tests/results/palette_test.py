"""Pictures in fewer colours."""

import io

import numpy as np
from PIL import Image

from made.results.palette import few_colours


def as_png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def pixels_of(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_a_picture_of_few_colours_is_not_changed():
    few = np.random.default_rng(0).choice(np.array([[0, 0, 0], [255, 255, 255], [213, 94, 0]], np.uint8), (40, 60))
    np.testing.assert_array_equal(pixels_of(few_colours(as_png(few))), few)


def test_many_colours_become_near_ones_in_less_room_and_always_the_same():
    y, x = np.mgrid[:128, :128].astype(np.uint8)
    noise = np.random.default_rng(1).integers(0, 20, (128, 128), np.uint8)
    many = np.stack([2 * x, 2 * y, noise], -1).astype(np.uint8)
    less = few_colours(as_png(many))
    assert len(less) < len(as_png(many)) / 2 and less == few_colours(as_png(many))
    assert len(np.unique(pixels_of(less).reshape(-1, 3), axis=0)) <= 256
    assert np.abs(pixels_of(less) - many).mean() < 8
