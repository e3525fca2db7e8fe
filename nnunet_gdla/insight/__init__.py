"""What a network costs: parameters, products and time. Nothing here imports nnU-Net."""

from nnunet_gdla.insight.counting import ProductCount as ProductCount
from nnunet_gdla.insight.counting import count_parameters as count_parameters
from nnunet_gdla.insight.counting import count_products as count_products
from nnunet_gdla.insight.timing import time_alternating as time_alternating

__all__ = ["ProductCount", "count_parameters", "count_products", "time_alternating"]
