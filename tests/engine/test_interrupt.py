from __future__ import annotations

import signal

import pytest
from sprint.engine.interrupt import Interrupt


@pytest.mark.parametrize("first, second, raised, code", [
    (signal.SIGTERM, signal.SIGINT, KeyboardInterrupt, None), (signal.SIGINT, signal.SIGTERM, SystemExit, 143)])
def test_the_second_signal_stops_at_once_and_the_handlers_are_put_back(first, second, raised, code):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(raised) as error, Interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(first)
        assert interrupt.asked and interrupt.number == first
        signal.raise_signal(second)
        pytest.fail("went on")
    assert getattr(error.value, "code", None) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
