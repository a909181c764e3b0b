"""The im2col route: the convolution written out as a matrix product."""
