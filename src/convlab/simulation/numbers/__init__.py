"""Numbers as a GPU has them: widths, rounding, bfloat16."""
