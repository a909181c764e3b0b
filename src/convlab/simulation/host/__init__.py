"""The host's side: numba.cuda's API, device arrays, streams, whole programs, pytest."""
