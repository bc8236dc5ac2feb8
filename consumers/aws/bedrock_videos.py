"""A client's request for a video as the input of a model of Bedrock: field by field, as each model has them. No I/O."""

import base64
import re
from collections.abc import Mapping
from types import MappingProxyType

from consumers.backend import BackendError
from consumers.gathered import Object
from consumers.upstream import OURS, parsed
from policies.deployments import Deployment
from policies.retries import Failure
from policies.videos import lengths, seconds
from router import images
from router.job import Job

REEL = "amazon.nova-reel-"
RAY = "luma.ray-"
FRAMES_PER_SECOND = 24
SHORT_PROMPT, LONG_PROMPT, RAY_PROMPT = 512, 4000, 5000  # characters
ONE_SHOT_S = 6
READ = frozenset({"model", "prompt", "seconds", "size", "store", "user", "input_reference"})
_IMAGE = re.compile(r"data:image/(png|jpeg);base64,")
_HEAD = images.HEAD // 3 * 4  # characters of base64
_RATIOS: Mapping[str, str] = MappingProxyType({"1280x720": "16:9", "720x1280": "9:16"})


def model_input(job: Job, deployment: Deployment) -> Object:
    """What the model is given. Raises `BackendError`."""
    asked = parsed(job.body)
    for name, value in asked.items():
        if name not in READ and name not in OURS and value is not None:
            raise _refused(name, f"{name[:100]} is not there with the models of Bedrock")
    prompt, model = str(asked.get("prompt")), deployment.model
    length = seconds(asked, model)
    if length not in lengths(model):
        known = ", ".join(map(str, lengths(model)))
        detail = f"seconds must be one of {known} with this model" if known else "this model makes no videos here"
        raise _refused("seconds", detail)
    size = asked.get("size") or "1280x720"
    reference = asked.get("input_reference")
    image = str(reference.get("image_url")) if isinstance(reference, dict) else ""
    if model.startswith(REEL):
        return _reel(prompt, length, str(size), image)
    if image:
        raise _refused("input_reference", "this model makes videos from a prompt only")
    return _ray(prompt, length, str(size))


def _reel(prompt: str, length: int, size: str, image: str) -> Object:
    """`image` is the first frame, as a data URL; '' for none."""
    if size != "1280x720":
        raise _refused("size", "size must be 1280x720 with this model")
    config: Object = {"durationSeconds": length, "fps": FRAMES_PER_SECOND, "dimension": size}
    if length == ONE_SHOT_S:
        text: Object = {"text": _fitting(prompt, SHORT_PROMPT)}
        if image:
            text["images"] = [_first_frame(image, size)]
        return {"taskType": "TEXT_VIDEO", "textToVideoParams": text, "videoGenerationConfig": config}
    if image:
        raise _refused("input_reference", f"with an image, seconds must be {ONE_SHOT_S} with this model")
    text = {"text": _fitting(prompt, LONG_PROMPT)}
    return {"taskType": "MULTI_SHOT_AUTOMATED", "multiShotAutomatedParams": text, "videoGenerationConfig": config}


def _first_frame(image: str, size: str) -> Object:
    head = _IMAGE.match(image)
    if head is None:
        raise _refused("input_reference", "the image must be a PNG or a JPEG with this model")
    start = head.end()
    try:
        found = images.size(base64.b64decode(image[start : start + _HEAD]))
    except ValueError:
        found = None
    if found is not None and "x".join(map(str, found)) != size:
        raise _refused("input_reference", f"the image must be as large as the video, {size}, with this model")
    return {"format": head[1], "source": {"bytes": image[start:]}}


def _ray(prompt: str, length: int, size: str) -> Object:
    """Its 540p has another price, and a deployment has one."""
    if size not in _RATIOS:
        raise _refused("size", f"size must be one of {', '.join(_RATIOS)} with this model")
    text = _fitting(prompt, RAY_PROMPT)
    return {"prompt": text, "aspect_ratio": _RATIOS[size], "duration": f"{length}s", "resolution": "720p"}


def _fitting(prompt: str, most: int) -> str:
    if len(prompt) > most:
        raise _refused("prompt", f"prompt must have at most {most} characters for a video of this length")
    return prompt


def _refused(param: str, detail: str) -> BackendError:
    return BackendError(Failure.REJECTED, detail, code="unsupported_parameter", param=param[:100])
