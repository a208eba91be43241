"""Flat parameters: views share the buffer, padding stays zero, He initialisation has its spread."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.engine.params import ALIGNMENT, Params, he_initial

SHAPES = {"conv1.w": (5, 3, 3, 2), "conv1.b": (5,), "fc2.w": (400, 300)}


def test_views_share_the_flat_buffer_on_aligned_places(fast):
    params = Params(fast, SHAPES)
    params.upload({k: np.full(s, i + 1.0, np.float32) for i, (k, s) in enumerate(SHAPES.items())})
    assert params.count == 90 + 5 + 120_000
    assert params.flat.sum() == 90 + 2 * 5 + 3 * 120_000
    base = params.flat.ctypes.data
    assert all((v.ctypes.data - base) % (4 * ALIGNMENT) == 0 and v.base is not None for v in params.views.values())
    params.flat[:] = 7
    assert all((v == 7).all() for v in params.views.values())


@pytest.mark.parametrize(("arrays", "word"), [
    ({"conv1.w": np.zeros((5, 3, 3, 2))}, "fc2.w"),
    ({**{k: np.zeros(s) for k, s in SHAPES.items()}, "conv1.b": np.zeros(6)}, "conv1.b")])
def test_wrong_names_or_shapes_are_refused(arrays, word, fast):
    with pytest.raises(ValueError, match=word):
        Params(fast, SHAPES).upload(arrays)


def test_he_initialisation():
    first, again, other = he_initial(SHAPES, 3), he_initial(SHAPES, 3), he_initial(SHAPES, 4)
    w = first["fc2.w"]
    assert w.std() == pytest.approx(np.sqrt(2 / 300), rel=0.02)
    assert abs(w.mean()) < 1e-3
    assert not first["conv1.b"].any()
    assert (w == again["fc2.w"]).all()
    assert (w != other["fc2.w"]).mean() > 0.99
    assert he_initial({"fc2.w": (400, 300)}, 3)["fc2.w"].tobytes() == w.tobytes()  # whatever else the net holds
