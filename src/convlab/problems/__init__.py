"""Convolution problems: shapes, gradients, named workloads, the float64 reference and its bound."""
