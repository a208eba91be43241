"""Public sets of layer sizes. Sizes are facts; where they come from stands beside each set."""

from __future__ import annotations

from itertools import product

from ..engine.errors import UsageError
from .op import Case
from .selection import cases_of

# convnet-benchmarks (github.com/soumith/convnet-benchmarks, README, "Spatial Convolution layer"): five layers, 128
# images, stride 1, no padding. Columns: channels, filters, pixels a side, filter size.
_CONVNET = ((3, 96, 128, 11), (64, 128, 64, 9), (128, 128, 32, 9), (128, 128, 16, 7), (384, 384, 13, 3))

# DeepBench (github.com/baidu-research/DeepBench, code/kernels/conv_problems.h, training_set), repetitions left out.
# Columns: w h c k filter_w filter_h pad_w pad_h stride_w stride_h: images.
_DEEPBENCH_CONV = """
700 161 1 32 20 5 0 0 2 2: 4 8 16 32
341 79 32 32 10 5 0 0 2 2: 4 8 16 32
480 48 1 16 3 3 1 1 1 1: 16
240 24 16 32 3 3 1 1 1 1: 16
120 12 32 64 3 3 1 1 1 1: 16
60 6 64 128 3 3 1 1 1 1: 16
108 108 3 64 3 3 1 1 2 2: 8
54 54 64 64 3 3 1 1 1 1: 8
27 27 128 128 3 3 1 1 1 1: 8
14 14 128 256 3 3 1 1 1 1: 8
7 7 256 512 3 3 1 1 1 1: 8
224 224 3 64 3 3 1 1 1 1: 8 16
112 112 64 128 3 3 1 1 1 1: 8 16
56 56 128 256 3 3 1 1 1 1: 8 16
28 28 256 512 3 3 1 1 1 1: 8 16
14 14 512 512 3 3 1 1 1 1: 8 16
7 7 512 512 3 3 1 1 1 1: 8 16
224 224 3 64 7 7 3 3 2 2: 16
28 28 192 32 5 5 2 2 1 1: 16
28 28 192 64 1 1 0 0 1 1: 16
14 14 512 48 5 5 2 2 1 1: 16
14 14 512 192 1 1 0 0 1 1: 16
7 7 832 256 1 1 0 0 1 1: 16
7 7 832 128 5 5 2 2 1 1: 16
56 56 64 64 3 3 1 1 1 1: 8 16
56 56 64 256 1 1 0 0 2 2: 8 16
28 28 128 128 3 3 1 1 1 1: 8 16
28 28 128 512 1 1 0 0 2 2: 8 16
14 14 256 256 1 1 0 0 1 1: 8 16
14 14 256 256 3 3 1 1 1 1: 8 16
14 14 256 1024 1 1 0 0 2 2: 8 16
7 7 512 512 1 1 0 0 1 1: 8 16
7 7 2048 512 1 1 3 3 2 2: 8 16
700 161 1 64 5 5 1 1 2 2: 16
350 80 64 64 3 3 1 1 1 1: 16
350 80 64 128 5 5 1 1 2 2: 16
175 40 128 128 3 3 1 1 1 1: 16
175 40 128 256 5 5 1 1 2 2: 16
84 20 256 256 3 3 1 1 1 1: 16
84 20 256 512 5 5 1 1 2 2: 16
42 10 512 512 3 3 1 1 1 1: 16
112 112 64 64 1 1 0 0 1 1: 8 16
56 56 64 256 1 1 0 0 1 1: 8 16
56 56 256 64 1 1 0 0 1 1: 8 16
56 56 256 128 1 1 0 0 2 2: 8 16
28 28 128 512 1 1 0 0 1 1: 8 16
28 28 512 128 1 1 0 0 1 1: 8 16
28 28 512 256 1 1 0 0 2 2: 8 16
14 14 256 1024 1 1 0 0 1 1: 8 16
28 28 512 1024 1 1 0 0 2 2: 8 16
14 14 1024 256 1 1 0 0 1 1: 8 16
14 14 1024 512 1 1 0 0 2 2: 8 16
7 7 512 2048 1 1 0 0 1 1: 8 16
14 14 1024 2048 1 1 0 0 2 2: 8 16
7 7 2048 512 1 1 0 0 1 1: 8 16
"""

# DeepBench, code/kernels/gemm_problems.h, training_set: every m (with its k) by every n, plain or with one transposed.
_BOTH, _HIDDEN = ("", "ta"), ((1760, 1760), (2048, 2048), (2560, 2560), (4096, 4096))
_LAYERS = ((7680, 2560), (6144, 2048), (4608, 1536), (8448, 2816), (3072, 1024))
_WIDE = tuple(product((512, 1024), (2816, 2048, 2560, 1536)))
_DEEPBENCH_GEMM = (
    (_HIDDEN, (16, 32, 64, 128, 7000), _BOTH),
    (_HIDDEN, (7133,), ("tb",)),
    (tuple((5124, k) for _, k in _HIDDEN), (9124,), _BOTH),
    (tuple((35, k) for _, k in _HIDDEN), (8457,), _BOTH),
    (((7680, 2560), (3072, 1024)), (16, 32, 64, 128), _BOTH),
    (((3072, 1024),), (7435,), ("tb",)),
    (((7680, 2560),), (5481,), ("tb",)),
    (((512, 500000), (1024, 500000)), (8, 16), _BOTH),
    (((1024, 512),), (700,), _BOTH),
    (_LAYERS, (24000, 48000), _BOTH),
    (_LAYERS[1:4], (16, 32), _BOTH),
    (_WIDE, (24000, 48000), _BOTH),
    (((512, 512), (1024, 512)), (16, 32), ("", "tb")),
)


def set_cases(name: str) -> list[Case]:
    """Cases of the set `name`, 'convnet' or 'deepbench'. Raises UsageError for another name."""
    strings = {"convnet": convnet, "deepbench": deepbench}
    if name not in strings:
        raise UsageError(f"set: expected {' or '.join(strings)}, got '{name}'")
    return [case for text in strings[name]() for case in cases_of(text)]


def convnet() -> list[str]:
    """Problem strings of the five layers of convnet-benchmarks."""
    return [f"conv n128c{c}h{x}w{x}k{k}r{r}s{r}" for c, k, x, r in _CONVNET]


def deepbench() -> list[str]:
    """Problem strings of DeepBench's training convolutions and GEMMs."""
    strings = []
    for line in _DEEPBENCH_CONV.strip().splitlines():
        layer, images = line.split(":")
        w, h, c, k, s, r, pw, ph, sw, sh = layer.split()
        strings += [f"conv n{n}c{c}h{h}w{w}k{k}r{r}s{s}sh{sh}sw{sw}ph{ph}pw{pw}" for n in images.split()]
    for layers, widths, words in _DEEPBENCH_GEMM:
        strings += [f"sgemm m{m}n{n}k{k} {word}".rstrip() for word, (m, k), n in product(words, layers, widths)]
    return strings
