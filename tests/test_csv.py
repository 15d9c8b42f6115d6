"""CSV tables: numeric columns, missing values, labels, and refused files."""

import numpy as np
import pytest

from jaxleak import data


def _written(tmp_path, text, name="t.csv"):
    (tmp_path / name).write_text(text)
    return f"csv:{tmp_path / name}"


LOANS = """id,age,branch,city,zip,default
a1,30,2,Bern,8000,yes
b2,,1,Basel,3000,no
c3,50.5,2,,3000,no
"""


def test_numbers_texts_and_missing_values_are_told_apart(tmp_path):
    table = data.load_table(_written(tmp_path, LOANS) + "?label=default&drop=id&categorical=branch,zip")
    np.testing.assert_array_equal(table.numeric, [[30], [np.nan], [50.5]])
    # Codes in the order of the columns (branch, city, zip) and of the texts; a missing city comes first.
    np.testing.assert_array_equal(table.categorical, [[1, 2, 1], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(table.y, [1, 0, 0])
    assert table.num_classes == 2


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_are_told_by_the_header(tmp_path, separator):
    text = "\ufeffa, b,label\n1,x y,0\n 2,z,1\n\n".replace(",", separator)
    dataset = data.load(_written(tmp_path, text) + "?label=label")
    order = np.argsort(dataset.y)
    np.testing.assert_array_equal(dataset.x[order], [[0, 1, 0], [1, 0, 1]])  # one number, and one column per category


def test_classes_are_in_the_order_of_numbers_where_all_are_numbers(tmp_path):
    rows = "".join(f"{number},{label}\n" for number, label in enumerate(["10", "9", "-1"]))
    assert data.load(_written(tmp_path, f"x,y\n{rows}") + "?label=y").classes == ("-1", "9", "10")
    large = "".join(f"{i},{label}\n" for i, label in enumerate(["1000001", "1000002", "0.5"] * 3))
    assert data.load(_written(tmp_path, f"x,y\n{large}") + "?label=y").classes == ("0.5", "1000001", "1000002")
    rows = "".join(f"{number},{label}\n" for number, label in enumerate(["10", "9", "b"]))
    assert data.load(_written(tmp_path, f"x,y\n{rows}") + "?label=y").classes == ("10", "9", "b")


def test_a_drawn_part_has_the_scale_of_the_whole(tmp_path):
    spec = _written(tmp_path, "x,y\n" + "".join(f"{number},{number % 2}\n" for number in range(11))) + "?label=y"
    np.testing.assert_allclose(np.sort(data.load(spec).x[:, 0]), np.linspace(0, 1, 11), atol=1e-6)
    np.testing.assert_array_equal(data.load(spec, 3, 5).x, data.load(spec, None, 5).x[:3])


MANY = "name,x,y\n" + "".join(f"n{number},{number},{number % 2}\n" for number in range(201))
DASHED = "c,y\n" + "".join(
    f"{'' if row == 3 else '-' if row in (18, 30) else row},{row % 2}\n" for row in range(1, 202)
)
NUMBERS = "x,y\n" + "".join(f"{number},{number}\n" for number in range(201))


@pytest.mark.parametrize(
    ("text", "query", "message"),
    [
        (LOANS, "", r"must name the column of the labels, as in csv:table\.csv\?label=income"),
        (LOANS, "?label=income", "has no column 'income'; it has id, age, branch, city, zip, default"),
        (LOANS, "?label=default&drop=name", "has no column 'name'"),
        (
            LOANS,
            "?label=default&scale=2",
            "must be label, categorical, drop, each as NAME=VALUE, got 'scale=2'",
        ),
        (LOANS, "?label=city", r"the label in row 3 of column 'city' is missing"),
        (LOANS + "d4,1,2\n", "?label=default", "row 4 has 3 values, and the header names 6 columns"),
        (
            MANY,
            "?label=y",
            r"column 'name' holds 201 different texts in 201 rows, .*leave the column out by &drop=name",
        ),
        (
            DASHED,
            "?label=y",
            "column 'c' must hold numbers alone, but row 18 holds '-', and 198 of 201 values are numbers: leave a "
            "missing value empty, or leave the column out by &drop=c",
        ),
        (NUMBERS, "?label=y", "column 'y' must hold a few classes, got 201 different values in 201 rows"),
        ("x,y\n1,0\n2,0\n", "?label=y", "must hold a few classes, got 1 different values"),
        ("x,x\n1,0\n", "?label=x", "a name of its own for every column, got x, x"),
        ("x,y\n", "?label=y", "has a header and no rows"),
        ("", "?label=y", "is empty"),
    ],
)
def test_what_is_refused(tmp_path, text, query, message):
    with pytest.raises(ValueError, match=message):
        data.load_table(_written(tmp_path, text) + query)


def test_a_missing_number_is_for_vertical_studies_alone(tmp_path):
    with pytest.raises(ValueError, match="a number is missing, which only vertical studies take"):
        data.load(_written(tmp_path, LOANS) + "?label=default")


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"x,y\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match="cannot be read as CSV in UTF-8"):
        data.load(f"csv:{tmp_path / 't.csv'}?label=y")
    with pytest.raises(FileNotFoundError, match=r"nosuch\.csv does not exist"):
        data.load("csv:nosuch.csv?label=y")


def test_commas_of_decimals_and_labels_that_are_the_same_number(tmp_path):
    table = data.load_table(_written(tmp_path, "x;y\n3,5;1\n-1,25;0\n7;1.0\n") + "?label=y")
    np.testing.assert_array_equal(table.numeric, [[3.5], [-1.25], [7]])
    np.testing.assert_array_equal(table.y, [1, 0, 1])
    codes = data.load_table(_written(tmp_path, "x,y\n1_2,1\n1_3,0\n") + "?label=y")
    assert codes.categorical.shape == (2, 1)


def test_whoever_reads_a_table_is_told_how_its_columns_were_read(tmp_path):
    path = tmp_path / "loans.csv"
    path.write_text(
        "paid,amount,job,rate\n" + "\n".join(f"{'Yes' if n % 3 else 'no'},{n},a{n % 2},{n}%" for n in range(12))
    )
    path.write_text(path.read_text().replace("\nYes,1,", "\nyes,?,"))
    table = data.load_table(f"csv:{path}?label=paid")
    assert table.about == (
        "12 rows; columns: 1 numeric (missing values: 1) and 2 categorical ('job', 'rate'); "
        "3 classes: 7 of 'Yes', 4 of 'no', 1 of 'yes'"
    )


def test_a_column_whose_values_all_differ_is_named_as_a_possible_id(tmp_path):
    rows = [f"{1000 + row},k{row},{row / 7},{row % 9},{row % 2}" for row in range(30)]
    spec = _written(tmp_path, "\n".join(["number,key,height,age,y", *rows])) + "?label=y"
    with pytest.warns(UserWarning, match="looks like an id") as caught:
        data.load_table(spec)
    said = [str(warning.message) for warning in caught]
    assert [text.split("column ")[1].split()[0] for text in said] == ["'number'", "'key'"]
    assert all("its 30 values all differ" in text for text in said)
    assert "leave it out by &drop=key " in said[1]
    data.load_table(spec + "&drop=number,key")  # pytest makes an error of a warning
    few = _written(tmp_path, "\n".join(["number,key,height,age,y", *rows[:19]])) + "?label=y"
    data.load_table(few)
    np.savez(tmp_path / "t.npz", x=np.stack([np.arange(30) % 7, np.arange(30)], axis=1), y=np.arange(30) % 2)
    with pytest.warns(UserWarning, match="t.npz: column 'numeric 1' looks like an id") as caught:
        data.load_table(f"npz:{tmp_path / 't.npz'}")
    assert len(caught) == 1
