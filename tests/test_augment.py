"""Augmentation against plain slicing, torch.rot90, SciPy and Pillow; one draw per image, from the generator."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy import ndimage
from torch.nn import functional as F
from torch.testing import assert_close

from ibinn.data.augment import (
    PAPER_AUGMENTATION,
    Augmentation,
    adjust_colours,
    augment,
    cover,
    mirror,
    move_window,
    rotate,
)

SHAPES = {
    "CIFAR": (8, 3, 32, 32),
    "grey": (5, 1, 28, 28),
    "not square": (4, 3, 12, 20),
    "one image": (1, 3, 8, 8),
    "no image": (0, 3, 8, 8),
}
PARTS = {
    "nothing": Augmentation(),
    "flip": Augmentation(flip=True),
    "crop": Augmentation(crop=2),
    "rotation": Augmentation(rotation=12.0),
    "jitter": Augmentation(jitter=(0.1, 0.1, 0.05)),
    "cutout": Augmentation(cutout=3),
    "paper": PAPER_AUGMENTATION,
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def still(n):
    return torch.zeros(n, 2, dtype=torch.long)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shape_dtype_and_range_are_kept_and_the_input_untouched(shape, settings, dtype):
    x = torch.rand(shape, dtype=dtype) * 255 / 256
    before = x.clone()
    out = augment(x, seeded(), settings, high=255 / 256)
    assert out.shape == x.shape
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert ((out >= 0) & (out <= 255 / 256 + 1e-6)).all()
    assert torch.equal(x, before)


@pytest.mark.parametrize("settings", [s for s in PARTS.values() if s != Augmentation()])
def test_the_same_seed_gives_the_same_batch_and_another_seed_another(settings):
    x = torch.rand(16, 3, 8, 8)
    first = augment(x, seeded(1), settings)
    torch.rand(3)  # torch's own generator has no say
    assert torch.equal(first, augment(x, seeded(1), settings))
    assert not torch.equal(first, augment(x, seeded(2), settings))


def test_draws_do_not_depend_on_the_precision():
    x = torch.rand(16, 3, 8, 8)
    double, single = (
        augment(x, seeded(), PAPER_AUGMENTATION),
        augment(x.float(), seeded(), PAPER_AUGMENTATION),
    )
    assert_close(single.double(), double, atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", PARTS.values(), ids=PARTS)
def test_a_generator_goes_on_and_torchs_own_is_left_alone(settings):
    x, generator = torch.rand(16, 3, 8, 8), seeded()
    state = torch.get_rng_state()
    first, second = (augment(x, generator, settings) for _ in range(2))
    assert torch.equal(first, second) == (settings == Augmentation())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("settings", [s for s in PARTS.values() if s != Augmentation()])
def test_every_image_has_its_own_draw(settings):
    same = torch.rand(1, 3, 8, 8).expand(40, -1, -1, -1)
    kinds = len(augment(same, seeded(), settings).flatten(1).unique(dim=0))
    assert kinds == {Augmentation(flip=True): 2}.get(settings, kinds)
    assert kinds > 1


def test_nothing_is_the_identity():
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(augment(x, seeded(), Augmentation()), x)
    assert torch.equal(augment(x, seeded(), Augmentation(crop=0, rotation=0.0, jitter=(0.0, 0.0, 0.0))), x)


def test_mirroring_twice_is_the_identity():
    x, chosen = torch.rand(6, 3, 5, 7), torch.tensor([1, 0, 1, 1, 0, 0]).bool()
    once = mirror(x, chosen)
    assert torch.equal(mirror(once, chosen), x)
    assert torch.equal(once[0], torch.from_numpy(np.fliplr(x[0].movedim(0, 2)).copy()).movedim(2, 0))
    assert torch.equal(once[1], x[1])


def test_about_half_are_mirrored():
    x = torch.arange(2.0).expand(10_000, 1, 1, 2)
    share = float(augment(x, seeded(), Augmentation(flip=True))[:, 0, 0, 0].mean())
    assert share == pytest.approx(0.5, abs=4 * 0.5 / 100)


@given(dy=st.integers(-3, 3), dx=st.integers(-3, 3))
def test_a_moved_window_is_padding_and_slicing(dy, dx):
    x = torch.rand(2, 3, 6, 9)
    padded = F.pad(x, (3, 3, 3, 3), mode="replicate")
    moved = move_window(x, torch.tensor([[dy, dx], [0, 0]]))
    assert torch.equal(moved[0], padded[0, :, 3 + dy : 9 + dy, 3 + dx : 12 + dx])
    assert torch.equal(moved[1], x[1])


def test_all_windows_of_36_x_36_are_equally_likely():
    """Where a single bright pixel in the middle ends up: 5 x 5 places, chi-square of 24 degrees of freedom."""
    x = torch.zeros(20_000, 1, 7, 7)
    x[:, :, 3, 3] = 1
    counts = augment(x, seeded(), Augmentation(crop=2)).sum((0, 1))
    inside = counts[1:6, 1:6]
    assert inside.sum() == 20_000
    assert float(((inside - 800) ** 2 / 800).sum()) < 52  # P = 0.001


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("side", [7, 8])
def test_quarter_turns_agree_with_rot90(turns, side):
    x = torch.rand(2, 3, side, side)
    turned = rotate(x, torch.full((2,), 90.0 * turns), still(2))
    assert_close(turned, torch.rot90(x, turns, (2, 3)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(9, 9), (8, 14)])
@pytest.mark.parametrize("degrees", [-12.0, 3.0, 40.0])
def test_rotation_agrees_with_scipy(size, degrees):
    """SciPy samples out[p] = x[c + M (p - c)] too; with M = [[cos, sin], [-sin, cos]] in (row, column)."""
    x, angle = torch.rand(1, 1, *size), math.radians(degrees)
    matrix = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    centre = (np.array(size) - 1) / 2
    offset = centre - matrix @ centre
    expected = ndimage.affine_transform(x[0, 0].numpy(), matrix, offset, order=1, mode="nearest")
    turned = rotate(x, torch.tensor([degrees]), still(1))
    assert_close(turned[0, 0], torch.from_numpy(expected), atol=1e-10, rtol=0)


def test_rotation_by_0_is_the_identity():
    x = torch.rand(2, 3, 6, 9)
    assert_close(rotate(x, torch.zeros(2), still(2)), x, atol=1e-12, rtol=0)


def test_rotation_and_window_in_one_step_equal_padding_rotating_and_slicing():
    x, degrees, shift = torch.rand(3, 3, 10, 13), torch.tensor([5.0, -12.0, 0.0]), torch.tensor([2, -1])
    padded = rotate(F.pad(x, (2, 2, 2, 2), mode="replicate"), degrees, still(3))
    expected = padded[:, :, 4:14, 1:14]
    assert_close(rotate(x, degrees, shift.expand(3, 2)), expected, atol=1e-10, rtol=0)


def test_angles_are_uniform_up_to_the_limit():
    """A horizontal ramp, turned, rises along its middle column by the sine of the angle."""
    ramp = torch.arange(-10.0, 11.0).expand(4000, 1, 21, 21)
    row = augment(ramp, seeded(), Augmentation(rotation=12.0))[
        :, 0, :, 10
    ]  # x[i, 10] = -sin(angle) (i - 10)
    degrees = torch.asin((row[:, 5] - row[:, 15]) / 10).rad2deg()
    assert 11.8 < degrees.max() <= 12
    assert -12 <= degrees.min() < -11.8
    assert float(degrees.mean()) == pytest.approx(0, abs=4 * 12 / math.sqrt(3 * 4000))
    assert float(degrees.std()) == pytest.approx(12 / math.sqrt(3), rel=0.03)


@pytest.mark.parametrize("enhance", [0, 1, 2], ids=["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.1, 1.6])
def test_colours_agree_with_pillow(enhance, factor):
    levels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[enhance]
    expected = torch.from_numpy(np.asarray(kind(Image.fromarray(levels)).enhance(factor)) / 255)
    factors = torch.ones(3, 1)
    factors[enhance] = factor
    x = torch.from_numpy(levels / 255).movedim(2, 0)[None]
    assert_close(adjust_colours(x, factors)[0].movedim(0, 2), expected, atol=1.5 / 255, rtol=0)


def test_an_image_does_not_depend_on_its_neighbours():
    x, factors, degrees = torch.rand(4, 3, 6, 6), 0.5 + torch.rand(3, 4), 90 * torch.rand(4)
    together = rotate(adjust_colours(x, factors), degrees, still(4))
    for i in range(4):
        alone = rotate(adjust_colours(x[i : i + 1], factors[:, i : i + 1]), degrees[i : i + 1], still(1))
        assert_close(together[i], alone[0])


def test_factors_of_1_change_nothing():
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(adjust_colours(x, torch.ones(3, 2)), x)


def test_grey_stays_grey():
    grey = torch.rand(16, 1, 8, 8)
    jittered = augment(grey.expand(-1, 3, -1, -1), seeded(), Augmentation(jitter=(0.3, 0.3, 0.3)))
    assert_close(jittered, jittered[:, :1].expand_as(jittered), atol=1e-12, rtol=0)
    assert_close(augment(grey, seeded(), Augmentation(jitter=(0.3, 0.3, 0.3))), jittered[:, :1])


@pytest.mark.parametrize("part", [0, 1, 2], ids=["brightness", "contrast", "saturation"])
def test_factors_are_uniform_up_to_their_limit(part):
    """Each of the three multiplies the difference of two channels by its factor; here nothing is clipped."""
    x = torch.tensor([0.5, 0.6, 0.5]).view(1, 3, 1, 1).expand(4000, -1, 2, 2)
    out = augment(x, seeded(), Augmentation(jitter=tuple(0.2 * (i == part) for i in range(3))))
    factor = (out[:, 1, 0, 0] - out[:, 0, 0, 0]) / 0.1
    assert 0.8 <= factor.min() + 1e-9 < 0.803
    assert 1.197 < factor.max() - 1e-9 <= 1.2
    assert float(factor.mean()) == pytest.approx(1, abs=4 * 0.2 / math.sqrt(3 * 4000))


def test_jitter_clips_to_the_range_given():
    x = torch.tensor([0.0, 10.0, 250.0, 255.0]).view(1, 1, 2, 2).expand(64, -1, -1, -1)
    out = augment(x, seeded(), Augmentation(jitter=(0.5, 0.5, 0.0)), high=255.0)
    assert out.min() == 0
    assert out.max() == 255


def test_a_step_gives_levels_again():
    levels = torch.randint(0, 256, (8, 3, 16, 16)).double()
    out = augment(levels / 256, seeded(), PAPER_AUGMENTATION, high=255 / 256, step=1 / 256) * 256
    assert torch.equal(out, out.round())
    assert 0 <= out.min() <= out.max() <= 255
    unrounded = augment(levels / 256, seeded(), PAPER_AUGMENTATION, high=255 / 256) * 256
    assert_close(out, unrounded, atol=0.5 + 1e-9, rtol=0)


def test_the_papers_settings():
    """A 32 x 32 crop within 36 x 36 is 2 pixels each way."""
    assert Augmentation(True, 2, 12.0, (0.1, 0.1, 0.05)) == PAPER_AUGMENTATION


x = torch.zeros(2, 3, 8, 8)
MISTAKES = {
    "levels": (lambda: augment(x.byte(), seeded(), Augmentation()), "torch.uint8 .* pixel units first"),
    "no batch": (lambda: augment(x[0], seeded(), Augmentation()), r"shape \(3, 8, 8\)"),
    "two channels": (lambda: augment(x[:, :2], seeded(), Augmentation(jitter=(0.1, 0, 0))), "2 channels"),
    "negative crop": (lambda: augment(x, seeded(), Augmentation(crop=-1)), "crop is -1"),
    "half a pixel": (lambda: augment(x, seeded(), Augmentation(crop=0.5)), "crop is 0.5 .* whole number"),
    "crop wider than the image": (
        lambda: augment(x, seeded(), Augmentation(crop=8)),
        "8 x 8 .* smaller crop",
    ),
    "negative rotation": (lambda: augment(x, seeded(), Augmentation(rotation=-1.0)), "rotation is -1.0"),
    "NaN rotation": (lambda: augment(x, seeded(), Augmentation(rotation=math.nan)), "rotation is nan"),
    "jitter above 1": (lambda: Augmentation(jitter=(0.1, 1.5, 0.0)), "three numbers from 0 to 1"),
    "two jitters": (lambda: Augmentation(jitter=(0.1, 0.1)), "three numbers"),
}


@pytest.mark.parametrize(("act", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_clear_sentence(act, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        act()
    assert "\n" not in str(error.value)


@given(st.integers(0, 1000), st.integers(1, 9))
def test_cutout_is_a_square_in_the_mean_colour(seed, side):
    x = torch.rand(4, 3, 7, 9, generator=seeded(seed))
    place = 2 * torch.rand(4, 2, generator=seeded(seed + 1)) - 1
    covered = cover(x, place, side)
    for image, found, (down, right) in zip(x, covered, place.tolist(), strict=True):
        expected = image.clone()
        row, column = int((down + 1) / 2 * 7), int((right + 1) / 2 * 9)
        for i in range(row - side // 2, row - side // 2 + side):
            for j in range(column - side // 2, column - side // 2 + side):
                if 0 <= i < 7 and 0 <= j < 9:
                    expected[:, i, j] = image.mean((1, 2))
        assert_close(found, expected)
