from typing import Any

import pytest

from holdfast.agents.value import to_json
from holdfast.errors import NotEncodable


@pytest.mark.parametrize("key", [(1, 2), None, True, frozenset({1})], ids=repr)
def test_a_dict_whose_keys_json_has_no_word_for_is_refused_in_a_sentence(key: Any) -> None:
    with pytest.raises(NotEncodable, match="is a key of a dict"):
        to_json({"rows": [{key: 3}]})


def test_numbers_are_keys_as_texts() -> None:
    assert to_json({1: "a", 2.5: "b"}) == '{"1":"a","2.5":"b"}'
