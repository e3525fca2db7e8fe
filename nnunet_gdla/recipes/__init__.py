"""The paper's datasets: public layouts to nnU-Net raw datasets, the paper's splits, plans and trainers.

`nnunet_gdla.recipes.catalogue` needs the standard library only; what reads and writes files is imported when used.
"""

from nnunet_gdla.recipes.catalogue import RECIPES, Recipe

__all__ = ["RECIPES", "Recipe"]
