"""What each error of Bedrock's leads to: by its code, and by its words where one code stands for several things."""

import pytest
from botocore.session import Session

from consumers.aws.bedrock_errors import BY_CODE, Pressure, meaning, waiting
from policies.retries import MAY_HAVE_RUN, Failure

# Code, status, failure, pressure on the limiter, tries, whether the deployment stands still.
TABLE = [
    ("ThrottlingException", 429, Failure.THROTTLED, Pressure.MUCH, None, False),
    ("ModelNotReadyException", 429, Failure.UNAVAILABLE, Pressure.NONE, None, False),
    ("ServiceUnavailableException", 503, Failure.UNAVAILABLE, Pressure.SOME, None, False),
    ("InternalServerException", 500, Failure.BACKEND_ERROR, Pressure.NONE, None, False),
    ("ModelTimeoutException", 408, Failure.TIMED_OUT, Pressure.NONE, 2, False),
    ("ModelErrorException", 424, Failure.BACKEND_ERROR, Pressure.NONE, 2, False),
    ("ModelStreamErrorException", 424, Failure.CUT, Pressure.NONE, 2, False),
    ("ServiceQuotaExceededException", 400, Failure.THROTTLED, Pressure.NONE, None, True),
    ("ValidationException", 400, Failure.REJECTED, Pressure.NONE, None, False),
    ("ConflictException", 400, Failure.REJECTED, Pressure.NONE, None, False),
    ("AccessDeniedException", 403, Failure.MISCONFIGURED, Pressure.NONE, None, True),
    ("ResourceNotFoundException", 404, Failure.MISCONFIGURED, Pressure.NONE, None, True),
]


@pytest.mark.parametrize(("code", "status", "failure", "pressure", "tries", "stands_still"), TABLE)
def test_every_error_has_its_meaning(
    code: str, status: int, failure: Failure, pressure: Pressure, tries: int | None, stands_still: bool
) -> None:
    found = meaning(code, status, "words")

    assert (found.failure, found.pressure, found.tries) == (failure, pressure, tries)
    assert (found.pause_s is not None) is stands_still


def test_every_error_that_botocore_knows_of_bedrock_is_in_the_table() -> None:
    service = Session().get_service_model("bedrock-runtime")
    operations = ("Converse", "ConverseStream", "InvokeModel", "StartAsyncInvoke")
    known = {shape.name for name in operations for shape in service.operation_model(name).error_shapes}
    known |= {"ModelStreamErrorException"}  # only in a stream

    assert known <= BY_CODE.keys()


@pytest.mark.parametrize(
    ("code", "message", "failure"),
    [
        ("ThrottlingException", "Too many tokens, please wait before trying again.", Failure.THROTTLED),
        ("ValidationException", "Too many tokens, please wait before trying again.", Failure.THROTTLED),
        ("ValidationException", "Input is too long for requested model.", Failure.TOO_LONG),
        ("ValidationException", "Output blocked by content filtering policy", Failure.FILTERED),
        ("ValidationException", "The model returned the following errors: bad format", Failure.REJECTED),
    ],
)
def test_words_tell_apart_what_has_one_code(code: str, message: str, failure: Failure) -> None:
    assert meaning(code, 400, message).failure is failure


def test_a_used_up_day_stands_still_and_a_used_up_minute_does_not() -> None:
    assert meaning("ThrottlingException", 429, "Too many tokens per day, please wait.").pause_s is not None
    assert meaning("ThrottlingException", 429, "Too many tokens, please wait.").pause_s is None


@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, Failure.REJECTED), (403, Failure.MISCONFIGURED), (429, Failure.THROTTLED), (502, Failure.BACKEND_ERROR)],
)
def test_an_error_without_a_known_code_is_read_by_its_status(status: int, failure: Failure) -> None:
    assert meaning("", status, "").failure is failure
    assert meaning("SomethingNewException", status, "").failure is failure


def test_only_what_may_have_run_may_have_been_billed() -> None:
    billed = {code for code, found in BY_CODE.items() if found.failure in MAY_HAVE_RUN}

    assert billed == {
        "InternalServerException",
        "ModelTimeoutException",
        "ModelErrorException",
        "ModelStreamErrorException",
    }


def test_what_the_service_wants_us_to_wait_is_not_undercut() -> None:
    not_ready = meaning("ModelNotReadyException", 429, "")

    assert waiting(not_ready, 60.0).retry_after == 60.0
    assert waiting(not_ready, 1.0).retry_after == not_ready.retry_after
    assert waiting(not_ready, None) is not_ready
