import pytest
import torch
from torch import nn

from hf_specdecpp.acceptance import AcceptanceHead


@pytest.mark.parametrize("depth", (0, 1, 3))
def test_the_head_is_the_papers_silu_resnet(depth):
    torch.manual_seed(0)
    head = AcceptanceHead(8, depth)
    x = torch.randn(2, 5, 8)
    expected = x
    for block in head.blocks:
        w, b = block.linear.weight, block.linear.bias
        z = expected @ w.T + b
        expected = expected + z * torch.sigmoid(z)
    expected = (expected @ head.out.weight.T + head.out.bias)[..., 0]
    torch.testing.assert_close(head(x), expected)
    assert head(x).shape == (2, 5)
    assert sum(p.numel() for p in head.parameters()) == depth * 72 + 9


def test_a_tied_head_applies_one_block_repeatedly():
    """As the authors' code: `nn.Sequential(*([ResBlock(hidden_size)] * num_layers), ...)`."""
    torch.manual_seed(0)
    tied = AcceptanceHead(8, 3, tied=True)
    independent = AcceptanceHead(8, 3)
    for block in independent.blocks:
        block.load_state_dict(tied.blocks[0].state_dict())
    independent.out.load_state_dict(tied.out.state_dict())
    x = torch.randn(1, 4, 8)
    torch.testing.assert_close(tied(x), independent(x))
    assert sum(p.numel() for p in tied.parameters()) == 72 + 9


def test_the_head_computes_in_float32_whatever_it_reads():
    head = AcceptanceHead(8, 2)
    assert head(torch.randn(1, 2, 8, dtype=torch.bfloat16)).dtype == torch.float32
    assert all(isinstance(block.linear, nn.Linear) for block in head.blocks)
