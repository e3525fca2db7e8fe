"""Gated differential linear attention for nnU-Net.

Every start of Python in an environment with this package imports this file (see `nnunet_gdla._register`), so it
imports nothing.
"""

__version__ = "0.1.0"
