"""Shares of the ten true nearest at which systems are compared."""

TARGETS = (0.8, 0.9, 0.95, 0.98)
