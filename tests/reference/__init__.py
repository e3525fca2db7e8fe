"""Naive formulas that the package is compared with, and a small committed set of golden numbers."""
