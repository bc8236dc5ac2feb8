"""A worker is killed while a job runs at its fallback: the job goes on there, for its caller and on its ledger."""

from pathlib import Path

from tests.acceptance.processes import kill, pointsman, until
from tests.doubles import OpenAIDouble
from tools.kafka.broker import free_ports

PACE = "words-60+pace-50"  # three seconds


async def test_a_stream_goes_on_after_a_cut_and_a_kill(upstream: OpenAIDouble, tmp_path: Path) -> None:
    def at(model: str) -> dict[str, object]:
        return {"backend": "gpu", "url": f"{upstream.url}/v1", "model": model, "tier": "heavy"}

    ports = free_ports(3)
    settings = {
        "worker": {"lease_s": 2, "health_port": ports[1]},
        "sweeper": {"health_port": ports[2]},
        "deployments": {"first": {**at("cut-20+words-60"), "fallback": ["second"]}, "second": at(PACE)},
    }
    with pointsman(tmp_path, settings) as ours:
        up = await ours.up(ports[0]).ready()
        async with ours.refusals.async_sdk(up.url, ours.key, max_retries=0, timeout=60) as sdk:
            stream = await sdk.chat.completions.create(
                model="first", messages=[{"role": "user", "content": "Say it all"}], stream=True
            )
            words, models, job = "", [], ""
            async for chunk in stream:
                words, job = words + (chunk.choices[0].delta.content or ""), chunk.id
                models.append(chunk.model)
                if models[-1] == "second" and models.count("second") == 5:
                    [worker] = [pid for pid, command in ours.children(up).items() if "serve worker" in command]
                    kill(worker)
            receipt = (await sdk.get(f"/jobs/{job}", cast_to=dict[str, object]))["pointsman"]

        await until(lambda: upstream.calls().open == 0, "calls end", within=5)
    assert words == " ".join(f"w{number}" for number in range(60))
    assert list(dict.fromkeys(models)) == ["first", "second"]
    assert isinstance(receipt, dict)
    assert (receipt["deployment"], receipt["attempts"]) == ("second", 3)
    assert {line["attempt"]: line["outcome"] for line in receipt["charges"]} == {1: "failed", 2: "lost", 3: "completed"}
    assert [call["model"] for call in upstream.calls().calls] == ["cut-20+words-60", PACE, PACE]
