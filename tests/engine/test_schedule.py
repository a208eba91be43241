from __future__ import annotations

import math

import pytest
from sprint.engine import schedule
from sprint.engine.errors import UsageError


def test_constant_is_one_everywhere():
    rate = schedule.parse("constant")
    assert [rate(s, s / 10, 2.0) for s in (0, 1, 19, 100)] == [1.0] * 4


def test_step_multiplies_from_each_milestone_on():
    rate = schedule.parse("step:0.1@2,4")
    expected = {0.0: 1, 1.999: 1, 2.0: 0.1, 3.99: 0.1, 4.0: 0.01, 9.0: 0.01}
    for epoch, factor in expected.items():
        assert rate(0, epoch, 10.0) == pytest.approx(factor, rel=1e-12)


def test_cosine_goes_from_one_to_zero_and_stays_there():
    rate = schedule.parse("cosine")
    assert rate(0, 0.0, 3.0) == 1.0
    assert rate(0, 1.0, 3.0) == pytest.approx(0.5 + 0.5 * math.cos(math.pi / 3), rel=1e-12)
    assert rate(0, 1.5, 3.0) == pytest.approx(0.5, rel=1e-12)
    assert rate(0, 3.0, 3.0) == pytest.approx(0.0, abs=1e-12)
    assert rate(0, 3.5, 3.0) == pytest.approx(0.0, abs=1e-12)


def test_warmup_is_a_line_by_steps_that_never_starts_at_zero():
    rate = schedule.parse("warmup:4")
    assert [rate(s, 0.0, 1.0) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_parts_joined_by_plus_are_multiplied_and_spaces_do_not_matter():
    both, warm, cosine = (schedule.parse(t) for t in (" warmup:10 + cosine", "warmup:10", "cosine"))
    for step in range(0, 40, 3):
        epoch = step / 7
        assert both(step, epoch, 6.0) == warm(step, epoch, 6.0) * cosine(step, epoch, 6.0)


@pytest.mark.parametrize("text", [
    "", "linear", "constant:1", "cosine:3", "step", "step:", "step:0.1", "step:@2", "step:x@2", "step:0.1@",
    "step:0.1@2,",
    "step:-1@2", "step:nan@2", "step:inf@2", "step:0.1@-2", "step:0.1@nan", "warmup", "warmup:0", "warmup:-3",
    "warmup:1.5", "warmup:x", "warmup:10+", "+cosine", "warmup:10+linear",
])
def test_what_cannot_be_read_is_refused_in_one_line(text):
    with pytest.raises(UsageError) as error:
        schedule.parse(text)
    message = str(error.value)
    assert message.startswith("schedule: expected constant") and "\n" not in message
    assert f"got '{text.split('+')[-1]}'" in message or f"got '{text.split('+')[0]}'" in message
