from __future__ import annotations

import pytest
import torch

from sightline.errors import InputError, InputTypeError
from sightline.positions import Grid, Sinusoidal


def halves(places: torch.Tensor, width: int) -> torch.Tensor:
    """Each half by the one-dimensional scheme, which has its own tests."""
    zeros = torch.zeros(*places.shape[:-1], width // 2, dtype=torch.float64)
    one = Sinusoidal(width // 2)
    return torch.cat((one(zeros, at=places[..., 0]), one(zeros, at=places[..., 1])), dim=-1)


def test_the_whole_grid_is_row_by_row() -> None:
    places = torch.tensor([[r, c] for r in range(3) for c in range(4)])
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    torch.testing.assert_close(Grid(8, rows=3, columns=4)(x), x + halves(places, 8), rtol=0, atol=1e-12)


def test_an_image_may_be_flattened_or_not_at_all_square() -> None:
    image = torch.zeros(2, 5, 2, 6)
    field = Grid(6, rows=5, columns=2)(image.flatten(1, 2)).unflatten(1, (5, 2))
    assert field[0, 3, :, :3].equal(field[0, 3, :1, :3].expand(2, 3)), "the first half knows only the row"
    assert field[0, :, 1, 3:].equal(field[0, :1, 1, 3:].expand(5, 3)), "the second half knows only the column"
    assert len(field[0].flatten(0, 1).unique(dim=0)) == 10, "every cell has its own code"


def test_parts_of_the_grid_equal_the_whole() -> None:
    grid = Grid(8, rows=3, columns=4)
    x = torch.randn(2, 12, 8)
    some = torch.tensor([7, 0, 11])
    places = torch.stack((some // 4, some % 4), dim=-1)
    assert grid(x[:, some], at=places).equal(grid(x)[:, some])


def test_places_of_every_row_of_the_batch() -> None:
    grid = Grid(8, rows=3, columns=4)
    at = torch.tensor([[[0, 1], [2, 3]], [[1.5, 0], [2, 2.25]]])
    x = torch.randn(2, 2, 8, dtype=torch.float64)
    torch.testing.assert_close(grid(x, at=at), x + halves(at, 8), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_of_the_input_stays(dtype: torch.dtype) -> None:
    got = Grid(8, rows=2, columns=2).to(dtype)(torch.zeros(4, 8, dtype=dtype))
    assert got.dtype == dtype
    assert got.equal(Grid(8, rows=2, columns=2)(torch.zeros(4, 8, dtype=torch.float64)).to(dtype))


def test_bad_inputs() -> None:
    grid = Grid(8, rows=3, columns=4)
    with pytest.raises(InputError, match=r"expected: time 12 = 3 rows x 4 columns\n  got: time 11"):
        grid(torch.zeros(11, 8))
    with pytest.raises(InputError, match=r"a grid has no single start(.|\n)*got: at=3"):
        grid(torch.zeros(12, 8), at=3)
    with pytest.raises(
        InputError, match=r"rows 0 to 2 and columns 0 to 3\n  got: rows 0 to 3 and columns 1 to 1\n  try: .*at.flip"
    ):
        grid(torch.zeros(2, 8), at=torch.tensor([[3, 1], [0, 1]]))
    with pytest.raises(InputError, match="outside the grid"):
        grid(torch.zeros(1, 8), at=torch.tensor([[float("nan"), 1]]))
    with pytest.raises(InputError, match=r"expected: \[\*batch, time, 2\], here \(2, 2\)"):
        grid(torch.zeros(2, 8), at=torch.tensor([0, 1]))
    with pytest.raises(InputTypeError, match="at cannot be read as positions"):
        grid(torch.zeros(2, 8), at=[[0, 1], [0, 2]])
    with pytest.raises(InputError, match=r"a grid needs an even width(.|\n)*try: width=8"):
        Grid(7, rows=3, columns=4)
