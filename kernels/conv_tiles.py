"""Implicit convolution by the tiles of conv.cu (cuda, and simt for tests): its launches, planned once a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import bias
from .conv_algorithm import Gradient
from .conv_shape import ConvShape
from .device import Array, Device, Work, elements, tiles

THREADS, DEPTH = 256, 8  # of tile.cuh
TILES = ((128, 128), (64, 128), (32, 256))  # rows x columns
ENOUGH_BLOCKS = 256  # keep every multiprocessor of a large GPU busy
LEAST_SHARE = 1024  # positions that a part of the filter gradient sums at least
MOST_PARTS = 256
EXTENT_LIMIT = 2**14  # two coordinates share a word
OFFSET_LIMIT = 2**31 - 2**16  # within a channel or the channels that a tile spans, and a little behind
PHASE_LIMIT = 4096  # launches of one gradient to x


class Tiles:
    """Forward, and gradient to x as a convolution with turned filters, by `convolve`; gradient to w in parts.

    Workspace: the turned filters, or the parts, which a second kernel adds in order. Raises ValueError for extents
    beyond the kernels' limits, or when `limit_bytes` is less than the bytes of w.
    """

    name = "implicit"
    fused = False

    def __init__(self, device: Device, shape: ConvShape, limit_bytes: int | None, pool: int) -> None:
        _check_limits(shape)
        if limit_bytes is not None and limit_bytes < filter_bytes(shape):
            raise ValueError(f"conv: expected a workspace of at least {filter_bytes(shape)} bytes, got {limit_bytes}")
        self.device, self.shape = device, shape
        self.whole = plan_forward(shape)
        self.phases = list(plan_phases(shape))
        self.parts = plan_parts(shape, limit_bytes)

    def workspace_bytes(self, direction: str) -> int:
        """Bytes of the turned filters or of the parts."""
        part_bytes = filter_bytes(self.shape) * self.parts.count
        return {"forward": 0, "backward_data": filter_bytes(self.shape),
                "backward_filter": part_bytes if self.parts.count > 1 else 0}[direction]

    def describe(self) -> str:
        """One line for people."""
        most = max(map(self.workspace_bytes, ("backward_data", "backward_filter")))
        return f"implicit, filter gradient in {self.parts.count} parts ({most:,} bytes)"

    def forward(self, x: Array, w: Array, b: Array, y: Array, relu: bool, workspace: Array, arg: Array | None) -> None:
        """y = w * x + b, then ReLU."""
        plan = self.whole
        self.device.launch("conv", "convolve", plan.work, x, w, b, y, *plan.scalars, True, relu, plan.rows)

    def backward_data(self, gradient: Gradient, w: Array, dx: Array, workspace: Array) -> None:
        """dx by phases of the stride, each a convolution of dy with its turned taps."""
        s, turned = self.shape, workspace[: w.size]
        self.device.launch("conv", "turn_filters", elements(w.size), w, turned, s.K, s.C, s.R, s.S, *s.stride)
        for phase in self.phases:
            taps = turned[phase.first : phase.first + phase.size]
            self.device.launch("conv", "convolve", phase.work, gradient.dy, taps, taps, dx, *phase.scalars, False,
                               False, phase.rows)

    def backward_filter(self, x: Array, gradient: Gradient, dw: Array, db: Array, workspace: Array) -> None:
        """dw by parts of the positions; db = row sums of dy."""
        plan, split = self.parts, self.parts.count > 1
        parts = workspace[: plan.count * dw.size] if split else dw
        self.device.launch("conv", "conv_backward_filter", plan.work, x, gradient.dy, parts, *plan.scalars)
        if split:
            self.device.launch("conv", "sum_parts", elements(dw.size), parts, dw, plan.count, dw.size)
        bias.bias_gradient(self.device, gradient.dy, db)


@dataclass(frozen=True)
class Convolution:
    """One launch of `convolve`: its scalars up to bias and relu, and the tile's rows; the filters it reads."""

    work: Work
    scalars: tuple[int, ...]
    rows: int
    first: int = 0
    size: int = 0


@dataclass(frozen=True)
class Parts:
    """The launch of `conv_backward_filter` and its number of parts."""

    work: Work
    scalars: tuple[int, ...]
    count: int


def filter_bytes(shape: ConvShape) -> int:
    """Bytes of w."""
    return 4 * shape.K * shape.rows


def plan_forward(shape: ConvShape) -> Convolution:
    """The launch of the forward pass."""
    return _convolution(_extents(shape), (shape.P, shape.Q, 0, 0, 1, 1))


def plan_phases(shape: ConvShape) -> Iterator[Convolution]:
    """The launches of the gradient to x.

    The pixels (h, w) = (a, b) + stride * (i, j) of one phase (a, b) all meet the taps (r, s) = (r0, s0) + stride *
    (u, v), so that dx[h, w] = sum of w[r, s] * dy[p0 + i - u, q0 + j - v] is a convolution without gaps. Where
    some pixels meet no tap, zeros go everywhere first.
    """
    s = shape
    rows, columns = list(_phases(s.H, s.R, s.stride[0], s.pad[0])), list(_phases(s.W, s.S, s.stride[1], s.pad[1]))
    if len(rows) < min(s.stride[0], s.H) or len(columns) < min(s.stride[1], s.W):
        yield _convolution((0, s.N, s.P, s.Q, s.C, 1, 1, s.H, s.W, 1, 1, 0, 0), (s.H, s.W, 0, 0, 1, 1))
    if len(rows) * len(columns) > PHASE_LIMIT:
        raise ValueError(f"conv: expected at most {PHASE_LIMIT} phases, got {len(rows)} x {len(columns)} of "
                         f"stride {s.stride}")
    for v in rows:
        for u in columns:
            extents = (s.K, s.N, s.P, s.Q, s.C, v.taps, u.taps, v.pixels, u.pixels, 1, 1, v.pad, u.pad)
            first = s.C * s.K * (v.taps_before * s.S + v.taps * u.taps_before)
            yield _convolution(extents, (s.H, s.W, v.first, u.first, *s.stride), first)


