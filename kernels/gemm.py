"""Matrix product: the device's BLAS, or our own tiles in shared memory (gemm.cu)."""

from __future__ import annotations

from .device import Array, Device, check_gemm, leading_dimension, tiles

THREADS = 256  # of every tiled kernel
LARGE, SMALL = 128, 64  # extents of the tiles of gemm.cu
LARGE_TILES = 128  # with fewer, small tiles keep more of a GPU's multiprocessors at work


def gemm(device: Device, a: Array, b: Array, c: Array, *, trans_a: bool = False, trans_b: bool = False,
         alpha: float = 1.0, beta: float = 0.0, algo: str = "blas") -> None:
    """c(m,n) = alpha op(a)(m,k) op(b)(k,n) + beta c, where op transposes as trans_a and trans_b say.

    a, b, c: row-major float32 matrices, rows may lie apart. With beta 0 c is only written. `algo` is 'blas'
    (the device's own sgemm) or 'tiled' (gemm.cu; needs barriers, so cuda or simt).
    Raises ValueError when the shapes do not belong together, TypeError for another dtype.
    """
    if algo not in ("blas", "tiled"):
        raise ValueError(f"gemm: expected an algorithm of blas, tiled, got '{algo}'")
    if algo == "blas":
        device.sgemm(a, b, c, trans_a=trans_a, trans_b=trans_b, alpha=alpha, beta=beta)
        return
    m, n, k = check_gemm(a, b, c, trans_a, trans_b)
    large = tile_count(m, n, LARGE) >= LARGE_TILES
    work = tiles((tile_count(m, n, LARGE if large else SMALL), 1, 1), (THREADS, 1, 1))
    device.launch("gemm", "gemm", work, a, b, c, m, n, k, *map(leading_dimension, (a, b, c)),
                  trans_a, trans_b, alpha, beta, large)


def tile_count(m: int, n: int, extent: int) -> int:
    """Blocks of a tiled product whose tiles are extent x extent."""
    return -(-m // extent) * -(-n // extent)
