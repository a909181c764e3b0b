"""Shared by every room: values in messages, progress, files, installing."""
