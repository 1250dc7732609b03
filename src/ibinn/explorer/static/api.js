// Requests to the server. A problem is shown in the server's own sentence.

import { $ } from "./dom.js";

const MAX_TRIES = 6; // while the server is busy

export class Problem extends Error {}

export async function request(path, body) {
  const options = body === undefined ? {}
    : body instanceof Blob ? { method: "POST", body, headers: { "content-type": "application/octet-stream" } }
    : { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(`api/${path}`, options);
    } catch {
      throw new Problem("The server does not respond. Is ibinn explore still running?");
    }
    if (response.ok) return response.json();
    if (response.status === 503 && attempt < MAX_TRIES) {
      await new Promise((done) => setTimeout(done, 150 * 2 ** attempt * (0.5 + Math.random())));
      continue;
    }
    const reply = await response.json().catch(() => ({}));
    throw new Problem(sentence(reply.detail ?? `The server responded with ${response.status}.`));
  }
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;
}

// Until the next action.
export function showProblem(problem) {
  if (!(problem instanceof Problem)) throw problem;
  $("message").textContent = problem.message;
  $("message").hidden = false;
}

export function hideProblem() {
  $("message").hidden = true;
}

const working = new Map(); // element -> number of requests that fill it

// Runs work with the element dimmed, and shows its problems.
export async function whileBusy(element, work) {
  working.set(element, (working.get(element) ?? 0) + 1);
  element.classList.add("busy");
  try {
    return await work();
  } catch (problem) {
    showProblem(problem);
    return undefined;
  } finally {
    working.set(element, working.get(element) - 1);
    element.classList.toggle("busy", working.get(element) > 0);
  }
}
