"""How a demonstration's reply is cut into the pieces that are tokenised alone."""

import pytest

from furrow_trainer.learn.demonstration import pieces

CLICK = (
    '{"note":"","thought":"go on","action":{"action":"click_element","element":"Add \\"it\\"","x":578,"y":6}}'
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (CLICK, ["", "go on", "click_element", 'Add \\"it\\"', "578", "6"]),
        ('{"action":{"action":"goto","url":"http://a.b/c"}}', ["goto", "http://", "a.b/c"]),
        ('{"action":{"action":"press","keys":["Enter"],"press_enter":true}}', ["press", "Enter", "true"]),
        ('{"note":"a: \\"b\\": 7","action":{"action":"wait","seconds":2}}', ['a: \\"b\\": 7', "wait", "2"]),
        ("Click [4]", ["Click [4]"]),
    ],
)
def test_a_reply_is_cut_at_the_borders_of_its_values(text: str, values: list[str]) -> None:
    found = pieces(text)
    assert "".join(piece for piece, _ in found) == text
    assert [piece for piece, is_value in found if is_value] == values
