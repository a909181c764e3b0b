"""The gradients' route: gradients of the input and of the weight as convolutions."""
