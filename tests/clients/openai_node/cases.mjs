// The official Node SDK: plain streams, the `.stream`, `.parse` and `.runTools` helpers, `.withResponse`.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { QUESTIONS, run, untilQueue } from "../kit/kit.mjs";

const { count, weather, person, agent: both, note, two_calls: twoCalls } = QUESTIONS;
const Person = z.object({ name: z.string(), age: z.number().int() });
const tool = (each) => ({ type: "function", function: each });
// Tokens of an answer, so that a model that errs comes to an end.
const MOST = 400;

const clientOf = (baseURL) => new OpenAI({ baseURL, apiKey: "pooled" });
const asking = (content, members) => ({
  model: "pooled",
  messages: [{ role: "user", content }],
  temperature: 0,
  max_completion_tokens: MOST,
  ...members,
});

async function collect(stream, take) {
  const found = [];
  for await (const each of stream) found.push(take(each));
  return found;
}

async function stream(baseURL) {
  const client = clientOf(baseURL);
  const options = { stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await client.chat.completions.create(asking(count.ask, options)), (each) => each);
  const pieces = chunks.map((chunk) => chunk.choices[0]?.delta.content).filter(Boolean);
  assert.ok(pieces.length > 1);
  assert.equal(pieces.join(""), count.answer);
  const usage = chunks.at(-1).usage;
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  const helper = client.chat.completions.stream(asking(count.ask));
  const deltas = [];
  helper.on("content", (delta) => deltas.push(delta));
  const final = await helper.finalChatCompletion();
  assert.equal(deltas.join(""), count.answer);
  assert.equal(final.choices[0].message.content, count.answer);
  assert.equal(final.choices[0].finish_reason, "stop");
  return { pieces: pieces.length, usage };
}

async function whole(baseURL) {
  const client = clientOf(baseURL);
  const asked = client.chat.completions.create(asking(count.ask));
  const { data, response, request_id: request } = await asked.withResponse();
  assert.equal(data.choices[0].message.content, count.answer);
  assert.equal(data.choices[0].finish_reason, "stop");
  assert.equal(response.status, 200);
  assert.ok(request);
  const [model] = await collect(client.models.list(), (each) => each.id);
  assert.equal(model, data.model);
  assert.equal((await client.models.retrieve(model)).id, model);
  return { model, request };
}

async function tools(baseURL) {
  const client = clientOf(baseURL);
  const asked = asking(weather.ask, { tools: [tool(weather.tool)] });
  const first = (await client.chat.completions.create(asked)).choices[0];
  assert.equal(first.finish_reason, "tool_calls");
  const [call] = first.message.tool_calls;
  assert.equal(call.function.name, weather.tool.name);
  assert.deepEqual(JSON.parse(call.function.arguments), weather.arguments);
  asked.messages.push(first.message, { role: "tool", tool_call_id: call.id, content: weather.result });
  const last = (await client.chat.completions.create(asked)).choices[0];
  assert.ok(last.message.content.includes(weather.result));
  const given = [];
  for (const streamed of [false, true]) {
    const get = (found) => (given.push(found), weather.result);
    const runner = client.chat.completions.runTools(
      asking(weather.ask, {
        stream: streamed,
        tools: [tool({ ...weather.tool, function: get, parse: JSON.parse })],
      }),
    );
    assert.equal(await runner.finalContent(), last.message.content);
  }
  assert.deepEqual(given, [weather.arguments, weather.arguments]);
  return { call: call.function, answer: last.message.content };
}

async function agent(baseURL) {
  const client = clientOf(baseURL);
  const results = { [weather.tool.name]: weather.result, [note.name]: both.noted };
  const asked = asking(both.ask, { reasoning_effort: "low", tools: [weather.tool, note].map(tool) });
  const given = [];
  let choice;
  while ((choice = (await client.chat.completions.create(asked)).choices[0]).finish_reason === "tool_calls") {
    assert.ok(choice.message.reasoning_content);
    asked.messages.push(choice.message);
    for (const { id, function: called } of choice.message.tool_calls) {
      given.push({ name: called.name, arguments: JSON.parse(called.arguments) });
      asked.messages.push({ role: "tool", tool_call_id: id, content: results[called.name] });
    }
  }
  assert.deepEqual(given, [
    { name: weather.tool.name, arguments: weather.arguments },
    { name: note.name, arguments: both.note },
  ]);
  assert.equal(choice.message.content, both.answer);
  const run = [];
  const runnable = (each) =>
    tool({ ...each, parse: JSON.parse, function: (found) => (run.push({ name: each.name, arguments: found }), results[each.name]) });
  const runner = client.chat.completions.runTools(asking(both.ask, { tools: [weather.tool, note].map(runnable) }));
  assert.equal(await runner.finalContent(), both.answer);
  assert.deepEqual(run, given);
  return { given };
}

