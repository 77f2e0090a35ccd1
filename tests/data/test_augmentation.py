"""Augmentation against Pillow, against the published definitions, and against itself with the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyspike.data.augment import Augment
from steadyspike.data.augmentation import affine_maps, colour
from steadyspike.data.augmentation.erase import random_erase
from steadyspike.data.augmentation.event_clips import OPERATIONS as EVENT_OPERATIONS
from steadyspike.data.augmentation.event_clips import one_of_six
from steadyspike.data.augmentation.mix import Mixing, beta, box
from steadyspike.data.augmentation.rand_augment import OPERATIONS, Draw, RandAugment
from steadyspike.data.errors import DataError
from steadyspike.data.regularise import Regularise
from steadyspike.data.sampler import TrainPlan

PIL = pytest.importorskip("PIL", reason="Pillow is not installed")
from PIL import Image, ImageEnhance, ImageOps  # noqa: E402


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(batch: int = 4, side: int = 32) -> Tensor:
    """Smooth images with some noise, uint8 [B, 3, H, W]."""
    coarse = torch.rand(batch, 3, 5, 5, generator=generator(1))
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side + 4), mode="bicubic") * 200 + 20
    return (smooth + 10 * torch.rand(smooth.shape, generator=generator(2))).clamp(0, 255).to(torch.uint8)


def with_pillow(x: Tensor, apply) -> Tensor:
    done = [apply(Image.fromarray(image.permute(1, 2, 0).numpy()), i) for i, image in enumerate(x)]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in done])


FACTORS = torch.tensor([0.1, 0.55, 1.0, 1.9])


@pytest.mark.parametrize(
    ("ours", "pillow"),
    [
        (lambda x: colour.colour(x, FACTORS), lambda p, i: ImageEnhance.Color(p).enhance(float(FACTORS[i]))),
        (lambda x: colour.contrast(x, FACTORS), lambda p, i: ImageEnhance.Contrast(p).enhance(float(FACTORS[i]))),
        (lambda x: colour.brightness(x, FACTORS), lambda p, i: ImageEnhance.Brightness(p).enhance(float(FACTORS[i]))),
        (lambda x: colour.sharpness(x, FACTORS), lambda p, i: ImageEnhance.Sharpness(p).enhance(float(FACTORS[i]))),
        (lambda x: colour.invert(x), lambda p, i: ImageOps.invert(p)),
        (
            lambda x: colour.posterize(x, torch.tensor([1, 2, 4, 8])),
            lambda p, i: ImageOps.posterize(p, (1, 2, 4, 8)[i]),
        ),
        (lambda x: colour.solarize(x, 60 * torch.arange(4)), lambda p, i: ImageOps.solarize(p, 60 * i)),
        (lambda x: colour.auto_contrast(x), lambda p, i: ImageOps.autocontrast(p)),
        (lambda x: colour.equalize(x), lambda p, i: ImageOps.equalize(p)),
    ],
    ids=[
        "colour",
        "contrast",
        "brightness",
        "sharpness",
        "invert",
        "posterize",
        "solarize",
        "autocontrast",
        "equalize",
    ],
)
def test_colour_operations_are_pillows(ours, pillow) -> None:
    x = photos()
    expected = with_pillow(x, pillow).int()
    # A product that is a whole number may be cut off on either side of it.
    assert (ours(x).int() - expected).abs().max() <= 1
    assert (ours(x).int() != expected).float().mean() < 0.02


@pytest.mark.parametrize("interpolation", affine_maps.INTERPOLATIONS)
@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_geometry_is_pillows(name: str, interpolation: str) -> None:
    x, values = photos(), torch.tensor([0.3, -0.2, 0.1, 0.0])
    values = values * (100 if name == "rotate" else 33.3 if name.startswith("translate") else 1)
    fill, resample = (125, 123, 114), getattr(Image, interpolation.upper())
    moved = getattr(affine_maps, name)(x, values, fill, interpolation)

    def pillow(image, i: int):
        v = float(values[i])
        if name == "rotate":
            return image.rotate(v, resample=resample, fillcolor=fill)
        rows = {
            "shear_x": (1, v, 0, 0, 1, 0), "shear_y": (1, 0, 0, v, 1, 0),
            "translate_x": (1, 0, v, 0, 1, 0), "translate_y": (1, 0, 0, 0, 1, v),
        }  # fmt: skip
        return image.transform(image.size, Image.AFFINE, rows[name], resample=resample, fillcolor=fill)

    difference = (moved.int() - with_pillow(x, pillow).int()).abs().float()
    # Places that are whole numbers may fall on either side of one.
    assert (difference > 0).float().mean() < 0.04 and (difference > 1).float().mean() < 0.002
    assert torch.equal(moved[3], x[3])


def test_a_clip_is_moved_as_its_frames() -> None:
    clips = torch.rand(3, 4, 2, 9, 7, generator=generator(1))
    values = torch.tensor([0.3, -0.2, 0.1])
    moved = affine_maps.shear_x(clips, values, (1.0, 2.0))
    frames = affine_maps.shear_x(clips.flatten(0, 1), values.repeat_interleave(4), (1.0, 2.0))
    assert torch.equal(moved, frames.view_as(moved))
    with pytest.raises(DataError, match="interpolation must be nearest, bilinear, bicubic"):
        affine_maps.shear_x(clips, values, 0.0, "cubic")


def test_rand_augment_text() -> None:
    assert RandAugment.parse("rand-m9-n1-mstd0.4-inc1") == RandAugment(9.0, 1, 0.4)
    assert RandAugment.parse("rand-m7-mstd0.5-inc1") == RandAugment(7.0, 2, 0.5)
    for wrong in ("rand-n1-inc1", "rand-m9", "rand-m12-inc1", "augmix-m3", ""):
        with pytest.raises(DataError, match="is not a RandAugment"):
            RandAugment.parse(wrong)
    with pytest.raises(DataError, match="uint8 images"):
        RandAugment()(torch.rand(2, 3, 4, 4), generator())


def test_rand_augment_draws_from_some_operations_and_fills_with_a_colour() -> None:
    """Spikformer's code for CIFAR draws from five operations; timm leaves the data set's mean behind an image."""
    x = photos(1).expand(300, -1, -1, -1)
    five = ["equalize", "rotate", "shear_x", "translate_x", "translate_y"]
    chosen = Augment(rand="rand-m9-n1-mstd0.0-inc1", operations=five, interpolation="bicubic")
    y = chosen(x, generator(), (1.0, 2.0, 3.0))
    actual = torch.unique(y[~(y == x).flatten(1).all(1)].flatten(1), dim=0).view(-1, *x.shape[1:])
    assert len(actual) == 1 + 2 * 4
    filled = (actual == torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None]).all(1).flatten(1).sum(1)
    assert (filled > 10).sum() == 8
    assert chosen.as_dict()["operations"] == five and "operations" not in Augment(flip=True).as_dict()
    with pytest.raises(DataError, match="no operation 'roll'; it has auto_contrast"):
        Augment(rand="rand-m9-inc1", operations=("roll",))
    with pytest.raises(DataError, match="interpolation of RandAugment must be"):
        Augment(rand="rand-m9-inc1", interpolation="cubic")
    with pytest.raises(DataError, match="settings of RandAugment"):
        Augment(operations=("rotate",))


def test_rand_augment_draws_all_operations_at_their_strength() -> None:
    x = photos(1).expand(600, -1, -1, -1)
    y = RandAugment(9.0, 1, 0.0)(x, generator())
    same = (y == x).flatten(1).all(1)
    # Left out with 1/2; posterize to 4 - 3 = 1 bit, and so on, do change this image.
    assert 0.4 < same.float().mean() < 0.6
    assert len(torch.unique(y[~same].flatten(1), dim=0)) == 15 + 4 + 5  # 9 of them go both ways
    assert len(OPERATIONS) == 15
    assert torch.equal(y, RandAugment(9.0, 1, 0.0)(x, generator())) and not torch.equal(
        y, RandAugment(9.0, 1, 0.0)(x, generator(1))
    )


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in ("auto_contrast", "equalize", "invert")])
def test_more_strength_changes_more(name: str) -> None:
    x, sign = photos(1), torch.ones(1)
    draws = [Draw(torch.tensor([s]), sign) for s in (0.3, 1.0)]
    changes = [(OPERATIONS[name](x, draw).float() - x.float()).abs().mean() for draw in draws]
    assert changes[0] < changes[1]


def test_events_get_one_operation_per_clip_the_same_for_all_frames() -> None:
    frame = (torch.rand(1, 1, 2, 24, 24, generator=generator(3)) < 0.2).float()
    clips = frame.expand(300, 3, -1, -1, -1)
    out = one_of_six(clips, generator())
    assert torch.equal(out[:, 0], out[:, 1]) and torch.equal(out[:, 0], out[:, 2])
    same = (out == clips).flatten(1).all(1).float().mean()
    # One in six is the identity, and so are 5 and 1 of the 31 strengths of two shifts and of shear and rotation.
    assert abs(same - (1 + 2 * 5 / 31 + 2 / 31) / len(EVENT_OPERATIONS)) < 0.08
    assert set(out.unique().tolist()) == {0.0, 1.0}  # whole pixels move
    cut = Augment(flip=True, clip="one-of-six")(clips.contiguous(), generator())
    assert cut.shape == clips.shape and cut.min() >= 0
    with pytest.raises(DataError, match="one-of-six"):
        Augment(clip="two-of-six")


def test_the_three_operations_of_spikingresformer() -> None:
    """Roll of a third, rotation of 30 degrees, cutout of a third: one per clip, each as often."""
    frame = 1 + torch.arange(24.0 * 24).view(1, 1, 1, 24, 24)
    clips = frame.expand(300, 2, 3, -1, -1)
    out = Augment(clip="one-of-three")(clips, generator())
    assert torch.equal(out[:, 0], out[:, 1]) and torch.equal(out[:, :, 0], out[:, :, 2])
    rolled = torch.tensor([torch.equal(c[0, 0].flatten().sort().values, frame.flatten()) for c in out])
    cut = torch.tensor([torch.equal(c[0, 0], frame[0, 0, 0] * (c[0, 0] > 0)) and (c == 0).any() for c in out])
    assert not (rolled & cut).any() and all(abs(share.float().mean() - 1 / 3) < 0.1 for share in (rolled, cut))
    holes = (out[cut][:, 0, 0] == 0).flatten(1).sum(1)
    assert holes.max() == 8 * 8 and holes.min() < 40  # 2 * (8 // 2) on each side, less at the border
    first = out[rolled][:, 0, 0, 0, 0] - 1  # the element that came to the corner
    down, right = (first // 24 + 12) % 24 - 12, (first % 24 + 12) % 24 - 12
    assert down.abs().max() == 8 and right.abs().max() == 8


def test_erasing_within_its_limits() -> None:
    x = torch.ones(400, 3, 40, 30)
    y = random_erase(x, 0.25, "const", generator())
    gone = (y == 0).all(1)
    hit = gone.flatten(1).any(1)
    assert abs(hit.float().mean() - 0.25) < 0.06
    share = gone[hit].float().mean((1, 2))
    assert share.min() > 0.015 and share.max() < 0.36 and share.std() > 0.05
    rows, columns = gone[hit].any(2).sum(1), gone[hit].any(1).sum(1)
    assert torch.equal(rows * columns, gone[hit].sum((1, 2)))  # a rectangle
    ratio = rows / columns
    assert ratio.min() > 0.27 and ratio.max() < 3.7
    noise = random_erase(x, 1.0, "pixel", generator())
    assert abs(noise[noise != 1].std() - 1) < 0.05


def test_mixup_is_the_batch_and_its_reverse() -> None:
    x, y = torch.rand(6, 3, 8, 8), torch.arange(6) % 4
    mixed, target = Mixing(mixup=0.8)(x, y, 5, generator())
    share = target[0, 0].item()
    assert 0 < share < 1
    torch.testing.assert_close(mixed, share * x + (1 - share) * x.flip(0))
    torch.testing.assert_close(target.sum(1), torch.ones(6))
    assert target[1].tolist() == pytest.approx([share * (c == 1) + (1 - share) * (c == 0) for c in range(5)])
    clip = torch.rand(3, 6, 2, 8, 8)
    moved, _ = Mixing(mixup=0.8)(clip, y, 5, generator(), batch_dim=1)
    torch.testing.assert_close(moved, share * clip + (1 - share) * clip.flip(1))


def test_cutmix_labels_are_the_share_of_the_area() -> None:
    x = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 20, 30)
    for seed in range(20):
        mixed, target = Mixing(cutmix=1.0)(x, torch.arange(4), 4, generator(seed))
        for i in range(4):
            assert target[i, 3 - i].item() == pytest.approx((mixed[i] == 3 - i).float().mean().item(), abs=1e-6)
    assert box(20, 30, 0.75, 0.5, 0.5) == (5, 15, 8, 22)


def test_how_often_and_until_when_is_mixed() -> None:
    x, y = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])
    both = Mixing(mixup=0.5, cutmix=1.0, prob=0.6, switch=0.5, until=3)
    assert both.active(2) and not both.active(3) and not Mixing().active(0)
    kinds = [both(x, y, 2, generator(seed)) for seed in range(300)]
    unmixed = sum(torch.equal(m, x) and t[0, 0] == 1 for m, t in kinds)
    cut = sum(bool(((m == x) | (m == x.flip(0))).all()) and not torch.equal(m, x) for m, _ in kinds)
    assert abs(unmixed / 300 - 0.4) < 0.1  # a box may be empty, too
    assert 0.15 < cut / 300 < 0.4
    with pytest.raises(DataError, match="prob and switch"):
        Mixing(prob=2.0)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_beta_has_its_moments(alpha: float) -> None:
    g = generator()
    draws = torch.tensor([beta(alpha, g) for _ in range(4000)])
    assert abs(draws.mean() - 0.5) < 0.03
    assert abs(draws.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


def test_repeated_augmentation_shares_copies_between_processes() -> None:
    plans = [TrainPlan(30, 5, seed=1, rank=rank, world_size=3, repeats=3) for rank in range(3)]
    orders = [plan.order(0) for plan in plans]
    assert all(len(order) == 10 for order in orders)
    assert torch.equal(orders[0], orders[1]) and len(set(orders[0].tolist())) == 10
    alone = TrainPlan(30, 5, seed=1, repeats=3).order(0)
    assert len(alone) == 30 and alone.bincount(minlength=30).max() == 3
    assert torch.equal(TrainPlan(30, 5, seed=1).order(0), torch.randperm(30, generator=_order(1)))


def _order(seed: int) -> torch.Generator:
    from steadyspike.data.seeds import generator as seeded

    return seeded(1, seed, 0)


def test_regularise_is_checked() -> None:
    with pytest.raises(DataError, match="erase_mode one of const, pixel"):
        Regularise(erase=0.1, erase_mode="rand")
    assert math.isclose(Regularise().erase, 0.0)


def test_a_loader_mixes_and_goes_on_where_it_was() -> None:
    from steadyspike.data import load

    bundle = load("digits")
    regularise = Regularise(erase=0.5, mixing=Mixing(mixup=0.5, until=1))
    first, again = (bundle.train_loader(32, seed=3, repeats=2, regularise=regularise) for _ in range(2))
    batches = list(first.batches(0))
    target = batches[0][1]
    assert target.shape == (32, 10) and target.sum(1).allclose(torch.ones(32))
    for (a, b), (c, d) in zip(batches[2:4], again.batches(0, start=2)):
        assert torch.equal(a, c) and torch.equal(b, d)
    assert next(iter(first.batches(1)))[1].ndim == 1
    assert first.state_dict()["repeats"] == 2
    plain = bundle.train_loader(32, seed=3)
    with pytest.raises(DataError, match="cannot resume the loader"):
        first.load_state_dict(plain.state_dict())
    events = load("digits-events")
    with pytest.raises(DataError, match="erase is for still images"):
        events.train_loader(8, regularise=regularise)
    clip, shares = next(iter(events.train_loader(8, regularise=Regularise(mixing=Mixing(mixup=0.5)))))
    assert clip.shape[1] == 8 and shares.shape == (8, 10)
