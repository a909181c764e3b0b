"""The main route, from the seven loops to the fused im2win convolution with split-K."""
