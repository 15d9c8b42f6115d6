import numpy as np
import pytest

from jaxleak.data import assemble_columns, assemble_tiles, feature_columns, image_tiles


def _images(height, width, channels=3, n=2):
    return np.random.default_rng(0).random((n, height, width, channels)).astype(np.float32)


def test_four_tiles_are_the_quadrants_in_reading_order():
    x = _images(6, 8)
    tiles, layout = image_tiles(x, 4)
    assert tiles.shape == (2, 4, 3, 4, 3)
    for party, quadrant in enumerate([x[:, :3, :4], x[:, :3, 4:], x[:, 3:, :4], x[:, 3:, 4:]]):
        np.testing.assert_array_equal(tiles[:, party], quadrant)
    assert layout == ((2, 2), 6, 8, 6, 8, "")


def test_two_parties_get_the_halves():
    x = _images(5, 8)
    tiles, layout = image_tiles(x, 2)
    np.testing.assert_array_equal(tiles[:, 0], x[:, :, :4])
    np.testing.assert_array_equal(tiles[:, 1], x[:, :, 4:])
    assert layout.grid == (1, 2)


@pytest.mark.parametrize("parties", [1, 2, 4, 9, 16])
@pytest.mark.parametrize("size", [(25, 25), (32, 32), (8, 13)])
def test_assembling_undoes_tiling(parties, size):
    x = _images(*size)
    tiles, layout = image_tiles(x, parties)
    assert tiles.dtype == np.float32
    assert tiles.shape[1] == parties
    np.testing.assert_array_equal(assemble_tiles(tiles, layout), x)


def test_padding_is_zero_at_the_bottom_and_right_and_noted():
    x = _images(25, 25, 1) + 1
    tiles, layout = image_tiles(x, 4)
    assert tiles.shape == (2, 4, 13, 13, 1)
    assert layout[1:5] == (25, 25, 26, 26)
    assert layout.note == "25x25 images zero-padded at the bottom and right to 26x26"
    assert (tiles[:, 0] > 0).all()
    assert (tiles[:, 3, 12] == 0).all()
    assert (tiles[:, 3, :, 12] == 0).all()
    assert (tiles[:, 3, :12, :12] > 0).all()


def test_tile_sides_are_multiples_on_request():
    tiles, layout = image_tiles(_images(25, 25), 4, multiple=2)
    assert tiles.shape[2:4] == (14, 14)
    assert layout.padded_height == 28
    # A party may have only a single row or column of pixels.
    assert image_tiles(_images(7, 8), 16)[1].note == "7x8 images zero-padded at the bottom and right to 8x8"
    assert image_tiles(_images(8, 7), 16)[1].note == "8x7 images zero-padded at the bottom and right to 8x8"
    assert image_tiles(_images(32, 32), 4, multiple=2)[1].note == ""


def test_pad_false_refuses_to_pad_and_names_the_sizes():
    with pytest.raises(ValueError, match=r"pad=False, but 25x25 images .* 2x2 grid .* 26x26 would"):
        image_tiles(_images(25, 25), 4, pad=False)
    assert image_tiles(_images(4, 4), 4, pad=False)[1].note == ""
    assert image_tiles(_images(2, 2), 4, pad=False)[0].shape[1:4] == (4, 1, 1)


@pytest.mark.parametrize(
    ("size", "parties", "message"),
    [
        ((8, 8), 3, "parties must be 2 or a square number"),
        ((8, 8), 0, "parties must be > 0"),
        ((3, 8), 16, "parties must be few enough for 3x8 images, got a 4x4 grid"),
        ((8, 3), 16, "parties must be few enough for 8x3 images, got a 4x4 grid"),
        ((5, 5), 16, "leave a party nothing but padding"),
        # Three tiles of two pixels cover all six rows, or all six columns.
        ((6, 8), 16, "6x8 images in a 4x4 grid of 2x2 tiles leave a party nothing but padding"),
        ((8, 6), 16, "8x6 images in a 4x4 grid of 2x2 tiles leave a party nothing but padding"),
    ],
)
def test_images_that_parties_cannot_tile(size, parties, message):
    with pytest.raises(ValueError, match=message):
        image_tiles(_images(*size), parties)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"shape \(N, H, W, C\), got \(2, 8, 8\)"):
        image_tiles(np.zeros((2, 8, 8)), 4)
    _, layout = image_tiles(_images(8, 8), 4)
    with pytest.raises(ValueError, match=r"tiles must have shape \(N, 4, 4, 4, C\), got \(2, 4, 3, 4, 3\)"):
        assemble_tiles(np.zeros((2, 4, 3, 4, 3)), layout)


def test_columns_are_contiguous_blocks():
    x = np.arange(12.0).reshape(2, 6)
    columns, layout = feature_columns(x, 3)
    np.testing.assert_array_equal(columns[0], [[0, 1], [2, 3], [4, 5]])
    assert layout == ((2, 2, 2), 2, "")


def test_unequal_columns_are_padded_and_noted():
    x = np.arange(1.0, 15.0).reshape(2, 7)
    columns, layout = feature_columns(x, 3)
    np.testing.assert_array_equal(columns[0], [[1, 2, 3], [4, 5, 0], [6, 7, 0]])
    assert layout.widths == (3, 2, 2)
    assert layout.note == "7 features over 3 parties: the slices of the last 2 zero-padded to 3"
    np.testing.assert_array_equal(assemble_columns(columns, layout), x)


def test_every_party_has_a_feature():
    # Blocks of ceil(5 / 4) = 2 would leave the fourth party nothing.
    x = np.ones((1, 5), np.float32)
    columns, layout = feature_columns(x, 4)
    assert (columns.sum(axis=2) > 0).all()
    np.testing.assert_array_equal(assemble_columns(columns, layout), x)
    np.testing.assert_array_equal(feature_columns(x, 5)[0], np.ones((1, 5, 1)))


def test_column_errors():
    with pytest.raises(ValueError, match="parties must be at most the number of features, 3, got 4"):
        feature_columns(np.zeros((2, 3)), 4)
    with pytest.raises(ValueError, match=r"shape \(N, F\), got \(2, 3, 1\)"):
        feature_columns(np.zeros((2, 3, 1)), 1)
    _, layout = feature_columns(np.zeros((2, 4)), 2)
    with pytest.raises(ValueError, match=r"columns must have shape \(N, 2, 2\), got \(2, 2, 3\)"):
        assemble_columns(np.zeros((2, 2, 3)), layout)
