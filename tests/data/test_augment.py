"""Batched augmentation against a plain loop, one draw per clip, reproducible."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad

from steadyspike.data.augment import Augment, apply_crop_and_flip, crop_and_flip, normalise
from steadyspike.data.errors import DataError


@pytest.mark.parametrize("shape", [(7, 3, 9, 6), (4, 5, 2, 8, 8)], ids=["images", "clips"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int32])
def test_equal_to_cropping_and_flipping_one_by_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.rand(shape) * 200).to(dtype)
    height, width = shape[-2:]
    offset = torch.randint(0, 7, (shape[0], 2))
    mirrored = torch.rand(shape[0]) < 0.5
    out = apply_crop_and_flip(x, 3, offset, mirrored)
    for i in range(shape[0]):
        top, left = offset[i].tolist()
        expected = pad(x[i], (3, 3, 3, 3))[..., top : top + height, left : left + width]
        torch.testing.assert_close(out[i], expected.flip(-1) if mirrored[i] else expected, rtol=0, atol=0)


def test_all_frames_of_a_clip_share_one_draw() -> None:
    frame = torch.rand(16, 1, 2, 12, 12)
    out = crop_and_flip(frame.expand(-1, 5, -1, -1, -1), 4, True, torch.Generator().manual_seed(0))
    assert (out == out[:, :1]).all()
    assert not torch.equal(out[:, :1], frame)


def test_draws_are_uniform_and_from_the_generator_only() -> None:
    x = torch.zeros(4000, 1, 3, 3)
    x[:, :, 1, 1] = 1
    state = torch.get_rng_state()
    out = crop_and_flip(x, 1, False, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    places = out.flatten(1).argmax(1).bincount(minlength=9)
    assert places.min() > 4000 / 9 * 0.8
    again = crop_and_flip(x, 1, False, torch.Generator().manual_seed(1))
    assert torch.equal(out, again)


def test_flip_happens_half_the_time() -> None:
    x = torch.tensor([0.0, 1.0]).expand(2000, 1, 1, 2)
    out = crop_and_flip(x, 0, True, torch.Generator().manual_seed(0))
    assert 0.45 < out[:, 0, 0, 0].mean() < 0.55


def test_normalise() -> None:
    x = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = (x.double() / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(normalise(x, mean, std).double(), expected, rtol=1e-5, atol=1e-6)


def test_no_augmentation_draws_nothing() -> None:
    x = torch.rand(2, 1, 4, 4)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert Augment()(x, generator) is x
    assert torch.equal(generator.get_state(), before)


def test_crops_of_another_side_are_parts_of_the_padded_image() -> None:
    x = torch.arange(2 * 6 * 9, dtype=torch.int32).view(2, 1, 6, 9) + 1
    out = Augment(padding=1, crop=4)(x, torch.Generator().manual_seed(0))
    assert out.shape == (2, 1, 4, 4)
    for image, crop in zip(pad(x, (1, 1, 1, 1)), out):
        parts = image.unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 4, 4)
        assert any(torch.equal(part, crop[0]) for part in parts)
    everywhere = Augment(crop=4)(x[:1].expand(4000, -1, -1, -1), torch.Generator().manual_seed(0))
    assert everywhere[:, 0, 0, 0].unique().numel() == 3 * 6  # every row and column at which a crop of 4 may begin


def test_a_crop_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(DataError, match="crop = 9 is larger than the padded images"):
        Augment(crop=9)(torch.zeros(1, 1, 8, 8), torch.Generator())
    with pytest.raises(DataError, match="crop must be a whole number"):
        Augment(crop=1.5)  # type: ignore[arg-type]
