"""What all attention is computed of: score functions, masked softmax, and context; without parameters of their own.

A query asks, keys are compared with it, and values are what it gets the weighted mean of.
"""

import math

import torch
from torch import Tensor


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q . k: "dot" in equation 8 of "Effective Approaches to Attention-based Neural Machine Translation" (Luong, 2015).

    Args:
        query: [..., Tq, D].
        key: [..., Tk, D].

    Returns:
        Scores [..., Tq, Tk].
    """
    return query @ key.transpose(-2, -1)


def scaled_dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q . k / sqrt(D): equation 1 of "Attention Is All You Need" (Vaswani et al., 2017); shapes as in `dot_scores`.

    Products of vectors of D independent components of variance 1 have variance D; the division brings it back to 1,
    where the softmax is not saturated.
    """
    return dot_scores(query, key) / math.sqrt(query.shape[-1])


def general_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """q . W k: "general" in equation 8 of Luong et al. (2015).

    Args:
        query: [..., Tq, Dq].
        key: [..., Tk, Dk].
        weight: [Dq, Dk], a full matrix, so that queries and keys may differ in width.

    Returns:
        Scores [..., Tq, Tk].
    """
    return dot_scores(query, key @ weight.T)


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """v . tanh(q + k) of what is projected to one width already.

    This is equation 8 of "Neural Machine Translation by Jointly Learning to Align and Translate" (Bahdanau et al.,
    2015; in appendix A.1.2), and "concat" in equation 8 of Luong et al. (2015): W [q; k] is a sum of two projections.

    Args:
        query: [..., Tq, D], projected.
        key: [..., Tk, D], projected.
        weight: v, [D].

    Returns:
        Scores [..., Tq, Tk].
    """
    return torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ weight


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis, restricted to the places where `mask` is true.

    Args:
        scores: [..., Tq, Tk].
        mask: boolean, broadcastable to `scores`; true where the query may attend. None: everywhere.

    Returns:
        Weights of the shape of `scores`: each row sums to 1, exactly 0 where masked. A row that is masked
        everywhere is all zeros rather than NaN, so that a padded query adds nothing.
    """
    if mask is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True).to(weights.dtype)


def context(weights: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values: equation 5 of Bahdanau et al. (2015).

    Args:
        weights: [..., Tq, Tk].
        value: [..., Tk, Dv].

    Returns:
        [..., Tq, Dv].
    """
    return weights @ value
