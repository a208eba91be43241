"""A CUDA device that kernel tests can use like the host's: NumPy arrays go to the GPU and back with each launch."""

from __future__ import annotations

import numpy as np
from sprint.kernels.cuda import CudaDevice
from sprint.kernels.host import HostDevice, address


class MirroredCuda(HostDevice):
    """Checks like the host device, then runs on the GPU; an array given twice is one array there too."""

    kind, mode = "cuda", "cuda"

    def __init__(self):
        super().__init__(0, threads=1)
        self.gpu = CudaDevice(0)
        self.name = self.gpu.name

    def describe(self):
        return self.gpu.describe()

    def signature(self, family, kernel):
        signature = super().signature(family, kernel)
        assert kernel in self.gpu._kernels[family]
        return signature

    def _run(self, family, signature, work, values, block):
        assert all(v.flags.c_contiguous for v in values if isinstance(v, np.ndarray))
        mirrors = {address(v): self.gpu.upload(v) for v in values if isinstance(v, np.ndarray)}
        arguments = [mirrors[address(v)].reshape(v.shape) if isinstance(v, np.ndarray) else v for v in values]
        self.gpu.launch(family, signature.name, work, *arguments, block=block)
        for parameter, value, argument in zip(signature.parameters, values, arguments, strict=True):
            if parameter.pointer and not parameter.constant:
                self.gpu.copy(value, argument)

    def sgemm(self, a, b, c, *, trans_a=False, trans_b=False, alpha=1.0, beta=0.0):
        a, b, result = (self.gpu.upload(array) for array in (a, b, c))
        self.gpu.sgemm(a, b, result, trans_a=trans_a, trans_b=trans_b, alpha=alpha, beta=beta)
        c[...] = self.gpu.download(result)

    def synchronize(self):
        self.gpu.synchronize()
