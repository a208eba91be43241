"""Every rank's sum through MPI in the memory of one GPU: mpirun -n N python device_sum.py FLOATS."""

from __future__ import annotations

import sys

from sprint.distributed.comm import open_comm
from sprint.distributed.transport import by_mpi, rehearse
from sprint.kernels.cuda import CudaDevice

comm, n = open_comm(), int(sys.argv[1])
rehearse(comm, by_mpi(comm, CudaDevice(0), n), n)()
print(f"rank {comm.rank} of {comm.size}: right", flush=True)
comm.close()
