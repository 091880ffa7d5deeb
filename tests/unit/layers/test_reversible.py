"""Reversible blocks: gradients of plain blocks, the same random numbers, and memory that does not grow with depth."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from regard import masks
from regard.errors import OptionError
from regard.layers import FeedForward, MultiHeadAttention, ReversibleBlock, ReversibleStack

WIDTH, HEADS, INNER, LENGTH = 12, 3, 17, 11


def make_stack(depth=3, dropout=0.0, mechanism="reformer"):
    torch.manual_seed(5)
    options = {"buckets": 2, "rounds": 2} if mechanism == "reformer" else {}
    return ReversibleStack(
        [
            ReversibleBlock(
                attention=MultiHeadAttention(
                    WIDTH, HEADS, mechanism=mechanism, mechanism_options=options, dropout=dropout
                ),
                feed_forward=FeedForward(WIDTH, INNER, activation="gelu", dropout=dropout),
                attention_norm=nn.LayerNorm(WIDTH),
                feed_forward_norm=nn.LayerNorm(WIDTH),
                dropout=dropout,
            )
            for _ in range(depth)
        ]
    ).double()


def run_plain(stack, tokens, mask):
    """The definition: Gomez et al. 2017, equation 6, with a norm before and a dropout after each sublayer."""
    first = second = tokens
    for block in stack.blocks:
        first = first + block.dropout(block.attention(block.attention_norm(second), mask=mask))
        second = second + block.dropout(block.feed_forward(block.feed_forward_norm(first)))
    return (first + second) / 2


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.padding([LENGTH, 4])], ids=repr)
def test_gradients_equal_those_of_plain_blocks(mask, dropout):
    stack, results = make_stack(dropout=dropout), []
    tokens, upstream = torch.randn(2, 2, LENGTH, WIDTH, dtype=torch.float64)
    for run in (lambda x: stack(x, mask=mask), lambda x: run_plain(stack, x, mask)):
        torch.manual_seed(7)
        leaf = tokens.clone().requires_grad_()
        output = run(leaf)
        after = torch.rand(3)
        gradients = torch.autograd.grad(output, [leaf, *stack.parameters()], upstream)
        results.append((output, *gradients, after, torch.rand(3)))
    for reversible, plain in zip(*results, strict=True):
        torch.testing.assert_close(reversible, plain, rtol=0, atol=1e-11)
    torch.manual_seed(7)
    with torch.no_grad():
        torch.testing.assert_close(stack(tokens, mask=mask), results[1][0], rtol=0, atol=1e-11)


def count_saved(stack, tokens):
    """Elements of the tensors that are saved for the backward pass, without parameters."""
    parameters, saved = {one.data_ptr() for one in stack.parameters()}, {}

    def pack(tensor):
        if tensor.data_ptr() not in parameters:
            saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = stack(tokens)
    return sum(saved.values()), output


def test_memory_does_not_depend_on_the_depth():
    tokens = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    counts = {depth: count_saved(make_stack(depth, dropout=0.1), tokens)[0] for depth in (1, 2, 7)}
    assert counts[1] == counts[2] == counts[7] == 2 * tokens.numel()
    assert count_saved(PlainStack(make_stack(7)), tokens)[0] > 50 * tokens.numel()


class PlainStack(nn.Module):
    """The same blocks, run as plain ones."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack

    def forward(self, tokens):
        return run_plain(self.stack, tokens, None)


def test_parameters_that_blocks_share_and_frozen_ones():
    stack = make_stack(2, mechanism="dot_product")
    stack.blocks[1].feed_forward = stack.blocks[0].feed_forward
    stack.blocks[0].attention.requires_grad_(False)
    tokens = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    stack(tokens).square().sum().backward()
    found = {name: one.grad for name, one in stack.named_parameters()}
    assert all((found[name] is None) == (not one.requires_grad) for name, one in stack.named_parameters())
    stack.zero_grad()
    run_plain(stack, tokens, None).square().sum().backward()
    for name, one in stack.named_parameters():
        if one.requires_grad:
            torch.testing.assert_close(found[name], one.grad, rtol=0, atol=1e-10)


def test_without_gradients_and_in_evaluation():
    stack = make_stack(2, dropout=0.5).eval()
    tokens = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected = stack(tokens)
    torch.testing.assert_close(stack(tokens), expected, rtol=0, atol=1e-14)
    first, second = stack.streams(tokens, 2 * tokens)
    assert not torch.equal(first, second)


def test_autocast_is_replayed():
    stack = make_stack(2, mechanism="dot_product").float()
    tokens, results = torch.randn(2, LENGTH, WIDTH), []
    for run in (stack, lambda x: run_plain(stack, x, None)):
        leaf = tokens.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = run(leaf)
        results.append(torch.autograd.grad(output.float().square().sum(), leaf)[0])
    torch.testing.assert_close(*results, rtol=0.05, atol=0.05 * float(results[1].abs().max()))


@pytest.mark.parametrize("blocks", [[], [nn.Linear(2, 2)]])
def test_invalid_blocks_are_refused(blocks):
    with pytest.raises(OptionError, match=r"(?s)wrong blocks.*ReversibleBlock"):
        ReversibleStack(blocks)
