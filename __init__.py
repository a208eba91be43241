"""sprint: a convolutional-network training engine written at CUDA-kernel level."""

__version__ = "0.1.0"
