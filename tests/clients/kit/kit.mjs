// What the Node clients' scripts share. A script is run as `node cases.mjs CASE BASE_URL`.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const QUESTIONS = JSON.parse(readFileSync(new URL("./questions.json", import.meta.url), "utf8"));

/** Milliseconds until the bridge has seen that a caller left. */
const WITHIN = 10_000;

/** Run the case the command line names, and print as JSON what it saw. */
export async function run(cases) {
  const [name, baseURL] = process.argv.slice(2);
  console.log(JSON.stringify(await cases[name](baseURL)));
}

/** Wait until so many requests run or wait at the bridge. */
export async function untilQueue(baseURL, length) {
  for (const deadline = Date.now() + WITHIN; ; await sleep(50)) {
    const { queue } = await (await fetch(baseURL.replace(/\/v1$/, "/health"))).json();
    if (queue === length) return queue;
    if (Date.now() > deadline) throw new Error(`${queue} requests at the bridge, not ${length}`);
  }
}
