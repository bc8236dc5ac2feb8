"""A form travels as bytes that are the same whenever its fields and its file are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.forms import Form, NotAFormError, boundary_of, content_type

NAMES = st.text(st.characters(exclude_characters='"\r\n', codec="utf-8"), min_size=1, max_size=20)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=50)
FORMS = st.builds(Form, st.lists(st.tuples(NAMES, TEXTS), max_size=5).map(tuple), NAMES, st.binary(max_size=500))


@given(FORMS)
def test_a_form_comes_back_as_it_was(form: Form) -> None:
    body = form.to_bytes()

    assert Form.from_bytes(body) == form
    assert Form.from_bytes(body).to_bytes() == body
    assert content_type(body).endswith(boundary_of(body).decode())


def test_another_file_has_another_boundary() -> None:
    one, other = (Form((("model", "m"),), "a.wav", data).to_bytes() for data in (b"1", b"2"))

    assert boundary_of(one) != boundary_of(other)


@given(st.binary(max_size=100))
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(NotAFormError):
        Form.from_bytes(body)


@given(FORMS, st.data())
def test_a_form_that_was_cut_is_refused(form: Form, data: st.DataObject) -> None:
    body = form.to_bytes()

    with pytest.raises(NotAFormError):
        Form.from_bytes(body[: data.draw(st.integers(0, len(body) - 3))])
