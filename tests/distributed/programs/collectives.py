"""Every collective of comm.py on three ranks, against NumPy."""

import sys
import time

import numpy as np
from sprint.distributed.comm import open_comm

comm = open_comm()
assert comm.size == 3 and comm.ids == [0, 1, 2] and comm.local_size == 3 and comm.local_rank == comm.rank
for n in (1, 2, 3, 10, 4099):
    every = [np.random.default_rng(rank).standard_normal(n).astype(np.float32) for rank in range(3)]
    mine, recv = every[comm.rank].copy(), np.full(n, np.nan, np.float32)
    comm.allreduce(mine, recv)
    np.testing.assert_allclose(recv, sum(x.astype(np.float64) for x in every), rtol=1e-5, atol=1e-6)
    recv.fill(np.nan)
    comm.ordered_allreduce(mine, recv)
    assert recv.tobytes() == ((every[0] + every[1]) + every[2]).tobytes()
    assert mine.tobytes() == every[comm.rank].tobytes()
    comm.broadcast(recv, 1)
values = np.array([1.0, 2.0 ** 40 + comm.rank])
comm.meet(values)
assert values.tolist() == [3.0, 3 * 2.0 ** 40 + 3]
assert comm.gather_all([comm.rank + 0.5, 7.0]).tolist() == [[0.5, 7.0], [1.5, 7.0], [2.5, 7.0]]
flat = np.full(5, comm.rank, np.float32)
comm.broadcast(flat, 2)
assert flat.tolist() == [2.0] * 5
comm.meet(np.zeros(1))
time.sleep(0.3)
for every_s in (0.0, 0.0, 60.0):  # the last one comes too early, and is none
    comm.beat(every_s, 7.5 + comm.rank if every_s == 0 else -1.0)
    comm.meet(np.zeros(1))
silent_s, waited_s = np.delete(comm.heard(), comm.rank, axis=0).T
assert waited_s.tolist() == [7.5 + rank for rank in range(3) if rank != comm.rank] and silent_s.max() < 0.3
assert comm.agree(True) and not comm.agree(comm.rank != 1)
for wrong, kind in ((np.zeros(4), TypeError), (np.zeros((2, 2), np.float32).T, ValueError)):
    try:
        comm.allreduce(wrong, np.zeros(4, np.float32))
    except kind:
        continue
    sys.exit("a wrong buffer was accepted")
comm.close()
sys.stdout.write(f"ok-{comm.rank}\n")
