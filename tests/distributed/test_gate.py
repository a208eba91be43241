from __future__ import annotations

import threading
import time

from sprint.distributed.gate import Gate


def in_thread(call):
    """Run `call` in a thread; return its result holder and the thread."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()
    return result, thread


def blocked(thread):
    time.sleep(0.05)
    return thread.is_alive()


def gate_of(filled, bound, min_gradients=1):
    gate = Gate([lambda t=t: filled[t] for t in range(len(filled))], lambda update: bound, min_gradients)
    gate.open(0)
    return gate


def test_without_a_bound_and_without_a_minimum_nobody_waits():
    gate = gate_of([False, False], None, 0)
    for update in range(1, 5):
        gate.hold(update)
        gate.published(update, False)
        assert gate.admit(0) and gate.admit(1)


def test_update_waits_for_one_gradient_of_its_rank():
    filled = [False, False]
    gate = gate_of(filled, None)
    _, thread = in_thread(lambda: gate.hold(1))
    assert blocked(thread)
    filled[1] = True
    gate.land(1, 4)
    thread.join(2)
    assert not thread.is_alive()


def test_a_rank_without_samples_is_not_waited_for_and_does_not_spin():
    gate = gate_of([False], None)
    gate.land(0, 0)
    gate.hold(1)
    result, thread = in_thread(lambda: gate.admit(0))
    assert blocked(thread)
    gate.published(1, False)
    thread.join(2)
    assert result == [True]


def test_bound_zero_is_one_gradient_of_every_worker_per_version():
    filled = [False, False]
    gate = gate_of(filled, 0)
    assert gate.admit(0) and gate.admit(1)
    filled[0] = True
    gate.land(0, 1)
    _, update = in_thread(lambda: gate.hold(1))
    _, again = in_thread(lambda: gate.admit(0))
    assert blocked(update) and blocked(again)
    filled[1] = True
    gate.land(1, 1)
    update.join(2)
    assert not update.is_alive()
    filled[:] = [False, False]  # collected, not yet published
    assert blocked(again)
    gate.published(1, False)
    again.join(2)
    assert not again.is_alive()


def test_bound_two_lets_the_update_pass_twice_and_then_waits_for_the_late_one():
    filled = [True, False]
    gate = gate_of(filled, 2)
    gate.admit(1)
    for update in (1, 2):
        gate.admit(0)
        gate.land(0, 1)
        gate.hold(update)
        gate.published(update, False)
    gate.admit(0)
    gate.land(0, 1)
    _, third = in_thread(lambda: gate.hold(3))  # the gradient from version 0 would be 3 late in update 4
    assert blocked(third)
    gate.land(1, 1)
    third.join(2)
    assert not third.is_alive()


def test_closing_ends_all_waiting():
    gate = gate_of([True], 0)
    result, worker = in_thread(lambda: gate.admit(0))
    assert blocked(worker)
    gate.close()
    worker.join(2)
    assert result == [False]
    assert gate.hold(1) is False
    gate.published(1, last=False)  # an update that was on its way does not open the gate again
    assert gate.admit(0) is False


def test_a_new_segment_starts_with_what_was_left():
    gate = gate_of([True, True], 0)
    gate.close()
    gate.open(9)
    assert gate.hold(10) is True


def test_drain_waits_for_all_workers_unless_the_run_is_to_end():
    gate = gate_of([False, False], None, 0)
    gate.published(1, last=True)
    _, thread = in_thread(gate.drain)
    gate.leave(0)
    assert blocked(thread)
    gate.leave(1)
    thread.join(2)
    assert not thread.is_alive()
    gate.open(1)
    _, thread = in_thread(gate.drain)
    assert blocked(thread)
    gate.hurry()
    thread.join(2)
    assert not thread.is_alive()
