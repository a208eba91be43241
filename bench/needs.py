"""What a calibration must measure: every kernel, GEMM and convolution that some nets launch, with real sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..engine.fusion import Stage, fuse
from ..engine.layers import NetSpec
from ..kernels.conv import ALGORITHMS
from ..kernels.conv_shape import ConvShape
from ..kernels.device import Device
from .net_calls import net_cases
from .op import Case
from .work import Call, GradientWork

Triple = tuple[float, float, float]  # m, n, k
Size = tuple[float, float]  # elements and rows of a kernel's call


@dataclass(frozen=True)
class Product:
    """A call of a GEMM path at (m, n, k). stage, shape: the convolution that it is, None for a plain GEMM."""

    path: str
    sizes: Triple
    stage: Stage | None = None
    shape: ConvShape | None = None

    @property
    def flops(self) -> float:
        """Operations of the plain algorithm."""
        m, n, k = self.sizes
        return 2.0 * m * n * k

    def resized(self, sizes: Triple) -> Product:
        """The same call at other sizes: as the nearest layer would have it, geometry kept where that is possible."""
        if self.shape is None:
            return replace(self, sizes=sizes)
        return replace(self, sizes=sizes, shape=_resized(self.shape, self.path, sizes))

    @property
    def actual(self) -> Triple:
        """The sizes that the call really has: whole channels and images."""
        return self.sizes if self.shape is None else _sizes(self.shape, self.path)


def products(spec: NetSpec, device: Device, subbatches: Iterable[int], conv: str,
             limit_bytes: int | None) -> list[Product]:
    """Every GEMM and whole convolution that a gradient of `spec` launches at these sub-batches, each once."""
    stages = {stage.name: stage for stage in fuse(spec)}
    found: dict[tuple[str, Triple], Product] = {}
    for samples, call, work in _calls(spec, device, subbatches, conv, limit_bytes):
        if call.group == "gemm":
            shape = None
            if call.name.split(".")[0] in ALGORITHMS:
                shape = replace(work.convs[call.stage].shape, N=samples)
            product = Product(call.name, _triple(call), stages[call.stage] if shape else None, shape)
            found.setdefault((product.path, product.sizes), product)
    return list(found.values())


def kernel_cases(spec: NetSpec, device: Device, subbatches: Iterable[int], conv: str,
                 limit_bytes: int | None) -> dict[str, dict[Size, Case]]:
    """Kernel -> size as the model counts it -> the real call, for every kernel that a gradient launches."""
    found: dict[str, dict[Size, Case]] = {}
    for samples in subbatches:
        wanted = {(call.name, (float(call.sizes[0][0]), float(call.rows))) for _, call, _ in _calls(
            spec, device, [samples], conv, limit_bytes) if call.group == "kernels"}
        for case in net_cases(spec, device, samples):
            size = (elements(case), rows(case))
            if (case.op.name, size) in wanted:
                found.setdefault(case.op.name, {})[size] = case
    return found


def rows(case: Case) -> float:
    """Rows of a kernel's call as the model counts them (work.py)."""
    name = {"im2col": "col", "col2im": "col", "add_bias": "y", "bias_relu": "y", "row_sum": "x"}.get(case.op.name)
    return float(case.specs[name].shape[0]) if name else 1.0


def elements(case: Case) -> float:
    """Elements of a kernel's call as the model counts them (work.py): those of its largest float array.

    A pool counts its outputs going forward, and its inputs going back.
    """
    specs = case.specs
    name = {"max_pool": "y", "im2col": "col", "col2im": "col"}.get(case.op.name)
    sizes = [spec.nbytes / 4 for key, spec in specs.items() if name in (None, key)]
    return max(sizes)


def _calls(spec: NetSpec, device: Device, subbatches: Iterable[int], conv: str,
           limit_bytes: int | None) -> Iterator[tuple[int, Call, GradientWork]]:
    for samples in subbatches:
        work = GradientWork(spec, [samples], conv, device, limit_bytes)
        for part in work.parts:
            for way in part:
                yield from ((samples, call, work) for call in way if call.times.all())


def _triple(call: Call) -> Triple:
    m, n, k = (float(size[0]) for size in call.sizes)
    return m, n, k


def _sizes(shape: ConvShape, path: str) -> Triple:
    """(m, n, k) of a whole convolution, as work.py has it."""
    if path.endswith("backward_data"):
        return shape.C, shape.H * shape.W * shape.N, shape.K * shape.R * shape.S
    if path.endswith("backward_filter"):
        return shape.K, shape.rows, shape.columns
    return shape.K, shape.columns, shape.rows


def _resized(shape: ConvShape, path: str, sizes: Triple) -> ConvShape:
    """A convolution of about these sizes with the window of `shape`, on images of its extents if one fits in."""
    window = shape.R * shape.S
    if path.endswith("backward_data"):
        C, K, points, plane = sizes[0], sizes[2] / window, sizes[1], shape.H * shape.W
    else:
        first, rows, points = sizes if path.endswith("backward_filter") else (sizes[0], sizes[2], sizes[1])
        C, K, plane = rows / window, first, shape.P * shape.Q
    images = round(points / plane)
    changed = replace(shape, C=max(1, round(C)), K=max(1, round(K)), N=max(1, images))
    if images and abs(images * plane / points - 1) < 0.2:
        return changed
    return _reshaped(changed, path, points / changed.N)


def _reshaped(shape: ConvShape, path: str, plane: float) -> ConvShape:
    """The same with images of about `plane` points that matter: of the output, or of the input going back to it."""
    smallest = (shape.R, shape.S)
    side = max(1, round(plane**0.5))
    other = max(1, round(plane / side))
    if path.endswith("backward_data"):
        return replace(shape, H=max(smallest[0], side), W=max(smallest[1], other))
    return replace(shape, H=(side - 1) * shape.stride[0] + shape.R - 2 * shape.pad[0],
                   W=(other - 1) * shape.stride[1] + shape.S - 2 * shape.pad[1])
