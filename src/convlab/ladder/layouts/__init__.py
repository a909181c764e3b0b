"""Layout transforms of the input and of the filter, which several stages share."""
