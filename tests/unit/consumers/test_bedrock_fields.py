"""Every field that Bedrock's own model has where we send and read is sent, read, or left out on purpose."""

from botocore.model import StringShape
from botocore.session import Session

from consumers.aws.bedrock_events import _COUNTS, MALFORMED
from consumers.aws.bedrock_records import _FINISH
from gateway.settings_bedrock import BedrockSettings

RUNTIME = Session().get_service_model("bedrock-runtime")
BATCHES = Session().get_service_model("bedrock")


def members(shape: str) -> set[str]:
    return set(RUNTIME.shape_for(shape).members)


def values(shape: str) -> set[str]:
    found = RUNTIME.shape_for(shape)
    assert isinstance(found, StringShape)
    return set(found.enum)


def test_every_member_of_a_request_is_sent_or_left_out_on_purpose() -> None:
    sent = {
        "modelId",
        "messages",
        "system",
        "inferenceConfig",
        "toolConfig",
        "guardrailConfig",
        "additionalModelRequestFields",  # thinking, by litellm
        "requestMetadata",
        "performanceConfig",
        "serviceTier",
        "outputConfig",
    }
    # Prompts and projects that AWS keeps; fields of one model's own.
    not_sent = {"promptVariables", "projectIdentifier", "additionalModelResponseFieldPaths"}

    assert members("ConverseStreamRequest") == sent | not_sent


def test_every_way_to_sample_is_one_of_openais() -> None:
    assert members("InferenceConfiguration") == {"maxTokens", "temperature", "topP", "stopSequences"}


def test_every_stop_reason_is_one_of_openais_or_a_failure() -> None:
    assert values("StopReason") == _FINISH.keys() | MALFORMED | {"tool_use"}


def test_every_count_of_usage_is_read() -> None:
    assert members("TokenUsage") == {*_COUNTS, "totalTokens", "cacheDetails"}


def test_every_event_of_a_stream_is_text_usage_or_an_error() -> None:
    of_words = {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop"}
    errors = {name for name in members("ConverseStreamOutput") if name.endswith("Exception")}

    assert members("ConverseStreamOutput") == of_words | {"messageStop", "metadata"} | errors
    assert members("ConverseStreamMetadataEvent") >= {"usage", "serviceTier", "metrics", "performanceConfig"}


def test_every_tier_and_latency_can_be_set() -> None:
    fields = BedrockSettings.model_json_schema()["properties"]

    assert set(fields["service_tier"]["anyOf"][0]["enum"]) == values("ServiceTierType")
    assert set(fields["latency"]["anyOf"][0]["enum"]) == values("PerformanceConfigLatency")


def test_a_batch_job_and_a_video_are_asked_for_with_members_that_there_are() -> None:
    batch = BATCHES.operation_model("CreateModelInvocationJob").input_shape
    video = RUNTIME.operation_model("StartAsyncInvoke").input_shape

    assert batch is not None and video is not None
    assert {"jobName", "clientRequestToken", "roleArn", "modelId", "modelInvocationType"} <= set(batch.members)
    assert set(video.members) == {"clientRequestToken", "modelId", "modelInput", "outputDataConfig", "tags"}
