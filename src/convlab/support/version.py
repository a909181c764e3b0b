"""The version of convlab, which the package shows as ``convlab.__version__``."""

__version__ = "0.1.0"
