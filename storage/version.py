"""The version of the package, in one place for the facade, the manifest and the workers' check."""

from importlib.metadata import version

__version__ = version("aggtree")
