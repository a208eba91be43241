from __future__ import annotations

import pytest
from sprint.engine.meter import Meter


def test_the_meter_leaves_out_two_steps_and_weighs_by_samples():
    meter = Meter()
    assert meter.images_per_s == 0.0
    meter.add(6.0, 3, 30.0)
    meter.add(1.0, 1, 10.0)
    assert meter.images_per_s == pytest.approx(0.1) and meter.take() == (1.75, pytest.approx(0.1))
    meter.add(10.0, 4, 0.5)
    meter.add(6.0, 4, 1.5)
    assert meter.images_per_s == pytest.approx(4.0) and meter.take() == (2.0, pytest.approx(4.0))
