"""One call to the real Bedrock, where somebody asks for it: POINTSMAN_TEST_BEDROCK names a region and a model."""

import json
import os
from dataclasses import replace

import pytest

from consumers.aws.backend_bedrock import BedrockBackend
from consumers.backend import SoFar
from policies.deployments import Bedrock, Deployment, Tier
from policies.pricing import Basis
from tests.builders import a_job

ASKED = os.environ.get("POINTSMAN_TEST_BEDROCK", "")


@pytest.mark.skipif(not ASKED, reason="asks the real Bedrock: set POINTSMAN_TEST_BEDROCK=REGION/MODEL and credentials")
async def test_the_real_bedrock_answers_counts_and_names_its_tier() -> None:
    region, _, model = ASKED.partition("/")
    deployment = Deployment("live", "bedrock", model, Tier.LIGHT, max_output=16, bedrock=Bedrock(region=region))
    job = replace(a_job(), body=json.dumps({"messages": [{"role": "user", "content": "Say yes."}]}).encode())

    async with BedrockBackend.open({"live": deployment}) as backend:
        assert await backend.ping(deployment) is None
        answer = await backend.call(job, deployment, attempt=1, on_chunk=None, so_far=SoFar())

    assert json.loads(answer.body)["choices"][0]["message"]["content"]
    assert answer.usage.basis is Basis.METERED
    assert answer.usage.input > 0 and answer.usage.output > 0