@dataclass(frozen=True)
class _Phase:
    """One phase along one axis; taps_before counts the taps of the phases with smaller r0."""

    first: int
    pixels: int
    taps: int
    taps_before: int
    pad: int


def _phases(extent: int, window: int, stride: int, pad: int) -> Iterator[_Phase]:
    """Phases that have pixels and taps."""
    for tap0 in range(min(stride, window)):
        first = (tap0 - pad) % stride
        if first < extent:
            taps = -(-(window - tap0) // stride)
            before = window // stride * tap0 + min(window % stride, tap0)
            yield _Phase(first, -(-(extent - first) // stride), taps, before, taps - 1 - (first + pad) // stride)


def plan_parts(shape: ConvShape, limit_bytes: int | None) -> Parts:
    """The launch of the gradient to w: as many parts as keep a GPU busy and fit the limit; the last may be empty."""
    s, (sh, sw) = shape, shape.stride
    rows, (down, across) = pick_tile(s.K, s.rows)
    wanted = min(-(-ENOUGH_BLOCKS // (down * across)), s.columns // LEAST_SHARE, MOST_PARTS)
    affordable = wanted if limit_bytes is None else limit_bytes // filter_bytes(s)
    count = max(1, min(wanted, affordable))
    share = -(-s.columns // (count * DEPTH)) * DEPTH
    steps = _steps((s.P, s.Q), (s.H * s.W, sh * s.W, sw))
    scalars = (*_extents(s), s.rows, s.N * s.H * s.W, s.columns, *steps, share, rows)
    return Parts(tiles((across, down, count), (THREADS, 1, 1)), scalars, count)


def pick_tile(rows: int, columns: int) -> tuple[int, tuple[int, int]]:
    """Rows of the tile for a rows x columns product, and tiles (down, across).

    The largest tile that is not mostly empty and gives enough blocks; else that which gives most blocks.
    """
    grids = {m: (-(-rows // m), -(-columns // n)) for m, n in TILES if m < 2 * rows or m == TILES[-1][0]}
    blocks = {m: down * across for m, (down, across) in grids.items()}
    enough = [m for m in grids if blocks[m] >= ENOUGH_BLOCKS]
    best = max(enough) if enough else max(grids, key=lambda m: (blocks[m], m))
    return best, grids[best]


def _extents(s: ConvShape) -> tuple[int, ...]:
    return (*s.x, s.K, s.R, s.S, s.P, s.Q, *s.stride, *s.pad)


def _convolution(extents: tuple[int, ...], image: tuple[int, ...], first: int = 0) -> Convolution:
    """Launch of `convolve` for (C,N,H,W,K,R,S,P,Q,stride,pad) and (OH,OW, offset, step) of the output image."""
    C, N, H, W, K, R, S, P, Q = extents[:9]
    rows, (down, across) = pick_tile(K, N * P * Q)
    sizes = (C * R * S, N * H * W, N * image[0] * image[1])
    scalars = (*extents, *image, *sizes, *_steps((R, S), (N * H * W, W, 1)))
    return Convolution(tiles((across, down, 1), (THREADS, 1, 1)), scalars, rows, first, K * C * R * S)


def _steps(sizes: tuple[int, int], strides: tuple[int, int, int]) -> tuple[int, ...]:
    """How a number of (high, middle, low) digits advances by DEPTH: its digits, its offset, offsets of the carries."""
    (middle_size, low_size), (high, middle, low) = sizes, strides
    rest, low_step = divmod(DEPTH, low_size)
    high_step, middle_step = divmod(rest, middle_size)
    step = high_step * high + middle_step * middle + low_step * low
    return middle_step, low_step, step, middle - low_size * low, high - middle_size * middle


def _check_limits(s: ConvShape) -> None:
    span = min(s.C, max(n for _, n in TILES) // (s.R * s.S) + 2)  # channels in one tile of the gradient to w
    beyond = DEPTH * (s.H * s.W + s.stride[0] * s.W + s.stride[1])  # where a count of positions may end
    extents = {"height plus pads": s.H + 2 * s.pad[0], "width plus pads": s.W + 2 * s.pad[1]}
    offsets = {"N*H*W of the channels in a tile": s.N * s.H * s.W * span + beyond, "N*P*Q": s.columns, "C*R*S": s.rows,
               "K*R*S": s.K * s.R * s.S}
    for name, value in (extents | offsets).items():
        limit = EXTENT_LIMIT if name in extents else OFFSET_LIMIT
        if value >= limit:
            raise ValueError(f"conv: implicit expected {name} below {limit}, got {value}; explicit has no such limit")
