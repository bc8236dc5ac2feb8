// The official Node SDK against a running Pointsman: does everything once, and prints what it saw as one JSON object.

import http from "node:http";
import OpenAI, { toFile } from "openai";

const { BASE_URL: baseURL, API_KEY: apiKey, LIMITED_KEY: limitedKey, WEBHOOK_SECRET: webhookSecret } = process.env;
const refused = [];

async function noted(url, options) {
  const response = await fetch(url, options);
  if (response.status >= 400) {
    const asked = typeof options.body === "string" ? options.body : "";
    const key = new Headers(options.headers).get("authorization")?.replace("Bearer ", "") ?? "";
    refused.push({ asked, key, told: await response.clone().text() });
  }
  return response;
}

const client = new OpenAI({ baseURL, apiKey, webhookSecret, maxRetries: 0, timeout: 30_000, fetch: noted });
const say = (content) => [{ role: "user", content }];
const seen = {};

async function until(look) {
  for (const ends = Date.now() + 30_000; Date.now() < ends; await new Promise((go) => setTimeout(go, 50))) {
    const found = await look();
    if (found) return found;
  }
  throw new Error("it did not come about within 30 s");
}

async function thrown(call) {
  try {
    await call();
  } catch (error) {
    return { class: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

async function collected(stream) {
  const all = [];
  for await (const each of stream) all.push(each);
  return all;
}

async function chat() {
  const { data, response } = await client.chat.completions
    .create({ model: "auto", messages: say("Hello world") })
    .withResponse();
  const chunks = await collected(
    await client.chat.completions.create({ model: "light", messages: say("Hello world"), stream: true }),
  );
  const helper = client.chat.completions.stream({ model: "light", messages: say("Hello world") });
  const job = await client.chat.completions.create({ model: "heavy", messages: say("Hello world"), async: true });
  const done = await client.get(`/jobs/${job.id}?wait=20`);
  const completion = await client.chat.completions.retrieve(job.id);
  return {
    waited: data.choices[0].message.content,
    lane: response.headers.get("x-pointsman-lane"),
    streamed: chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? "").join(""),
    helped: await helper.finalContent(),
    left: [job.object, job.status],
    done: [done.status, done.pointsman.deployment],
    retrieved: completion.choices[0].message.content,
  };
}

async function responses() {
  const waited = await client.responses.create({ model: "light", input: "Hello world" });
  const events = await collected(await client.responses.create({ model: "light", input: "Hello world", stream: true }));
  const helper = await client.responses.stream({ model: "light", input: "Hello world" }).finalResponse();
  const made = await client.responses.create({ model: "light", input: "Hello world", background: true });
  const done = await until(async () => {
    const response = await client.responses.retrieve(made.id);
    return response.status === "completed" && response;
  });
  const again = await collected(await client.responses.retrieve(made.id, { stream: true, starting_after: 0 }));
  const follower = await client.responses.create({ model: "light", input: "And again", previous_response_id: made.id });
  const items = await collected(await client.responses.inputItems.list(follower.id));
  const long = await client.responses.create({ model: "light", input: "wait:20 Hello", background: true });
  const cancelled = await client.responses.cancel(long.id);
  await client.responses.delete(made.id);
  return {
    waited: waited.output_text,
    streamed: events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""),
    numbers: events.every((event, index) => event.sequence_number === index),
    last: events.at(-1).type,
    helped: helper.output_text,
    made: made.status,
    done: done.output_text,
    again: [again[0].sequence_number, again.at(-1).type],
    items: items.map((item) => item.role),
    cancelled: cancelled.status,
    deleted: await thrown(() => client.responses.retrieve(made.id)),
  };
}

const line = (id, content) =>
  JSON.stringify({
    custom_id: id,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model: "light", messages: say(content) },
  });

async function upload(lines) {
  return client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });
}

async function files() {
  const file = await upload([line("a", "Hello")]);
  const listed = await collected(await client.files.list({ purpose: "batch" }));
  const content = await (await client.files.content(file.id)).text();
  const retrieved = await client.files.retrieve(file.id);
  const deleted = await client.files.delete(file.id);
  return {
    listed: listed.some((each) => each.id === file.id),
    content: content === line("a", "Hello"),
    retrieved: [retrieved.filename, retrieved.bytes === content.length],
    deleted: deleted.deleted,
    gone: await thrown(() => client.files.retrieve(file.id)),
  };
}

