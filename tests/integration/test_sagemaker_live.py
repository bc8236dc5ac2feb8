"""One call to a real endpoint, where somebody asks for it: POINTSMAN_TEST_SAGEMAKER names a region and an endpoint."""

import asyncio
import json
import os
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from ulid import ULID

from consumers.aws.backend_sagemaker import SageMakerBackend
from consumers.aws.sagemaker_reference import Reference
from consumers.backend import Answer, Pending, SoFar, Submitted
from policies.deployments import Deployment, SageMaker, Tier
from policies.scripts import Scripts
from tests.builders import a_job

ASKED = os.environ.get("POINTSMAN_TEST_SAGEMAKER", "")
WITHIN = timedelta(minutes=15)  # the first instance may have to come


@pytest.mark.timeout(WITHIN.total_seconds() + 60)
@pytest.mark.skipif(
    not ASKED, reason="asks a real endpoint that speaks OpenAI's chat: set POINTSMAN_TEST_SAGEMAKER=REGION/ENDPOINT"
)
async def test_a_real_endpoint_answers_where_its_name_says_that_it_would(scripts: Scripts) -> None:
    region, _, name = ASKED.partition("/")
    place = SageMaker(region=region, queue=os.environ.get("POINTSMAN_TEST_SAGEMAKER_QUEUE", ""))
    deployment = Deployment("live", "sagemaker", name, Tier.LIGHT, max_output=16, sagemaker=place)
    body = json.dumps({"messages": [{"role": "user", "content": "Say yes."}]}).encode()
    now = time.time()
    job = replace(a_job(), id=str(ULID()), body=body, created_at=now, expires_at=now + WITHIN.total_seconds())

    async with SageMakerBackend.open({"live": deployment}, ["acme"], scripts) as backend:
        assert await backend.ping(deployment) is None
        foreseen = await backend.recover(job, deployment, attempt=1, reference=None)
        taken = await backend.call(job, deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted) and foreseen is not None
        planned, known = Reference.parse(foreseen.reference), Reference.parse(taken.reference)
        assert known.is_sure
        assert any(known.output_at.startswith(at) for at in planned.readings(planned.output_at)), known.output_at
        async with asyncio.timeout(WITHIN.total_seconds()):
            got: Answer | Pending = Pending(0.0)
            while isinstance(got, Pending):
                await asyncio.sleep(got.check_in_s)
                got = await backend.collect(job, deployment, taken.reference, attempt=1)

    assert json.loads(got.body)["choices"][0]["message"]["content"]
    assert got.usage.output > 0
