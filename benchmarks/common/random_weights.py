"""Random weights that are spread as trained ones, on which it depends how int8 products are computed without VNNI."""

import torch
from torch import nn


def spread_normally(model: nn.Module) -> None:
    """Give all matrices of a model that was not trained normal weights; their deviations stay."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=float(parameter.std()))