async function structured(baseURL) {
  const client = clientOf(baseURL);
  const asked = asking(person.ask, { response_format: zodResponseFormat(Person, "person") });
  const parsed = await client.chat.completions.parse(asked);
  assert.deepEqual(parsed.choices[0].message.parsed, person.answer);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, person.answer);
  return { parsed: person.answer };
}

async function thinking(baseURL) {
  const client = clientOf(baseURL);
  const asked = asking(count.ask, { reasoning_effort: "low" });
  const { choices, usage } = await client.chat.completions.create(asked);
  const { reasoning_content: reasoning, content } = choices[0].message;
  assert.ok(reasoning);
  assert.equal(content, count.answer);
  assert.ok(!(reasoning + content).includes("think>"));
  assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
  const chunks = await client.chat.completions.create({ ...asked, stream: true });
  const deltas = await collect(chunks, (chunk) => chunk.choices[0].delta);
  assert.equal(deltas.map((delta) => delta.reasoning_content ?? "").join(""), reasoning);
  assert.equal(deltas.map((delta) => delta.content ?? "").join(""), content);
  asked.messages.push(choices[0].message, { role: "user", content: count.ask });
  assert.ok((await client.chat.completions.create(asked)).choices[0].message.content);
  return { reasoning };
}

async function calls(baseURL) {
  const client = clientOf(baseURL);
  const asked = asking("Do both.", { tools: [weather.tool, note].map(tool) });
  const whole = await client.chat.completions.create(asked);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  for (const { choices } of [whole, streamed]) {
    const { message, finish_reason: finish } = choices[0];
    const found = message.tool_calls.map((call) => ({
      name: call.function.name,
      arguments: JSON.parse(call.function.arguments),
    }));
    assert.deepEqual(found, twoCalls.calls);
    assert.equal(message.content, twoCalls.text);
    assert.equal(finish, "tool_calls");
  }
  return { calls: twoCalls.calls };
}

async function cancelled(baseURL) {
  const client = clientOf(baseURL);
  for (const leave of ["abort", "break", "signal"]) {
    const controller = new AbortController();
    const options = leave === "signal" ? { signal: controller.signal } : {};
    const chunks = await client.chat.completions.create(asking("hi", { stream: true }), options);
    let left = false;
    for await (const _ of chunks) {
      if (left) continue; // what had come before
      left = true;
      await untilQueue(baseURL, 1);
      if (leave === "break") break;
      (leave === "abort" ? chunks.controller : controller).abort();
    }
    await untilQueue(baseURL, 0);
  }
  return { queue: 0 };
}

async function broken(baseURL) {
  const pieces = [];
  const wanted = QUESTIONS.broken;
  const chunks = await clientOf(baseURL).chat.completions.create(asking("hi", { stream: true }));
  const error = await rejection(
    collect(chunks, (chunk) => pieces.push(chunk.choices[0].delta.content ?? "")),
    OpenAI.APIError,
  );
  assert.equal(pieces.join(""), wanted.text);
  assert.equal(error.code, wanted.code);
  assert.ok(error.message.includes(wanted.message), error.message);
  return { error: error.message };
}

async function full(baseURL) {
  const asked = clientOf(baseURL).chat.completions.create(asking("hi", { stream: true }));
  const error = await rejection(asked, OpenAI.RateLimitError);
  assert.equal(error.code, QUESTIONS.full.code);
  return { error: error.message };
}

async function rejection(promise, kind) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof kind, error);
    return error;
  }
  throw new Error("it went well");
}

await run({ stream, whole, tools, agent, structured, thinking, calls, cancelled, broken, full });
