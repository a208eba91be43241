"""Whole training steps beside PyTorch's: the same net, weights, batch and threads, in processes that take turns."""
