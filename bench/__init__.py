"""Everything about time: what kernels and runs take, measured, predicted, planned."""

ILSVRC_IMAGES = 1_281_167  # training images of ILSVRC 2012; here, so that the command line need not load NumPy for it
