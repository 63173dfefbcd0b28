"""Random weights with the distribution of trained ones.

The results of int8 products without VNNI depend on the distribution.
"""

import torch
from torch import nn


def spread_normally(model: nn.Module) -> None:
    """Draw each matrix of an untrained model anew, from a normal distribution of the same deviation."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=float(parameter.std()))
