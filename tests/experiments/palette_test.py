"""Pictures in fewer colours."""

import io

import numpy as np
from PIL import Image

from made.experiments.palette import few_colours


def as_png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def pixels_of(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_a_picture_of_few_colours_is_not_changed():
    few = np.random.default_rng(0).choice(np.array([[0, 0, 0], [255, 255, 255], [213, 94, 0]], np.uint8), (40, 60))
    np.testing.assert_array_equal(pixels_of(few_colours(as_png(few))), few)


def test_the_commonest_colours_stay_and_the_others_become_near_ones_in_less_room():
    x = np.broadcast_to(np.arange(256, dtype=np.uint8), (128, 256))
    common = np.stack([x // 4 * 4, 255 - x // 4 * 4, x // 64 * 40], -1).astype(np.uint8)  # 64 stripes
    noise = np.random.default_rng(1).integers(0, 40, (16, 256, 3), np.uint8)
    many = np.concatenate([common, noise])
    less = few_colours(as_png(many))
    found = pixels_of(less)
    assert less == few_colours(as_png(many)) and len(less) < len(as_png(many))
    np.testing.assert_array_equal(found[:128], many[:128])
    assert len(np.unique(found.reshape(-1, 3), axis=0)) <= 256
    assert 0 < np.abs(found - many)[128:].mean() < 8
