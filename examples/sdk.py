"""The official OpenAI SDK makes a job of a call. Wants OPENAI_BASE_URL and OPENAI_API_KEY in the environment."""

from typing import Any, cast

from openai import OpenAI

client = OpenAI()  # OPENAI_BASE_URL=http://127.0.0.1:4000/v1
question = "Explain in two sentences why the sky is blue."
job = client.chat.completions.create(
    model="auto", messages=[{"role": "user", "content": question}], extra_body={"async": True}
)
receipt = cast(dict[str, Any], client.get(f"/jobs/{job.id}?wait=30", cast_to=object))
print(receipt["status"], receipt["pointsman"])
print(client.chat.completions.retrieve(job.id).choices[0].message.content)
