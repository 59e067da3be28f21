// The AI SDK through its provider for servers that speak as OpenAI does.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, RetryError, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { QUESTIONS, run, untilQueue } from "../kit/kit.mjs";

const { count, weather, person, agent: both, note, two_calls: twoCalls } = QUESTIONS;
const Person = z.object({ name: z.string(), age: z.number().int() });
// Tokens of an answer, so that a model that errs comes to an end.
const MOST = 400;

const modelOf = (baseURL) =>
  createOpenAICompatible({
    name: "pooled",
    baseURL,
    apiKey: "pooled",
    includeUsage: true,
    supportsStructuredOutputs: true,
  })("pooled");

const asking = (baseURL, prompt, members) => ({
  model: modelOf(baseURL),
  prompt,
  temperature: 0,
  maxOutputTokens: MOST,
  ...members,
});

/** All parts of a stream. Its errors are parts too; without onError the SDK also prints them. */
async function parts(options) {
  const found = [];
  for await (const part of streamText({ onError() {}, ...options }).fullStream) found.push(part);
  return found;
}

const joined = (found, type) => found.filter((part) => part.type === type).map((part) => part.text).join("");

async function stream(baseURL) {
  const found = await parts(asking(baseURL, count.ask));
  assert.ok(found.filter((part) => part.type === "text-delta").length > 1);
  assert.equal(joined(found, "text-delta"), count.answer);
  const { finishReason, totalUsage } = found.at(-1);
  assert.equal(finishReason, "stop");
  assert.ok(totalUsage.outputTokens > 0);
  return { parts: found.length, usage: totalUsage };
}

async function whole(baseURL) {
  const { text, finishReason, response, usage } = await generateText(asking(baseURL, count.ask));
  assert.equal(text, count.answer);
  assert.equal(finishReason, "stop");
  assert.ok(response.modelId.startsWith("pooled/"));
  return { model: response.modelId, usage };
}

async function tools(baseURL) {
  const given = [];
  const getWeather = tool({
    description: weather.tool.description,
    inputSchema: z.object({ city: z.string() }),
    execute: (input) => (given.push(input), weather.result),
  });
  const options = asking(baseURL, weather.ask, {
    tools: { [weather.tool.name]: getWeather },
    stopWhen: stepCountIs(3),
  });
  const { text, steps } = await generateText(options);
  assert.ok(text.includes(weather.result), text);
  assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
  const found = await parts(options);
  assert.equal(joined(found, "text-delta"), text);
  assert.deepEqual(given, [weather.arguments, weather.arguments]);
  return { given, text };
}

async function agent(baseURL) {
  const options = asking(baseURL, both.ask, {
    tools: {
      [weather.tool.name]: tool({
        description: weather.tool.description,
        inputSchema: z.object({ city: z.string() }),
        execute: () => weather.result,
      }),
      [note.name]: tool({
        description: note.description,
        inputSchema: z.object({ text: z.string() }),
        execute: () => both.noted,
      }),
    },
    stopWhen: stepCountIs(3),
    providerOptions: { pooled: { reasoningEffort: "low" } },
  });
  const { text, steps } = await generateText(options);
  assert.deepEqual(steps[0].toolCalls.map((call) => call.input), [weather.arguments, both.note]);
  assert.ok(steps[0].reasoningText);
  assert.equal(text, both.answer);
  assert.equal(joined(await parts(options), "text-delta"), text);
  return { text };
}

async function structured(baseURL) {
  const options = asking(baseURL, person.ask, { schema: Person });
  assert.deepEqual((await generateObject(options)).object, person.answer);
  const { partialObjectStream, object } = streamObject(options);
  let partial;
  for await (partial of partialObjectStream);
  assert.deepEqual(partial, person.answer);
  assert.deepEqual(await object, person.answer);
  return { object: partial };
}

async function thinking(baseURL) {
  const options = asking(baseURL, count.ask, { providerOptions: { pooled: { reasoningEffort: "low" } } });
  const { text, reasoningText, usage } = await generateText(options);
  assert.equal(text, count.answer);
  assert.ok(reasoningText);
  const found = await parts(options);
  assert.equal(joined(found, "reasoning-delta"), reasoningText);
  assert.equal(joined(found, "text-delta"), text);
  return { reasoning: reasoningText, usage };
}

async function calls(baseURL) {
  const options = asking(baseURL, "Do both.", {
    tools: {
      [weather.tool.name]: tool({ description: weather.tool.description, inputSchema: z.object({ city: z.string() }) }),
      [note.name]: tool({ description: note.description, inputSchema: z.object({ text: z.string() }) }),
    },
  });
  const whole = await generateText(options);
  const found = await parts(options);
  for (const each of [whole.toolCalls, found.filter((part) => part.type === "tool-call")]) {
    assert.deepEqual(each.map((call) => ({ name: call.toolName, arguments: call.input })), twoCalls.calls);
  }
  assert.equal(whole.text, twoCalls.text);
  assert.equal(joined(found, "text-delta"), twoCalls.text);
  assert.equal(found.at(-1).finishReason, "tool-calls");
  return { calls: twoCalls.calls };
}

async function cancelled(baseURL) {
  const controller = new AbortController();
  const { fullStream } = streamText({ ...asking(baseURL, "hi"), abortSignal: controller.signal, onError() {} });
  let aborted = false;
  for await (const part of fullStream) {
    aborted ||= part.type === "abort";
    if (part.type !== "text-delta" || controller.signal.aborted) continue;
    await untilQueue(baseURL, 1);
    controller.abort();
  }
  assert.ok(aborted);
  await untilQueue(baseURL, 0);
  return { queue: 0 };
}

async function broken(baseURL) {
  const found = await parts(asking(baseURL, "hi"));
  assert.equal(joined(found, "text-delta"), QUESTIONS.broken.text);
  const { error } = found.find((part) => part.type === "error");
  const message = error.message ?? String(error);
  assert.ok(message.includes(QUESTIONS.broken.message), message);
  return { error: message };
}

async function full(baseURL) {
  try {
    await generateText(asking(baseURL, "hi"));
  } catch (error) {
    assert.ok(RetryError.isInstance(error), error);
    assert.equal(error.lastError.statusCode, 429);
    assert.equal(error.lastError.data.error.code, QUESTIONS.full.code);
    return { error: error.message, attempts: error.errors.length };
  }
  throw new Error("let in");
}

await run({ stream, whole, tools, agent, structured, thinking, calls, cancelled, broken, full });
