// Questions to the server. What goes wrong is told in the server's own sentence.

import { $ } from "./dom.js";

const PATIENCE = 6; // tries, while the server is busy

export class Problem extends Error {}

export async function ask(path, body) {
  const options = body === undefined ? {}
    : body instanceof Blob ? { method: "POST", body, headers: { "content-type": "application/octet-stream" } }
    : { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(`api/${path}`, options);
    } catch {
      throw new Problem("The server does not answer. Is ibinn explore still running?");
    }
    if (response.ok) return response.json();
    if (response.status === 503 && attempt < PATIENCE) {
      await new Promise((done) => setTimeout(done, 150 * 2 ** attempt * (0.5 + Math.random())));
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    throw new Problem(sentence(answer.detail ?? `The server answered with ${response.status}.`));
  }
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;
}

// Till something else is done.
export function tell(problem) {
  if (!(problem instanceof Problem)) throw problem;
  $("message").textContent = problem.message;
  $("message").hidden = false;
}

export function hush() {
  $("message").hidden = true;
}

const working = new Map(); // element -> pieces of work that fill it

// Work whose problems are told, with its place dimmed meanwhile.
export async function during(element, work) {
  working.set(element, (working.get(element) ?? 0) + 1);
  element.classList.add("busy");
  try {
    return await work();
  } catch (problem) {
    tell(problem);
    return undefined;
  } finally {
    working.set(element, working.get(element) - 1);
    element.classList.toggle("busy", working.get(element) > 0);
  }
}
