"""A stage prepared for a problem and run on an engine: plans, tuned tiles, conv1d to conv3d."""