async function batches() {
  const order = { endpoint: "/v1/chat/completions", completion_window: "24h" };
  const input = await upload([line("a", "Hello a"), line("b", "Hello b"), line("c", "fail:rejected")]);
  const made = await client.batches.create({ ...order, input_file_id: input.id, metadata: { team: "node" } });
  const done = await until(async () => {
    const batch = await client.batches.retrieve(made.id);
    return batch.status === "completed" && batch;
  });
  const output = (await (await client.files.content(done.output_file_id)).text()).trim().split("\n").map(JSON.parse);
  const errors = (await (await client.files.content(done.error_file_id)).text()).trim().split("\n").map(JSON.parse);
  const slow = await client.batches.create({ ...order, input_file_id: (await upload([line("x", "wait:20 x")])).id });
  await client.batches.cancel(slow.id);
  const cancelled = await until(async () => {
    const batch = await client.batches.retrieve(slow.id);
    return batch.status === "cancelled" && batch;
  });
  return {
    counts: done.request_counts,
    metadata: done.metadata,
    output: Object.fromEntries(output.map((row) => [row.custom_id, row.response.body.choices[0].message.content])),
    errors: errors.map((row) => row.custom_id),
    cancelled: cancelled.status,
    listed: (await collected(await client.batches.list({ limit: 1 }))).slice(0, 2).map((batch) => batch.id === slow.id),
  };
}

async function media() {
  const floats = await client.embeddings.create({ model: "light", input: ["one", "two"] }); // base64 on the wire
  const spelled = await client.embeddings.create({ model: "light", input: "one", encoding_format: "float" });
  const picture = await client.images.generate({ model: "light", prompt: "A cat", response_format: "b64_json" });
  const speech = await client.audio.speech.create({ model: "light", voice: "alloy", input: "Hello", response_format: "wav" });
  const sound = Buffer.from(await speech.arrayBuffer());
  const heard = await client.audio.transcriptions.create({ model: "light", file: await toFile(sound, "hello.wav") });
  const [a, b] = [floats.data[0].embedding, spelled.data[0].embedding];
  return {
    embeddings: floats.data.length,
    same: a.every((value, index) => Math.abs(value - b[index]) < 1e-6),
    picture: Buffer.from(picture.data[0].b64_json, "base64").subarray(1, 4).toString(),
    sound: sound.subarray(0, 4).toString(),
    heard: typeof heard.text,
  };
}

async function models() {
  const listed = await collected(await client.models.list());
  return { listed: listed.map((model) => model.id), one: (await client.models.retrieve("auto:light")).id };
}

async function errors() {
  const create = (body, options) => () => client.chat.completions.create({ model: "light", ...body }, options);
  const key = { headers: { "Idempotency-Key": `node-${Date.now()}` } };
  await create({ messages: say("one") }, key)();
  return {
    key: await thrown(() => new OpenAI({ baseURL, apiKey: "pm-nobody", maxRetries: 0, fetch: noted }).models.list()),
    model: await thrown(create({ model: "nobody", messages: say("Hello") })),
    value: await thrown(create({ messages: say("Hello"), temperature: 9 })),
    job: await thrown(() => client.chat.completions.retrieve("chatcmpl-01K00000000000000000000000")),
    reused: await thrown(create({ messages: say("two") }, key)),
    refused: await thrown(create({ messages: say("fail:rejected") })),
  };
}

async function retries() {
  const tries = [];
  const watched = async (url, options) => {
    const response = await noted(url, options);
    tries.push({ status: response.status, at: performance.now(), wait: response.headers.get("retry-after-ms") });
    return response;
  };
  const limited = new OpenAI({ baseURL, apiKey: limitedKey, maxRetries: 5, fetch: watched });
  const ask = () => limited.chat.completions.create({ model: "light", messages: say("Hello") });
  let answer, refused = -1;
  for (let asked = 0; asked < 10 && refused < 0; asked++) {  // where one takes two seconds, there is room for the next
    answer = await ask();
    refused = tries.findIndex((each) => each.status === 429);
  }
  return {
    answer: answer.choices[0].message.content,
    statuses: [...new Set(tries.map((each) => each.status))],
    waited: tries[refused + 1].at - tries[refused].at >= Number(tries[refused].wait) - 5,
  };
}

async function webhooks() {
  const deliveries = [];
  const receiver = http.createServer((request, response) => {
    let body = "";
    request.on("data", (piece) => (body += piece));
    request.on("end", () => {
      deliveries.push({ body, headers: request.headers });
      response.end();
    });
  });
  await new Promise((go) => receiver.listen(0, "127.0.0.1", go));
  try {
    const response = await client.responses.create({
      model: "light",
      input: "Hello",
      background: true,
      pointsman: { webhook_url: `http://127.0.0.1:${receiver.address().port}/hook` },
    });
    const { body, headers } = await until(() => deliveries[0]);
    const event = await client.webhooks.unwrap(body, headers);
    const forged = await thrown(() => client.webhooks.unwrap(`${body} `, headers));
    return { type: event.type, is_its: event.data.id === response.id, forged: forged.class };
  } finally {
    receiver.close();
  }
}

for (const part of [chat, responses, files, batches, media, models, errors, retries, webhooks]) {
  try {
    seen[part.name] = await part();
  } catch (error) {
    seen[part.name] = { failed: `${error.constructor.name}: ${error.message}`, at: error.stack.split("\n")[1]?.trim() };
  }
}
console.log(JSON.stringify({ ...seen, refused }));
